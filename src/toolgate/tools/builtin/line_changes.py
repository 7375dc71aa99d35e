"""Show how a text changes, line by line, in bounded time. Pure; knows no files.

difflib takes time that grows with the cube of the number of lines, if a text is made for that: a minute for 64 KiB.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import Match, SequenceMatcher
from itertools import takewhile

# Pairs of lines that are compared in one text: a quarter of a second, and more than edits of usual files need.
MAX_COMPARISONS = 1_000_000
_CONTEXT = 2


class BoundedLineMatcher(SequenceMatcher[str]):
    """Matches lines as difflib does; once `comparisons` is used up, only at the start and the end of what is left."""

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        super().__init__(None, before, after)
        self._before, self._after = before, after
        self._places: Mapping[str, Sequence[int]] = self.b2j  # type: ignore[attr-defined]  # typeshed leaves it out
        self.comparisons = MAX_COMPARISONS

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Return the longest match within these lines, or one at their start or end."""
        before, after = self._before[alo:ahi], self._after[blo:bhi]
        # Each line is compared with all equal ones of the other text, wherever they are.
        self.comparisons -= len(before) + sum([len(self._places.get(line, ())) for line in before])
        if self.comparisons >= 0:
            return super().find_longest_match(alo, ahi, blo, bhi)
        if size := _common(before, after):
            return Match(alo, blo, size)
        size = _common(before[::-1], after[::-1])
        return Match(alo + len(before) - size, blo + len(after) - size, size)


def changes(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Iterate over the lines of a unified diff; it has none if nothing changes."""
    for number, group in enumerate(BoundedLineMatcher(before, after).get_grouped_opcodes(_CONTEXT)):
        if number == 0:
            yield from ("--- now", "+++ then")
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[start:end])
            else:
                yield from (f"-{line}" for line in before[start:end])
                yield from (f"+{line}" for line in after[new_start:new_end])


def _range(start: int, end: int) -> str:
    """Name lines by the first one and their number; without lines, by the one before."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + (count > 0)},{count}"


def _common(some: Sequence[str], others: Sequence[str]) -> int:
    """Count the lines at the start of both."""
    return sum([1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False))])
