"""Find the names that a misspelt one may stand for, for hints. Pure; takes time that is linear in the length of all names.

Not difflib: names of 60 characters that repeat a few letters take it a millisecond each, and a tool's source chooses them.
"""

from collections.abc import Iterable

_MAX_CHARS = 128


def similar_names(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.5) -> list[str]:
    """Return the known names that share most pairs of neighbouring letters with this one, the most similar first."""
    pairs = _pairs(name)
    likeness = {one: _likeness(pairs, _pairs(one)) for one in known}
    similar = [one for one, value in likeness.items() if value >= cutoff]
    return sorted(similar, key=lambda one: (-likeness[one], one))[:count]


def _pairs(name: str) -> frozenset[str]:
    """Return the pairs of neighbouring letters, with the first and the last letter as pairs of their own."""
    text = f" {name[:_MAX_CHARS].lower()} "
    return frozenset([text[at : at + 2] for at in range(len(text) - 1)])


def _likeness(some: frozenset[str], others: frozenset[str]) -> float:
    """Return the Dice coefficient: 1 for equal sets, 0 for sets without a common pair."""
    return 2 * len(some & others) / (len(some) + len(others))
