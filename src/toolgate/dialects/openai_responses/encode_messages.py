"""Encode messages as input items.

Items are sent without ids: the upstream stores nothing for us, and would look up an item by its id. A reasoning item is
sent back only with its own signature; reasoning of another dialect, or without a signature, is left out.
"""

from typing import Any

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
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
    content_with_error_prefix,
    plain_text,
)
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Quirks
from toolgate.dialects.openai_responses.requests import is_instructions
from toolgate.dialects.openai_responses.shared_codec import NAME


class InputItemEncoder:
    """Encodes the messages of one request; what this dialect cannot express is added to `dropped`."""

    def __init__(self, request: ModelRequest, quirks: Quirks, dropped: list[str]) -> None:
        self.instructions: str | None = None
        self._same_dialect = request.dialect == NAME
        self._quirks = quirks
        self._dropped = dropped
        self._freeform: set[str] = set()  # ids of calls whose results have another type

    def items(self, messages: tuple[Message, ...]) -> list[dict[str, Any]]:
        """Encode all messages; a leading system message of another dialect becomes the instructions."""
        # Only text can be instructions. A client of this dialect has chosen itself between them and a message.
        first = messages[0] if messages and messages[0].role == "system" else None
        if first is not None:
            only_text = all(isinstance(part, Text) for part in first.parts) and bool(plain_text(first.parts))
            if is_instructions(first) if self._same_dialect else only_text:
                self.instructions = "\n\n".join([part.text for part in first.parts if isinstance(part, Text)])
                messages = messages[1:]
        items: list[dict[str, Any]] = []
        for message in messages:
            own = {name: value for name, value in message.extra.get(NAME, {}).items() if name != "instructions"}
            match message.role:
                case "system":
                    role = own.pop("role", self._quirks.system_role)
                    items.append({"type": "message", "role": role, "content": self._content(message.parts), **own})
                case "user":
                    items.append({"type": "message", "role": "user", "content": self._content(message.parts), **own})
                case "assistant":
                    items += self._turn(message.parts)
                case "tool":
                    items += [self._result(part, own) for part in message.parts if isinstance(part, ToolResult)]
        return items

    def _content(self, parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
        if len(parts) == 1 and type(part := parts[0]) is Text and NAME not in part.extra:
            return part.text
        return [entry for part in parts if (entry := self._part(part))] or ""

    def _part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case Text(text):
                own = part.extra.get(NAME, {})
                # A part of an unknown type in a tool's output, which is text for all other dialects.
                if "part" in own:
                    return dict(own["part"])
                return {"type": "input_text", "text": text, **own}
            case Media():
                return self._media(part)
            case RefusalPart(text):
                return {"type": "input_text", "text": text}
            case Opaque(dialect, value) if dialect == NAME:
                return dict(value)
            case _:
                self._drop(part)
                return None

    def _drop(self, part: Part) -> None:
        if isinstance(part, Opaque):
            self._dropped.append(f"a part of type {part.value.get('type')!r} is known to {part.dialect} only")
        else:
            kind = part.kind if isinstance(part, Media) else type(part).__name__
            self._dropped.append(f"a part of kind {kind} has no place here")

    def _media(self, part: Media) -> dict[str, Any] | None:
        own = dict(part.extra.get(NAME, {}))
        inline = data_url(part.mime, part.data) if part.data else None
        if part.kind == "image" and (part.file_id or inline or part.url):
            image = {"file_id": part.file_id} if part.file_id else {"image_url": inline or part.url}
            return {"type": "input_image", **image, **({"detail": part.detail} if part.detail else {}), **own}
        if part.kind == "audio" and part.data:
            form = {"audio/mpeg": "mp3"}.get(part.mime or "", (part.mime or "audio/wav").rpartition("/")[2])
            return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}, **own}
        if part.kind == "file" and (part.file_id or inline or part.url):
            name = part.name or ("document.pdf" if inline else None)  # inline bytes are rejected without a name
            file = {"filename": name, "file_id": part.file_id, "file_data": inline, "file_url": part.url}
            return {"type": "input_file", **{name: value for name, value in file.items() if value}, **own}
        self._dropped.append(
            f"{part.kind} by {'url' if part.url else 'file id' if part.file_id else 'bytes'} has no place here"
        )
        return None

    def _turn(self, parts: tuple[Part, ...]) -> list[dict[str, Any]]:
        """Encode a turn of the assistant: one item for each part, but several texts may be one message."""
        items: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Text() | RefusalPart():
                    self._add_text(part, items)
                case ToolCall():
                    items.append(self._call(part))
                case Reasoning(text, signature):
                    if signature is not None and signature.dialect == NAME:
                        items.append({"type": "reasoning", "summary": [], **signature.fields})
                    elif (text or signature) and REASONING_DROPPED not in self._dropped:
                        self._dropped.append(REASONING_DROPPED)
                case Opaque(dialect, value) if dialect == NAME:
                    items.append(dict(value))
                case Media() if NAME in part.extra:
                    items.append({"type": "image_generation_call", **part.extra[NAME], "result": part.data})
                case _:
                    self._drop(part)
        for item in items:
            match item:
                # One plain text becomes a string: some servers take no list from the assistant.
                case {
                    "type": "message",
                    "content": [{"type": "output_text", "annotations": [], "text": str(text), **rest}],
                } if not rest:
                    item["content"] = text
        return items

    def _add_text(self, part: Text | RefusalPart, items: list[dict[str, Any]]) -> None:
        if not part.text:  # upstreams reject an empty message of the assistant
            return
        own = dict(part.extra.get(NAME, {}))
        message, continues = own.pop("message", {}), own.pop("continues", False)
        if isinstance(part, RefusalPart):
            entry: dict[str, Any] = {"type": "refusal", "refusal": part.text, **own}
        else:
            entry = {"type": "output_text", "text": part.text, "annotations": [], **own}
        # Parts of one message become one again; what stood between them may have been left out on the way.
        if continues and items and items[-1]["type"] == "message":
            items[-1]["content"].append(entry)
        else:
            items.append({"type": "message", "role": "assistant", "content": [entry], **message})

    def _call(self, call: ToolCall) -> dict[str, Any]:
        item: dict[str, Any] = {"type": "function_call", "call_id": self._call_id(call.id), "name": call.name}
        if call.freeform:
            self._freeform.add(call.id)
            item |= {"type": "custom_tool_call", "input": call.arguments}
        else:
            item["arguments"] = arguments_object_text(call.arguments)
        if not call.complete:
            item["status"] = "incomplete"
        return {**item, **call.extra.get(NAME, {})}

    def _call_id(self, id: str) -> str:
        id, pattern = call_ids.original_id(id), self._quirks.call_id_pattern
        return call_ids.fit_id(id, pattern) if pattern else id

    def _result(self, result: ToolResult, own: dict[str, Any]) -> dict[str, Any]:
        kind = "custom_tool_call_output" if result.call_id in self._freeform else "function_call_output"
        content = content_with_error_prefix(result)
        plain = all(isinstance(part, Text) and NAME not in part.extra for part in content)
        output: str | list[dict[str, Any]]
        if plain and (len(content) < 2 or not self._same_dialect):
            # A string where possible, because not every upstream accepts a list here.
            output = "\n".join([part.text for part in content if isinstance(part, Text)])
        else:
            output = [entry for part in content if (entry := self._part(part))]
        return {"type": kind, "call_id": self._call_id(result.call_id), "output": output, **own}
