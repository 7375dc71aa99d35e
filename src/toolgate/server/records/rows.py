"""Messages as rows of a chat: text as text, calls as OpenAI's Chat writes them, and all else as structured parts.

The words of structured parts are our own and documented: they outlive what the server's values are called.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Media, Message, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from toolgate.conversation.message import plain_text as plain
from toolgate.dialects.openai_chat.server import write_call
from toolgate.storage.chats import StoredMessage
from toolgate.wire.jsontext import encode


class About(Struct, frozen=True):
    """What is known of messages beside what they say; `legacy` is for a client that speaks of functions, not tools."""

    request: str
    created: float
    legacy: bool = False
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


def rows(messages: Iterable[Message], about: About) -> list[StoredMessage]:
    """The rows of these messages; a message with the results of several calls is a row for each."""
    return [row for message in messages for row in _rows(message, about)]


def _rows(message: Message, about: About) -> list[StoredMessage]:
    if message.role != "tool":
        return [_row(message.role, message.parts, about)]
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    return [_row("tool", one.content, about, one) for one in results]


def _row(role: str, parts: tuple[Part, ...], about: About, result: ToolResult | None = None) -> StoredMessage:
    calls = [part for part in parts if isinstance(part, ToolCall) and part.executor == "client"]
    said = [part for part in parts if part not in calls]
    text = plain(parts)
    written = [write_call(call, call.arguments) for call in calls]
    legacy = written[0].get("function") if written and about.legacy else None
    return StoredMessage(
        role=role,
        content=text if text or not (said or calls) else None,
        content_json=None if _is_plain(said) and not (result and result.is_error) else _json(_structured(said, result)),
        tool_calls=_json(written) if written and legacy is None else None,
        tool_call_id=result.call_id if result else None,
        name=result.name if result else None,
        function_call=_json(legacy) if legacy is not None else None,
        model=about.model,
        finish_reason=about.finish_reason,
        usage=_json(usage_words(about.usage)) if about.usage else None,
        request=about.request,
        created=about.created,
    )


def usage_words(usage: Usage) -> dict[str, Any]:
    """Token counts as they are kept."""
    told = {"input_tokens": usage.input, "output_tokens": usage.output, "cached_tokens": usage.cache_read}
    return {**told, "reasoning_tokens": usage.reasoning, "estimated": usage.estimated}


def structured(part: Part) -> dict[str, Any]:
    """A part in the words in which it is kept."""
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Media():
            told = {"mime": part.mime, "data": part.data, "url": part.url, "file_id": part.file_id, "name": part.name}
            return {"type": part.kind, **{name: value for name, value in told.items() if value is not None}}
        case Reasoning(text):
            return {"type": "reasoning", "text": text}
        case Refusal(text):
            return {"type": "refusal", "text": text}
        case ToolCall():
            told = {"id": part.id, "name": part.name, "arguments": part.arguments}
            return {"type": "tool_call", **told, "executor": part.executor}
        case ToolResult():
            content = [structured(one) for one in part.content]
            return {"type": "tool_result", "id": part.call_id, "is_error": bool(part.is_error), "content": content}
        case Opaque(dialect, value):
            return {"type": "other", "dialect": dialect, "value": value}
        case _:
            return {"type": "approval_request", "id": part.id}


def _structured(parts: list[Part], result: ToolResult | None) -> list[dict[str, Any]]:
    """The parts, behind a mark if they tell of a failure."""
    failed = [{"type": "error"}] if result and result.is_error else []
    return [*failed, *[structured(part) for part in parts]]


def _is_plain(parts: list[Part]) -> bool:
    return not parts or (len(parts) == 1 and isinstance(parts[0], Text))


def _json(value: Any) -> str:
    return encode(value).decode("utf-8", "replace")
