"""Encode messages as rows of a stored chat: text as text, calls as OpenAI's Chat does, and the rest as structured parts.

The form of structured parts is documented and stays when the classes of messages are renamed.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.conversation.message import (
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
from toolgate.conversation.message import plain_text as plain
from toolgate.dialects.openai_chat.server import write_call
from toolgate.storage.recorded_chats import StoredMessage
from toolgate.wire.jsontext import encode


class StoredMessageMetadata(Struct, frozen=True):
    """What is stored of messages beside their content; `legacy` is set for clients that use functions and not tools."""

    request: str
    created: float
    legacy: bool = False
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


def message_rows(messages: Iterable[Message], about: StoredMessageMetadata) -> list[StoredMessage]:
    """Encode messages; one with the results of several calls becomes a row for each result."""
    rows = []
    for message in messages:
        if message.role != "tool":
            rows.append(_row(message.role, message.parts, about))
        else:
            results = [part for part in message.parts if isinstance(part, ToolResult)]
            rows += [_row("tool", result.content, about, result) for result in results]
    return rows


def _row(
    role: str, parts: tuple[Part, ...], about: StoredMessageMetadata, result: ToolResult | None = None
) -> StoredMessage:
    calls = [part for part in parts if isinstance(part, ToolCall) and part.executor == "client"]
    others = [part for part in parts if part not in calls]
    text = plain(parts)
    encoded_calls = [write_call(call, call.arguments) for call in calls]
    function_call = encoded_calls[0].get("function") if encoded_calls and about.legacy else None
    failed = result is not None and bool(result.is_error)
    # Most messages are one text, which `content` holds: they need no structured parts.
    is_plain = not others or (len(others) == 1 and isinstance(others[0], Text))
    structured = [*([{"type": "error"}] if failed else []), *[part_object(part) for part in others]]
    return StoredMessage(
        role=role,
        # As OpenAI has it: null beside calls, "" for an empty message.
        content=text if text or not (others or calls) else None,
        content_json=None if is_plain and not failed else _json(structured),
        tool_calls=_json(encoded_calls) if encoded_calls and function_call is None else None,
        tool_call_id=result.call_id if result else None,
        name=result.name if result else None,
        function_call=_json(function_call) if function_call is not None else None,
        model=about.model,
        finish_reason=about.finish_reason,
        usage=_json(usage_object(about.usage)) if about.usage else None,
        request=about.request,
        created=about.created,
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return token counts as they are stored."""
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cached_tokens": usage.cache_read,
        "reasoning_tokens": usage.reasoning,
        "estimated": usage.estimated,
    }


def part_object(part: Part) -> dict[str, Any]:
    """Return a part as it is stored."""
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Media():
            fields = {"mime": part.mime, "data": part.data, "url": part.url, "file_id": part.file_id, "name": part.name}
            return {"type": part.kind, **{name: value for name, value in fields.items() if value is not None}}
        case Reasoning(text):
            return {"type": "reasoning", "text": text}
        case RefusalPart(text):
            return {"type": "refusal", "text": text}
        case ToolCall():
            fields = {"id": part.id, "name": part.name, "arguments": part.arguments}
            return {"type": "tool_call", **fields, "executor": part.executor}
        case ToolResult():
            content = [part_object(one) for one in part.content]
            return {"type": "tool_result", "id": part.call_id, "is_error": bool(part.is_error), "content": content}
        case Opaque(dialect, value):
            return {"type": "other", "dialect": dialect, "value": value}
        case _:
            return {"type": "approval_request", "id": part.id}


def _json(value: Any) -> str:
    return encode(value).decode("utf-8", "replace")
