"""Encode requests to Responses upstreams, and decode or relay their whole answers and errors.

Messages are encoded in `encode_messages.py`, tools in `tools.py`; streams are decoded in `stream_decoder.py` and relayed in
`relay.py`.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer, UpstreamError
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Reasoning
from toolgate.conversation.request import (
    HOSTED_SETTINGS,
    NO_SETTINGS,
    ModelRequest,
    OptionalSettingsEncoder,
    StructuredOutputFormat,
    effort_of,
)
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.dialects.dialect import CALL_NOT_DEMANDED, AnswerMetadata, Quirks, StreamRelay, UpstreamStreamDecoder
from toolgate.dialects.openai_responses.encode_messages import InputItemEncoder
from toolgate.dialects.openai_responses.relay import ResponsesStreamRelay, repair_response
from toolgate.dialects.openai_responses.shared_codec import LOGPROBS, NAME
from toolgate.dialects.openai_responses.stream_decoder import ResponsesStreamDecoder, usage_of
from toolgate.dialects.openai_responses.tools import read_choice, write_choice, write_tools
from toolgate.dialects.upstream_errors import decode_error_response

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

MIN_OUTPUT_TOKENS = 16  # OpenAI rejects less
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_NOT_COPIED = frozenset(  # fields of the client's request that are encoded separately, or that concern our own storage
    {"store", "previous_response_id", "conversation", "background", "include", "tool_choice", "text", "reasoning"}
)
_RARE = OptionalSettingsEncoder(**HOSTED_SETTINGS, top_logprobs="top_logprobs")
_UNSUPPORTED = OptionalSettingsEncoder(top_k="top_k", stop="stop", seed="seed")
# Penalties are in the open specification but not in OpenAI's, so they are sent for clients of this dialect only.
_PENALTIES = OptionalSettingsEncoder(frequency_penalty="frequency_penalty", presence_penalty="presence_penalty")


def path(request: ModelRequest) -> str:
    """Return the path to post to."""
    return "/responses"


def headers(api_key: str | None) -> dict[str, str]:
    """Return the headers with the credentials."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def decoder(request: ModelRequest) -> UpstreamStreamDecoder:
    """Return a decoder for the streamed answer to this request."""
    return ResponsesStreamDecoder(tool_names(request.tools))


def relay(request: ModelRequest, metadata: AnswerMetadata) -> StreamRelay:
    """Return a relay for the streamed answer to this request."""
    return ResponsesStreamRelay(request, metadata)


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """Decode a whole answer, like a stream that has nothing but its last event."""
    if type(body) is not dict:
        raise InvalidUpstreamAnswer("The upstream's answer is not an object.")
    decoder = ResponsesStreamDecoder(tool_names(request.tools))
    return fold(decoder.read_whole(body))


