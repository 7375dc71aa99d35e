"""How a text changes is shown as difflib shows it, in bounded time."""

import random
from difflib import unified_diff

import pytest

from toolgate.tools.builtin import line_changes
from toolgate.tools.builtin.line_changes import changes


class LookedUpLine(str):
    """A line that counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        LookedUpLine.lookups += 1
        return super().__hash__()

    __eq__ = str.__eq__


def hostile_lines(count: int) -> tuple[list[str], list[str]]:
    """Make two texts in which difflib finds short matches only, one at a time, each after comparing all lines again."""
    symbols = [LookedUpLine(chr(0x100 + number)) for number in range(240)]
    return [symbols[at % 240] for at in range(count)], [symbols[-1 - at % 240] for at in range(count)]


def test_changes_are_those_of_difflib() -> None:
    chance = random.Random(3)
    for _ in range(500):
        before = [chance.choice("abcdef") for _ in range(chance.randrange(30))]
        after = list(before)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(after) + 1)
            after[at : at + chance.randrange(3)] = chance.choices("xyzab", k=chance.randrange(3))
        assert list(changes(before, after)) == list(unified_diff(before, after, "now", "then", lineterm="", n=2))


def test_texts_that_take_difflib_very_long_are_compared_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_changes, "MAX_COMPARISONS", 100_000)
    before, after = hostile_lines(8_000)
    LookedUpLine.lookups = 0
    assert [line for line in changes(before, after) if line.startswith("-")]
    assert LookedUpLine.lookups < 100_000  # difflib alone looks up 550,000


def test_a_change_within_a_text_too_long_to_compare_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_changes, "MAX_COMPARISONS", 0)
    before, _ = hostile_lines(1_000)
    after = [*before[:500], "new", *before[500:]]
    assert list(changes(before, after)) == [
        "--- now",
        "+++ then",
        "@@ -499,4 +499,5 @@",
        *[f" {line}" for line in before[498:500]],
        "+new",
        *[f" {line}" for line in before[500:502]],
    ]
    assert list(changes(before, list(before))) == []
