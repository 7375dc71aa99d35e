"""Call ids are safe in every dialect, and an upstream gets its own back."""

import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation import ids

SAFE = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@given(st.text(min_size=1, max_size=80))
def test_any_id_becomes_portable_and_short_ones_come_back(foreign: str) -> None:
    """field: B10"""
    portable = ids.portable_id(foreign)
    assert SAFE.fullmatch(portable)
    if len(foreign.encode("utf-8", "replace")) <= 30 and foreign.isprintable():
        assert ids.original_id(portable) == foreign


def test_an_id_that_restarts_every_turn_is_unique_over_the_conversation() -> None:
    """field: B6, F15; quirk: kimi_ids"""
    first, second = ids.portable_id("functions.search:0"), ids.portable_id("functions.search:0")
    assert first != second
    assert ids.original_id(first) == ids.original_id(second) == "functions.search:0"


def test_good_ids_stay_as_they_are() -> None:
    for good in ("call_" + "x" * 24, "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-0123456789abcdef"):
        assert ids.portable_id(good) == good == ids.original_id(good)


def test_an_id_can_be_fitted_to_the_strictest_upstream() -> None:
    pattern = "[a-zA-Z0-9]{9}"
    assert ids.fit_id("abcdefgh1", pattern) == "abcdefgh1"
    assert re.fullmatch(pattern, ids.fit_id("call_" + "x" * 24, pattern))
    assert ids.fit_id("one", pattern) == ids.fit_id("one", pattern) != ids.fit_id("two", pattern)


def test_new_ids_look_like_openais() -> None:
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", ids.new_call_id())


def test_random_suffixes_are_distinct_and_have_the_asked_length() -> None:
    suffixes = [ids.random_suffix(length) for length in (6, 24, 48, 64) for _ in range(500)]
    assert len(set(suffixes)) == 2000
    assert {len(one) for one in suffixes} == {6, 24, 48, 64}


def test_a_forked_process_makes_other_suffixes_than_its_parent() -> None:
    program = """import os
from toolgate.conversation.ids import random_suffix

random_suffix()
os.fork()
os.write(1, random_suffix().encode())"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert len(output) == 48
    assert output[:24] != output[24:]
