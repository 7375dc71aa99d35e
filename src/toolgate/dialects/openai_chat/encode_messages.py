"""Encode messages as Chat messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from toolgate.conversation import call_ids
from toolgate.conversation.arguments import arguments_object_text
from toolgate.conversation.data_urls import data_url
from toolgate.conversation.message import (
    REASONING_DROPPED,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
    content_with_error_prefix,
)
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Quirks
from toolgate.dialects.openai_chat.shared_codec import NAME, REASONING_FIELDS

_ATTACHMENT_NOTE = "[The tool returned the following attachment.]"
_PICTURE_NOTE = "[The assistant made the following picture.]"
# What `_assistant` makes of parts that it leaves out.
_EMPTY_ANSWER: Mapping[str, Any] = {"role": "assistant", "content": ""}


def encode_messages(request: ModelRequest, quirks: Quirks, dropped: list[str]) -> list[dict[str, Any]]:
    """Encode all messages; what this dialect cannot express is added to `dropped`.

    Most upstreams take only text in messages of tools and of the assistant, so media follow as the user's, behind all
    results of the turn. A Chat client's own messages of the assistant are sent as they are.
    """
    encoded: list[dict[str, Any]] = []
    attached: list[Text | Media] = []
    same_dialect = request.dialect == NAME
    for message in request.messages:
        if message.role == "tool":
            encoded += _results(message, quirks, attached, same_dialect)
            continue
        if attached:
            encoded.append({"role": "user", "content": _content(tuple(attached), dropped)})
            attached = []
        if message.role == "assistant" and not same_dialect:
            pictures = [part for part in message.parts if isinstance(part, Media)]
            if pictures:
                attached += [Text(_PICTURE_NOTE), *pictures]
                message = replace(message, parts=tuple([part for part in message.parts if part not in pictures]))
        if message.role == "user" and not message.extra and len(message.parts) == 1:
            encoded.append({"role": "user", "content": _content(message.parts, dropped)})  # most messages
            continue
        own = dict(message.extra.get(NAME, {}))
        if message.role != "assistant":
            role = quirks.system_role if message.role == "system" else "user"
            encoded.append({"role": role, "content": _content(message.parts, dropped), **own})
            continue
        answer = _assistant(message.parts, quirks, dropped) | own
        if answer == _EMPTY_ANSWER and message.parts and all(isinstance(part, Opaque) for part in message.parts):
            continue  # only another dialect understands this answer, and servers reject an empty one
        encoded.append(answer)
    if attached:
        encoded.append({"role": "user", "content": _content(tuple(attached), dropped)})
    return encoded


def _content(parts: tuple[Part, ...], dropped: list[str]) -> str | list[dict[str, Any]]:
    # A string where possible: it is shorter, and not every server takes a list.
    if len(parts) == 1 and type(part := parts[0]) is Text and NAME not in part.extra:
        return part.text
    return [entry for part in parts if (entry := _part(part, dropped))] or ""


def _part(part: Part, dropped: list[str]) -> dict[str, Any] | None:
    match part:
        case Text(text):
            return {"type": "text", "text": text, **part.extra.get(NAME, {})}
        case Media():
            return _media(part, dropped)
        case Opaque(dialect, value) if dialect == NAME:
            return dict(value)
        case RefusalPart(text):
            return {"type": "refusal", "refusal": text}
        case Opaque(dialect, value):
            dropped.append(f"a part of type {value.get('type')!r} is known to {dialect} only")
        case _:
            kind = part.kind if isinstance(part, Media) else type(part).__name__
            dropped.append(f"a part of kind {kind} has no place here")
    return None


def _media(part: Media, dropped: list[str]) -> dict[str, Any] | None:
    own = dict(part.extra.get(NAME, {}))
    url = part.url or (data_url(part.mime, part.data) if part.data else None)
    if part.kind == "image" and url:
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", **own, "image_url": {"url": url, **detail, **own.get("image_url", {})}}
    if part.kind == "audio" and part.data:
        form = {"audio/mpeg": "mp3"}.get(part.mime or "", (part.mime or "audio/wav").rpartition("/")[2])
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}, **own}
    if part.kind == "file" and (part.file_id or part.data):
        file = {"file_id": part.file_id, "filename": part.name, "file_data": url if part.data else None}
        return {"type": "file", "file": {name: value for name, value in file.items() if value}, **own}
    dropped.append(f"{part.kind} by {'url' if part.url else 'file id'} has no place here")
    return None


def _assistant(parts: tuple[Part, ...], quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    content = tuple([part for part in parts if not isinstance(part, (Reasoning, ToolCall))])
    message["content"] = _content(content, dropped) if content else None
    # Several texts of an answer are one text to Chat, and many servers take no list from the assistant.
    if len(content) > 1 and all(type(part) is Text and NAME not in part.extra for part in content):
        message["content"] = "".join([part.text for part in content if type(part) is Text])
    calls: list[dict[str, Any]] = []
    call_fields: Mapping[str, Any] = {}  # fields of the next call that came as the signature of reasoning before it
    for part in parts:
        match part:
            case ToolCall(id, name, arguments):
                if part.freeform:
                    call = {"type": "custom", "custom": {"name": name, "input": arguments}}
                else:
                    function = {"name": name, "arguments": arguments_object_text(arguments)}
                    call = {"type": "function", "function": function}
                calls.append({"id": _call_id(id, quirks), **call, **part.extra.get(NAME, {}), **call_fields})
                call_fields = {}
            case Reasoning(signature=ReasoningSignature(dialect, {"next_call": dict(fields)})) if dialect == NAME:
                call_fields = fields
            case Reasoning():
                if not _add_reasoning(part, quirks, message) and REASONING_DROPPED not in dropped:
                    dropped.append(REASONING_DROPPED)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""  # null is allowed only beside calls
    return message


def _add_reasoning(part: Reasoning, quirks: Quirks, message: dict[str, Any]) -> bool:
    """Add reasoning in the field it came in, or in the upstream's own; return whether there was a field for it."""
    field: str | None = quirks.reasoning_field
    added = False
    if part.signature is not None and part.signature.dialect == NAME:
        # An upstream may have sent anything as details, and a client may have forged all fields in an envelope.
        kept, details = part.signature.fields.get("field"), part.signature.fields.get("reasoning_details")
        field = kept if kept in REASONING_FIELDS else field
        entries = [entry for entry in details if type(entry) is dict] if type(details) is list else []
        if entries:
            message["reasoning_details"] = [*message.get("reasoning_details", []), *entries]
            added = True
    if field and part.text:
        message[field] = message.get(field, "") + part.text
        added = True
    return added or (part.signature is None and not part.text)


