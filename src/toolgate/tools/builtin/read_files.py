"""The tools `list_files` and `read_file`, inside the granted folders. They change nothing."""

import asyncio
import os
import time
from base64 import b64encode
from collections.abc import Callable
from io import BufferedReader
from itertools import takewhile

from msgspec import Struct

from toolgate.conversation.message import Media, Text
from toolgate.tools.builtin.charset import decoded, is_binary
from toolgate.tools.builtin.granted_folders import GrantedFolders, GrantedPath
from toolgate.tools.tool import (
    Annotations,
    CallPreview,
    ServerToolDefinition,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)

READING = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)
MAX_ENTRIES = 1000
# Below the limit of a tool's output, so that the model reads our note about the rest and no cut in the middle of a line.
MAX_TEXT = 200 * 1024
MAX_IMAGE = 5 * 1024 * 1024
DEFAULT_LINES = 2000
# Below the time limit of a call, behind which a thread cannot be stopped.
MAX_SECONDS = 8.0
_BLOCK = 1024 * 1024

LIST_SPEC = ServerToolDefinition(
    name="list_files",
    description=(
        "Lists a folder: names, sizes in bytes, and a slash behind folders. "
        "Paths are relative to the top of the granted folders; '.' is that top."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The folder. Default: the top.", "default": "."},
            "depth": {
                "type": "integer",
                "description": "How many levels of folders to show.",
                "minimum": 1,
                "maximum": 5,
                "default": 1,
            },
        },
        "additionalProperties": False,
    },
    display_name="List files",
    reference_name="listFiles",
    user_description="Lists files in the folders you granted.",
    icon="list-tree",
    tags=("builtin", "files"),
    annotations=READING,
)
READ_SPEC = ServerToolDefinition(
    name="read_file",
    description=(
        "Reads a text file, or shows an image (PNG, JPEG, GIF, WebP). "
        "Long files come in portions of lines: give offset and limit. Other binary files cannot be read."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the top.", "minLength": 1},
            "offset": {"type": "integer", "description": "First line; 1 is the top.", "minimum": 1, "default": 1},
            "limit": {
                "type": "integer",
                "description": "Most lines to return.",
                "minimum": 1,
                "maximum": 10_000,
                "default": DEFAULT_LINES,
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    display_name="Read a file",
    reference_name="readFile",
    user_description="Reads files in the folders you granted.",
    icon="file",
    tags=("builtin", "files"),
    annotations=READING,
)
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


class ListFilesTool:
    """Lists folders."""

    spec = LIST_SPEC

    def __init__(self, roots: GrantedFolders) -> None:
        self._roots = roots

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Name the folder."""
        return CallPreview(message=f"List {invocation.arguments.get('path', '.')}"[:500])

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """List the entries of the folder."""
        path, depth = str(invocation.arguments.get("path", ".")), int(invocation.arguments.get("depth", 1))
        return await asyncio.to_thread(self._list, path, depth)

    def _list(self, path: str, depth: int) -> ToolOutput:
        several = path.strip() in ("", ".") and self._roots.names != (".",)
        lines: list[str] = []
        until = time.monotonic() + MAX_SECONDS
        if several:
            lines = [f"{name}/" for name in self._roots.names]
        else:
            self._add(self._roots.place(path), depth, "", lines, until)
        if len(lines) > MAX_ENTRIES:
            lines[MAX_ENTRIES:] = [f"[more than {MAX_ENTRIES} entries: list a folder below, or use search_files]"]
        elif time.monotonic() > until:
            lines.append(f"[there may be more: the listing ended after {MAX_SECONDS:g} s]")
        return ToolOutput((Text("\n".join(lines) or "(empty)"),))

    def _add(self, place: GrantedPath, depth: int, indent: str, lines: list[str], until: float) -> None:
        for entry in entries(self._roots, place, lambda: time.monotonic() > until):
            if len(lines) > MAX_ENTRIES:
                return
            lines.append(f"{indent}{entry.line}")
            if entry.is_folder and depth > 1:
                self._add(entry.place, depth - 1, f"{indent}  ", lines, until)


class FolderEntry(Struct, frozen=True):
    """An entry of a folder."""

    place: GrantedPath
    is_folder: bool
    is_file: bool
    size: int

    @property
    def line(self) -> str:
        """The entry as it is listed."""
        name = self.place.parts[-1]
        if self.is_folder:
            return f"{name}/"
        return f"{name}  {self.size}" if self.is_file else f"{name}  (link or special file)"


def entries(roots: GrantedFolders, place: GrantedPath, is_late: Callable[[], bool]) -> list[FolderEntry]:
    """List the entries of a folder that are not hidden from tools, folders first; those found until it `is_late`."""
    found: list[FolderEntry] = []
    with roots.folder(place) as folder, os.scandir(folder) as names:
        for name in takewhile(lambda _: not is_late(), names):  # a folder may have millions
            inner = place.below(name.name)
            # A name with a line break could pass for several entries.
            if roots.hides(inner) or not name.name.isprintable():
                continue
            is_file = name.is_file(follow_symlinks=False)
            size = name.stat(follow_symlinks=False).st_size if is_file else 0
            found.append(FolderEntry(inner, name.is_dir(follow_symlinks=False), is_file, size))
    return sorted(found, key=lambda entry: (not entry.is_folder, entry.place.parts[-1]))


class ReadFileTool:
    """Reads files."""

    spec = READ_SPEC

    def __init__(self, roots: GrantedFolders) -> None:
        self._roots = roots

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Name the file."""
        return CallPreview(message=f"Read {invocation.arguments.get('path', '')}"[:500])

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Return a portion of the file, or the image."""
        arguments = invocation.arguments
        first, count = int(arguments.get("offset", 1)), int(arguments.get("limit", DEFAULT_LINES))
        return await asyncio.to_thread(self._read, str(arguments["path"]), first, count)

    def _read(self, path: str, first: int, count: int) -> ToolOutput:
        place = self._roots.place(path)
        # A duplicate, because both contexts close their descriptor.
        with self._roots.file(place) as found, os.fdopen(os.dup(found), "rb") as file:
            beginning = file.read(8192)
            file.seek(0)
            is_webp = beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP"
            mime = next((mime for mark, mime in _IMAGES if beginning.startswith(mark)), "image/webp" if is_webp else "")
            if mime:
                raw = file.read(MAX_IMAGE + 1)
                if len(raw) > MAX_IMAGE:
                    raise ToolCallFailed(f"{place.shown} is a picture of more than {MAX_IMAGE // 1024 // 1024} MiB")
                image = Media("image", mime, data=b64encode(raw).decode("ascii"), name=place.parts[-1])
                return ToolOutput((Text(f"{place.shown} ({mime}, {len(raw)} bytes):"), image))
            if is_binary(beginning):
                raise ToolCallFailed(f"{place.shown} is a binary file, which cannot be read as text")
            return ToolOutput((Text(portion(place, file, first, count)),))


def portion(place: GrantedPath, file: BufferedReader, first: int, count: int) -> str:
    """Read `count` lines of a file from the first one on, with a note about the rest."""
    if file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, whose line ends are not single bytes
        whole = decoded(file.read(4 * MAX_TEXT)).splitlines()
        if first > max(len(whole), 1):
            raise ToolCallFailed(f"{place.shown} has fewer than {first} lines, or is too long to be read in UTF-16")
        rest = len(whole) > first - 1 + count or bool(file.read(1))
        text = "\n".join(whole[first - 1 : first - 1 + count])
        return f"{text}\n[more lines follow: call read_file again with offset={first + count}]" if rest else text
    if not _skip_lines(file, first - 1):
        raise ToolCallFailed(f"{place.shown} has fewer than {first} lines, or is too long to be read up to that one")
    # In pieces, because a file may consist of one line of gigabytes. A piece is a line only if it ends like one.
    raw, lines = bytearray(), 0
    while lines < count and len(raw) < MAX_TEXT and (piece := file.readline(MAX_TEXT - len(raw))):
        raw += piece
        lines += piece.endswith(b"\n")
    text = decoded(bytes(raw))
    if not file.peek(1):
        return text or "(empty)"
    if not raw.endswith(b"\n"):
        return f"{text}\n[line {first + lines} is cut here: it is too long to be shown whole]"
    return f"{text}[more lines follow: call read_file again with offset={first + lines}]"


def _skip_lines(file: BufferedReader, count: int) -> bool:
    """Move behind so many lines; False if there are fewer, or they were not found in time."""
    until = time.monotonic() + MAX_SECONDS
    while count:
        # Not line by line: reading a few kilobytes at a time gives up the interpreter so often and for so short a time that
        # the event loop hardly gets it.
        block = file.read(_BLOCK)
        found = block.count(b"\n")
        if found >= count:
            end = 0
            for _ in range(count):
                end = block.index(b"\n", end) + 1
            file.seek(end - len(block), os.SEEK_CUR)
            return True
        if not block or time.monotonic() > until:
            return False
        count -= found
    return True
