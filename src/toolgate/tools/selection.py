"""Select the tools that a request is offered, and check the same again at every call.

A tool is offered if the request asks for it or its prompt refers to it, it is not private, its when-clause holds and every
list of rights permits it. Calls are checked again, because an offered tool may have changed, gone or been forbidden since.
Knows no dialect: a query is parsed from a JSON value or from the text of a header.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.tools.registry import RegistryEntry, ToolRegistry
from toolgate.tools.similar_names import similar_names
from toolgate.tools.tool import ServerToolDefinition, Tool

BODY_FIELD = "use_server_tools"
MAX_PATTERNS = 128
MAX_PATTERN = 256
# Characters of all patterns of a request: a regex of 32,000 takes a fifth of a second to compile and 3 MB to keep.
MAX_PATTERN_CHARS = 2_048
_WILD = re.compile(r"[*?\[]")
_TAG = "tag:"
# Names that an unknown one is compared with for a hint.
_MAX_COMPARED = 500


class ToolQuery(Struct, frozen=True):
    """The tools that a request asks for: all, or those that have one of the names or tags or match one of the patterns.

    `source` restricts it to the tools of one source, unless that brings none now.
    """

    every: bool = False
    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    source: str = ""

    def __bool__(self) -> bool:
        return self.every or bool(self.names or self.patterns or self.tags)

    def covers(self, spec: ServerToolDefinition) -> bool:
        """Whether the request asks for the tool."""
        return (
            self.every
            or spec.name in self.names
            or not self.tags.isdisjoint(spec.tags)
            or (bool(self.patterns) and _matches_any(self.patterns, spec.name))
        )


NOTHING = ToolQuery()
EVERYTHING = ToolQuery(every=True)


class ToolRights(Struct, frozen=True):
    """The tools that a key or a model may use: patterns to allow, none meaning all, and patterns to block.

    A pattern is compared with the tool's public name; one with a slash with `<source>/<its name there>`, and one that
    begins with `tag:` with its tags. A block is also compared with the name in the source: no new prefix undoes it.
    """

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()

    def permits(self, spec: ServerToolDefinition) -> bool:
        """Whether the tool may be listed, offered and called."""
        # A tool that was renamed because its name was taken is still the one that the operator blocked.
        if self.block and any(_applies(self.block, spec, name) for name in {spec.name, spec.origin or spec.name}):
            return False
        return not self.allow or _applies(self.allow, spec, spec.name)


def permitted(rights: Sequence[ToolRights], spec: ServerToolDefinition) -> bool:
    """Whether all rights permit the tool and it is not private."""
    return not spec.private and (not rights or all(one.permits(spec) for one in rights))


class ToolSelection:
    """The tools of one request; `find` follows the changes of the registry."""

    def __init__(
        self,
        registry: ToolRegistry,
        query: ToolQuery,
        context: Mapping[str, Any] | None = None,
        rights: Sequence[ToolRights] = (),
        referenced: Iterable[str] = (),
    ) -> None:
        """`referenced` are tools that the prompt refers to. InvalidRequest names a tool of the query that does not exist."""
        self._registry = registry
        self._query = query
        self._context = context or {}
        self._rights = tuple([one for one in rights if one.allow or one.block])
        self._referenced = frozenset(referenced)
        for name in sorted(query.names):
            self._check_known(name)
        self.tools: tuple[Tool, ...] = ()
        if query or self._referenced:
            # Only the when-clauses depend on the context; all else is the same for many requests.
            entries = registry.cached_choice((query, self._referenced, self._rights), self._without_context)
            selected = [entry.tool for entry in entries if entry.when is None or entry.when.holds(self._context)]
            # The registry's own tuple, if that is all: caches recognise it by its identity.
            every = registry.tools()
            self.tools = every if len(selected) == len(every) else tuple(selected)

    @property
    def pinned(self) -> frozenset[str]:
        """The tools that the request names; they should be offered before all others."""
        return self._referenced | self._query.names

    @property
    def warnings(self) -> tuple[str, ...]:
        """The parts of the query that could not be met, in sentences for a person."""
        if self._query and not self.tools:
            return ("no server tool matches the request",)
        missing = [name for name in sorted(self._query.names) if not self.permits(name)]
        return tuple([f"the tool {name} is not offered now" for name in missing])

    def find(self, name: str) -> Tool | None:
        """Find the tool that a call of this name runs now; None if it may run none."""
        entry = self._registry.entry(name)
        if entry is None or not (self._query.covers(entry.spec) or name in self._referenced):
            return None
        may_run = permitted(self._rights, entry.spec) and (entry.when is None or entry.when.holds(self._context))
        return entry.tool if may_run else None

    def permits(self, name: str) -> bool:
        """Whether a call of this name may run now."""
        return self.find(name) is not None

    def _without_context(self, entries: Sequence[RegistryEntry]) -> Sequence[RegistryEntry]:
        """Choose the tools that are asked for and permitted, whatever the context."""
        query, pinned = self._query, self.pinned
        # Without a window that brings tools, `use_vscode_tools` falls back to the tools of all sources.
        if query.source and (own := [entry for entry in entries if entry.spec.source == query.source]):
            entries = [*own, *[entry for entry in entries if entry.spec.name in pinned and entry not in own]]
        if query.every:
            chosen = entries
        elif not (query.patterns or query.tags):  # quick among thousands
            chosen = [entry for entry in entries if entry.spec.name in pinned]
        else:
            # An empty pattern matches no tool. The loop has no calls of `covers`, because it runs over all tools.
            matches, other_tags = _compiled(query.patterns or ("",)).match, query.tags.isdisjoint
            chosen = [
                entry
                for entry in entries
                if (spec := entry.spec).name in pinned or not other_tags(spec.tags) or matches(spec.name)
            ]
        return [entry for entry in chosen if permitted(self._rights, entry.spec)] if self._rights else chosen

    def _check_known(self, name: str) -> None:
        entry = self._registry.entry(name)
        if entry is not None and permitted(self._rights, entry.spec):
            return
        # A tool that the caller may not use is as unknown as one that does not exist, and no hint names it.
        names = [entry.spec.name for entry in self._registry.entries() if permitted(self._rights, entry.spec)]
        # Among very many names only those that begin alike are compared, to save time.
        lowered = name.lower()[:MAX_PATTERN]
        alike = [one for one in names if one.lower().startswith(lowered[:2]) or lowered in one.lower()]
        candidates = names if len(names) <= _MAX_COMPARED else alike[:_MAX_COMPARED]
        similar = similar_names(name, candidates)
        near = next(iter(similar + [one for one in alike if lowered in one.lower()]), None)
        hint = f"did you mean {near!r}?" if near else "GET /v1/tools lists those that this key may use."
        raise InvalidRequest(
            f"{BODY_FIELD}: there is no tool {name[:80]!r}; {hint}", param=BODY_FIELD, code="unknown_tool"
        )


def parse_tool_query(value: Any, at: str = BODY_FIELD) -> ToolQuery:
    """Parse the field of a request's body: `true`, a list of names and patterns, or `{"names": […], "tags": […]}`."""
    match value:
        case None | False:
            return NOTHING
        case True:
            return EVERYTHING
        case list():
            return _query_of(_strings(value, at), at)
        case dict():
            unknown = [name for name in value if name not in ("names", "tags")]
            if unknown:
                raise InvalidRequest(
                    f"{at} takes names and tags, not {unknown[0][:60]!r}.", param=f"{at}.{unknown[0]}"[:80]
                )
            tags = [f"{_TAG}{tag}" for tag in _strings(value.get("tags", []), f"{at}.tags")]
            return _query_of([*_strings(value.get("names", []), f"{at}.names"), *tags], at)
        case _:
            raise InvalidRequest(
                f"{at} must be true, false, a list of names and patterns, or an object with names and tags.", param=at
            )


