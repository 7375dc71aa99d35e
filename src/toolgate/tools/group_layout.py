"""Put tools into groups, and groups into groups, so that none has more members than can be offered at once.

A group is a source; one that is too large is divided by tags, else by how names begin, else by the alphabet.
The same tools always give the same groups. Knows the definitions of tools and nothing of how groups are opened.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

from msgspec import Struct

from toolgate.tools.tool import ServerToolDefinition

Child: TypeAlias = "ServerToolDefinition | ToolGroup"
_REST = "other"
# Where words of a name meet: `list_files`, `list.files`, `list-files`, `listFiles`.
_SEPARATOR = re.compile(r"[_.\-]|(?<=[a-z0-9])(?=[A-Z])")


class ToolGroup(Struct, frozen=True, eq=False):
    """Tools and groups that are offered together; `size` counts the tools in it, however deep."""

    title: str
    children: tuple[Child, ...]
    size: int

    def tools(self) -> Iterator[ServerToolDefinition]:
        """All tools in it, however deep, in order."""
        for child in self.children:
            if isinstance(child, ToolGroup):
                yield from child.tools()
            else:
                yield child


class ToolCluster(Struct, frozen=True, eq=False, dict=True):
    """Tools that belong together; how they can be divided is computed once, for all page sizes."""

    title: str
    specs: Sequence[ServerToolDefinition]

    @cached_property
    def whole(self) -> ToolGroup:
        """All of them as one group."""
        return ToolGroup(self.title, tuple(self.specs), len(self.specs))

    @cached_property
    def parts(self) -> tuple["ToolCluster", ...]:
        """Smaller clusters, by tag, else by how names begin; none if neither divides the tools."""
        for divide in (_by_tag, _by_beginning):
            buckets = divide(self.specs)
            # Groups of one tool each would hide the tools and save no place.
            if 1 < len(buckets) <= len(self.specs) / 2:
                return tuple([ToolCluster(f"{self.title} {label}", own) for label, own in buckets.items()])
        return ()


def clusters_by_source(specs: Sequence[ServerToolDefinition]) -> tuple[ToolCluster, ...]:
    """Divide the tools by source."""
    sources = _buckets(specs, [spec.source for spec in specs])
    return tuple([ToolCluster(source, own) for source, own in sources.items()])


def group_tools(clusters: Iterable[ToolCluster], limit: int, page: int) -> tuple[Child, ...]:
    """Put all tools into at most `limit` groups of at most `page` members; a group of one is the tool itself."""
    children = _paged("more tools", [_group(cluster, page) for cluster in clusters], limit, page)
    # As long as there is room, show the members of the largest group of groups instead of the group.
    while True:
        divisible = [
            child
            for child in children
            if isinstance(child, ToolGroup)
            and any(isinstance(inner, ToolGroup) for inner in child.children)
            and len(children) - 1 + len(child.children) <= limit
        ]
        if not divisible:
            return children
        largest = max(divisible, key=lambda group: group.size)
        place = children.index(largest)
        children = (*children[:place], *largest.children, *children[place + 1 :])


def all_groups(children: Iterable[Child]) -> Iterator[ToolGroup]:
    """Iterate over every group among these and within them, each before its members."""
    for child in children:
        if isinstance(child, ToolGroup):
            yield child
            yield from all_groups(child.children)


def _group(cluster: ToolCluster, page: int) -> Child:
    if len(cluster.specs) == 1:
        return cluster.specs[0]
    if len(cluster.specs) <= page:
        return cluster.whole
    children = [_group(part, page) for part in cluster.parts] or cluster.specs
    return ToolGroup(cluster.title, _paged(cluster.title, children, page, page), len(cluster.specs))


def _paged(title: str, children: Sequence[Child], limit: int, page: int) -> tuple[Child, ...]:
    """Put the children into pages, and the pages into pages, until there are at most `limit`."""
    word = "part"
    while len(children) > limit:
        pages = [children[start : start + page] for start in range(0, len(children), page)]
        sizes = [sum(child.size if isinstance(child, ToolGroup) else 1 for child in own) for own in pages]
        children = [
            ToolGroup(f"{title} {word} {number}", tuple(own), size)
            for number, (own, size) in enumerate(zip(pages, sizes, strict=True), 1)
        ]
        word += "s"
    return tuple(children)


def _by_tag(specs: Sequence[ServerToolDefinition]) -> dict[str, list[ServerToolDefinition]]:
    """Divide by the first tag that not all of the tools have."""
    kinds = {spec.tags for spec in specs}
    shared = set.intersection(*[set(tags) for tags in kinds])
    labels = {tags: next((tag for tag in tags if tag not in shared), _REST) for tags in kinds}
    return _buckets(specs, [labels[spec.tags] for spec in specs])


def _by_beginning(specs: Sequence[ServerToolDefinition]) -> dict[str, list[ServerToolDefinition]]:
    """Divide by the first word in which the names differ; tools that share theirs with no other stay together."""
    names = [spec.name for spec in specs]
    first, last = min(names), max(names)  # all names begin as these two do
    same = [a == b for a, b in zip(first, last, strict=False)]
    shared = same.index(False) if False in same else len(same)
    cut = max([found.end() for found in _SEPARATOR.finditer(first[:shared])], default=0)  # whole words only
    words = [_SEPARATOR.split(name[cut:], maxsplit=1)[0].lower() or _REST for name in names]
    buckets = _buckets(specs, words)
    alone = [own[0] for own in buckets.values() if len(own) == 1]
    together = {label: own for label, own in buckets.items() if len(own) > 1}
    return {**together, _REST: [*together.get(_REST, ()), *alone]} if alone else together


def _buckets(specs: Sequence[ServerToolDefinition], labels: Sequence[str]) -> dict[str, list[ServerToolDefinition]]:
    buckets: dict[str, list[ServerToolDefinition]] = {label: [] for label in labels}
    for spec, label in zip(specs, labels, strict=True):
        buckets[label].append(spec)
    return buckets
