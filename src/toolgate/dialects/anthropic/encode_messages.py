"""Encode messages as Anthropic's turns: user and assistant alternate, results come first, call ids are valid and unique.

What Anthropic always rejects is not sent: empty texts, empty messages, signatures of other dialects.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from toolgate.conversation import call_ids
from toolgate.conversation.message import (
    REASONING_DROPPED,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic.shared_codec import DOCUMENT_PIECE, ID_PATTERN, NAME, write_input
from toolgate.dialects.dialect import Quirks

# Anthropic rejects a failed result without content, and a conversation that begins with the assistant.
_UNEXPLAINED_ERROR = "The tool failed and gave no reason."
_ASSISTANT_FIRST = "[The conversation begins with the assistant's words.]"
_THINKING_KINDS = ("thinking", "redacted_thinking")


class AnthropicCallIds:
    """Maps call ids to those that the upstream accepts: its own where it made the call, valid, and never twice."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self._used: set[str] = set()
        self._latest: dict[str, str] = {}

    def of_call(self, id: str) -> str:
        """Return the id for a call; results that follow find it by the same id."""
        # The upstream's own id is preferred, so that the history is the one that it has cached.
        candidates = (call_ids.original_id(id), id, call_ids.fit_id(id, self._pattern.pattern))
        valid = [one for one in candidates if self._pattern.fullmatch(one) and one not in self._used]
        chosen = valid[0] if valid else call_ids.fit_id(f"{id}#{len(self._used)}", self._pattern.pattern)
        self._used.add(chosen)
        self._latest[id] = chosen
        return chosen

    def of_result(self, id: str) -> str:
        """Return the id of the call that a result answers."""
        return self._latest.get(id) or call_ids.fit_id(call_ids.original_id(id), self._pattern.pattern)


