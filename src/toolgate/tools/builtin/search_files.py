"""The tool `search_files`: find files by name and by text. It has no regular expressions: a model's could take for ever."""

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from fnmatch import translate
from functools import lru_cache

from msgspec import Struct

from toolgate.conversation.message import Text
from toolgate.tools.builtin.charset import decoded, is_binary
from toolgate.tools.builtin.granted_folders import GrantedFolders, GrantedPath
from toolgate.tools.builtin.read_files import READING, entries
from toolgate.tools.tool import CallPreview, ServerToolDefinition, ToolCallFailed, ToolCallInput, ToolOutput

MAX_FILES = 20_000
MAX_BYTES = 64 * 1024 * 1024
MAX_FILE = 2 * 1024 * 1024
# Less than the default limit of a call, so that what was found until then is returned.
MAX_SECONDS = 8.0
MAX_RESULTS = 500
MAX_LINE = 300
SKIPPED = frozenset(
    {"node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)

SPEC = ServerToolDefinition(
    name="search_files",
    description=(
        "Finds files by name and, if text is given, the lines that contain it. "
        "The name pattern knows *, ? and [abc]; ** stands for any number of folders, as in src/**/*.py. "
        f"The text is searched for as it is, not as a regular expression. Skips {', '.join(sorted(SKIPPED))}."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "description": "Name pattern; one without a slash is looked for in every folder. Default: all files.",
                "maxLength": 500,
                "default": "**",
            },
            "text": {
                "type": "string",
                "description": "Text to look for in the files.",
                "minLength": 1,
                "maxLength": 1000,
            },
            "path": {"type": "string", "description": "Folder to search in. Default: the top.", "default": "."},
            "case_sensitive": {"type": "boolean", "description": "Whether case matters in text.", "default": False},
            "max_results": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": 100},
        },
        "additionalProperties": False,
    },
    display_name="Search files",
    reference_name="searchFiles",
    user_description="Searches the folders you granted.",
    icon="search",
    tags=("builtin", "files"),
    annotations=READING,
)


class FileQuery(Struct, frozen=True):
    """The arguments of a search."""

    pattern: tuple[str, ...]
    text: str | None
    case_sensitive: bool
    limit: int


class SearchFilesTool:
    """Searches folders."""

    spec = SPEC

    def __init__(self, roots: GrantedFolders) -> None:
        self._roots = roots

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Name the folder and what is searched for."""
        arguments = invocation.arguments
        subject = arguments.get("text") or arguments.get("pattern") or "all files"
        return CallPreview(message=f"Search {arguments.get('path', '.')} for {subject}"[:500])

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Search, and note whether there may be more."""
        arguments = invocation.arguments
        pattern = str(arguments.get("pattern") or "**").strip("/")
        parts = tuple(pattern.split("/")) if "/" in pattern else ("**", pattern)
        text = arguments.get("text")
        query = FileQuery(
            parts, text, bool(arguments.get("case_sensitive", False)), int(arguments.get("max_results", 100))
        )
        stop = threading.Event()
        try:
            return await asyncio.to_thread(_Search(self._roots, query, stop).run, str(arguments.get("path", ".")))
        finally:
            stop.set()  # a thread cannot be cancelled, so it checks this


class _Search:
    """One search and its limits."""

    def __init__(self, roots: GrantedFolders, query: FileQuery, stop: threading.Event) -> None:
        self._roots = roots
        self._query = query
        self._stop = stop
        self._until = time.monotonic() + MAX_SECONDS
        self._files = self._bytes = 0
        self._cut_off = ""  # why the search ended early

    def run(self, path: str) -> ToolOutput:
        """Search the folder, or all roots, and list what was found."""
        several = path.strip() in ("", ".") and self._roots.names != (".",)
        tops = self._roots.top() if several else (self._roots.place(path),)
        lines: list[str] = []
        for top in tops:
            for line in self._results(top):
                if len(lines) == self._query.limit:
                    self._cut_off = f"only the first {self._query.limit} results are shown"
                    break
                lines.append(line)
        if self._cut_off:
            lines.append(f"[{self._cut_off}: narrow the search]")
        return ToolOutput((Text("\n".join(lines) or "nothing was found"),))

    def _results(self, top: GrantedPath) -> Iterator[str]:
        for place, size in self._files_below(top):
            if self._query.text is None:
                yield place.shown
            elif size <= MAX_FILE:
                yield from self._matching_lines(place, self._query.text)

    def _files_below(self, top: GrantedPath) -> Iterator[tuple[GrantedPath, int]]:
        """Iterate over the files whose names match, folder by folder, with their sizes."""
        folders = [top]
        while folders:
            folder = folders.pop()
            try:
                inside = entries(self._roots, folder, self._is_late)
            except ToolCallFailed:  # it may not be read, or was deleted meanwhile
                if folder is top:
                    raise
                continue
            if self._is_at_limit():
                return
            folders += [one.place for one in reversed(inside) if one.is_folder and one.place.parts[-1] not in SKIPPED]
            for one in inside:
                if self._is_at_limit():
                    return
                self._files += 1
                if one.is_file and fits(one.place.parts[len(top.parts) :], self._query.pattern):
                    yield one.place, one.size

    def _matching_lines(self, place: GrantedPath, text: str) -> Iterator[str]:
        try:
            with self._roots.file(place) as found, os.fdopen(os.dup(found), "rb") as file:
                raw = file.read(MAX_FILE)
        except ToolCallFailed:
            return
        self._bytes += len(raw)
        if is_binary(raw):
            return
        content = decoded(raw)
        exact = self._query.case_sensitive
        text = text if exact else text.lower()
        # One search in all of it is much faster than one in each line, and most files do not have the text.
        if text not in (content if exact else content.lower()):
            return
        for number, line in enumerate(content.splitlines(), 1):
            if text in (line if exact else line.lower()):
                yield f"{place.shown}:{number}: {line.strip()[:MAX_LINE]}"

    def _is_at_limit(self) -> bool:
        if self._files >= MAX_FILES:
            self._cut_off = f"the search ended after {MAX_FILES} files"
        elif self._bytes >= MAX_BYTES:
            self._cut_off = f"the search ended after {MAX_BYTES // 1024 // 1024} MiB"
        elif self._is_late():
            self._cut_off = f"the search ended after {MAX_SECONDS:g} s"
        return bool(self._cut_off)

    def _is_late(self) -> bool:
        return self._stop.is_set() or time.monotonic() > self._until


def fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path match a pattern, whose `**` stands for any number of parts; takes polynomial time."""
    # All possibilities at once, as a finite automaton does: trying them one after the other takes time that grows
    # exponentially with the number of `**`. The set holds how many parts of the pattern may have been matched so far.
    reached = {0}
    for part in parts:
        reached = _through(reached, pattern)
        reached = {
            at if pattern[at] == "**" else at + 1
            for at in reached
            if at < len(pattern) and (pattern[at] == "**" or _matcher(pattern[at])(part))
        }
    return len(pattern) in _through(reached, pattern)


@lru_cache(maxsize=64)  # `fnmatchcase` keeps 32,768 patterns, and callers choose these
def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match


def _through(reached: set[int], pattern: tuple[str, ...]) -> set[int]:
    """Add the positions behind each `**`, which may stand for nothing."""
    more = set(reached)
    for at in sorted(reached):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            more.add(at)
    return more
