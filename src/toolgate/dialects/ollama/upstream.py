"""Encode requests to Ollama upstreams, and decode or relay their whole answers and errors.

Messages are encoded in `encode_messages.py`; streams are decoded in `stream_decoder.py` and relayed in `relay.py`. A
client's `/api/generate` request is sent to the same endpoint, because it has fields that no conversation can express.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer, UpstreamError
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.request import (
    HOSTED_SETTINGS,
    NO_SETTINGS,
    ModelRequest,
    OptionalSettingsEncoder,
    ReasoningSettings,
    RequestSettings,
    ToolChoice,
    schema_with_description,
)
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.dialects.dialect import CALL_NOT_DEMANDED, AnswerMetadata, Quirks, StreamRelay, UpstreamStreamDecoder
from toolgate.dialects.ollama.encode_messages import encode_messages, encode_prompt
from toolgate.dialects.ollama.relay import OllamaLineRepair, OllamaStreamRelay
from toolgate.dialects.ollama.shared_codec import NAME, PROMPT, read_usage
from toolgate.dialects.ollama.stream_decoder import OllamaLine, OllamaStreamDecoder, line_of
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

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}  # chat templates expect parameters

_RARE_OPTIONS = OptionalSettingsEncoder(
    top_k="top_k",
    seed="seed",
    frequency_penalty="frequency_penalty",
    presence_penalty="presence_penalty",
)
_UNSUPPORTED = OptionalSettingsEncoder(**HOSTED_SETTINGS, verbosity="verbosity")
# The values of `think`: some models take these levels, others only a boolean.
_EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}


def path(request: ModelRequest) -> str:
    """Return the path to post to."""
    return "/api/generate" if _is_prompt(request) else "/api/chat"


def headers(api_key: str | None) -> dict[str, str]:
    """Return the headers with the credentials."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def decoder(request: ModelRequest) -> UpstreamStreamDecoder:
    """Return a decoder for the streamed answer to this request."""
    return OllamaStreamDecoder(tool_names(request.tools))


def relay(request: ModelRequest, metadata: AnswerMetadata) -> StreamRelay:
    """Return a relay for the streamed answer to this request."""
    return OllamaStreamRelay(OllamaStreamDecoder(tool_names(request.tools)), request, metadata)


def usage_of(body: Any) -> Usage | None:
    """Return the usage that a whole answer reports."""
    return read_usage(body) if type(body) is dict else None


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """Decode a whole answer, as if it were the only line of a stream."""
    decoder = OllamaStreamDecoder(tool_names(request.tools))
    return fold([*decoder.read(_as_line(body)), *decoder.end()])


def relay_response(
    body: Any, response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata
) -> dict[str, Any]:
    """Return a whole answer with the repairs that clients need."""
    repaired = OllamaLineRepair(request, metadata).repair(_as_line(body))
    if response.usage is not None and response.usage.estimated:
        repaired |= {"prompt_eval_count": response.usage.input, "eval_count": response.usage.output}
    return repaired


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """Decode an error response."""
    return decode_error_response(status, headers, body)


