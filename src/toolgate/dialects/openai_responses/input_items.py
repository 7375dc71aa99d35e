"""Decode input items into messages.

The items of one assistant turn (its messages, calls, reasoning and others) become one message, in order.
An item of an unknown kind stays complete in its place, for this dialect only.
"""

from types import NoneType
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.arguments import NO_ARGUMENTS, arguments_text
from toolgate.conversation.data_urls import media_from_url
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    Extra,
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
from toolgate.conversation.reasoning_envelope import unwrap_signature
from toolgate.conversation.request import ApprovalResponse, ToolDef
from toolgate.dialects.openai_responses.items_sent_before_crash import is_withdrawn
from toolgate.dialects.openai_responses.shared_codec import NAME, SERVER_LABEL, call_ids_of, own_extra, read_reasoning
from toolgate.dialects.openai_responses.tools import offered_in_input, read_tools
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_AUDIO_MIME = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_DROPPED_FIELDS = ("id", "status")  # of an item: an upstream of the next turn knows neither


class InputItemDecoder:
    """Decodes the items of one request, in order; `tools` are those that items brought along."""

    def __init__(self) -> None:
        self.tools: list[ToolDef] = []
        self._messages: list[Message] = []
        self._turn: list[Part] = []  # the open turn of the assistant
        self._calls: dict[str, bool] = {}  # the ids of the calls so far, and whether each has a result
        self._calls_by_item: dict[str, str] = {}
        self._calls_by_approval: dict[str, str] = {}
        self._decisions: dict[str, ApprovalResponse] = {}

    @property
    def decisions(self) -> tuple[ApprovalResponse, ...]:
        """The answers to approval requests whose calls have not run yet."""
        return tuple(self._decisions.values())

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of all items."""
        self._end_turn()
        return tuple(self._messages)

    def decode(self, fields: Fields) -> None:
        """Decode one item."""
        whole = dict(fields.rest)
        if is_withdrawn(whole):  # an item that was withdrawn after a crash has nothing in it
            return
        # Clients leave out the type of messages, as the API allows; a bare id refers to a stored item.
        kind = fields.text("type") or ("message" if "role" in whole else "item_reference")
        match kind:
            case "message":
                self._message(fields)
            case "function_call" | "custom_tool_call":
                self._call(fields, freeform=kind == "custom_tool_call")
            case "function_call_output" | "custom_tool_call_output":
                self._result(fields)
            case "reasoning":
                self._turn.append(_reasoning(whole, fields))
            case "mcp_call" if whole.get("server_label") == SERVER_LABEL:
                self._gateway_call(fields)
            case "mcp_approval_request" if whole.get("server_label") == SERVER_LABEL:
                self._approval_request(fields)
            case "mcp_approval_response" if (id := fields.text("approval_request_id")) in self._calls_by_approval:
                approve = fields.flag("approve")
                if approve is None:
                    raise InvalidRequest(f"{fields.at('approve')} is required.", param=fields.at("approve"))
                self._decisions[id] = ApprovalResponse(id, approve, fields.text("reason"))
            case "image_generation_call" if type(whole.get("result")) is str:
                self._turn.append(read_image(whole))
            case "item_reference" if not whole.get("id"):
                raise InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"))
            case "item_reference":
                raise InvalidRequest(
                    f"{fields.path} refers to the item {str(whole['id'])[:80]!r}, which is not stored here: "
                    "send the item itself.",
                    param=fields.path,
                    code="item_not_found",
                )
            case _:
                self._turn.append(Opaque(NAME, whole))
                if kind in ("additional_tools", "tool_search_output") and type(whole.get("tools")) is list:
                    self.tools += offered_in_input(read_tools(whole["tools"], fields.at("tools")))

    def _end_turn(self) -> None:
        if self._turn:
            self._messages.append(Message("assistant", tuple(self._turn)))
            self._turn = []

    def _append(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)

    def _message(self, fields: Fields) -> None:
        role, parts = fields.text("role"), read_content(fields, "content")
        own = _own_fields(fields)
        match role:
            case "assistant":
                # The parts are marked, so that they become one message again: the first has its other fields.
                marked: list[Part] = []
                for part in parts:
                    if part == Text(""):
                        continue
                    mark = {"continues": True} if marked else message_mark(own)
                    if mark and isinstance(part, (Text, RefusalPart)):
                        part = replace(part, extra={NAME: {**part.extra.get(NAME, {}), **mark}})
                    marked.append(part)
                self._turn += marked
            case "user":
                self._append(Message("user", parts, own_extra(own)))
            case "system" | "developer":
                kept = {"role": role, **own} if role == "developer" else own
                self._append(Message("system", parts, own_extra(kept)))
            case _:
                raise InvalidRequest(
                    f"{fields.at('role')} must be system, developer, user or assistant.", param=fields.at("role")
                )

    def _call(self, fields: Fields, freeform: bool) -> None:
        call_id, item_id = fields.text("call_id"), fields.text("id")
        if not call_id and not item_id:
            fields.required_text("call_id")  # raises
        id, name = call_id or item_id or "", fields.required_text("name")
        arguments = arguments_text(fields.raw("input" if freeform else "arguments"))
        complete = fields.raw("status") != "incomplete"
        if not freeform:
            arguments = arguments.strip() or NO_ARGUMENTS
        self._calls[id] = False
        if item_id:
            self._calls_by_item[item_id] = id
        own = own_extra({name: value for name, value in fields.rest.items() if value is not None})
        if type(fields.rest.get("namespace")) not in (str, NoneType):  # it is part of the tool's name
            raise fields.wrong("namespace", "a string")
        self._turn.append(ToolCall(id, name, arguments, freeform=freeform, complete=complete, extra=own))

    def _result(self, fields: Fields) -> None:
        # Some clients send the item's id in place of the call's, some none.
        named = fields.text("call_id") or ""
        if not named:
            waiting = [id for id, answered in self._calls.items() if not answered]
            if len(waiting) != 1:
                raise InvalidRequest(f"{fields.at('call_id')} is required.", param=fields.at("call_id"))
            named = waiting[0]
        if named not in self._calls:
            aliases = (self._calls_by_item.get(named), *call_ids_of(named))
            named = next((alias for alias in aliases if alias in self._calls), named) or named
        self._calls[named] = True
        content, name = read_output(fields), fields.text("name")
        if name:
            fields.rest["name"] = name  # kept in `extra`, too, for this dialect
        self._append(Message("tool", (ToolResult(named, content, name=name),), own_extra(_own_fields(fields))))

    def _gateway_call(self, fields: Fields) -> None:
        """Decode a call that the gateway ran in an earlier answer, with its result."""
        id = call_ids_of(fields.required_text("id"))[:1] or (fields.path,)
        name, arguments = fields.required_text("name"), arguments_text(fields.raw("arguments")).strip() or NO_ARGUMENTS
        # A call that needed approval is already in the turn, by its request; that it ran settles the decision.
        approval = fields.text("approval_request_id")
        if approval is None or self._calls_by_approval.get(approval) != id[0]:
            self._turn.append(ToolCall(id[0], name, arguments, executor="gateway"))
        else:
            self._decisions.pop(approval, None)
        output, error = fields.raw("output"), fields.raw("error")
        if output is None and error is None:
            return
        match error:
            case {"content": [{"text": str(text)}]} | {"content": str(text)} | {"message": str(text)}:
                pass
            case _:
                text = arguments_text(output if error is None else error)
        self._append(Message("tool", (ToolResult(id[0], (Text(text),), error is not None, name),)))

    def _approval_request(self, fields: Fields) -> None:
        """Decode a call that waits for approval: until it is run it ends its turn without a result."""
        id, name = fields.required_text("id"), fields.required_text("name")
        call_id = "call_" + id.partition("_")[2]  # our ids of both end alike
        self._calls_by_approval[id] = call_id
        arguments = arguments_text(fields.raw("arguments")).strip() or NO_ARGUMENTS
        self._turn.append(ToolCall(call_id, name, arguments, executor="gateway", approval=id))


def read_content(fields: Fields, name: str) -> tuple[Part, ...]:
    """Decode the content of a message: a string, or parts."""
    value = fields.raw(name)
    if value is None:
        return ()
    if type(value) is str:
        return (Text(value),)
    if type(value) is not list:
        raise fields.wrong(name, "a string or a list of parts")
    return tuple([_part(Fields(part, f"{fields.at(name)}[{i}]")) for i, part in enumerate(value)])


def read_output(fields: Fields) -> tuple[Text | Media, ...]:
    """Decode the output of a call: text, or text and media; a part of an unknown kind becomes its JSON text."""
    value = fields.rest.get("output")
    if type(value) is not str and type(value) is not list:
        return (Text(arguments_text(fields.raw("output"))),)
    content: list[Text | Media] = []
    for part in read_content(fields, "output"):
        match part:
            case Text() | Media():
                content.append(part)
            case RefusalPart(text):
                content.append(Text(text))
            case Opaque(value=whole):
                content.append(Text(encode(whole).decode(), {NAME: {"part": whole}}))
    return tuple(content)


def read_image(item: dict[str, Any]) -> Media:
    """Decode a generated picture."""
    form = item.get("output_format")
    mime = f"image/{form}" if type(form) is str else "image/png"
    beside = {name: value for name, value in item.items() if name != "result"}
    return Media("image", mime, item["result"], extra={NAME: beside})


def message_mark(own: dict[str, Any]) -> dict[str, Any]:
    """Return the mark by which the first part of a message keeps the other fields of the message."""
    return {"message": own} if own else {}


def _part(fields: Fields) -> Part:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "input_text" | "output_text" | "text":
            return Text(fields.text("text") or "", part_extra(fields.rest))
        case "refusal":
            return RefusalPart(fields.text("refusal") or "", own_extra(fields.rest))
        case "input_image":
            image = fields.raw("image_url")
            if type(image) is dict:
                image = image.get("url")  # the form of Chat Completions
            file_id, detail = fields.text("file_id"), fields.text("detail")
            if type(image) is str and image:
                return replace(media_from_url("image", image, part_extra(fields.rest)), detail=detail)
            if not file_id:
                message = f"{fields.at('image_url')} or {fields.at('file_id')} is required."
                raise InvalidRequest(message, param=fields.at("image_url"))
            return Media("image", file_id=file_id, extra=part_extra(fields.rest), detail=detail)
        case "input_file":
            name, file_id, url = fields.text("filename"), fields.text("file_id"), fields.text("file_url")
            file, extra = fields.text("file_data"), part_extra(fields.rest)
            if file is not None and file.startswith("data:"):
                return replace(media_from_url("file", file, extra), file_id=file_id, name=name)
            # The API has a data URL; bare base64 is taken for a PDF.
            return Media("file", "application/pdf" if file else None, file, url, file_id, name, extra)
        case "input_audio" if type(whole.get("input_audio")) is dict:
            audio = Fields(fields.raw("input_audio"), fields.at("input_audio"))
            data, form = audio.required_text("data"), audio.text("format") or "wav"
            return Media("audio", _AUDIO_MIME.get(form, f"audio/{form}"), data, extra=own_extra(fields.rest))
        case None:
            raise InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"))
        case _:
            return Opaque(NAME, whole)


def part_extra(rest: dict[str, Any]) -> Extra:
    """Return the other fields of a part as extra; nulls and empty lists are dropped."""
    return own_extra({name: value for name, value in rest.items() if value not in (None, [])})


def _reasoning(whole: dict[str, Any], fields: Fields) -> Reasoning:
    for name in ("summary", "content"):
        if whole.get(name) is not None and type(whole[name]) is not list:
            raise fields.wrong(name, "a list")
    # A signature of another dialect reaches a Responses client in an envelope, as encrypted content.
    encrypted, reasoning = whole.get("encrypted_content"), read_reasoning(whole)
    if type(encrypted) is str and (signature := unwrap_signature(encrypted)):
        return Reasoning(reasoning.text, signature)
    return reasoning


def _own_fields(fields: Fields) -> dict[str, Any]:
    return {name: value for name, value in fields.rest.items() if name not in _DROPPED_FIELDS and value is not None}
