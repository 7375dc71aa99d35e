"""Encode requests to Chat upstreams, and decode or relay their whole answers and errors.

Messages are encoded in `encode_messages.py`; streams are decoded in `stream_decoder.py` and relayed in `relay.py`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamError
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.request import (
    HOSTED_SETTINGS,
    NO_SETTINGS,
    ModelRequest,
    OptionalSettingsEncoder,
    RequestSettings,
    ToolChoice,
    ToolDef,
    effort_of,
)
from toolgate.conversation.tool_definition_cache import MemoizedTools, cached_by_tools, tool_names
from toolgate.dialects.dialect import CALL_NOT_DEMANDED, AnswerMetadata, Quirks, StreamRelay, UpstreamStreamDecoder
from toolgate.dialects.openai_chat.encode_messages import encode_messages
from toolgate.dialects.openai_chat.relay import ChatStreamRelay
from toolgate.dialects.openai_chat.repair_response import repair_response
from toolgate.dialects.openai_chat.shared_codec import NAME, read_usage
from toolgate.dialects.openai_chat.stream_decoder import ChatStreamDecoder
from toolgate.dialects.upstream_errors import decode_error_object, decode_error_response
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

# OpenAI allows a function without `parameters`; some other servers reject it.
_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_RARE_SETTINGS = OptionalSettingsEncoder(
    top_k="top_k",
    seed="seed",
    frequency_penalty="frequency_penalty",
    presence_penalty="presence_penalty",
    **HOSTED_SETTINGS,
    verbosity="verbosity",
    logprobs="logprobs",
    top_logprobs="top_logprobs",
)


def path(request: ModelRequest) -> str:
    """Return the path to post to."""
    return "/chat/completions"


def headers(api_key: str | None) -> dict[str, str]:
    """Return the headers with the credentials."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def decoder(request: ModelRequest) -> UpstreamStreamDecoder:
    """Return a decoder for the streamed answer to this request."""
    return ChatStreamDecoder(tool_names(request.tools), request.settings.choices == 1)


def relay(request: ModelRequest, metadata: AnswerMetadata) -> StreamRelay:
    """Return a relay for the streamed answer to this request."""
    return ChatStreamRelay(request, metadata)


def usage_of(body: Any) -> Usage | None:
    """Return the usage that a whole answer reports."""
    return read_usage(body.get("usage")) if type(body) is dict else None


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """Decode a whole answer, as if its choices were streamed in one chunk."""
    decoder = ChatStreamDecoder(tool_names(request.tools), request.settings.choices == 1)
    if type(body) is dict and body.get("error"):
        raise decode_error_object(body["error"])  # some servers send an error with status 200
    choices = body.get("choices") if type(body) is dict else None
    if type(choices) is not list or not choices or type(choices[0]) is not dict:
        raise InvalidUpstreamAnswer("The upstream's answer holds no choices.")
    streamed = []
    # Counted here, because servers leave out the index or repeat it.
    for number, choice in enumerate([choice for choice in choices if type(choice) is dict]):
        message = choice.get("message")
        streamed.append({**choice, "index": number, "delta": message if type(message) is dict else {}})
    return fold([*decoder.read({**body, "choices": streamed}), *decoder.end()])