def _as_line(body: Any) -> OllamaLine:
    line = line_of(body)
    if "message" not in line.fields and "response" not in line.fields:
        raise InvalidUpstreamAnswer("The upstream's answer holds no message.")
    # A whole answer is complete even if it lacks `done`; nothing can follow it.
    return replace(line, fields={"done": True, **line.fields})


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Encode the body to post, and list what this dialect cannot express."""
    if request.settings.choices > 1:
        raise InvalidRequest("The upstream gives one answer only: n must be 1.", param="n", code="unsupported_value")
    dropped: list[str] = []
    own = dict(request.extra.get(NAME, {}))
    prompt_fields = own.pop(PROMPT, {})
    body: dict[str, Any] = {"model": request.model}
    if _is_prompt(request):
        body |= {**encode_prompt(request.messages, dropped), **prompt_fields}
    else:
        dropped += [f"{name} has no place in a conversation" for name in prompt_fields]
        body["messages"] = list(encode_messages(request.messages, quirks, dropped))
        if tools := _tools(request, dropped):
            body["tools"] = tools
    body |= _settings(request.settings, own.pop("options", {}), quirks, dropped)
    body |= own
    body["stream"] = request.stream  # always, because Ollama streams by default
    for field in quirks.unsupported:
        if body.pop(field, None) is not None or body.get("options", {}).pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _is_prompt(request: ModelRequest) -> bool:
    """Return whether this is still the prompt that a client posted to `/api/generate`."""
    # A history or tools may have been added on the way, which the endpoint does not take.
    roles = [message.role for message in request.messages]
    return PROMPT in request.extra.get(NAME, {}) and roles in (["user"], ["system", "user"]) and not request.tools


def _tools(request: ModelRequest, dropped: list[str]) -> list[dict[str, Any]]:
    """Encode the tools; Ollama has no tool choice, so tools that were not chosen are left out."""
    choice = request.tool_choice or ToolChoice()
    if choice.mode == "none":
        return []
    # A client of Ollama cannot make such a choice: these warnings are for clients of other APIs.
    if choice.mode == "required":
        dropped.append(CALL_NOT_DEMANDED)
    if choice.parallel is False:
        dropped.append("the model cannot be kept from calling several tools at once")
    if any(tool.strict for tool in request.tools):
        dropped.append("strict schemas are not enforced")
    written: list[dict[str, Any]] = []
    for tool in request.tools:
        if choice.names and tool.name not in choice.names:
            continue
        if tool.kind != "function":
            dropped.append(f"the {tool.kind} tool {tool.name!r} has no place here")
            continue
        own = dict(tool.extra.get(NAME, {}))
        function: dict[str, Any] = {"name": tool.name, **own.pop("function", {})}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema if tool.input_schema is not None else _EMPTY_SCHEMA
        written.append({"type": "function", "function": function, **own})
    return written


def _settings(
    settings: RequestSettings, own_options: Mapping[str, Any], quirks: Quirks, dropped: list[str]
) -> dict[str, Any]:
    if settings is NO_SETTINGS:
        return {"options": dict(own_options)} if own_options else {}
    # Options that only Ollama knows, such as `num_ctx`, are beside those that were decoded.
    options = {**own_options, **_RARE_OPTIONS.fields(settings)}
    if settings.max_tokens is not None:
        options["num_predict"] = settings.max_tokens
    if settings.temperature is not None:
        options["temperature"] = settings.temperature
    if settings.top_p is not None:
        options["top_p"] = settings.top_p
    if settings.stop:
        options["stop"] = list(settings.stop)
    fields: dict[str, Any] = {"options": options} if options else {}
    if (output := settings.output) is not None:
        if quirks.output_format == "none":
            dropped.append("the upstream takes no output format")
        elif output.schema is None:
            fields["format"] = "json"
        elif quirks.output_format == "json":
            dropped.append("the upstream takes no output schema: any JSON object was asked for")
            fields["format"] = "json"
        else:
            fields["format"] = schema_with_description(output)
    if settings.thinking:
        fields["think"] = _think(settings.thinking)
    if settings.logprobs or settings.top_logprobs:
        fields["logprobs"] = True
    if settings.top_logprobs:
        fields["top_logprobs"] = settings.top_logprobs
    dropped += _UNSUPPORTED.warnings(settings)
    return fields


def _think(thinking: ReasoningSettings) -> bool | str:
    """Encode how much to think; a token budget becomes the nearest effort level."""
    if not thinking.enabled:
        return False
    if thinking.effort:
        return _EFFORTS.get(thinking.effort, True)  # Ollama rejects a level that it does not know
    if thinking.budget is None:
        return True
    return "low" if thinking.budget <= 2048 else "medium" if thinking.budget <= 12288 else "high"
