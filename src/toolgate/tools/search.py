"""Finding tools by words: what they say of themselves, ranked by how rare and how prominent the words are (BM25).

A word is found wherever one begins with it, so that `repo` finds a repository and `files` a file;
one that nobody says is shortened, so that `merging` finds what merges.
Knows what tools say and nothing of how they run.
"""

import heapq
import math
import re
import string
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import chain

from toolgate.tools.tool import ToolSpec

_MOST_WORDS = 8
_READ = 600
_GRAMMAR = 3
_SATURATION = 1.2
_LENGTH_MATTERS = 0.75
_IN_NAME, _IN_TAGS = 3, 2
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TO_BLANKS = str.maketrans(dict.fromkeys(string.punctuation, " "))
_LITTLE = frozenset(
    ("a", "an", "and", "by", "for", "from", "in", "is", "it", "of", "on", "or", "the", "this", "to", "with")
)


class Search:
    """The words of many tools, looked at when the first question comes; later changes of the tools are not seen."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._specs = specs
        self._words: _Words | None = None

    def best(self, query: str, count: int = 10, among: Collection[str] | None = None) -> tuple[str, ...]:
        """The names of the tools that fit best, best first; `among` leaves out all others."""
        if self._words is None:
            self._words = _Words(self._specs)
        scores: dict[int, float] = {}
        for beginning in _asked(query):
            hits = self._words.hits(beginning)
            rarity = math.log(1 + (len(self._specs) - len(hits) + 0.5) / (len(hits) + 0.5))
            for number, times in hits.items():
                scores[number] = scores.get(number, 0.0) + rarity * times / (times + self._words.damping[number])
        named = [(-score, number, self._specs[number].name) for number, score in scores.items()]
        return tuple(
            [name for _, _, name in heapq.nsmallest(count, [n for n in named if among is None or n[2] in among])]
        )


class _Words:
    """Who says what, and how much they say."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._found: defaultdict[str, list[int]] = defaultdict(list)  # a tool that says a word twice is there twice
        lengths: list[int] = []
        for number, spec in enumerate(specs):
            words = _words(_text(spec))
            lengths.append(len(words))
            for word in words:
                self._found[word].append(number)
        self._sorted = sorted(self._found)
        usual = sum(lengths) / max(1, len(lengths))
        self.damping = [_SATURATION * (1 - _LENGTH_MATTERS + _LENGTH_MATTERS * own / usual) for own in lengths]

    def hits(self, beginning: str) -> Counter[int]:
        """How often each tool says a word that begins so; a word that nobody says is cut, for its end may be grammar."""
        if len(beginning) < 3:
            return Counter(self._found.get(beginning, ()))
        for length in range(len(beginning), max(2, len(beginning) - _GRAMMAR - 1), -1):
            if words := self._beginning_with(beginning[:length]):
                return Counter(chain.from_iterable([self._found[word] for word in words]))
        return Counter()

    def _beginning_with(self, beginning: str) -> list[str]:
        first = bisect_left(self._sorted, beginning)
        return self._sorted[first : bisect_left(self._sorted, f"{beginning}\U0010ffff", first)]


def _text(spec: ToolSpec) -> str:
    """All that a tool says of itself, what is prominent as often as it counts."""
    titles = dict.fromkeys((spec.name, spec.origin, spec.display_name, spec.reference_name))
    title = _HUMP.sub(" ", " ".join([title for title in titles if title]))
    tags = " ".join(spec.tags)
    return f"{f'{title} ' * _IN_NAME}{f'{tags} ' * _IN_TAGS}{spec.description[:_READ]}"


def _words(text: str) -> list[str]:
    return text.translate(_TO_BLANKS).lower().split()


def _asked(query: str) -> list[str]:
    """The beginnings to look for, each once: words without a plural's s."""
    words = [word for word in _words(_HUMP.sub(" ", query[:_READ])) if word not in _LITTLE]
    stems = [word[:-1] if len(word) > 3 and word[-1] == "s" != word[-2] else word for word in words]
    return list(dict.fromkeys(stems))[:_MOST_WORDS]
