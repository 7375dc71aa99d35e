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
    portable = ids.portable(foreign)
    assert SAFE.fullmatch(portable)
    if len(foreign.encode("utf-8", "replace")) <= 30 and foreign.isprintable():
        assert ids.original(portable) == foreign


def test_an_id_that_restarts_every_turn_is_unique_over_the_conversation() -> None:
    """field: B6, F15; quirk: kimi_ids"""
    first, second = ids.portable("functions.search:0"), ids.portable("functions.search:0")
    assert first != second
    assert ids.original(first) == ids.original(second) == "functions.search:0"


def test_good_ids_stay_as_they_are() -> None:
    for good in ("call_" + "x" * 24, "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-0123456789abcdef"):
        assert ids.portable(good) == good == ids.original(good)


def test_an_id_can_be_fitted_to_the_strictest_upstream() -> None:
    pattern = "[a-zA-Z0-9]{9}"
    assert ids.fitted("abcdefgh1", pattern) == "abcdefgh1"
    assert re.fullmatch(pattern, ids.fitted("call_" + "x" * 24, pattern))
    assert ids.fitted("one", pattern) == ids.fitted("one", pattern) != ids.fitted("two", pattern)


def test_new_ids_look_like_openais() -> None:
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", ids.new_call_id())


def test_no_two_minted_are_the_same_and_each_is_as_long_as_it_should_be() -> None:
    minted = [ids.mint(length) for length in (6, 24, 48, 64) for _ in range(500)]
    assert len(set(minted)) == 2000
    assert {len(one) for one in minted} == {6, 24, 48, 64}


def test_a_process_that_is_forked_off_mints_others() -> None:
    program = "import os; from toolgate.conversation.ids import mint; mint(); os.fork(); os.write(1, mint().encode())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert len(said) == 48
    assert said[:24] != said[24:]
