"""The side of Chat Completions that faces a model: requests written, answers and errors read.

Streams are read in `stream.py` and passed on in `relay.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw

from toolgate.conversation import ids
from toolgate.conversation.arguments import as_object_text
from toolgate.conversation.errors import Garbled, UpstreamFault
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.media import data_url
from toolgate.conversation.message import (
    REASONING_LOST,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    spoken_content,
)
from toolgate.conversation.request import (
    NO_SETTINGS,
    ModelRequest,
    OutputFormat,
    Settings,
    ToolChoice,
    ToolDef,
    effort_of,
)
from toolgate.conversation.stock import Stock, made_once, names_of
from toolgate.dialects.dialect import Decoder, Quirks, Relay, Reply
from toolgate.dialects.openai_chat.relay import ChatRelay, mend_response
from toolgate.dialects.openai_chat.stream import ChatDecoder
from toolgate.dialects.openai_chat.words import NAME, read_usage
from toolgate.dialects.refusals import read_refusal
from toolgate.wire.jsontext import encode

__all__ = [
    "decode_error",
    "decode_response",
    "decoder",
    "encode_request",
    "headers",
    "path",
    "relay",
    "relay_response",
    "usage_of",
]

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_IMAGES_FOLLOW = "[The tool returned the following attachment.]"
_NOTHING: Mapping[str, Any] = {"role": "assistant", "content": ""}


def path(request: ModelRequest) -> str:
    """Where to post."""
    return "/chat/completions"


def headers(api_key: str | None) -> dict[str, str]:
    """The credentials of this dialect."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def decoder(request: ModelRequest) -> Decoder:
    """A decoder for the streamed answer to this request."""
    return ChatDecoder(names_of(request.tools), request.settings.choices == 1)


def relay(request: ModelRequest, reply: Reply) -> Relay:
    """A relay for the streamed answer to this request."""
    return ChatRelay(request, reply)


def usage_of(body: Any) -> Usage | None:
    """What a whole answer says that it used."""
    return read_usage(body.get("usage")) if type(body) is dict else None


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """A whole answer: its one choice is read as if it were streamed in one chunk, unless it is nothing but text."""
    plain = _plain_text(body)
    if plain is not None:
        return plain
    decoder = ChatDecoder(names_of(request.tools), request.settings.choices == 1)
    return fold([*decoder.read(_as_chunk(body)), *decoder.end()])


def _plain_text(body: Any) -> ModelResponse | None:
    """The answer, if it is the commonest kind: one choice that holds a text and a reason and nothing else."""
    choices = body.get("choices") if type(body) is dict else None
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict or "error" in body:
        return None
    if "x_groq" in body:
        return None
    message, word = choices[0].get("message"), choices[0].get("finish_reason")
    if type(message) is not dict or (word != "stop" and word != "length") or choices[0].get("logprobs"):
        return None
    text = message.get("content")
    if type(text) is not str or not text or not text.isascii():
        return None
    for name, value in message.items():
        if value and name != "content" and name != "role":
            return None
    return ModelResponse((Text(text),), word, read_usage(body.get("usage")), body.get("id"), body.get("model"))


