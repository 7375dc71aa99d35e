"""Decode Responses requests.

Input items are decoded in `input_items.py` and tools in `tools.py`. Fields that only stored responses need (`store`,
`previous_response_id`, `conversation`, `background`) stay in `extra`; the accessors here read them.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Message, Text, plain_text
from toolgate.conversation.request import ModelRequest, ReasoningSettings, RequestSettings, StructuredOutputFormat
from toolgate.dialects.openai_responses.input_items import InputItemDecoder
from toolgate.dialects.openai_responses.shared_codec import LOGPROBS, NAME, own_extra
from toolgate.dialects.openai_responses.tools import read_choice, read_tools
from toolgate.wire.fields import Fields

_NESTED_CHOICE = frozenset({"function", "custom", "allowed_tools"})  # keys of the shape of the Chat API
# The mark of a system message that was sent as `instructions`, and is sent on as such.
_INSTRUCTIONS = {NAME: {"instructions": True}}
_SHARED_FIELDS = frozenset(  # decoded into settings for other dialects, and kept in `extra` for this one
    {
        "include",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "text",
        "top_logprobs",
    }
)


def decode_request(body: Any) -> ModelRequest:
    """Decode the body of a request."""
    fields = Fields(body)
    model = fields.required_text("model")
    instructions = fields.text("instructions")
    decoder = _decode_input(fields)
    messages = decoder.messages()
    if instructions:
        messages = (Message("system", (Text(instructions),), _INSTRUCTIONS), *messages)
    tools = [*read_tools(fields.items("tools") or (), "tools"), *decoder.tools]
    parallel, chosen = fields.flag("parallel_tool_calls"), fields.raw("tool_choice")
    choice = read_choice(chosen, parallel)
    if type(chosen) is dict and _NESTED_CHOICE.isdisjoint(chosen):
        fields.rest["tool_choice"] = chosen  # the choice of a hosted tool is sent on as the client wrote it
    settings = _settings(fields)
    stream = bool(fields.flag("stream"))
    extra = own_extra(fields.rest)
    return ModelRequest(
        model, messages, tuple(tools), choice, settings, stream, NAME, extra, decisions=decoder.decisions
    )


def is_stored(request: ModelRequest) -> bool:
    """Return whether the response is stored, so that the client can retrieve it; this is the default."""
    return _own_field(request, "store") is not False


def is_background(request: ModelRequest) -> bool:
    """Return whether the response is made in the background."""
    return _own_field(request, "background") is True


def previous_response_id(request: ModelRequest) -> str | None:
    """Return the id of the response that this request continues."""
    id = _own_field(request, "previous_response_id")
    return id if type(id) is str and id else None


def conversation_id(request: ModelRequest) -> str | None:
    """Return the id of the conversation that this request belongs to."""
    match _own_field(request, "conversation"):
        case str(id) | {"id": str(id)} if id:
            return id
        case _:
            return None


def instructions(request: ModelRequest) -> str | None:
    """Return the instructions that the client sent apart from the input."""
    first = request.messages[0] if request.messages else None
    return plain_text(first.parts) if first is not None and is_instructions(first) else None


def is_instructions(message: Message) -> bool:
    """Return whether a message was sent as `instructions`."""
    return message.role == "system" and message.extra.get(NAME, {}).get("instructions") is True


def _own_field(request: ModelRequest, name: str) -> Any:
    return request.extra.get(NAME, {}).get(name)


def _decode_input(fields: Fields) -> InputItemDecoder:
    value = fields.raw("input")
    decoder = InputItemDecoder()
    match value:
        case str():
            decoder.decode(Fields({"role": "user", "content": value}, "input"))
        case list():
            for number, item in enumerate(value):
                decoder.decode(Fields(item, f"input[{number}]"))
        # Without input, a stored history is continued as it is.
        case None if any(fields.rest.get(name) for name in ("previous_response_id", "conversation", "prompt")):
            pass
        case None:
            raise InvalidRequest("input is required.", param="input", code="missing_required_parameter")
        case _:
            raise fields.wrong("input", "a string or a list of items")
    return decoder


def _settings(fields: Fields) -> RequestSettings:
    thinking: ReasoningSettings | None = None
    if (reasoning := fields.object("reasoning")) is not None:
        effort, summary = reasoning.text("effort"), reasoning.text("summary")
        if reasoning.rest:
            fields.rest["reasoning"] = reasoning.rest
        if effort or summary:
            thinking = ReasoningSettings(effort != "none", effort, summary=summary)
    return RequestSettings(
        max_tokens=fields.integer("max_output_tokens", least=1),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        frequency_penalty=fields.number("frequency_penalty"),
        presence_penalty=fields.number("presence_penalty"),
        output=_output(fields),
        thinking=thinking,
        user=fields.text("user"),
        **_shared_settings(fields.rest),
    )


def _shared_settings(rest: Mapping[str, Any]) -> dict[str, Any]:
    if _SHARED_FIELDS.isdisjoint(rest):
        return {}
    text, include, count = rest.get("text"), rest.get("include"), rest.get("top_logprobs")
    strings = {
        "verbosity": text.get("verbosity") if type(text) is dict else None,
        "service_tier": rest.get("service_tier"),
        "cache_key": rest.get("prompt_cache_key"),
        "cache_retention": rest.get("prompt_cache_retention"),
        "safety_identifier": rest.get("safety_identifier"),
    }
    settings: dict[str, Any] = {name: value for name, value in strings.items() if type(value) is str}
    if type(metadata := rest.get("metadata")) is dict and metadata:
        settings["metadata"] = metadata
    if type(include) is list and LOGPROBS in include:
        settings["logprobs"] = True
    if type(count) is int:
        settings["top_logprobs"] = count
    return settings


def _output(fields: Fields) -> StructuredOutputFormat | None:
    text = fields.object("text")
    if text is None:
        return None
    form, output = text.object("format"), None
    if form is not None:
        match form.rest.get("type"):
            case "json_object":
                output = StructuredOutputFormat()
            case "json_schema":
                schema, name = form.mapping("schema"), form.text("name") or "answer"
                description, strict = form.text("description"), form.flag("strict")
                output = StructuredOutputFormat(schema if schema is not None else {}, name, description, strict)
            case None | "text":
                pass
            case _:  # a format that only upstreams of this dialect may know
                text.rest["format"] = form.rest
    if text.rest:
        fields.rest["text"] = text.rest
    return output
