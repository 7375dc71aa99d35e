"""Tools put into groups, and groups into groups, so that none holds more than can be shown at once.

A group is a source; one that is too large is divided by tags, else by how names begin, else by the alphabet.
The same tools always give the same groups. Knows what tools say of themselves and nothing of who opens a group.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
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


class Heap(Struct, frozen=True, eq=False, dict=True):
    """Tools that belong together; how they fall apart is worked out once, however much room there is."""

    title: str
    specs: Sequence[ToolSpec]

    @cached_property
    def whole(self) -> Group:
        """All of them as one group."""
        return Group(self.title, tuple(self.specs), len(self.specs))

    @cached_property
    def parts(self) -> tuple["Heap", ...]:
        """Smaller heaps, by tag, else by how names begin; none if neither tells the tools apart."""
        for divide in (_by_tag, _by_beginning):
            buckets = divide(self.specs)
            if 1 < len(buckets) <= len(self.specs) / 2:
                return tuple([Heap(f"{self.title} {label}", own) for label, own in buckets.items()])
        return ()


def heaped(specs: Sequence[ToolSpec]) -> tuple[Heap, ...]:
    """The tools by their sources."""
    sources = _buckets(specs, [spec.source for spec in specs])
    return tuple([Heap(source, own) for source, own in sources.items()])


def grouped(heaps: Iterable[Heap], most: int, page: int) -> tuple[Child, ...]:
    """All tools within at most `most` groups, none of which shows more than `page`; a group of one is the tool itself."""
    children = _bundled("more tools", [_group(heap, page) for heap in heaps], most, page)
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


def _group(heap: Heap, page: int) -> Child:
    if len(heap.specs) == 1:
        return heap.specs[0]
    if len(heap.specs) <= page:
        return heap.whole
    children = [_group(part, page) for part in heap.parts] or heap.specs
    return Group(heap.title, _bundled(heap.title, children, page, page), len(heap.specs))


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
    return _buckets(specs, [labels[spec.tags] for spec in specs])


def _by_beginning(specs: Sequence[ToolSpec]) -> dict[str, list[ToolSpec]]:
    """By the first word in which the names differ; those that are alone with theirs stay together."""
    names = [spec.name for spec in specs]
    cut = _shared(min(names), max(names))  # in between, all begin as these two do
    words = [_SEPARATOR.split(name[cut:], maxsplit=1)[0].lower() or _REST for name in names]
    buckets = _buckets(specs, words)
    alone = [own[0] for own in buckets.values() if len(own) == 1]
    together = {label: own for label, own in buckets.items() if len(own) > 1}
    return {**together, _REST: [*together.get(_REST, ()), *alone]} if alone else together


def _shared(one: str, other: str) -> int:
    """How many characters of whole words both begin with."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    alike = same.index(False) if False in same else len(same)
    return max([found.end() for found in _SEPARATOR.finditer(one[:alike])], default=0)


def _buckets(specs: Sequence[ToolSpec], labels: Sequence[str]) -> dict[str, list[ToolSpec]]:
    buckets: dict[str, list[ToolSpec]] = {label: [] for label in labels}
    for spec, label in zip(specs, labels, strict=True):
        buckets[label].append(spec)
    return buckets