def relay_response(
    body: Any, response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata
) -> dict[str, Any]:
    """Return a whole answer with the repairs that clients need."""
    return repair_response(body, response, request, metadata)


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """Decode an error response."""
    return decode_error_response(status, headers, body)


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Encode the body to post, and list what this dialect cannot express."""
    if request.settings.choices > 1:
        raise InvalidRequest("n must be 1: the API behind this model gives one answer at a time.", param="n")
    dropped: list[str] = []
    own = request.extra.get(NAME, {})
    # Responses are stored here, so an upstream stores one only if the client explicitly asks for it.
    stores = own.get("store") is True
    encoder = InputItemEncoder(request, quirks, dropped)
    items = encoder.items(request.messages)
    body: dict[str, Any] = {"model": request.model}
    if encoder.instructions is not None:
        body["instructions"] = encoder.instructions
    body |= {"input": items, "store": stores, **_include(request, own), **_tools(request, own, dropped)}
    body |= _settings(request, own, quirks, dropped)
    if request.stream:
        body["stream"] = True
    body |= {name: value for name, value in own.items() if name not in _NOT_COPIED}
    if not request.stream:  # the request of a client that streams may be sent without a stream
        body.pop("stream_options", None)
    for field in quirks.unsupported:
        if body.pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _include(request: ModelRequest, own: Mapping[str, Any]) -> dict[str, Any]:
    """Encode what the client wants included, and encrypted reasoning where the model seems to reason."""
    sent, thinking = own.get("include"), request.settings.thinking
    include = [name for name in sent if name != _ENCRYPTED_REASONING] if type(sent) is list else []
    # Nothing is stored upstream, so reasoning can come back only if it is encrypted. It is not requested every time,
    # because models that do not reason reject a request with it.
    if thinking is not None:
        reasons = thinking.enabled
    else:
        reasons = any(
            isinstance(part, Reasoning) and part.signature is not None and part.signature.dialect == NAME
            for message in request.messages
            for part in message.parts
        )
    if reasons or (type(sent) is list and _ENCRYPTED_REASONING in sent):
        include.append(_ENCRYPTED_REASONING)
    if request.settings.logprobs and LOGPROBS not in include:
        include.append(LOGPROBS)
    return {"include": include} if include else {}


def _tools(request: ModelRequest, own: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    tools, choice = write_tools(request.tools, loose=request.dialect != NAME, dropped=dropped), request.tool_choice
    if not tools:
        if choice is not None and choice.mode == "required":
            dropped.append(CALL_NOT_DEMANDED)
        return {}
    fields: dict[str, Any] = {"tools": tools}
    if choice is None:
        return fields
    # The client's own choice may name a hosted tool, which `ToolChoice` cannot. It holds unless the choice was changed
    # on the way, as after the first step of a run.
    sent = own.get("tool_choice")
    unchanged = sent is not None and read_choice(sent, choice.parallel) == choice
    fields["tool_choice"] = sent if unchanged else write_choice(choice, request.tools)
    if choice.parallel is not None and choice.mode != "none":
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def _settings(request: ModelRequest, own: Mapping[str, Any], quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    settings = request.settings
    if settings is NO_SETTINGS and not own:
        return {}
    fields = _RARE.fields(settings)
    if (limit := settings.max_tokens) is not None:
        fields["max_output_tokens"] = max(limit, MIN_OUTPUT_TOKENS)
        if limit < MIN_OUTPUT_TOKENS:
            dropped.append(
                f"the limit of {limit} tokens was raised to {MIN_OUTPUT_TOKENS}, the least that the Responses API takes"
            )
    if settings.temperature is not None:
        fields["temperature"] = settings.temperature
    if settings.top_p is not None:
        fields["top_p"] = settings.top_p
    verbosity = {} if settings.verbosity is None else {"verbosity": settings.verbosity}
    if text := {**_format(settings.output, quirks, dropped), **verbosity, **own.get("text", {})}:
        fields["text"] = text
    reasoning = dict(own.get("reasoning", {}))
    if thinking := settings.thinking:
        given = {"effort": effort_of(thinking), "summary": thinking.summary}
        reasoning = {**{name: value for name, value in given.items() if value is not None}, **reasoning}
    if reasoning:
        fields["reasoning"] = reasoning
    if request.dialect == NAME:
        fields |= _PENALTIES.fields(settings)
    else:
        dropped += _PENALTIES.warnings(settings)
    dropped += _UNSUPPORTED.warnings(settings)
    return fields


def _format(output: StructuredOutputFormat | None, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    if output is None:
        return {}
    if quirks.output_format == "none":
        dropped.append("the upstream takes no output format")
        return {}
    if output.schema is None or quirks.output_format == "json":
        if output.schema is not None:
            dropped.append("the upstream takes no output schema: any JSON object was asked for")
        return {"format": {"type": "json_object"}}
    form = {"name": output.name, "schema": output.schema, "description": output.description, "strict": output.strict}
    return {"format": {"type": "json_schema", **{name: value for name, value in form.items() if value is not None}}}