def _call_id(id: str, quirks: Quirks) -> str:
    """Return the id that the upstream made, or one that it accepts."""
    id = call_ids.original_id(id)
    return call_ids.fit_id(id, quirks.call_id_pattern) if quirks.call_id_pattern else id


def _results(
    message: Message, quirks: Quirks, attached: list[Text | Media], same_dialect: bool
) -> Iterator[dict[str, Any]]:
    own = message.extra.get(NAME, {})
    for result in message.parts:
        if not isinstance(result, ToolResult):
            continue
        content = content_with_error_prefix(result)
        if not quirks.images_in_tool_results and any(isinstance(part, Media) for part in content):
            attached += [Text(_ATTACHMENT_NOTE)] if Text(_ATTACHMENT_NOTE) not in attached else []
            attached += [part for part in content if isinstance(part, Media)]
            # Without the note, a result that was only media would look as if the tool had returned nothing.
            content = tuple([part for part in content if isinstance(part, Text)]) or (Text(_ATTACHMENT_NOTE),)
        plain = all(isinstance(part, Text) and NAME not in part.extra for part in content)
        text: str | list[dict[str, Any]]
        if plain and (not same_dialect or len(content) < 2):
            # Not every upstream takes several texts, so those of other dialects become lines of one.
            text = "\n".join([part.text for part in content if isinstance(part, Text)])
        else:
            text = [entry for part in content if (entry := _part(part, []))]
        yield {"role": "tool", "tool_call_id": _call_id(result.call_id, quirks), "content": text, **own}
