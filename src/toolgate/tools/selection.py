"""From what a request wishes to the tools it is offered, and the same decision again for every call.

What is offered is wished for or referred to in the prompt, not private, its when-clause holds, and every list of rights
permits it. A call is judged afresh: a tool that was offered may have changed, gone or been forbidden since.
Knows no dialect: a wish is read from a JSON value or from the words of a header.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.tools.registry import Entry, Registry
from toolgate.tools.tool import Tool, ToolSpec

BODY_FIELD = "use_server_tools"
MAX_PATTERNS = 128
_LONGEST = 256
_WILD = re.compile(r"[*?\[]")
_TAG = "tag:"
_TO_COMPARE = 500
_NO_NAME = ""
"""A pattern that fits no tool."""


class Wish(Struct, frozen=True):
    """Which tools a request asks for: all, or whatever has one of the names or tags or fits one of the patterns."""

    every: bool = False
    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.every or bool(self.names or self.patterns or self.tags)

    def covers(self, spec: ToolSpec) -> bool:
        """Whether the tool is wished for."""
        return (
            self.every
            or spec.name in self.names
            or not self.tags.isdisjoint(spec.tags)
            or (bool(self.patterns) and _fits(self.patterns, spec.name))
        )


NOTHING = Wish()
EVERYTHING = Wish(every=True)


class Rights(Struct, frozen=True):
    """The tools that a key or a model may use: patterns to allow, none meaning all, and patterns to block.

    A pattern is compared with the tool's public name; one with a slash with `<source>/<its own name there>`, and one that
    begins with `tag:` with its tags. To block, its source's own name is compared as well: no new prefix undoes a block.
    """

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()

    def permits(self, spec: ToolSpec) -> bool:
        """Whether the tool may be listed, offered and called."""
        if self.block and any(_applies(self.block, spec, name) for name in {spec.name, spec.origin or spec.name}):
            return False
        return not self.allow or _applies(self.allow, spec, spec.name)


def permitted(rights: Sequence[Rights], spec: ToolSpec) -> bool:
    """Whether all the lists permit the tool and it is not private."""
    return not spec.private and (not rights or all(one.permits(spec) for one in rights))


class Selection:
    """The tools of one request; it stays true while the registry changes."""

    def __init__(
        self,
        registry: Registry,
        wish: Wish,
        context: Mapping[str, Any] | None = None,
        rights: Sequence[Rights] = (),
        referenced: Iterable[str] = (),
    ) -> None:
        """`referenced` are tools that the prompt refers to; InvalidRequest names a wished tool that is not there."""
        self._registry = registry
        self._wish = wish
        self._context = context or {}
        self._rights = tuple([one for one in rights if one.allow or one.block])
        self._referenced = frozenset(referenced)
        for name in sorted(wish.names):
            self._check_known(name)
        self.tools: tuple[Tool, ...] = self._admitted() if wish or self._referenced else ()

    @property
    def pinned(self) -> frozenset[str]:
        """The tools that were asked for by name, which should be offered before all others."""
        return self._referenced | self._wish.names

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the wish could not be granted, in words for a person."""
        if self._wish and not self.tools:
            return ("no server tool fits the wish",)
        missing = [name for name in sorted(self._wish.names) if not self.permits(name)]
        return tuple([f"the tool {name} is not offered now" for name in missing])

    def find(self, name: str) -> Tool | None:
        """The tool that a call of this name runs now, None if none may."""
        entry = self._registry.entry(name)
        return entry.tool if entry is not None and self._admits(entry) else None

    def permits(self, name: str) -> bool:
        """Whether a call of this name may run now."""
        return self.find(name) is not None

    def _admitted(self) -> tuple[Tool, ...]:
        """All that are offered; the registry's own tuple when that is all there are, which others know by sight."""
        entries = self._registry.picked((self._wish, self._referenced, self._rights), self._permitted)
        every = self._registry.tools()
        admitted = [entry.tool for entry in entries if entry.when is None or entry.when.holds(self._context)]
        return every if len(admitted) == len(every) else tuple(admitted)

    def _permitted(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those that are asked for and permitted, whatever the context."""
        wished = self._wished(entries)
        return [entry for entry in wished if permitted(self._rights, entry.spec)] if self._rights else wished

    def _wished(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those that are asked for; among thousands, a few names are found without looking at the rest of each."""
        wish, pinned = self._wish, self.pinned
        if wish.every:
            return entries
        if not (wish.patterns or wish.tags):
            return [entry for entry in entries if entry.spec.name in pinned]
        fits, other_tags = _compiled(wish.patterns or (_NO_NAME,)).match, wish.tags.isdisjoint
        return [
            entry
            for entry in entries
            if (spec := entry.spec).name in pinned or not other_tags(spec.tags) or fits(spec.name)
        ]

    def _admits(self, entry: Entry) -> bool:
        return (
            (self._wish.covers(entry.spec) or entry.spec.name in self._referenced)
            and permitted(self._rights, entry.spec)
            and (entry.when is None or entry.when.holds(self._context))
        )

    def _check_known(self, name: str) -> None:
        entry = self._registry.entry(name)
        if entry is not None and permitted(self._rights, entry.spec):
            return
        names = [entry.spec.name for entry in self._registry.entries() if permitted(self._rights, entry.spec)]
        near = _nearest(name, names)
        hint = f"did you mean {near!r}?" if near else "GET /v1/tools lists those you may use."
        raise InvalidRequest(
            f"{BODY_FIELD}: there is no tool {name[:80]!r}; {hint}", param=BODY_FIELD, code="unknown_tool"
        )


def read_wish(value: Any, at: str = BODY_FIELD) -> Wish:
    """The wish that a request's body says: `true`, a list of names and patterns, or `{"names": […], "tags": […]}`."""
    match value:
        case None | False:
            return NOTHING
        case True:
            return EVERYTHING
        case list():
            return _wish(_strings(value, at), at)
        case dict():
            unknown = [name for name in value if name not in ("names", "tags")]
            if unknown:
                raise InvalidRequest(
                    f"{at} takes names and tags, not {unknown[0][:60]!r}.", param=f"{at}.{unknown[0]}"[:80]
                )
            tags = [f"{_TAG}{tag}" for tag in _strings(value.get("tags", []), f"{at}.tags")]
            return _wish([*_strings(value.get("names", []), f"{at}.names"), *tags], at)
        case _:
            raise InvalidRequest(
                f"{at} must be true, false, a list of names and patterns, or an object with names and tags.", param=at
            )


def read_wish_header(text: str, at: str = "X-Toolgate-Tools") -> Wish:
    """The wish that a header says: names, patterns and `tag:…` with commas between, or `true` or `false` as in a body."""
    words = [word for part in text.split(",") if (word := part.strip())]
    match words:
        case ["true"]:
            return EVERYTHING
        case ["false"]:
            return NOTHING
        case _:
            return _wish(_strings(words, at), at)


def _wish(words: Sequence[str], at: str) -> Wish:
    if len(words) > MAX_PATTERNS:
        raise InvalidRequest(f"{at} may hold at most {MAX_PATTERNS} entries.", param=at)
    tags = [word.removeprefix(_TAG) for word in words if word.startswith(_TAG)]
    others = [word for word in words if not word.startswith(_TAG)]
    patterns = [word for word in others if _WILD.search(word)]
    names = [word for word in others if not _WILD.search(word)]
    return Wish("*" in patterns, frozenset(names), tuple(patterns), frozenset(tags))


def _strings(value: Any, at: str) -> list[str]:
    if type(value) is not list:
        raise InvalidRequest(f"{at} must be a list of strings.", param=at, code="invalid_type")
    for number, item in enumerate(value):
        if type(item) is not str or not item or len(item) > _LONGEST:
            raise InvalidRequest(
                f"{at}[{number}] must be a string of 1 to {_LONGEST} characters.", param=f"{at}[{number}]"
            )
    return value


def _applies(patterns: tuple[str, ...], spec: ToolSpec, name: str) -> bool:
    names, places, tags = _kinds(patterns)
    return (
        (bool(names) and _fits(names, name))
        or (bool(places) and _fits(places, f"{spec.source}/{spec.origin or spec.name}"))
        or (bool(tags) and any(_fits(tags, tag) for tag in spec.tags))
    )


@lru_cache(maxsize=256)
def _kinds(patterns: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Patterns of names, of places in sources, and of tags."""
    tags = [pattern.removeprefix(_TAG) for pattern in patterns if pattern.startswith(_TAG)]
    others = [pattern for pattern in patterns if not pattern.startswith(_TAG)]
    names = [pattern for pattern in others if "/" not in pattern]
    places = [pattern for pattern in others if "/" in pattern]
    return tuple(names), tuple(places), tuple(tags)


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return _compiled(patterns).match(text) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """All patterns as one; what `translate` writes does not backtrack into a star that has matched."""
    return re.compile("|".join([translate(pattern) for pattern in patterns]))


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The name most like it; among very many only those that begin alike are compared, which takes long enough."""
    lowered = name.lower()[:_LONGEST]
    alike = [one for one in names if one.lower().startswith(lowered[:2]) or lowered in one.lower()]
    candidates = names if len(names) <= _TO_COMPARE else alike[:_TO_COMPARE]
    near = difflib.get_close_matches(name[:_LONGEST], candidates, n=1)
    return next(iter(near + [one for one in alike if lowered in one.lower()]), None)
