"""Encode requests to Messages upstreams, and decode or relay their whole answers and errors.

Messages are encoded in `encode_messages.py`, thinking and sampling in `thinking_parameters.py`; streams are decoded in
`stream_decoder.py` and relayed in `relay.py`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from toolgate.conversation.arguments import NO_ARGUMENTS
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamError
from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.request import (
    ModelRequest,
    ToolChoice,
    ToolDef,
    schema_with_description,
)
from toolgate.conversation.tool_definition_cache import MemoizedTools, cached_by_tools, tool_names
from toolgate.dialects.anthropic.encode_messages import MessageEncoder, calls_in, write_system
from toolgate.dialects.anthropic.relay import MessagesStreamRelay, repair_response
from toolgate.dialects.anthropic.shared_codec import NAME, read_usage
from toolgate.dialects.anthropic.stream_decoder import MessagesStreamDecoder
from toolgate.dialects.anthropic.thinking_parameters import ThinkingPlan, plan_thinking, write_sampling
from toolgate.dialects.dialect import CALL_NOT_DEMANDED, AnswerMetadata, Quirks, StreamRelay, UpstreamStreamDecoder
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

VERSION = "2023-06-01"
_TIERS = {"auto": "auto", "default": "standard_only"}  # OpenAI's values, and the same tiers here
_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
# Fields of a whole message that `message_start` and the blocks have; all others belong to `message_delta`.
_MESSAGE_FIELDS = ("content", "id", "model", "role", "type", "usage")


def path(request: ModelRequest) -> str:
    """Return the path to post to."""
    return "/messages"


def headers(api_key: str | None) -> dict[str, str]:
    """Return the headers with the credentials and the API version."""
    version = {"anthropic-version": VERSION}
    return {"x-api-key": api_key, **version} if api_key else version


def decoder(request: ModelRequest) -> UpstreamStreamDecoder:
    """Return a decoder for the streamed answer to this request."""
    return MessagesStreamDecoder(tool_names(request.tools))


def relay(request: ModelRequest, metadata: AnswerMetadata) -> StreamRelay:
    """Return a relay for the streamed answer to this request."""
    return MessagesStreamRelay(request, metadata)


def usage_of(body: Any) -> Usage | None:
    """Return the usage that a whole answer reports."""
    return read_usage(body.get("usage")) if type(body) is dict else None


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """Decode a whole answer, as if each of its blocks were streamed."""
    if type(body) is dict and (body.get("type") == "error" or body.get("error")):
        raise decode_error_object(body)
    content = body.get("content") if type(body) is dict else None
    if type(content) is not list:
        raise InvalidUpstreamAnswer("The upstream's answer holds no content.")
    decoder = MessagesStreamDecoder(tool_names(request.tools))
    events: list[StepEvent] = decoder.read({"type": "message_start", "message": {**body, "content": []}})
    for index, block in enumerate(content):
        events += decoder.read({"type": "content_block_start", "index": index, "content_block": block})
        # An empty input may have been cut off at the limit. It is complete if the tool requires no arguments.
        if type(block) is dict and block.get("type") == "tool_use" and block.get("input") == {}:
            schemas = [tool.input_schema for tool in request.tools if tool.name == block.get("name")]
            if not any(schema.get("required") for schema in schemas if schema):
                delta = {"type": "input_json_delta", "partial_json": NO_ARGUMENTS}
                events += decoder.read({"type": "content_block_delta", "index": index, "delta": delta})
        events += decoder.read({"type": "content_block_stop", "index": index})
    end = {name: value for name, value in body.items() if name not in _MESSAGE_FIELDS}
    events += decoder.read({"type": "message_delta", "delta": end, "usage": body.get("usage")})
    return fold([*events, *decoder.read({"type": "message_stop"})])


def relay_response(
    body: Any, response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata
) -> dict[str, Any]:
    """Return a whole answer with the repairs that clients need."""
    return repair_response(body, response, metadata)


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """Decode an error response."""
    return decode_error_response(status, headers, body)


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Encode the body to post, and list what this dialect cannot express."""
    dropped: list[str] = []
    encoder = MessageEncoder(request, quirks, dropped)
    plan = plan_thinking(request, quirks, encoder.messages, dropped)
    body: dict[str, Any] = {"model": request.model, "max_tokens": plan.max_tokens}
    body |= write_system(encoder.system)
    body["messages"] = encoder.messages
    body |= _tools(request, encoder.messages, dropped)
    body |= write_sampling(request, plan, dropped)
    body |= _output_config(request, plan, quirks, dropped)
    if plan.thinking:
        body["thinking"] = plan.thinking
    settings = request.settings
    if (user := settings.user or settings.safety_identifier) is not None:
        body["metadata"] = {"user_id": user}
    if request.dialect != NAME and (tier := settings.service_tier) is not None:
        if tier in _TIERS:
            body["service_tier"] = _TIERS[tier]
        else:
            dropped.append(f"service_tier {tier!r} has no place here")
    if request.stream:
        body["stream"] = True
    # The client's own fields last, as they are: `metadata`, for one, has the user id in its full length.
    own = request.extra.get(NAME, {})
    body |= {name: value for name, value in own.items() if name not in ("thinking", "output_config")}
    for field in quirks.unsupported:
        if body.pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _tools(request: ModelRequest, messages: list[dict[str, Any]], dropped: list[str]) -> dict[str, Any]:
    choice = request.tool_choice
    offered = request.tools
    # One tool can be forced by name. Several can be allowed only by leaving out the others.
    if choice is not None and choice.names and (choice.mode != "required" or len(choice.names) > 1):
        offered = tuple([tool for tool in offered if tool.name in choice.names])
    tools, lost = _write_tools(offered)
    dropped += lost
    if tools:
        return {"tools": tools, **_choice(choice)}
    if choice is not None and choice.mode == "required":
        dropped.append(CALL_NOT_DEMANDED)
    if request.dialect != NAME and (called := calls_in(messages)):
        # A history with calls is rejected without tools, so the called ones are declared, and calling is forbidden.
        named = [{"name": name, "input_schema": _EMPTY_SCHEMA} for name in called]
        return {"tools": named, "tool_choice": {"type": "none"}}
    return {}


