"""The tool `write_file`: write a file in a granted folder, whole or not at all. It needs approval."""

import asyncio
import os
import secrets
from contextlib import suppress
from itertools import islice

from toolgate.conversation.message import Text
from toolgate.tools.builtin.charset import decoded, is_binary
from toolgate.tools.builtin.granted_folders import GrantedFolders, GrantedPath, os_errors_as_failures
from toolgate.tools.builtin.line_changes import changes
from toolgate.tools.tool import (
    Annotations,
    CallPreview,
    ServerToolDefinition,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)

MAX_CONTENT = 1024 * 1024
# Bytes up to which old and new content are compared.
_MAX_PREVIEWED = 64 * 1024
_PREVIEW_LINES = 40

SPEC = ServerToolDefinition(
    name="write_file",
    description=(
        "Writes a text file, replacing what was there; missing folders are made. "
        "Give the whole content: nothing of an existing file is kept."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the top.", "minLength": 1},
            "content": {"type": "string", "description": "All that the file shall hold.", "maxLength": MAX_CONTENT},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    display_name="Write a file",
    reference_name="writeFile",
    user_description="Writes files in the folders you granted, after asking.",
    icon="save",
    tags=("builtin", "files"),
    annotations=Annotations(read_only=False, destructive=True, idempotent=True, open_world=False),
    approval="ask",
)


class WriteFileTool:
    """Writes files."""

    spec = SPEC

    def __init__(self, roots: GrantedFolders) -> None:
        self._roots = roots

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Describe the path, the size and what would change."""
        path, content = str(invocation.arguments["path"]), str(invocation.arguments["content"])
        return await asyncio.to_thread(self._prepare, path, content)

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Write the file and return its size."""
        path, content = str(invocation.arguments["path"]), str(invocation.arguments["content"])
        return await asyncio.to_thread(self._write, path, content)

    def _prepare(self, path: str, content: str) -> CallPreview:
        place = self._roots.place(path)
        before: bytes | None = None
        try:
            with self._roots.file(place) as found:
                before = os.read(found, _MAX_PREVIEWED + 1)
        except ToolCallFailed:
            if os.path.lexists(place.real):  # it cannot be opened, so that it will not be overwritten either
                raise
        size = f"{len(_encoded(content))} bytes"
        title = f"Create {place.shown}?" if before is None else f"Overwrite {place.shown}?"
        if before is None:
            shown = "\n".join(content.splitlines()[:_PREVIEW_LINES])
        elif len(before) > _MAX_PREVIEWED or len(content) > _MAX_PREVIEWED or is_binary(before):
            shown = "(too large or not text: the difference is not shown)"
        else:
            lines = list(islice(changes(decoded(before).splitlines(), content.splitlines()), _PREVIEW_LINES + 1))
            if len(lines) > _PREVIEW_LINES:
                lines[_PREVIEW_LINES:] = ["… (more changes follow)"]
            shown = "\n".join(lines) or "(nothing would change)"
        return CallPreview(message=f"Write {place.shown} ({size})", title=title, question=f"{size}\n{shown}")

    def _write(self, path: str, content: str) -> ToolOutput:
        place, raw = self._roots.place(path), _encoded(content)
        if not place.parts:
            raise ToolCallFailed(f"{place.shown} is a folder")
        folder = GrantedPath(place.root, place.parts[:-1], place.shown.rpartition("/")[0] or ".")
        with self._roots.folder(folder, create=True) as inside, os_errors_as_failures(place):
            existed = self._replace(inside, place, raw)
        return ToolOutput((Text(f"{'replaced' if existed else 'created'} {place.shown} ({len(raw)} bytes)"),))

    def _replace(self, folder: int, place: GrantedPath, raw: bytes) -> bool:
        name = place.parts[-1]
        mode = None
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            self._roots.regular(place, found)
            mode = found.st_mode & 0o777
        # Written beside the file and renamed: a reader sees the old content or the new one, and a full disk or a crash
        # leaves the old one.
        temporary = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
            try:
                file.write(raw)
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
        os.fsync(folder)  # the new name is an entry of the folder, which is written apart from the file
        return mode is not None


def _encoded(content: str) -> bytes:
    try:
        raw = content.encode()
    except UnicodeEncodeError:
        raise ToolCallFailed("the content contains half of a surrogate pair, which cannot be written") from None
    if len(raw) > MAX_CONTENT:
        raise ToolCallFailed(f"the content is larger than {MAX_CONTENT} bytes")
    return raw
