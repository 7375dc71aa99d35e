"""A conversation as Anthropic's turns: user and assistant by turns, results first, ids that are unique and well-formed.

What Anthropic is sure to refuse is not sent: empty texts, empty messages, seals of other dialects.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from toolgate.conversation import ids
from toolgate.conversation.message import (
    REASONING_LOST,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic.words import ID_PATTERN, NAME, write_input
from toolgate.dialects.dialect import Quirks

_FAILED = "The tool failed and gave no reason."
_BEGIN = "[The conversation begins with the assistant's words.]"
_THINKING = ("thinking", "redacted_thinking")


class CallIds:
    """Each call's id as this upstream takes it: its own again where it gave one, well-formed, and never twice."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self._used: set[str] = set()
        self._latest: dict[str, str] = {}

    def of_call(self, id: str) -> str:
        """The id for a call; results that follow find it by the same id."""
        tries = (ids.original(id), id, ids.fitted(id, self._pattern.pattern))
        fitting = [one for one in tries if self._pattern.fullmatch(one) and one not in self._used]
        taken = fitting[0] if fitting else ids.fitted(f"{id}#{len(self._used)}", self._pattern.pattern)
        self._used.add(taken)
        self._latest[id] = taken
        return taken

    def of_result(self, id: str) -> str:
        """The id of the call that a result answers."""
        return self._latest.get(id) or ids.fitted(ids.original(id), self._pattern.pattern)