def relay_response(
    body: Any, response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata
) -> dict[str, Any]:
    """Return a whole answer with the repairs that clients need."""
    return repair_response(body, response, metadata, joined=request.settings.choices == 1)


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """Decode an error response."""
    return decode_error_response(status, headers, body)


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Encode the body to post, and list what this dialect cannot express."""
    dropped: list[str] = []
    body: dict[str, Any] = {"model": request.model, "messages": encode_messages(request, quirks, dropped)}
    tools, lost = _write_tools(request.tools) if request.tools else (None, ())
    if tools:
        body |= {"tools": tools, **_choice(request.tool_choice, request.tools)}
    elif request.tool_choice is not None and request.tool_choice.mode == "required":
        dropped.append(CALL_NOT_DEMANDED)
    dropped += lost
    if request.settings is not NO_SETTINGS:
        body |= _settings(request.settings, quirks, dropped)
    if request.stream:
        body["stream"] = True
        if quirks.usage_in_streams:
            body["stream_options"] = {"include_usage": True}
    if own := request.extra.get(NAME):
        fields = {name: value for name, value in own.items() if name != "legacy_functions"}
        # The limit keeps the name that the client used, unless the provider table has one.
        newer = fields.pop("max_completion_tokens", None)
        if newer is not None and quirks.max_tokens_field is None and "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")
        # Our request for usage is added to the client's options.
        if "stream_options" in fields and body.get("stream"):
            fields["stream_options"] = {**(fields["stream_options"] or {}), **body.get("stream_options", {})}
        body |= fields
    for field in quirks.unsupported:
        if body.pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


@cached_by_tools
def _write_tools(tools: tuple[ToolDef, ...]) -> tuple[list[Any] | Raw, tuple[str, ...]]:
    """Encode the tools, and list what cannot be expressed; those of a `MemoizedTools` are encoded to JSON once."""
    dropped: list[str] = []
    written: list[dict[str, Any]] = []
    for tool in tools:
        if tool.kind == "hosted":
            dropped.append(f"the hosted tool {tool.name!r} is known to its own API only")
            continue
        if tool.kind == "freeform":
            fields = {"name": tool.name, "description": tool.description, "format": tool.format}
            custom = {name: value for name, value in fields.items() if value is not None}
            written.append({"type": "custom", "custom": custom})
            continue
        own = dict(tool.extra.get(NAME, {}))
        function: dict[str, Any] = {"name": tool.name, **own.pop("function", {})}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema if tool.input_schema is not None else _EMPTY_SCHEMA
        # Left out if it was not given: some servers reject `null`.
        if tool.strict is not None:
            function["strict"] = tool.strict
        written.append({"type": "function", "function": function, **own})
    # An empty list stays one: the caller asks whether there are tools, and some servers reject `"tools": []`.
    return Raw(encode(written)) if written and isinstance(tools, MemoizedTools) else written, tuple(dropped)


def _choice(choice: ToolChoice | None, tools: tuple[ToolDef, ...]) -> dict[str, Any]:
    if choice is None:
        return {}
    fields: dict[str, Any] = {}
    match choice:
        case ToolChoice(mode, names) if names:
            kinds = {tool.name: "custom" for tool in tools if tool.kind == "freeform"}
            named = [{"type": (kind := kinds.get(name, "function")), kind: {"name": name}} for name in names]
            allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
            fields["tool_choice"] = named[0] if mode == "required" and len(named) == 1 else allowed
        case ToolChoice(mode):
            fields["tool_choice"] = mode
    if choice.parallel is not None and choice.mode != "none":
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def _settings(settings: RequestSettings, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    limit, limit_name, thinking = settings.max_tokens, quirks.max_tokens_field or "max_tokens", settings.thinking
    if settings == RequestSettings(limit):  # most requests set nothing else
        return {} if limit is None else {limit_name: limit}
    fields = _RARE_SETTINGS.fields(settings)
    if limit is not None:
        fields[limit_name] = limit
    if settings.temperature is not None:
        fields["temperature"] = settings.temperature
    if settings.top_p is not None:
        fields["top_p"] = settings.top_p
    if settings.stop:
        fields["stop"] = list(settings.stop)
    if (output := settings.output) is not None:
        if quirks.output_format == "none":
            dropped.append("the upstream takes no output format")
        elif output.schema is None:
            fields["response_format"] = {"type": "json_object"}
        elif quirks.output_format == "json":
            dropped.append("the upstream takes no output schema: any JSON object was asked for")
            fields["response_format"] = {"type": "json_object"}
        else:
            form: dict[str, Any] = {"name": output.name, "schema": output.schema}
            if output.description is not None:
                form["description"] = output.description
            if output.strict is not None:
                form["strict"] = output.strict
            fields["response_format"] = {"type": "json_schema", "json_schema": form}
    if thinking and (effort := effort_of(thinking)) is not None:
        fields["reasoning_effort"] = effort
    if settings.choices > 1:
        fields["n"] = settings.choices
    if settings.top_logprobs is not None:
        fields["logprobs"] = True  # Responses clients send only `top_logprobs`, which Chat rejects without this
    return fields