class MessageEncoder:
    """Encodes the messages of one request as `system` and `messages`."""

    def __init__(self, request: ModelRequest, quirks: Quirks, dropped: list[str]) -> None:
        self.system: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self._same_dialect = request.dialect == NAME
        # Not every model takes a system message inside the conversation; a client of this dialect knows its own.
        self._in_place = self._same_dialect if quirks.system_in_place is None else quirks.system_in_place
        self._ids = AnthropicCallIds(quirks.call_id_pattern or ID_PATTERN)
        self._dropped = dropped
        for message in request.messages:
            own = dict(message.extra.get(NAME, {}))
            match message.role:
                case "system":
                    self._add_system(message, own)
                case "assistant":
                    self._extend("assistant", self._assistant_blocks(message.parts), own)
                case _:
                    self._extend("user", self._input_blocks(message.parts), own)
        # A client of this dialect gets the upstream's own error instead.
        if not self._same_dialect:
            self._repair_ends()
        for turn in self.messages:
            if turn["role"] == "user":  # Anthropic rejects results that come after other content
                turn["content"].sort(key=lambda block: block["type"] != "tool_result")
            turn["content"] = _simplify(turn["content"])

    def _add_system(self, message: Message, own: dict[str, Any]) -> None:
        """Add a system message; inside the conversation it keeps its place only if the upstream allows that."""
        blocks = list(self._input_blocks(message.parts))
        if not self.messages:
            self.system += blocks
        elif self._in_place and (self._same_dialect or self.messages[-1]["role"] == "user"):
            self.messages.append({"role": "system", "content": blocks, **own})
        else:
            self._dropped.append("a system message amid the conversation was moved to the system prompt")
            self.system += blocks

    def _extend(self, role: str, blocks: Iterator[dict[str, Any]], own: dict[str, Any]) -> None:
        """Add blocks to the last turn if it has that role, else begin a turn; without blocks there is none."""
        content = list(blocks)
        if not content:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += content
            self.messages[-1] |= own
        else:
            self.messages.append({"role": role, "content": content, **own})

    def _repair_ends(self) -> None:
        """Make the conversation begin with the user, and strip trailing blanks from a prefilled answer."""
        if not self.messages and self.system:
            self._dropped.append("there is no user message: the system prompt was sent as one")
            self.messages, self.system = [{"role": "user", "content": self.system}], []
        if self.messages and self.messages[0]["role"] == "assistant":
            self.messages.insert(0, {"role": "user", "content": [{"type": "text", "text": _ASSISTANT_FIRST}]})
        if self.messages and self.messages[-1]["role"] == "assistant":
            last = self.messages[-1]["content"][-1]
            if last["type"] == "text":  # Anthropic rejects a prefilled answer that ends in blanks
                last["text"] = last["text"].rstrip()

    def _input_blocks(self, parts: tuple[Part, ...]) -> Iterator[dict[str, Any]]:
        """Encode the parts of the user, the system or a tool."""
        for part in parts:
            match part:
                case ToolResult(call_id, content, is_error):
                    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": self._ids.of_result(call_id)}
                    blocks = [block for one in content for block in self._content(one)]
                    if not blocks and is_error:  # Anthropic rejects a failed result without content
                        blocks = [{"type": "text", "text": _UNEXPLAINED_ERROR}]
                    if blocks:
                        result["content"] = _simplify(blocks)
                    if is_error is not None:
                        result["is_error"] = is_error
                    yield {**result, **part.extra.get(NAME, {})}
                case Text() | Media():
                    yield from self._content(part)
                case _:
                    yield from self._other(part)

    def _assistant_blocks(self, parts: tuple[Part, ...]) -> Iterator[dict[str, Any]]:
        """Encode the parts of the assistant; reasoning that Anthropic did not sign is left out."""
        for part in parts:
            match part:
                case Text():
                    yield from self._content(part)
                case RefusalPart(text):
                    yield from self._content(Text(text))
                case ToolCall():
                    id, own = self._ids.of_call(part.id), part.extra.get(NAME, {})
                    yield {"type": "tool_use", "id": id, "name": part.name, "input": write_input(part), **own}
                case Reasoning(text, signature):
                    if signature is None or signature.dialect != NAME:
                        if (text or signature) and REASONING_DROPPED not in self._dropped:
                            self._dropped.append(REASONING_DROPPED)
                    elif "data" in signature.fields:
                        yield {"type": "redacted_thinking", "data": signature.fields["data"]}
                    else:
                        yield {"type": "thinking", "thinking": text, "signature": signature.fields.get("signature", "")}
                case _:
                    yield from self._other(part)

    def _other(self, part: Part) -> Iterator[dict[str, Any]]:
        match part:
            case Opaque(dialect, value) if dialect == NAME:
                yield dict(value)
            case Opaque(dialect, value):
                self._dropped.append(f"a part of type {value.get('type')!r} is known to {dialect} only")
            case _:
                kind = part.kind if isinstance(part, Media) else type(part).__name__
                self._dropped.append(f"a part of kind {kind} has no place here")

    def _content(self, part: Text | Media) -> Iterator[dict[str, Any]]:
        own = part.extra.get(NAME, {})
        if "type" in own:  # the complete block that the part was decoded from
            if own["type"] != DOCUMENT_PIECE:
                yield dict(own)
        elif isinstance(part, Text):
            if part.text.strip():  # Anthropic rejects a text of blanks alone
                yield {"type": "text", "text": part.text, **own}
        elif (source := self._source(part)) is None:
            where = "inline" if part.data else "by URL" if part.url else "by file id"
            self._dropped.append(f"{part.kind} {part.mime or ''} {where} has no place here".replace("  ", " "))
        elif part.kind == "image":
            if part.detail not in (None, "auto"):
                self._dropped.append("detail of an image has no place here")
            yield {"type": "image", "source": source, **own}
        else:
            title = {"title": part.name} if part.name else {}
            yield {"type": "document", "source": source, **title, **own}

    def _source(self, part: Media) -> dict[str, Any] | None:
        """Encode where the bytes are; another provider's file id is unknown here."""
        if part.kind not in ("image", "file"):
            return None
        if part.file_id and self._same_dialect:
            return {"type": "file", "file_id": part.file_id}
        if part.url:
            return {"type": "url", "url": part.url}
        if not part.data:
            return None
        mime = part.mime or ("image/png" if part.kind == "image" else "application/pdf")
        if part.kind == "image" or mime == "application/pdf":
            return {"type": "base64", "media_type": mime, "data": part.data}
        # Documents are PDFs or plain text, so a file of text is sent as its text.
        if not mime.startswith("text/") and mime != "application/json":
            return None
        try:
            text = base64.b64decode(part.data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return {"type": "text", "media_type": "text/plain", "data": text}


def _simplify(content: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Turn a single plain text block into a string."""
    match content:
        case [{"type": "text", "text": str(text)}] if len(content[0]) == 2:
            return text
    return content


def write_system(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Encode the system prompt, if there is one."""
    return {"system": _simplify(blocks)} if blocks else {}


def calls_in(messages: list[dict[str, Any]]) -> dict[str, None]:
    """Return the names of the called tools, in order."""
    blocks = [block for message in messages if type(message["content"]) is list for block in message["content"]]
    return dict.fromkeys([block["name"] for block in blocks if block["type"] == "tool_use"])


def lacks_thinking(messages: list[dict[str, Any]]) -> bool:
    """Return whether the last tool calls lack the thinking that must precede them."""
    called = False
    # Only the turn since the last message of the user counts, which is the one that the model continues.
    for message in reversed(messages):
        content = message["content"] if type(message["content"]) is list else []
        kinds = [block["type"] for block in content]
        if message["role"] == "assistant":
            called = called or "tool_use" in kinds
            if kinds and kinds[0] in _THINKING_KINDS:
                return False
        elif message["role"] == "user" and "tool_result" not in kinds:
            break
    return called
