"""Search tools by the words of their names, tags and descriptions, ranked by BM25.

A word of the query matches words that begin with it, so that `repo` finds a repository and `files` a file;
one that matches nothing is shortened, so that `merging` finds what merges.
Knows the definitions of tools and nothing of how they run.
"""

import heapq
import math
import re
import string
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from toolgate.tools.tool import ServerToolDefinition

_MAX_WORDS = 8
_MAX_TEXT = 600
# How often a word counts in one tool, and how many words one beginning stands for. These, and sorting in slices, bound what
# one call of C code does: it would hold up the event loop even from a thread.
_MAX_TIMES = 8
_MAX_MATCHES = 2000
_SLICE = 20_000
# Letters that are cut from a word that no tool has: `merging` becomes `merg`.
_MAX_ENDING = 3
_SATURATION = 1.2  # BM25's k1
_LENGTH_WEIGHT = 0.75  # BM25's b
_NAME_WEIGHT, _TAG_WEIGHT = 3, 2
_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PUNCTUATION_TO_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
_STOP_WORDS = frozenset(
    ("a", "an", "and", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "this", "to", "with")
)


class ToolSearchIndex:
    """A search index of tools, built at the first search; it does not follow later changes of the tools."""

    def __init__(self, specs: Sequence[ServerToolDefinition]) -> None:
        self._specs = specs
        self._index: _WordIndex | None = None

    def best(self, query: str, count: int = 10, among: Collection[str] | None = None) -> tuple[str, ...]:
        """List the names of the tools that match best, best first; with `among`, only tools of these names."""
        if self._index is None:
            self._index = _WordIndex(self._specs)
        # Words of the query are cut to the singular, and no word of the index is: a beginning matches the plural, too.
        words = [word for word in _words(_CASE_BOUNDARY.sub(" ", query[:_MAX_TEXT])) if word not in _STOP_WORDS]
        singular = [word[:-1] if len(word) > 3 and word[-1] == "s" != word[-2] else word for word in words]
        scores: dict[int, float] = {}
        for beginning in list(dict.fromkeys(singular))[:_MAX_WORDS]:
            hits = self._index.hits(beginning)
            rarity = math.log(1 + (len(self._specs) - len(hits) + 0.5) / (len(hits) + 0.5))
            for number, times in hits.items():
                scores[number] = scores.get(number, 0.0) + rarity * times / (times + self._index.damping[number])
        named = [(-score, number, self._specs[number].name) for number, score in scores.items()]
        return tuple(
            [name for _, _, name in heapq.nsmallest(count, [n for n in named if among is None or n[2] in among])]
        )


class _WordIndex:
    """Which tools have which words, and how long their texts are."""

    def __init__(self, specs: Sequence[ServerToolDefinition]) -> None:
        self._found: defaultdict[str, list[int]] = defaultdict(list)  # a tool that has a word twice is there twice
        lengths: list[int] = []
        for number, spec in enumerate(specs):
            titles = dict.fromkeys((spec.name, spec.origin, spec.display_name, spec.reference_name))
            title = _CASE_BOUNDARY.sub(" ", " ".join([title for title in titles if title]))
            # Names and tags are repeated as often as they count.
            tags = " ".join(spec.tags)
            text = f"{f'{title} ' * _NAME_WEIGHT}{f'{tags} ' * _TAG_WEIGHT}{spec.description[:_MAX_TEXT]}"
            words = _words(text)
            lengths.append(len(words))
            for word, times in Counter(words).items():
                self._found[word] += [number] * min(times, _MAX_TIMES)
        known = list(self._found)
        slices = [sorted(known[start : start + _SLICE]) for start in range(0, len(known), _SLICE)]
        self._sorted = list(heapq.merge(*slices)) if len(slices) > 1 else slices[0] if slices else []
        average = sum(lengths) / max(1, len(lengths))
        self.damping = [_SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * own / average) for own in lengths]

    def hits(self, beginning: str) -> Counter[int]:
        """Count for each tool the words that begin so; if no tool has any, the beginning is shortened by an ending."""
        if len(beginning) < 3:  # too many words begin so
            return Counter(self._found.get(beginning, ()))
        for length in range(len(beginning), max(2, len(beginning) - _MAX_ENDING - 1), -1):
            # All words with this beginning stand side by side; U+10FFFF sorts behind any character that may follow.
            first = bisect_left(self._sorted, beginning[:length])
            after = bisect_left(self._sorted, f"{beginning[:length]}\U0010ffff", first)
            if first < after:
                counts: Counter[int] = Counter()
                for word in self._sorted[first : min(after, first + _MAX_MATCHES)]:
                    counts.update(self._found[word])
                return counts
        return Counter()


def _words(text: str) -> list[str]:
    return text.translate(_PUNCTUATION_TO_SPACES).lower().split()
