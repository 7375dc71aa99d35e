"""Tools put into groups, and groups into groups, so that none holds more than can be shown at once.

A group is a source; one that is too large is divided by tags, else by how names begin, else by the alphabet.
The same tools always give the same groups. Knows what tools say of themselves and nothing of who opens a group.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from toolgate.tools.tool import ToolSpec

Child: TypeAlias = "ToolSpec | Group"
_REST = "other"
_SEPARATOR = re.compile(r"[_.\-]|(?<=[a-z0-9])(?=[A-Z])")


class Group(Struct, frozen=True, eq=False):
    """Tools and groups that are shown together; `size` is how many tools there are in it, however deep."""

    title: str
    children: tuple[Child, ...]
    size: int

    def tools(self) -> Iterator[ToolSpec]:
        """All tools in it, however deep, in order."""
        for child in self.children:
            if isinstance(child, Group):
                yield from child.tools()
            else:
                yield child


def grouped(specs: Iterable[ToolSpec], most: int, page: int) -> tuple[Child, ...]:
    """All tools within at most `most` groups, none of which shows more than `page`; a group of one is the tool itself."""
    sources = _buckets(specs, lambda spec: spec.source)
    children = _bundled("more tools", [_group(source, own, page) for source, own in sources.items()], most, page)
    return _spread(children, most)


def all_groups(children: Iterable[Child]) -> Iterator[Group]:
    """Every group among these and within them, each before what it holds."""
    for child in children:
        if isinstance(child, Group):
            yield child
            yield from all_groups(child.children)


def _spread(children: tuple[Child, ...], most: int) -> tuple[Child, ...]:
    """The same with the largest groups of groups taken apart, as far as there is place for what they hold."""
    while True:
        able = [
            child
            for child in children
            if isinstance(child, Group)
            and any(isinstance(inner, Group) for inner in child.children)
            and len(children) - 1 + len(child.children) <= most
        ]
        if not able:
            return children
        largest = max(able, key=lambda group: group.size)
        place = children.index(largest)
        children = (*children[:place], *largest.children, *children[place + 1 :])


def _group(title: str, specs: Sequence[ToolSpec], page: int) -> Child:
    if len(specs) == 1:
        return specs[0]
    return Group(title, tuple(specs) if len(specs) <= page else _divided(title, specs, page), len(specs))


def _divided(title: str, specs: Sequence[ToolSpec], page: int) -> tuple[Child, ...]:
    for divide in (_by_tag, _by_beginning):
        buckets = divide(specs)
        if 1 < len(buckets) <= len(specs) / 2:
            children = [_group(f"{title} {label}", own, page) for label, own in buckets.items()]
            return _bundled(title, children, page, page)
    return _bundled(title, specs, page, page)


def _bundled(title: str, children: Sequence[Child], most: int, page: int) -> tuple[Child, ...]:
    """The children, put together by pages, and the pages by pages, until there are few enough."""
    word = "part"
    while len(children) > most:
        pages = [children[start : start + page] for start in range(0, len(children), page)]
        children = [Group(f"{title} {word} {number}", tuple(own), _size(own)) for number, own in enumerate(pages, 1)]
        word += "s"
    return tuple(children)


def _size(children: Iterable[Child]) -> int:
    return sum(child.size if isinstance(child, Group) else 1 for child in children)


def _by_tag(specs: Sequence[ToolSpec]) -> dict[str, list[ToolSpec]]:
    """By the first tag that not all of them have: one that all have tells nothing apart."""
    kinds = {spec.tags for spec in specs}
    shared = set.intersection(*[set(tags) for tags in kinds])
    labels = {tags: next((tag for tag in tags if tag not in shared), _REST) for tags in kinds}
    return _buckets(specs, lambda spec: labels[spec.tags])


def _by_beginning(specs: Sequence[ToolSpec]) -> dict[str, list[ToolSpec]]:
    """By the first word in which the names differ; those that are alone with theirs stay together."""
    names = [spec.name for spec in specs]
    cut = _shared(min(names), max(names))  # in between, all begin as these two do
    buckets = _buckets(specs, lambda spec: _SEPARATOR.split(spec.name[cut:], maxsplit=1)[0].lower() or _REST)
    alone = [own[0] for own in buckets.values() if len(own) == 1]
    together = {label: own for label, own in buckets.items() if len(own) > 1}
    return {**together, _REST: [*together.get(_REST, ()), *alone]} if alone else together


def _shared(one: str, other: str) -> int:
    """How many characters of whole words both begin with."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    alike = same.index(False) if False in same else len(same)
    return max([found.end() for found in _SEPARATOR.finditer(one[:alike])], default=0)


def _buckets(specs: Iterable[ToolSpec], label: Callable[[ToolSpec], str]) -> dict[str, list[ToolSpec]]:
    buckets: dict[str, list[ToolSpec]] = {}
    for spec in specs:
        buckets.setdefault(label(spec), []).append(spec)
    return buckets