def relay_response(body: Any, response: ModelResponse, request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """A whole answer as a Chat client should see it."""
    return mend_response(body, response, reply, joined=request.settings.choices == 1)


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
    """The failure that an answer with a bad status tells of."""
    return read_refusal(status, headers, body)


def _as_chunk(body: Any) -> dict[str, Any]:
    choices = body.get("choices") if type(body) is dict else None
    if type(body) is dict and body.get("error"):
        return body
    if type(choices) is not list or not choices or type(choices[0]) is not dict:
        raise Garbled("The upstream's answer holds no choices.")
    read = []
    for number, choice in enumerate([choice for choice in choices if type(choice) is dict]):
        message = choice.get("message")
        read.append({**choice, "index": number, "delta": message if type(message) is dict else {}})
    return {**body, "choices": read}


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body to post, and what could not be said in this dialect."""
    dropped: list[str] = []
    body: dict[str, Any] = {"model": request.model}
    body["messages"] = list(_messages(request, quirks, dropped))
    if request.tools:
        tools, lost = _tools(request.tools)
        dropped += lost
        body |= {"tools": tools, **_choice(request.tool_choice)} if tools else {}
    if request.settings is not NO_SETTINGS:
        body |= _settings(request.settings, quirks, dropped)
    if request.stream:
        body["stream"] = True
        if quirks.usage_in_streams:
            body["stream_options"] = {"include_usage": True}
    own = request.extra.get(NAME, {})
    if own:
        body |= _own_fields(own, body, quirks)
    for field in quirks.unsupported:
        if body.pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _own_fields(own: Mapping[str, Any], body: dict[str, Any], quirks: Quirks) -> dict[str, Any]:
    """The fields a Chat client sent that we do not read, minus those that we say ourselves."""
    fields = {name: value for name, value in own.items() if name != "legacy_functions"}
    newer = fields.pop("max_completion_tokens", None)
    if newer is not None and quirks.max_tokens_field is None and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")  # the client's own spelling, unless a row knows better
    if "stream_options" in fields and body.get("stream"):
        fields["stream_options"] = {**(fields["stream_options"] or {}), **body.get("stream_options", {})}
    return fields


def _messages(request: ModelRequest, quirks: Quirks, dropped: list[str]) -> Iterator[dict[str, Any]]:
    """Tool messages hold text only at most upstreams, so pictures follow as the user's, behind all results of the turn."""
    attached: list[Text | Media] = []
    own = request.dialect == NAME
    for message in request.messages:
        if message.role == "tool":
            yield from _results(message, quirks, attached, own)
            continue
        if attached:
            yield _attachment(attached, dropped)
            attached = []
        if message.role == "user" and not message.extra and len(message.parts) == 1:
            yield {"role": "user", "content": _content(message.parts, dropped)}
            continue
        written = _message(message, quirks, dropped)
        if written != _NOTHING or not _is_foreign(message):
            yield written
    if attached:
        yield _attachment(attached, dropped)


def _is_foreign(message: Message) -> bool:
    """Whether a turn holds only what other dialects know: servers refuse an answer without words, most of all a first."""
    return bool(message.parts) and all(isinstance(part, Opaque) for part in message.parts)


def _message(message: Message, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    own = dict(message.extra.get(NAME, {}))
    if message.role == "assistant":
        return _assistant(message.parts, quirks, dropped) | own
    role = quirks.system_role if message.role == "system" else "user"
    return {"role": role, "content": _content(message.parts, dropped), **own}


def _attachment(attached: list[Text | Media], dropped: list[str]) -> dict[str, Any]:
    return {"role": "user", "content": _content((Text(_IMAGES_FOLLOW), *attached), dropped)}


def _content(parts: tuple[Part, ...], dropped: list[str]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and type(part := parts[0]) is Text and NAME not in part.extra:
        return part.text
    written = [entry for part in parts if (entry := _part(part, dropped))]
    return written or ""


def _part(part: Part, dropped: list[str]) -> dict[str, Any] | None:
    match part:
        case Text(text):
            return {"type": "text", "text": text, **part.extra.get(NAME, {})}
        case Media():
            return _media(part, dropped)
        case Opaque(dialect, value) if dialect == NAME:
            return dict(value)
        case Refusal(text):
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
    spoken = tuple([part for part in parts if not isinstance(part, (Reasoning, ToolCall))])
    message["content"] = _content(spoken, dropped) if spoken else None
    if len(spoken) > 1 and all(type(part) is Text and NAME not in part.extra for part in spoken):
        message["content"] = "".join([part.text for part in spoken if type(part) is Text])
    calls: list[dict[str, Any]] = []
    sealed: Mapping[str, Any] = {}
    for part in parts:
        match part:
            case ToolCall():
                calls.append({**_call(part, quirks), **sealed})
                sealed = {}
            case Reasoning(seal=seal) if seal is not None and seal.dialect == NAME and "next_call" in seal.fields:
                sealed = seal.fields["next_call"]
            case Reasoning():
                if not _write_reasoning(part, quirks, message) and REASONING_LOST not in dropped:
                    dropped.append(REASONING_LOST)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message


def _write_reasoning(part: Reasoning, quirks: Quirks, message: dict[str, Any]) -> bool:
    """Reasoning goes back in the field it came in, or the one that this upstream wants; whether it does at all."""
    field, written = quirks.reasoning_field, False
    if part.seal is not None and part.seal.dialect == NAME:
        field = part.seal.fields.get("field") or field
        for name, value in part.seal.fields.items():
            if name == "reasoning_details":
                message[name] = [*message.get(name, []), *value]
                written = True
    if field and part.text:
        message[field] = message.get(field, "") + part.text
        written = True
    return written or (part.seal is None and not part.text)


def _call(call: ToolCall, quirks: Quirks) -> dict[str, Any]:
    own, id = dict(call.extra.get(NAME, {})), call_id(call.id, quirks)
    if call.freeform:
        return {"id": id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}, **own}
    arguments = as_object_text(call.arguments)
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}, **own}


