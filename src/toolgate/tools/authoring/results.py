"""Convert what a tool returned to a bounded ToolOutput, and what it raised to a message."""

import base64
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from toolgate.conversation.message import Media, MediaKind, Text
from toolgate.tools.authoring.jsonable import jsonable, whole_characters
from toolgate.tools.authoring.language_model_types import (
    LanguageModelDataPart,
    LanguageModelTextPart,
    LanguageModelToolResult,
)
from toolgate.tools.tool import ToolCallFailed, ToolOutput

MAX_OUTPUT = 8 * 1024 * 1024
# Bytes of all texts of an output: the server decodes them in one call, which takes 20 ms if all are escaped.
MAX_TEXT = 4 * 1024 * 1024
NO_OUTPUT = "Done; the tool has no output."
_MAX_STRUCTURED = 1024 * 1024
_MAX_MESSAGE = 2000
# The first bytes of image files. WebP has its mark behind the length, and is recognised apart.
_MARKS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


def output_of(value: Any, limit: int = MAX_OUTPUT) -> ToolOutput:
    """Convert a returned value to an output; ToolCallFailed if that is impossible."""
    match value:
        case None:
            return ToolOutput((Text(NO_OUTPUT),))
        case str():
            return ToolOutput((_text(value, limit),))
        case bytes() | bytearray() | memoryview():
            return ToolOutput((_bytes(bytes(value), limit),))
        case LanguageModelTextPart() | LanguageModelDataPart():
            return _of_parts([value], limit)
        case LanguageModelToolResult():
            return _of_parts(value.content, limit)
    plain = jsonable(value)
    text = msgspec.json.encode(plain).decode()
    # Decoding large data would block the server's loop, and the text is equivalent.
    return ToolOutput((_text(text, limit),), structured=plain if len(text) <= _MAX_STRUCTURED else None)


def error_text(error: BaseException) -> str:
    """Describe an exception to the model: its type and its message, without the traceback."""
    if isinstance(error, SystemExit):
        return f"The tool called exit with status {error.code!r}."[:_MAX_MESSAGE]
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the tool's own __str__
        message = "its message could not be made"
    message = whole_characters(message[:_MAX_MESSAGE])
    if isinstance(error, ToolCallFailed):
        return message or "The tool failed."
    kind = type(error).__name__
    if isinstance(error, MemoryError):
        return f"{kind}: the tool needed more memory than it may have. {message}".strip()
    return f"{kind}: {message}" if message else kind


def _of_parts(parts: Any, limit: int) -> ToolOutput:
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable):
        raise ToolCallFailed("The tool returned a result whose content is not a list of parts.")
    content: list[Text | Media] = []
    structured: Any = None
    room, text_room = limit, MAX_TEXT
    for part in parts:
        match part:
            case LanguageModelTextPart(value=str() as text):
                content.append(_text(text, min(room, text_room)))
            case LanguageModelDataPart(data=bytes() as data, mime_type=str() as mime):
                content.append(_data(data, mime, room, text_room))
                if structured is None and mime == "application/json" and len(data) <= _MAX_STRUCTURED:
                    with suppress(msgspec.DecodeError, RecursionError):
                        structured = msgspec.json.decode(data)
            case _:
                raise ToolCallFailed(
                    f"The tool returned a part of type {type(part).__name__}; text and data parts are known."
                )
        last = content[-1]
        if isinstance(last, Text):
            text_room = max(text_room - len(last.text.encode()), 0)
        room = max(room - len(last.text if isinstance(last, Text) else last.data or ""), 0)
    return ToolOutput(tuple(content) or (Text(NO_OUTPUT),), structured=structured)


def _text(text: str, limit: int) -> Text:
    """Cut a text that is too long, with a note at its end."""
    limit = min(limit, MAX_TEXT)
    kept = whole_characters(text[:limit])
    size = len(kept.encode())
    if size <= limit and len(text) <= limit:
        return Text(kept)
    kept = kept.encode()[:limit].decode("utf-8", "ignore")  # without the beginning of a character that was cut
    return Text(f"{kept}\n[cut here: the tool returned {len(text):,} characters]")


def _data(data: bytes, mime: str, limit: int, text_limit: int = MAX_TEXT) -> Text | Media:
    if mime.startswith("text/") or mime == "application/json":
        return _text(data.decode("utf-8", "replace"), min(limit, text_limit))
    if len(data) * 4 // 3 > limit:  # as base64; half of a picture is of no use
        raise ToolCallFailed(f"The tool returned {len(data):,} bytes of {mime}, which is too much.")
    kind: MediaKind = "file"
    match mime.partition("/")[0]:
        case "image" | "audio" | "video" as known:
            kind = known
    return Media(kind, mime, base64.b64encode(data).decode())


def _bytes(data: bytes, limit: int) -> Text | Media:
    """Convert bytes of unknown type: to an image by their beginning, to text if they are UTF-8, else to a note."""
    for mark, mime in _MARKS:
        if data.startswith(mark):
            return _data(data, mime, limit)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _data(data, "image/webp", limit)
    try:
        return _text(data.decode(), limit)
    except UnicodeDecodeError:
        return Text(f"[The tool returned {len(data):,} bytes that are neither text nor a picture.]")