@cached_by_tools
def _write_tools(tools: tuple[ToolDef, ...]) -> tuple[list[Any] | Raw, tuple[str, ...]]:
    """Encode the tools, and list what cannot be expressed; those of a `MemoizedTools` are encoded to JSON once."""
    dropped: list[str] = []
    written: list[dict[str, Any]] = []
    for tool in tools:
        own = dict(tool.extra.get(NAME, {}))
        if tool.kind == "hosted" and own:
            written.append(own)
            continue
        if tool.kind != "function":
            dropped.append(f"the {tool.kind} tool {tool.name!r} is known to its own API only")
            continue
        entry = {**own, "name": tool.name}
        if tool.description is not None:
            entry["description"] = tool.description
        # Anthropic requires the schema and its type, which OpenAI's APIs do not.
        schema = _EMPTY_SCHEMA if tool.input_schema is None else tool.input_schema
        entry["input_schema"] = schema if "type" in schema else {**schema, "type": "object"}
        if tool.strict is not None:
            entry["strict"] = tool.strict
        written.append(entry)
    return Raw(encode(written)) if written and isinstance(tools, MemoizedTools) else written, tuple(dropped)


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    written: dict[str, Any]
    match choice:
        case ToolChoice("none"):  # which allows no `disable_parallel_tool_use`
            return {"tool_choice": {"type": "none"}}
        case ToolChoice("required", (name,)):
            written = {"type": "tool", "name": name}
        case ToolChoice(mode):
            written = {"type": "any" if mode == "required" else "auto"}
    if choice.parallel is not None:
        written["disable_parallel_tool_use"] = not choice.parallel
    return {"tool_choice": written}


def _output_config(request: ModelRequest, plan: ThinkingPlan, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = dict(request.extra.get(NAME, {}).get("output_config", {}))
    if plan.effort is not None:
        config["effort"] = plan.effort
    output = request.settings.output
    if output is not None:
        if output.schema is None:
            dropped.append("an answer in JSON cannot be asked for without a schema")
        elif quirks.output_format != "schema":
            dropped.append("the upstream takes no output schema")
        else:
            config["format"] = {"type": "json_schema", "schema": schema_with_description(output)}
    return {"output_config": config} if config else {}
