"""Compute digests by which two versions of a history are recognized as the same, although a client has rewritten one.

It does not matter how text is split into parts and messages, which line ends and Unicode composition it has, and in which
order a call's arguments stand. The model's own text is compared without any blanks, because clients trim it. Pure.
"""

import hashlib
import json
import unicodedata
from typing import Any

from toolgate.conversation.message import Media, Message, RefusalPart, Text, ToolCall, ToolResult

# Characters that are split at once: to split millions of line ends in one call would hold the interpreter too long.
_SLICE = 256 * 1024


def normalize_text(text: str) -> str:
    """Normalize line ends, trailing blanks and Unicode composition; indentation stays."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    slices: list[str] = []
    start = 0
    while start <= len(text):
        end = text.find("\n", start + _SLICE)
        end = len(text) if end < 0 else end
        slices.append("\n".join([line.rstrip() for line in text[start:end].split("\n")]))
        start = end + 1
    return unicodedata.normalize("NFC", "\n".join(slices).strip())


def remove_whitespace(text: str) -> str:
    """Return the normalized text without any blanks."""
    text = normalize_text(text)
    return "".join(["".join(text[start : start + _SLICE].split()) for start in range(0, len(text), _SLICE)])


def canonical_arguments(call: ToolCall) -> str:
    """Return a call's arguments with sorted keys, so that parsing and encoding them again changes nothing."""
    try:
        # As text: a number beyond 2^53 must not become another one, and Python refuses integers of thousands of digits.
        return _sorted_json(json.loads(call.arguments, parse_float=_NumberText, parse_int=_NumberText))
    except (ValueError, RecursionError):
        return call.arguments


class _NumberText(str):
    """A number exactly as the JSON text spells it."""

    __slots__ = ()


def _sorted_json(value: Any) -> str:
    match value:
        case _NumberText():
            return str(value)
        case dict():
            return "{" + ",".join([f"{_sorted_json(key)}:{_sorted_json(value[key])}" for key in sorted(value)]) + "}"
        case list():
            return "[" + ",".join([_sorted_json(inner) for inner in value]) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


class HistoryDigest:
    """The digest of a history up to the last added message: two that begin alike share digests up to where they differ.

    System messages do not count, since many clients write the time into them; nor does reasoning, nor calls that others
    than the client ran, which some clients send back and some do not.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._role = ""
        self._not_client_calls: set[str] = set()

    def update(self, message: Message) -> None:
        """Add a message; neighbours of one role count as one message."""
        if message.role == "system":
            return
        texts: list[str] = []
        for part in message.parts:
            match part:
                case Text(text) | RefusalPart(text):
                    texts.append(text)
                case Media():
                    texts.append(_media_digest(part))
                case ToolCall(executor="client", name=name):
                    texts.append(f"({name} {canonical_arguments(part)})")
                case ToolCall(id=id):
                    self._not_client_calls.add(id)
                case ToolResult(call_id=id, content=content) if id not in self._not_client_calls:
                    texts += [one.text if isinstance(one, Text) else _media_digest(one) for one in content]
        whole = "".join(texts)
        if message.role == "assistant":
            whole = remove_whitespace(whole)
        elif texts:
            whole = normalize_text(whole) + "\n"
        if not whole:
            return
        if message.role != self._role:
            self._role = message.role
            # NUL keeps a text from imitating the beginning of another message.
            self._hash.update(f"\0{message.role}\0".encode())
        self._hash.update(whole.encode("utf-8", "replace"))

    def digest(self) -> str:
        """Return the digest of all added messages."""
        return self._hash.hexdigest()


def _media_digest(media: Media) -> str:
    content = media.data or media.url or media.file_id or media.name or ""
    return f"[{media.kind} {hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()}]"