class Turns:
    """Writes the messages of one request."""

    def __init__(self, request: ModelRequest, quirks: Quirks, dropped: list[str]) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self._own = request.dialect == NAME
        self._in_place = self._own if quirks.system_in_place is None else quirks.system_in_place
        self._ids = CallIds(quirks.call_id_pattern or ID_PATTERN)
        self._dropped = dropped
        for message in request.messages:
            self._add(message)
        self._settle()

    def _add(self, message: Message) -> None:
        own = dict(message.extra.get(NAME, {}))
        match message.role:
            case "system":
                self._add_system(message, own)
            case "assistant":
                self._extend("assistant", self._spoken(message.parts), own)
            case _:
                self._extend("user", self._heard(message.parts), own)

    def _add_system(self, message: Message, own: dict[str, Any]) -> None:
        """A system message amid the conversation keeps its place where the upstream knows such a thing."""
        blocks = list(self._heard(message.parts))
        if not self.messages:
            self.system += blocks
        elif self._in_place and (self._own or self.messages[-1]["role"] == "user"):
            self.messages.append({"role": "system", "content": blocks, **own})
        else:
            self._dropped.append("a system message amid the conversation was moved to the system prompt")
            self.system += blocks

    def _extend(self, role: str, blocks: Iterator[dict[str, Any]], own: dict[str, Any]) -> None:
        """Add to the open turn of that role, or begin one; nothing said makes no turn."""
        said = list(blocks)
        if not said:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += said
            self.messages[-1] |= own
        else:
            self.messages.append({"role": role, "content": said, **own})

    def _settle(self) -> None:
        if not self._own:
            self._settle_ends()
        for message in self.messages:
            content = message["content"]
            if message["role"] == "user":
                content.sort(key=lambda block: block["type"] != "tool_result")
            message["content"] = _short(content)

    def _settle_ends(self) -> None:
        """A conversation begins with the user, and its last words do not end in a blank."""
        if not self.messages and self.system:
            self._dropped.append("there is no user message: the system prompt was sent as one")
            self.messages, self.system = [{"role": "user", "content": self.system}], []
        if self.messages and self.messages[0]["role"] == "assistant":
            self.messages.insert(0, {"role": "user", "content": [{"type": "text", "text": _BEGIN}]})
        if self.messages and self.messages[-1]["role"] == "assistant":
            last = self.messages[-1]["content"][-1]
            if last["type"] == "text":
                last["text"] = last["text"].rstrip()

    def _heard(self, parts: tuple[Part, ...]) -> Iterator[dict[str, Any]]:
        """What the user, the system or a tool said."""
        for part in parts:
            match part:
                case ToolResult():
                    yield self._result(part)
                case Text() | Media():
                    yield from self._piece(part)
                case _:
                    yield from self._rare(part)

    def _spoken(self, parts: tuple[Part, ...]) -> Iterator[dict[str, Any]]:
        """What the assistant said; reasoning that Anthropic did not seal stays out."""
        for part in parts:
            match part:
                case Text():
                    yield from self._piece(part)
                case Refusal(text):
                    yield from self._piece(Text(text))
                case ToolCall():
                    id, own = self._ids.of_call(part.id), part.extra.get(NAME, {})
                    yield {"type": "tool_use", "id": id, "name": part.name, "input": write_input(part), **own}
                case Reasoning(text, seal):
                    if seal is not None and seal.dialect == NAME:
                        yield _sealed(text, seal.fields)
                    elif (text or seal) and REASONING_LOST not in self._dropped:
                        self._dropped.append(REASONING_LOST)
                case _:
                    yield from self._rare(part)

    def _rare(self, part: Part) -> Iterator[dict[str, Any]]:
        match part:
            case Opaque(dialect, value) if dialect == NAME:
                yield dict(value)
            case Opaque(dialect, value):
                self._dropped.append(f"a part of type {value.get('type')!r} is known to {dialect} only")
            case _:
                kind = part.kind if isinstance(part, Media) else type(part).__name__
                self._dropped.append(f"a part of kind {kind} has no place here")

    def _piece(self, part: Text | Media) -> Iterator[dict[str, Any]]:
        own = part.extra.get(NAME, {})
        if isinstance(part, Media):
            yield from self._media(part, dict(own))
        elif "type" in own:
            yield dict(own)
        elif part.text.strip():
            yield {"type": "text", "text": part.text, **own}

    def _result(self, result: ToolResult) -> dict[str, Any]:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": self._ids.of_result(result.call_id)}
        content = [block for piece in result.content for block in self._piece(piece)]
        if not content and result.is_error:
            content = [{"type": "text", "text": _FAILED}]
        if content:
            block["content"] = _short(content)
        if result.is_error is not None:
            block["is_error"] = result.is_error
        return {**block, **result.extra.get(NAME, {})}

    def _media(self, part: Media, own: dict[str, Any]) -> Iterator[dict[str, Any]]:
        source = self._source(part) if part.kind in ("image", "file") else None
        if source is None:
            where = "inline" if part.data else "by URL" if part.url else "by file id"
            self._dropped.append(f"{part.kind} {part.mime or ''} {where} has no place here".replace("  ", " "))
            return
        if part.kind == "image":
            if part.detail not in (None, "auto"):
                self._dropped.append("detail of an image has no place here")
            yield {"type": "image", "source": source, **own}
        else:
            title = {"title": part.name} if part.name else {}
            yield {"type": "document", "source": source, **title, **own}

    def _source(self, part: Media) -> dict[str, Any] | None:
        """Where the bytes are; another provider's file id is worth nothing here."""
        if part.file_id and self._own:
            return {"type": "file", "file_id": part.file_id}
        if part.url:
            return {"type": "url", "url": part.url}
        if not part.data:
            return None
        mime = part.mime or ("image/png" if part.kind == "image" else "application/pdf")
        if part.kind == "image" or mime == "application/pdf":
            return {"type": "base64", "media_type": mime, "data": part.data}
        text = _as_text(part.data) if mime.startswith("text/") or mime == "application/json" else None
        return None if text is None else {"type": "text", "media_type": "text/plain", "data": text}


def _as_text(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _sealed(text: str, fields: Any) -> dict[str, Any]:
    if "data" in fields:
        return {"type": "redacted_thinking", "data": fields["data"]}
    return {"type": "thinking", "thinking": text, "signature": fields.get("signature", "")}


def _short(content: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One plain text stands for itself."""
    match content:
        case [{"type": "text", "text": str(text)}] if len(content[0]) == 2:
            return text
    return content


def write_system(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The system prompt, if there is one."""
    return {"system": _short(blocks)} if blocks else {}


def calls_in(messages: list[dict[str, Any]]) -> dict[str, None]:
    """The names of the tools that were called, in order."""
    blocks = [block for message in messages if type(message["content"]) is list for block in message["content"]]
    return dict.fromkeys([block["name"] for block in blocks if block["type"] == "tool_use"])


def lacks_thinking(messages: list[dict[str, Any]]) -> bool:
    """Whether the tool calls that are being answered were made without the thinking that led to them."""
    called = False
    for message in reversed(messages):
        content = message["content"] if type(message["content"]) is list else []
        kinds = [block["type"] for block in content]
        if message["role"] == "assistant":
            called = called or "tool_use" in kinds
            if kinds and kinds[0] in _THINKING:
                return False
        elif message["role"] == "user" and "tool_result" not in kinds:
            break
    return called
