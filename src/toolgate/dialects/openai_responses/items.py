"""Input items, read into messages.

The items of one assistant turn (its messages, calls, reasoning and whatever else it did) become one message, in order.
An item of a kind that we do not know stays whole in its place, for this dialect alone.
"""

from typing import Any

from msgspec.structs import replace

from toolgate.conversation.arguments import NO_ARGUMENTS, as_text
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.media import media_from_url
from toolgate.conversation.message import (
    Extra,
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
from toolgate.conversation.request import Decision, ToolDef
from toolgate.conversation.seals import disclose
from toolgate.dialects.openai_responses.resumed import is_withdrawn
from toolgate.dialects.openai_responses.tools import offered_in_input, read_tools
from toolgate.dialects.openai_responses.words import NAME, SERVER_LABEL, call_ids_of, own_extra, read_reasoning
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_AUDIO_MIME = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_IDENTITY = ("id", "status")  # of an item: the next upstream knows neither


class InputReader:
    """Reads the items of one request, in order; `tools` are those that items brought along."""

    def __init__(self) -> None:
        self.tools: list[ToolDef] = []
        self._messages: list[Message] = []
        self._turn: list[Part] = []  # the assistant's turn that is not over yet
        self._calls: dict[str, bool] = {}  # the calls so far, and whether each was answered
        self._held_by: dict[str, str] = {}  # the call that an item holds, by the item's id
        self._waiting: dict[str, str] = {}  # the call that each approval was asked for
        self._decisions: dict[str, Decision] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The answers to approvals on which nobody has acted yet."""
        return tuple(self._decisions.values())

    def messages(self) -> tuple[Message, ...]:
        """All that was read."""
        self._end_turn()
        return tuple(self._messages)

    def read(self, fields: Fields) -> None:
        """One item."""
        whole = dict(fields.rest)
        if is_withdrawn(whole):
            return
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
                self._call_run_here(fields)
            case "mcp_approval_request" if whole.get("server_label") == SERVER_LABEL:
                self._asked(fields)
            case "mcp_approval_response" if whole.get("approval_request_id") in self._waiting:
                self._decided(fields)
            case "image_generation_call" if type(whole.get("result")) is str:
                self._turn.append(read_image(whole))
            case "item_reference":
                raise _unresolved(fields)
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
        own = _without_identity(fields)
        match role:
            case "assistant":
                self._turn += _of_one_message(parts, own)
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
            fields.required_text("call_id")
        id, name = call_id or item_id or "", fields.required_text("name")
        arguments = as_text(fields.raw("input" if freeform else "arguments"))
        complete = fields.raw("status") != "incomplete"
        if not freeform:
            arguments = arguments.strip() or NO_ARGUMENTS
        self._calls[id] = False
        if item_id:
            self._held_by[item_id] = id
        own = own_extra({name: value for name, value in fields.rest.items() if value is not None})
        self._turn.append(ToolCall(id, name, arguments, freeform=freeform, complete=complete, extra=own))

    def _result(self, fields: Fields) -> None:
        call_id = self._answered(fields)
        content, name = read_output(fields), fields.text("name")
        if name:
            fields.rest["name"] = name  # for this dialect
        self._append(Message("tool", (ToolResult(call_id, content, name=name),), own_extra(_without_identity(fields))))

    def _answered(self, fields: Fields) -> str:
        """The id of the call that a result answers: some name the item instead, some leave it out."""
        named = fields.text("call_id") or ""
        if not named:
            waiting = [id for id, answered in self._calls.items() if not answered]
            if len(waiting) != 1:
                raise InvalidRequest(f"{fields.at('call_id')} is required.", param=fields.at("call_id"))
            named = waiting[0]
        if named not in self._calls:
            aliases = (self._held_by.get(named), *call_ids_of(named))
            named = next((alias for alias in aliases if alias in self._calls), named) or named
        self._calls[named] = True
        return named

    def _call_run_here(self, fields: Fields) -> None:
        """A call that we ran in an earlier answer, with its result: to the model it is one like any other."""
        id = call_ids_of(fields.required_text("id"))[:1] or (fields.path,)
        name, arguments = fields.required_text("name"), as_text(fields.raw("arguments")).strip() or NO_ARGUMENTS
        approval = fields.text("approval_request_id")
        if approval is None or self._waiting.get(approval) != id[0]:
            self._turn.append(ToolCall(id[0], name, arguments, executor="gateway"))
        else:
            self._decisions.pop(approval, None)
        output, error = fields.raw("output"), fields.raw("error")
        if output is None and error is None:
            return
        text = as_text(output if error is None else _told_error(error))
        self._append(Message("tool", (ToolResult(id[0], (Text(text),), error is not None, name),)))

    def _asked(self, fields: Fields) -> None:
        """A call that we asked an approval for: until it is run it stands at the end of its turn without a result."""
        id, name = fields.required_text("id"), fields.required_text("name")
        call_id = "call_" + id.partition("_")[2]
        self._waiting[id] = call_id
        arguments = as_text(fields.raw("arguments")).strip() or NO_ARGUMENTS
        self._turn.append(ToolCall(call_id, name, arguments, executor="gateway", approval=id))

    def _decided(self, fields: Fields) -> None:
        id, approve = fields.required_text("approval_request_id"), fields.flag("approve")
        if approve is None:
            raise InvalidRequest(f"{fields.at('approve')} is required.", param=fields.at("approve"))
        self._decisions[id] = Decision(id, approve, fields.text("reason"))


def read_content(fields: Fields, name: str) -> tuple[Part, ...]:
    """The content of a message: a string, or parts."""
    value = fields.raw(name)
    if value is None:
        return ()
    if type(value) is str:
        return (Text(value),)
    if type(value) is not list:
        raise fields.wrong(name, "a string or a list of parts")
    return tuple([_part(Fields(part, f"{fields.at(name)}[{i}]")) for i, part in enumerate(value)])


def read_output(fields: Fields) -> tuple[Text | Media, ...]:
    """The output of a call: text, or text and media; a part of an unknown kind is shown to others as its JSON."""
    value = fields.rest.get("output")
    if type(value) is not str and type(value) is not list:
        return (Text(as_text(fields.raw("output"))),)
    content: list[Text | Media] = []
    for part in read_content(fields, "output"):
        match part:
            case Text() | Media():
                content.append(part)
            case Refusal(text):
                content.append(Text(text))
            case Opaque(value=whole):
                content.append(Text(encode(whole).decode(), {NAME: {"part": whole}}))
    return tuple(content)


def read_image(item: dict[str, Any]) -> Media:
    """A generated picture, which any dialect can show."""
    form = item.get("output_format")
    mime = f"image/{form}" if type(form) is str else "image/png"
    beside = {name: value for name, value in item.items() if name != "result"}
    return Media("image", mime, item["result"], extra={NAME: beside})


def _of_one_message(parts: tuple[Part, ...], own: dict[str, Any]) -> list[Part]:
    """The parts of one message of the assistant, marked as such: the first carries what the message says of itself."""
    marked: list[Part] = []
    for part in parts:
        if part == Text(""):
            continue
        if isinstance(part, (Text, Refusal)):
            mark = message_mark(own) if not marked else {"continues": True}
            if mark:
                part = replace(part, extra={NAME: {**part.extra.get(NAME, {}), **mark}})
        marked.append(part)
    return marked


def message_mark(own: dict[str, Any]) -> dict[str, Any]:
    """How the first part of a message carries the fields of the message itself."""
    return {"message": own} if own else {}


def _part(fields: Fields) -> Part:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "input_text" | "output_text" | "text":
            return Text(fields.text("text") or "", said_extra(fields.rest))
        case "refusal":
            return Refusal(fields.text("refusal") or "", own_extra(fields.rest))
        case "input_image":
            return _image(fields)
        case "input_file":
            return _file(fields)
        case "input_audio" if type(whole.get("input_audio")) is dict:
            audio = Fields(fields.raw("input_audio"), fields.at("input_audio"))
            data, form = audio.required_text("data"), audio.text("format") or "wav"
            return Media("audio", _AUDIO_MIME.get(form, f"audio/{form}"), data, extra=own_extra(fields.rest))
        case None:
            raise InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"))
        case _:
            return Opaque(NAME, whole)


def said_extra(rest: dict[str, Any]) -> Extra:
    """What else a part says of itself; nulls and empty lists say nothing."""
    return own_extra({name: value for name, value in rest.items() if value not in (None, [])})


def _image(fields: Fields) -> Media:
    url = fields.raw("image_url")
    if type(url) is dict:
        url = url.get("url")  # the shape that Chat has
    file_id, detail = fields.text("file_id"), fields.text("detail")
    if type(url) is str and url:
        return replace(media_from_url("image", url, said_extra(fields.rest)), detail=detail)
    if not file_id:
        raise InvalidRequest(
            f"{fields.at('image_url')} or {fields.at('file_id')} is required.", param=fields.at("image_url")
        )
    return Media("image", file_id=file_id, extra=said_extra(fields.rest), detail=detail)


def _file(fields: Fields) -> Media:
    name, file_id, url = fields.text("filename"), fields.text("file_id"), fields.text("file_url")
    data, extra = fields.text("file_data"), said_extra(fields.rest)
    if data is not None and data.startswith("data:"):
        return replace(media_from_url("file", data, extra), file_id=file_id, name=name)
    return Media("file", "application/pdf" if data else None, data, url, file_id, name, extra)


def _reasoning(whole: dict[str, Any], fields: Fields) -> Reasoning:
    for name in ("summary", "content"):
        if whole.get(name) is not None and type(whole[name]) is not list:
            raise fields.wrong(name, "a list")
    sealed, reasoning = whole.get("encrypted_content"), read_reasoning(whole)
    if type(sealed) is str and (seal := disclose(sealed)):
        return Reasoning(reasoning.text, seal)
    return reasoning


def _without_identity(fields: Fields) -> dict[str, Any]:
    return {name: value for name, value in fields.rest.items() if name not in _IDENTITY and value is not None}


def _told_error(error: Any) -> Any:
    match error:
        case {"content": [{"text": str(text)}]} | {"content": str(text)} | {"message": str(text)}:
            return text
        case _:
            return error


def _unresolved(fields: Fields) -> InvalidRequest:
    id = fields.rest.get("id")
    if not id:
        return InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"))
    return InvalidRequest(
        f"{fields.path} refers to the item {str(id)[:80]!r}, which is not stored here: send the item itself.",
        param=fields.path,
        code="item_not_found",
    )
