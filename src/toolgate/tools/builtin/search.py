"""Finding files by name and by a text in them. Knows no regular expression: a stranger's could take for ever."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from toolgate.conversation.message import Text
from toolgate.tools.builtin.charset import decoded, is_binary
from toolgate.tools.builtin.files import READING, entries
from toolgate.tools.builtin.roots import Place, Roots
from toolgate.tools.tool import Invocation, Output, Preparation, ToolFailure, ToolSpec

MAX_FILES = 20_000
MAX_BYTES = 64 * 1024 * 1024
MAX_FILE = 2 * 1024 * 1024
MAX_SECONDS = 8.0
MAX_RESULTS = 500
MAX_LINE = 300
SKIPPED = frozenset(
    {"node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)

SPEC = ToolSpec(
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


class Wanted(Struct, frozen=True):
    """What is searched for."""

    pattern: tuple[str, ...]
    text: str | None
    case_sensitive: bool
    most: int


class SearchFiles:
    """Searches folders."""

    spec = SPEC

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    async def prepare(self, invocation: Invocation) -> Preparation:
        """What is looked for."""
        arguments = invocation.arguments
        wanted = arguments.get("text") or arguments.get("pattern") or "all files"
        return Preparation(message=f"Search {arguments.get('path', '.')} for {wanted}"[:500])

    async def invoke(self, invocation: Invocation) -> Output:
        """What was found, and whether there may be more."""
        arguments = invocation.arguments
        pattern = str(arguments.get("pattern") or "**").strip("/")
        parts = tuple(pattern.split("/")) if "/" in pattern else ("**", pattern)
        text = arguments.get("text")
        wanted = Wanted(
            parts, text, bool(arguments.get("case_sensitive", False)), int(arguments.get("max_results", 100))
        )
        stop = threading.Event()
        try:
            return await asyncio.to_thread(_Search(self._roots, wanted, stop).all, str(arguments.get("path", ".")))
        finally:
            stop.set()  # a thread cannot be cancelled, but it can be told


class _Search:
    """One search, with its limits."""

    def __init__(self, roots: Roots, wanted: Wanted, stop: threading.Event) -> None:
        self._roots = roots
        self._wanted = wanted
        self._stop = stop
        self._until = time.monotonic() + MAX_SECONDS
        self._files = self._bytes = 0
        self._over = ""

    def all(self, path: str) -> Output:
        """Everything that was found, as text."""
        several = path.strip() in ("", ".") and self._roots.names != (".",)
        tops = self._roots.top() if several else (self._roots.place(path),)
        lines: list[str] = []
        for top in tops:
            for line in self._lines(top):
                if len(lines) == self._wanted.most:
                    self._over = f"only the first {self._wanted.most} results are shown"
                    break
                lines.append(line)
        if self._over:
            lines.append(f"[{self._over}: narrow the search]")
        return Output((Text("\n".join(lines) or "nothing was found"),))

    def _lines(self, top: Place) -> Iterator[str]:
        for place, size in self._found(top):
            if self._wanted.text is None:
                yield place.shown
            elif size <= MAX_FILE:
                yield from self._matches(place, self._wanted.text)

    def _found(self, top: Place) -> Iterator[tuple[Place, int]]:
        """The files whose names fit, folder by folder."""
        folders = [top]
        while folders:
            folder = folders.pop()
            try:
                inside = entries(self._roots, folder)
            except ToolFailure:  # one that may not be read, or went away: the others may
                if folder is top:
                    raise
                continue
            folders += [one.place for one in reversed(inside) if one.is_folder and one.place.parts[-1] not in SKIPPED]
            for one in inside:
                if self._ended():
                    return
                self._files += 1
                if one.is_file and fits(one.place.parts[len(top.parts) :], self._wanted.pattern):
                    yield one.place, one.size

    def _matches(self, place: Place, text: str) -> Iterator[str]:
        try:
            with self._roots.file(place) as found, os.fdopen(os.dup(found), "rb") as file:
                raw = file.read(MAX_FILE)
        except ToolFailure:
            return
        self._bytes += len(raw)
        if is_binary(raw):
            return
        content = decoded(raw)
        wanted, searched = (text, content) if self._wanted.case_sensitive else (text.lower(), content.lower())
        if wanted not in searched:
            return
        for number, line in enumerate(content.splitlines(), 1):
            if wanted in (line if self._wanted.case_sensitive else line.lower()):
                yield f"{place.shown}:{number}: {line.strip()[:MAX_LINE]}"

    def _ended(self) -> bool:
        if self._files >= MAX_FILES:
            self._over = f"the search ended after {MAX_FILES} files"
        elif self._bytes >= MAX_BYTES:
            self._over = f"the search ended after {MAX_BYTES // 1024 // 1024} MiB"
        elif self._stop.is_set() or time.monotonic() > self._until:
            self._over = f"the search ended after {MAX_SECONDS:g} s"
        return bool(self._over)


def fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the names of a path fit a pattern, whose `**` stands for any number of them; each pair is met once."""
    reached = {0}  # how much of the pattern may have been used up so far
    for part in parts:
        reached = _through(reached, pattern)
        reached = {
            at if pattern[at] == "**" else at + 1
            for at in reached
            if at < len(pattern) and (pattern[at] == "**" or fnmatchcase(part, pattern[at]))
        }
    return len(pattern) in _through(reached, pattern)


def _through(reached: set[int], pattern: tuple[str, ...]) -> set[int]:
    """The same, counting that `**` may stand for nothing."""
    more = set(reached)
    for at in sorted(reached):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            more.add(at)
    return more
