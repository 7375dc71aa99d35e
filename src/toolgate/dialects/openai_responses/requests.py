"""Responses requests, read into the conversation's values.

Input items have a file of their own, `items.py`, and tools another, `tools.py`. What only the keeping of state needs
(`store`, `previous_response_id`, `conversation`, `background`) stays in `extra`; the accessors here read it.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Message, Text, plain_text
from toolgate.conversation.request import ModelRequest, OutputFormat, Settings, Thinking
from toolgate.dialects.openai_responses.items import InputReader
from toolgate.dialects.openai_responses.tools import read_choice, read_tools
from toolgate.dialects.openai_responses.words import LOGPROBS, NAME, own_extra
from toolgate.wire.fields import Fields

_INSTRUCTIONS = {NAME: {"instructions": True}}
_KEPT = frozenset(
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
    """The request that the body makes."""
    fields = Fields(body)
    model = fields.required_text("model")
    instructions = fields.text("instructions")
    reader = _input(fields)
    messages = reader.messages()
    if instructions:
        messages = (Message("system", (Text(instructions),), _INSTRUCTIONS), *messages)
    tools = [*read_tools(fields.items("tools") or (), "tools"), *reader.tools]
    parallel, chosen = fields.flag("parallel_tool_calls"), fields.raw("tool_choice")
    choice = read_choice(chosen, parallel)
    if type(chosen) is dict:
        fields.rest["tool_choice"] = chosen  # a hosted tool can be chosen in the client's own words only
    settings = _settings(fields)
    stream = bool(fields.flag("stream"))
    extra = own_extra(fields.rest)
    return ModelRequest(
        model, messages, tuple(tools), choice, settings, stream, NAME, extra, decisions=reader.decisions
    )


def is_stored(request: ModelRequest) -> bool:
    """Whether the client may ask for this response again; it may unless it said otherwise."""
    return _own(request, "store") is not False


def is_background(request: ModelRequest) -> bool:
    """Whether the client wants an answer at once and the response later."""
    return _own(request, "background") is True


def previous_response_id(request: ModelRequest) -> str | None:
    """The response that this request continues."""
    id = _own(request, "previous_response_id")
    return id if type(id) is str and id else None


def conversation_id(request: ModelRequest) -> str | None:
    """The conversation that this request belongs to."""
    match _own(request, "conversation"):
        case str(id) | {"id": str(id)} if id:
            return id
        case _:
            return None


def instructions(request: ModelRequest) -> str | None:
    """The instructions that the client gave apart from the input."""
    first = request.messages[0] if request.messages else None
    return plain_text(first.parts) if first is not None and is_instructions(first) else None


def is_instructions(message: Message) -> bool:
    """Whether a message was given as `instructions`."""
    return message.role == "system" and message.extra.get(NAME, {}).get("instructions") is True


def _own(request: ModelRequest, name: str) -> Any:
    return request.extra.get(NAME, {}).get(name)


def _input(fields: Fields) -> InputReader:
    value = fields.raw("input")
    reader = InputReader()
    match value:
        case str():
            reader.read(Fields({"role": "user", "content": value}, "input"))
        case list():
            for number, item in enumerate(value):
                reader.read(Fields(item, f"input[{number}]"))
        case None if any(fields.rest.get(name) for name in ("previous_response_id", "conversation", "prompt")):
            pass
        case None:
            raise InvalidRequest("input is required.", param="input", code="missing_required_parameter")
        case _:
            raise fields.wrong("input", "a string or a list of items")
    return reader


def _settings(fields: Fields) -> Settings:
    return Settings(
        max_tokens=fields.integer("max_output_tokens", least=1),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        frequency_penalty=fields.number("frequency_penalty"),
        presence_penalty=fields.number("presence_penalty"),
        output=_output(fields),
        thinking=_thinking(fields),
        user=fields.text("user"),
        **_kept(fields.rest),
    )


def _kept(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Wishes that are read for other dialects; for this one they stay as they are."""
    if _KEPT.isdisjoint(rest):
        return {}
    text, include, count = rest.get("text"), rest.get("include"), rest.get("top_logprobs")
    said = {
        "verbosity": text.get("verbosity") if type(text) is dict else None,
        "service_tier": rest.get("service_tier"),
        "cache_key": rest.get("prompt_cache_key"),
        "cache_retention": rest.get("prompt_cache_retention"),
        "safety_identifier": rest.get("safety_identifier"),
    }
    kept: dict[str, Any] = {name: value for name, value in said.items() if type(value) is str}
    if type(metadata := rest.get("metadata")) is dict and metadata:
        kept["metadata"] = metadata
    if type(include) is list and LOGPROBS in include:
        kept["logprobs"] = True
    if type(count) is int:
        kept["top_logprobs"] = count
    return kept


def _thinking(fields: Fields) -> Thinking | None:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return None
    effort, summary = reasoning.text("effort"), reasoning.text("summary")
    if reasoning.rest:
        fields.rest["reasoning"] = reasoning.rest
    return Thinking(effort != "none", effort, summary=summary) if effort or summary else None


def _output(fields: Fields) -> OutputFormat | None:
    text = fields.object("text")
    if text is None:
        return None
    form = text.object("format")
    output = _format(form) if form is not None else None
    if form is not None and output is None and form.rest.get("type") not in (None, "text"):
        text.rest["format"] = form.rest
    if text.rest:
        fields.rest["text"] = text.rest
    return output


def _format(form: Fields) -> OutputFormat | None:
    match form.rest.get("type"):
        case "json_object":
            return OutputFormat()
        case "json_schema":
            schema, name = form.mapping("schema"), form.text("name") or "answer"
            return OutputFormat(
                schema if schema is not None else {}, name, form.text("description"), form.flag("strict")
            )
        case _:
            return None
