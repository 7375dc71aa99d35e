"""Encode messages as Ollama's messages, or as the prompt of `/api/generate`."""

from collections.abc import Iterator, Mapping
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
    content_with_error_prefix,
)
from toolgate.dialects.dialect import Quirks
from toolgate.dialects.ollama.shared_codec import NAME, write_call

_ATTACHMENT_NOTE = "[The tool returned the following attachment.]"
_EMPTY_ANSWER: Mapping[str, Any] = {"role": "assistant", "content": ""}


def encode_prompt(messages: tuple[Message, ...], dropped: list[str]) -> dict[str, Any]:
    """Encode a user message, perhaps behind a system message, as the fields of a prompt."""
    *before, last = [_content(message.parts, dropped) for message in messages]
    fields = {"prompt": last.pop("content"), **last}
    return {**fields, "system": before[0]["content"]} if before else fields


def encode_messages(messages: tuple[Message, ...], quirks: Quirks, dropped: list[str]) -> Iterator[dict[str, Any]]:
    """Encode all messages; images of tool results follow the last result of a turn, as the user's."""
    # Chat templates show the name of the tool with its result, which other dialects do not send.
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    attached: list[str] = []
    for message in messages:
        own = dict(message.extra.get(NAME, {}))
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult):
                    yield _result(part, names.get(part.call_id), quirks, attached, dropped) | own
            continue
        if attached:
            yield {"role": "user", "content": _ATTACHMENT_NOTE, "images": attached}
            attached = []
        match message.parts:
            case parts if message.role == "assistant":
                answer = _assistant(parts, quirks, dropped) | own
                if answer == _EMPTY_ANSWER and parts and all(isinstance(part, Opaque) for part in parts):
                    continue  # only another dialect understands it, and chat templates fail on an empty answer
                yield answer
            case (Opaque(dialect, value),) if dialect == NAME:
                yield dict(value)  # a message of a role that only Ollama knows
            case parts:
                yield {"role": message.role, **_content(parts, dropped), **own}
    if attached:
        yield {"role": "user", "content": _ATTACHMENT_NOTE, "images": attached}


def _content(parts: tuple[Part, ...], dropped: list[str]) -> dict[str, Any]:
    """Encode the parts of a message, which has one text, so that several become its lines, and a list of images."""
    texts, images = [], []
    for part in parts:
        match part:
            case Text(text) | RefusalPart(text):
                texts.append(text)
            case Media(kind="image", data=str(data)):  # Ollama fetches no URLs
                images.append(data)
                if part.detail not in (None, "auto"):
                    dropped.append("detail of an image has no place here")
            case Media(kind):
                dropped.append(
                    f"{kind} by {'url' if part.url else 'value' if part.data else 'file id'} has no place here"
                )
            case Opaque(dialect, value):
                dropped.append(f"a part of type {value.get('type')!r} is known to {dialect} only")
            case Reasoning() | ToolCall() | ToolResult():  # encoded by the callers, in fields of their own
                pass
    fields: dict[str, Any] = {"content": "\n".join(texts)}
    return {**fields, "images": images} if images else fields


def _assistant(parts: tuple[Part, ...], quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    message = {"role": "assistant", **_content(parts, dropped)}
    # Reasoning that another provider signed is not sent.
    reasoning = [part for part in parts if isinstance(part, Reasoning)]
    sent = [part for part in reasoning if not part.signature or part.signature.dialect == NAME]
    if len(sent) < len(reasoning) and REASONING_DROPPED not in dropped:
        dropped.append(REASONING_DROPPED)
    if thinking := "\n".join([part.text for part in sent if part.text]):
        message["thinking"] = thinking
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if calls:
        message["tool_calls"] = [write_call(call, _call_id(call.id, quirks), index) for index, call in enumerate(calls)]
    return message


def _result(
    part: ToolResult, name: str | None, quirks: Quirks, attached: list[str], dropped: list[str]
) -> dict[str, Any]:
    content = _content(content_with_error_prefix(part), dropped)
    message = {"role": "tool", **content, "tool_call_id": _call_id(part.call_id, quirks)}
    if not quirks.images_in_tool_results and "images" in message:
        attached += message.pop("images")
        message["content"] = message["content"] or _ATTACHMENT_NOTE
    if part.name or name:
        message["tool_name"] = part.name or name
    return message


def _call_id(id: str, quirks: Quirks) -> str:
    """Return the id that the upstream made, or one that it accepts."""
    id = call_ids.original_id(id)
    return call_ids.fit_id(id, quirks.call_id_pattern) if quirks.call_id_pattern else id
