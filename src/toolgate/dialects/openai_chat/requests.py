"""Decode Chat Completions requests."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.arguments import arguments_text
from toolgate.conversation.data_urls import media_from_url
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    NO_EXTRA,
    Extra,
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
)
from toolgate.conversation.request import (
    NO_SETTINGS,
    ModelRequest,
    ReasoningSettings,
    RequestSettings,
    StructuredOutputFormat,
    ToolChoice,
    ToolDef,
)
from toolgate.dialects.openai_chat.reasoning_details import decode_details, place_blocks
from toolgate.dialects.openai_chat.shared_codec import NAME
from toolgate.dialects.read_tools import read_tools
from toolgate.wire.fields import Fields

# OpenAI takes 4 stop texts, other servers more. Every delta may be compared with each of them, so there is a limit.
MAX_STOPS = 64
_AUDIO_MIME = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg", "aac": "audio/aac"}
# A key of our own in the request's `extra`: the client sent `functions`, and its answer must have `function_call`.
_LEGACY = "legacy_functions"
_PLAIN_FIELDS = frozenset({"model", "messages", "stream", "max_tokens"})


def decode_request(body: Any) -> ModelRequest:
    """Decode the body of a request."""
    plain = _decode_plain_request(body)
    if plain is not None:
        return plain
    fields = Fields(body)
    model = fields.required_text("model")
    values = fields.items("messages")
    if not values:
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    messages: list[Message] = []
    for number, value in enumerate(values):
        messages.append(_plain_message(value) or _message(Fields(value, f"messages[{number}]"), messages))
    tools: tuple[ToolDef, ...] = ()
    if "tools" in fields.rest:
        tools = read_tools(fields.items("tools") or [], _read_tools)
    if "functions" in fields.rest and (functions := fields.items("functions")) is not None:
        fields.rest[_LEGACY] = True
        tools = (*tools, *[_function(Fields(one, f"functions[{n}]"), {}) for n, one in enumerate(functions)])
    choice = _tool_choice(fields)
    settings = _settings(fields)
    stream = bool(fields.flag("stream"))
    # It stays in `extra`. Our own options are merged into it, so that an upstream never sees one of another type.
    if type(fields.rest.get("stream_options")) not in (dict, NoneType):
        raise fields.wrong("stream_options", "an object")
    # Tools are sent upstream as `tools`, whose calls a client of `functions` cannot read: its answers are translated.
    relay = _LEGACY not in fields.rest
    own = _extra(fields.rest)
    return ModelRequest(model, tuple(messages), tools, choice, settings, stream, NAME, own, relay=relay)


def _decode_plain_request(body: Any) -> ModelRequest | None:
    """Decode the most common kind of request, plain messages and little else; None for any other."""
    if type(body) is not dict or not body.keys() <= _PLAIN_FIELDS:
        return None
    model, values, stream = body.get("model"), body.get("messages"), body.get("stream", False)
    if type(model) is not str or not model or type(values) is not list or type(stream) is not bool:
        return None
    messages: list[Message] = []
    for value in values:
        message = _plain_message(value)
        if message is None:
            return None
        messages.append(message)
    limit = body.get("max_tokens")
    if not messages or (limit is not None and (type(limit) is not int or limit < 1)):
        return None
    settings = NO_SETTINGS if limit is None else RequestSettings(limit)
    return ModelRequest(model, tuple(messages), settings=settings, stream=stream, dialect=NAME)


def wants_usage(request: ModelRequest) -> bool:
    """Return whether a streamed answer ends with a usage chunk."""
    options = request.extra.get(NAME, {}).get("stream_options")
    return type(options) is dict and options.get("include_usage") is True


def uses_legacy_functions(request: ModelRequest) -> bool:
    """Return whether the client sends `functions`, the predecessor of `tools`."""
    return request.dialect == NAME and _LEGACY in request.extra.get(NAME, {})


def _extra(rest: dict[str, Any]) -> Extra:
    return {NAME: rest} if rest else NO_EXTRA


def _plain_message(value: Any) -> Message | None:
    """Decode the most common kind of message, a role and a text; None for any other."""
    if type(value) is not dict or len(value) != 2:
        return None
    role, content = value.get("role"), value.get("content")
    # An empty text of the assistant is no part, so `_assistant` decodes that message; others keep theirs.
    if type(content) is not str or (role != "user" and role != "system" and (role != "assistant" or not content)):
        return None
    return Message(role, (Text(content),))


def _message(fields: Fields, before: list[Message]) -> Message:
    role = fields.text("role")
    match role:
        case "user":
            return Message("user", _content(fields), _extra(fields.rest))
        case "assistant":
            return _assistant(fields, before)
        case "tool":
            return _tool(fields, before)
        case "system" | "developer":
            parts = _content(fields)
            # A Chat upstream gets the role back; every other one gets a system message.
            own = {"role": role, **fields.rest} if role == "developer" else fields.rest
            return Message("system", parts, _extra(own))
        case "function":
            # The result of a `function_call`, which has no id: the latest call of that name is answered.
            name = fields.required_text("name")
            parts = tuple([part for message in before for part in message.parts])
            calls = [part for part in parts if isinstance(part, ToolCall) and part.name == name]
            if not calls:
                raise InvalidRequest(
                    f"{fields.at('name')}: no earlier function_call names {name!r}.", param=fields.at("name")
                )
            return Message("tool", (ToolResult(calls[-1].id, _result_content(fields), name=name),), _extra(fields.rest))
        case _:
            raise InvalidRequest(
                f"{fields.at('role')} must be system, developer, user, assistant or tool.", param=fields.at("role")
            )


def _content(fields: Fields) -> tuple[Part, ...]:
    value = fields.raw("content")
    if type(value) is str:
        return (Text(value),)
    if value is None:
        return ()
    if type(value) is not list:
        raise fields.wrong("content", "a string or a list of parts")
    return tuple([_part(Fields(part, f"{fields.at('content')}[{i}]")) for i, part in enumerate(value)])


def _part(fields: Fields) -> Part:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "text":
            return Text(fields.text("text") or "", _extra(fields.rest))
        case "refusal":
            return RefusalPart(fields.text("refusal") or "", _extra(fields.rest))
        case "image_url":
            value = fields.raw("image_url")
            # The API has `{"url": …}`; a bare URL is the shape of the Responses API.
            image = Fields({"url": value} if type(value) is str else value, fields.at("image_url"))
            url, detail = image.required_text("url"), image.text("detail")
            own = {**fields.rest, **({"image_url": image.rest} if image.rest else {})}
            media = media_from_url("image", url, _extra(own))
            return replace(media, detail=detail) if detail else media
        case "input_audio":
            audio = fields.object("input_audio") or Fields({}, fields.at("input_audio"))
            sound, form = audio.required_text("data"), audio.text("format") or "wav"
            return Media("audio", _AUDIO_MIME.get(form, f"audio/{form}"), sound, extra=_extra(fields.rest))
        case "file":
            file = fields.object("file") or Fields({}, fields.at("file"))
            name, file_id, data = file.text("filename"), file.text("file_id"), file.text("file_data")
            # OpenAI's documentation has a data URL here; bare base64 is taken for a PDF.
            if data is not None and data.startswith("data:"):
                media = media_from_url("file", data, NO_EXTRA)
            else:
                media = Media("file", "application/pdf" if data else None, data)
            return replace(media, file_id=file_id, name=name, extra=_extra(fields.rest))
        case None:
            raise InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"))
        case _:
            return Opaque(NAME, whole)


def _assistant(fields: Fields, before: list[Message]) -> Message:
    reasoning: list[Reasoning] = []
    for field in ("reasoning_content", "reasoning"):
        if type(fields.rest.get(field)) is str and (text := fields.text(field)):
            reasoning.append(Reasoning(text, ReasoningSignature(NAME, {"field": field})))
    blocks = decode_details(fields.rest.get("reasoning_details"), "".join([part.text for part in reasoning]))
    # Without entries of ours the field stays in `rest`, for the upstream that made it.
    if blocks:
        fields.raw("reasoning_details")
    content = [part for part in _content(fields) if part != Text("")]
    if refusal := fields.text("refusal"):
        content.append(RefusalPart(refusal))
    calls: list[Part] = [
        _call(Fields(value, f"{fields.at('tool_calls')}[{number}]"))
        for number, value in enumerate(fields.items("tool_calls") or [])
    ]
    legacy = fields.object("function_call")
    if legacy is not None:
        # It has no id; one made of the message's place stays the same when the history is sent again.
        name, arguments = legacy.required_text("name"), arguments_text(legacy.raw("arguments"))
        calls.append(ToolCall(f"call_legacy{len(before):04d}{'0' * 8}", name, arguments or "{}"))
    # Our entries have the texts of their blocks, so the reasoning fields would only repeat them.
    parts = place_blocks(blocks, content, calls) if blocks else [*reasoning, *content, *calls]
    return Message("assistant", tuple(parts), _extra(fields.rest))


def _call(fields: Fields) -> ToolCall:
    id, kind = fields.required_text("id"), fields.text("type") or "function"
    fields.rest.pop("index", None)  # of a streamed delta, which some clients send back
    if kind == "custom":
        custom = fields.object("custom") or Fields({}, fields.at("custom"))
        return ToolCall(
            id, custom.required_text("name"), custom.text("input") or "", freeform=True, extra=_extra(fields.rest)
        )
    function = fields.object("function") or Fields({}, fields.at("function"))
    name, arguments = function.required_text("name"), arguments_text(function.raw("arguments"))
    return ToolCall(id, name, arguments.strip() or "{}", extra=_extra(fields.rest))


def _tool(fields: Fields, before: list[Message]) -> Message:
    """Decode a result; one without an id answers the only call that has no result yet."""
    call_id = fields.text("tool_call_id")
    if not call_id:
        start = max([place for place, message in enumerate(before) if message.role == "user"], default=0)
        parts = [part for message in before[start:] for part in message.parts]
        answered = {part.call_id for part in parts if isinstance(part, ToolResult)}
        open_ids = [part.id for part in parts if isinstance(part, ToolCall) and part.id not in answered]
        if len(open_ids) != 1:
            raise InvalidRequest(
                f"{fields.at('tool_call_id')} is required in a message of role tool, unless one call waits for a result.",
                param=fields.at("tool_call_id"),
            )
        call_id = open_ids[0]
    content = _result_content(fields)
    return Message("tool", (ToolResult(call_id, content, name=fields.text("name")),), _extra(fields.rest))


def _result_content(fields: Fields) -> tuple[Text | Media, ...]:
    parts = _content(fields)
    if not all(isinstance(part, (Text, Media)) for part in parts):
        raise InvalidRequest(f"{fields.at('content')} may hold text and images only.", param=fields.at("content"))
    return parts  # type: ignore[return-value]  # narrowed by the check above


def _read_tools(values: list[Any]) -> list[ToolDef]:
    tools: list[ToolDef] = []
    for number, value in enumerate(values):
        if (plain := _plain_tool(value)) is not None:
            tools.append(plain)
            continue
        fields = Fields(value, f"tools[{number}]")
        kind = fields.text("type")
        if kind == "function":
            function = fields.object("function")
            if function is not None:
                tools.append(_function(function, fields.rest))
            elif "name" in fields.rest:  # the shape of the Responses API
                tools.append(_function(fields, {}))
            else:
                raise InvalidRequest(f"{fields.at('function')} is required.", param=fields.at("function"))
        elif kind == "custom":
            custom = fields.object("custom") or Fields({}, fields.at("custom"))
            name, description = custom.required_text("name"), custom.text("description")
            tools.append(ToolDef(name, description, kind="freeform", format=custom.mapping("format")))
        else:
            message = f"{fields.at('type')} must be function or custom."
            raise InvalidRequest(message, param=fields.at("type"), code="invalid_tool")
    return tools


def _plain_tool(value: Any) -> ToolDef | None:
    """Decode the most common kind of tool, a function with a description and a schema; None for any other."""
    function = value.get("function") if type(value) is dict and len(value) == 2 else None
    if type(function) is not dict or len(function) != 3 or value.get("type") != "function":
        return None
    name, description, schema = function.get("name"), function.get("description"), function.get("parameters")
    if type(name) is not str or not name or type(description) is not str or type(schema) is not dict:
        return None
    return ToolDef(name, description, schema)


def _function(fields: Fields, other_fields: dict[str, Any]) -> ToolDef:
    name = fields.required_text("name")
    description, schema, strict = fields.text("description"), fields.mapping("parameters"), fields.flag("strict")
    own = {**({"function": fields.rest} if fields.rest else {}), **other_fields}
    return ToolDef(name, description, schema, strict, extra=_extra(own))


_CHOICE_FIELDS = frozenset({"tool_choice", "parallel_tool_calls", "function_call"})


def _tool_choice(fields: Fields) -> ToolChoice | None:
    if _CHOICE_FIELDS.isdisjoint(fields.rest):
        return None
    parallel = fields.flag("parallel_tool_calls")
    value = fields.raw("tool_choice")
    # The predecessor: "none", "auto" or {"name": …}.
    if value is None and fields.rest.get("function_call") is not None:
        value = fields.raw("function_call")
        value = {"type": "function", "function": value} if type(value) is dict else value
    match value:
        case None:
            return None if parallel is None else ToolChoice(parallel=parallel)
        case "auto" | "none" | "required":
            return ToolChoice(value, parallel=parallel)
        case (
            {"type": "function", "function": {"name": str(name)}}
            | {"type": "custom", "custom": {"name": str(name)}}
            | {"type": "function" | "custom", "name": str(name)}  # the shape of the Responses API
        ):
            return ToolChoice("required", (name,), parallel)
        case {"type": "allowed_tools", "allowed_tools": dict(allowed)}:
            return _allowed_tools(Fields(allowed, "tool_choice.allowed_tools"), parallel)
        case _:
            raise InvalidRequest(
                "tool_choice must be none, auto, required, a named function or allowed_tools.", param="tool_choice"
            )


def _allowed_tools(fields: Fields, parallel: bool | None) -> ToolChoice:
    mode = fields.one_of("mode", "auto", "required") or "auto"
    names = []
    for number, value in enumerate(fields.items("tools") or []):
        match value:
            case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"name": str(name)}:
                names.append(name)
            case _:
                raise fields.wrong(f"tools[{number}]", "a function by name")
    return ToolChoice("required" if mode == "required" else "auto", tuple(names), parallel)


_NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_INTEGERS = ("top_k", "seed")
# Fields that are decoded into settings for other dialects, and kept in `extra` for this one.
_SHARED_FIELDS: Mapping[str, tuple[str, type]] = {
    "verbosity": ("verbosity", str),
    "service_tier": ("service_tier", str),
    "prompt_cache_key": ("cache_key", str),
    "prompt_cache_retention": ("cache_retention", str),
    "safety_identifier": ("safety_identifier", str),
    "metadata": ("metadata", dict),
    "logprobs": ("logprobs", bool),
    "top_logprobs": ("top_logprobs", int),
}
_SETTING_FIELDS = frozenset(
    {
        *_NUMBERS,
        *_INTEGERS,
        *_SHARED_FIELDS,
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "response_format",
        "reasoning_effort",
        "user",
        "n",
    }
)


def _settings(fields: Fields) -> RequestSettings:
    """Decode sampling, limits and options; most requests specify few, so only given fields are read."""
    if _SETTING_FIELDS.isdisjoint(fields.rest):
        return NO_SETTINGS
    settings: dict[str, Any] = {}
    # A list, because reading a field removes it from `rest`.
    for name in [name for name in fields.rest if name in _SETTING_FIELDS]:
        if name in _NUMBERS:
            settings[name] = fields.number(name)
        elif name in _INTEGERS:
            settings[name] = fields.integer(name)
        elif name in _SHARED_FIELDS:
            # A value of another type only stays in `extra`: the upstream may know it, or reject it itself.
            setting, kind = _SHARED_FIELDS[name]
            if type(fields.rest[name]) is kind:
                settings[setting] = fields.rest[name]
        elif name == "max_tokens":
            # The newer field wins, whichever comes first.
            settings.setdefault("max_tokens", fields.integer(name, least=1))
        elif name == "max_completion_tokens":
            # It stays in `extra`, too: Chat upstreams get that field.
            if (newer := fields.integer(name, least=1)) is not None:
                settings["max_tokens"] = fields.rest[name] = newer
        elif name == "stop":
            settings["stop"] = _stop(fields)
        elif name == "response_format":
            settings["output"] = _output(fields)
        elif name == "reasoning_effort":
            effort = fields.text(name)
            settings["thinking"] = ReasoningSettings(effort != "none", effort) if effort else None
        elif name == "user":
            settings["user"] = fields.text(name)
        else:
            settings["choices"] = fields.integer("n", least=1, most=128) or 1
    return RequestSettings(**settings)


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    sequences = [value] if type(value) is str else value
    if type(sequences) is not list or not all(type(one) is str for one in sequences):
        raise fields.wrong("stop", "a string or a list of strings")
    if len(sequences) > MAX_STOPS:
        raise InvalidRequest(f"stop may hold at most {MAX_STOPS} strings.", param="stop")
    return tuple(sequences)


def _output(fields: Fields) -> StructuredOutputFormat | None:
    form = fields.object("response_format")
    if form is None:
        return None
    match form.one_of("type", "text", "json_object", "json_schema"):
        case "json_object":
            return StructuredOutputFormat()
        case "json_schema":
            inner = form.object("json_schema") or Fields({}, form.at("json_schema"))
            schema = inner.mapping("schema")
            name, description = inner.text("name") or "answer", inner.text("description")
            return StructuredOutputFormat(schema if schema is not None else {}, name, description, inner.flag("strict"))
        case _:
            return None