def parse_tool_query_header(text: str, at: str = "X-Toolgate-Tools") -> ToolQuery:
    """Parse the text of a header: names, patterns and `tag:…` with commas between, or `true` or `false` as in a body."""
    terms = [term for part in text.split(",") if (term := part.strip())]
    match terms:
        case ["true"]:
            return EVERYTHING
        case ["false"]:
            return NOTHING
        case _:
            return _query_of(_strings(terms, at), at)


def _query_of(terms: Sequence[str], at: str) -> ToolQuery:
    if len(terms) > MAX_PATTERNS:
        raise InvalidRequest(f"{at} may hold at most {MAX_PATTERNS} entries.", param=at)
    tags = [term.removeprefix(_TAG) for term in terms if term.startswith(_TAG)]
    others = [term for term in terms if not term.startswith(_TAG)]
    patterns = [term for term in others if _WILD.search(term)]
    names = [term for term in others if not _WILD.search(term)]
    if sum(map(len, patterns)) > MAX_PATTERN_CHARS:
        raise InvalidRequest(
            f"The patterns of {at} may have at most {MAX_PATTERN_CHARS} characters altogether.", param=at
        )
    return ToolQuery("*" in patterns, frozenset(names), tuple(patterns), frozenset(tags))


def _strings(value: Any, at: str) -> list[str]:
    if type(value) is not list:
        raise InvalidRequest(f"{at} must be a list of strings.", param=at, code="invalid_type")
    for number, item in enumerate(value):
        if type(item) is not str or not item or len(item) > MAX_PATTERN:
            raise InvalidRequest(
                f"{at}[{number}] must be a string of 1 to {MAX_PATTERN} characters.", param=f"{at}[{number}]"
            )
    return value


def _applies(patterns: tuple[str, ...], spec: ServerToolDefinition, name: str) -> bool:
    names, places, tags = _kinds(patterns)
    return (
        (bool(names) and _matches_any(names, name))
        or (bool(places) and _matches_any(places, f"{spec.source}/{spec.origin or spec.name}"))
        or (bool(tags) and any(_matches_any(tags, tag) for tag in spec.tags))
    )


@lru_cache(maxsize=256)
def _kinds(patterns: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Divide patterns into those of names, of `<source>/<name>` and of tags."""
    tags = [pattern.removeprefix(_TAG) for pattern in patterns if pattern.startswith(_TAG)]
    others = [pattern for pattern in patterns if not pattern.startswith(_TAG)]
    names = [pattern for pattern in others if "/" not in pattern]
    places = [pattern for pattern in others if "/" in pattern]
    return tuple(names), tuple(places), tuple(tags)


def _matches_any(patterns: tuple[str, ...], text: str) -> bool:
    return _compiled(patterns).match(text) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile all patterns as one."""
    # Clients choose the patterns. The regex that `translate` makes does not backtrack into a star that has matched,
    # so that `*a*a*a*b` takes no exponential time.
    return re.compile("|".join([translate(pattern) for pattern in patterns]))