def call_id(id: str, quirks: Quirks) -> str:
    """The id as this upstream knows or accepts it."""
    id = ids.original(id)
    return ids.fitted(id, quirks.call_id_pattern) if quirks.call_id_pattern else id


def _results(message: Message, quirks: Quirks, attached: list[Text | Media], as_sent: bool) -> Iterator[dict[str, Any]]:
    own = message.extra.get(NAME, {})
    for part in message.parts:
        if not isinstance(part, ToolResult):
            continue
        content = spoken_content(part)
        if not quirks.images_in_tool_results and any(isinstance(piece, Media) for piece in content):
            attached += [piece for piece in content if isinstance(piece, Media)]
            content = tuple([piece for piece in content if isinstance(piece, Text)]) or (Text(_IMAGES_FOLLOW),)
        yield {
            "role": "tool",
            "tool_call_id": call_id(part.call_id, quirks),
            "content": _result_text(content, as_sent),
            **own,
        }


def _result_text(content: tuple[Text | Media, ...], as_sent: bool) -> str | list[dict[str, Any]]:
    """One text: not every upstream takes several, so those of other dialects become its lines."""
    if (not as_sent or len(content) < 2) and all(
        isinstance(piece, Text) and NAME not in piece.extra for piece in content
    ):
        return "\n".join([piece.text for piece in content if isinstance(piece, Text)])
    return [entry for piece in content if (entry := _part(piece, []))]


@made_once
def _tools(tools: tuple[ToolDef, ...]) -> tuple[list[Any] | Raw, tuple[str, ...]]:
    """The tools as they are written, and what of them cannot be said; a stock's are JSON already."""
    dropped: list[str] = []
    written = [entry for tool in tools if (entry := _tool(tool, dropped))]
    return Raw(encode(written)) if written and isinstance(tools, Stock) else written, tuple(dropped)


def _tool(tool: ToolDef, dropped: list[str]) -> dict[str, Any] | None:
    if tool.kind == "hosted":
        dropped.append(f"the hosted tool {tool.name!r} is known to its own API only")
        return None
    if tool.kind == "freeform":
        custom = {"name": tool.name, "description": tool.description, "format": tool.format}
        return {"type": "custom", "custom": {name: value for name, value in custom.items() if value is not None}}
    own = dict(tool.extra.get(NAME, {}))
    function: dict[str, Any] = {"name": tool.name, **own.pop("function", {})}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema if tool.input_schema is not None else _EMPTY_SCHEMA
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function, **own}


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    fields: dict[str, Any] = {}
    match choice:
        case ToolChoice("required", (name,)):
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
        case ToolChoice(mode, names) if names:
            tools = [{"type": "function", "function": {"name": name}} for name in names]
            fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        case ToolChoice(mode):
            fields["tool_choice"] = mode
    if choice.parallel is not None and choice.mode != "none":
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def _settings(settings: Settings, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    limit, limit_name, thinking = settings.max_tokens, quirks.max_tokens_field or "max_tokens", settings.thinking
    if settings == Settings(limit):  # as of most requests
        return {} if limit is None else {limit_name: limit}
    fields = {
        limit_name: limit,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "stop": list(settings.stop) or None,
        "seed": settings.seed,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
        "response_format": _output(settings.output, quirks, dropped) if settings.output else None,
        "reasoning_effort": effort_of(thinking) if thinking else None,
        "user": settings.user,
        "n": settings.choices if settings.choices > 1 else None,
        "verbosity": settings.verbosity,
        "service_tier": settings.service_tier,
        "prompt_cache_key": settings.cache_key,
        "prompt_cache_retention": settings.cache_retention,
        "safety_identifier": settings.safety_identifier,
        "metadata": settings.metadata,
        "logprobs": settings.logprobs if settings.top_logprobs is None else True,
        "top_logprobs": settings.top_logprobs,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _output(output: OutputFormat, quirks: Quirks, dropped: list[str]) -> dict[str, Any] | None:
    if quirks.output_format == "none":
        dropped.append("the upstream takes no output format")
        return None
    if output.schema is None or quirks.output_format == "json":
        if output.schema is not None:
            dropped.append("the upstream takes no output schema: any JSON object was asked for")
        return {"type": "json_object"}
    schema = {"name": output.name, "schema": output.schema, "description": output.description, "strict": output.strict}
    return {"type": "json_schema", "json_schema": {name: value for name, value in schema.items() if value is not None}}
