"""Call ids are safe in every dialect, and an upstream gets its own back."""

import re

from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation import call_ids

SAFE = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@given(st.text(min_size=1, max_size=80))
def test_any_id_becomes_portable_and_short_ones_come_back(foreign: str) -> None:
    """field: B10"""
    portable = call_ids.portable_id(foreign)
    assert SAFE.fullmatch(portable)
    if len(foreign.encode("utf-8", "replace")) <= 30 and foreign.isprintable():
        assert call_ids.original_id(portable) == foreign


def test_an_id_that_restarts_every_turn_is_unique_over_the_conversation() -> None:
    """field: B6, F15; quirk: kimi_ids"""
    first, second = call_ids.portable_id("functions.search:0"), call_ids.portable_id("functions.search:0")
    assert first != second
    assert call_ids.original_id(first) == call_ids.original_id(second) == "functions.search:0"


def test_good_ids_stay_as_they_are() -> None:
    for good in ("call_" + "x" * 24, "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-0123456789abcdef"):
        assert call_ids.portable_id(good) == good == call_ids.original_id(good)


def test_an_id_can_be_fitted_to_the_strictest_upstream() -> None:
    pattern = "[a-zA-Z0-9]{9}"
    assert call_ids.fit_id("abcdefgh1", pattern) == "abcdefgh1"
    assert re.fullmatch(pattern, call_ids.fit_id("call_" + "x" * 24, pattern))
    assert call_ids.fit_id("one", pattern) == call_ids.fit_id("one", pattern) != call_ids.fit_id("two", pattern)


def test_new_ids_look_like_openais() -> None:
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", call_ids.new_call_id())
