"""The side of Messages that faces a model: requests written, answers and errors read.

The conversation is written in `turns.py`, how to think in `thinking.py`; streams are read in `stream.py` and passed on in
`relay.py`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from toolgate.conversation.arguments import NO_ARGUMENTS
from toolgate.conversation.errors import Garbled, UpstreamFault
from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.request import ModelRequest, OutputFormat, ToolChoice, ToolDef, described
from toolgate.conversation.stock import Stock, made_once, names_of
from toolgate.dialects.anthropic.relay import MessagesRelay, mend_response
from toolgate.dialects.anthropic.stream import MessagesDecoder
from toolgate.dialects.anthropic.thinking import Plan, plan_thinking, write_sampling
from toolgate.dialects.anthropic.turns import Turns, calls_in, write_system
from toolgate.dialects.anthropic.words import NAME, read_usage
from toolgate.dialects.dialect import Decoder, Quirks, Relay, Reply
from toolgate.dialects.refusals import read_error_object, read_refusal
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
_TIERS = {"auto": "auto", "default": "standard_only"}  # OpenAI's words, and the same tiers here
_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_OF_THE_MESSAGE = ("content", "id", "model", "role", "type", "usage")


def path(request: ModelRequest) -> str:
    """Where to post."""
    return "/messages"


def headers(api_key: str | None) -> dict[str, str]:
    """The credentials and version of this dialect."""
    version = {"anthropic-version": VERSION}
    return {"x-api-key": api_key, **version} if api_key else version


def decoder(request: ModelRequest) -> Decoder:
    """A decoder for the streamed answer to this request."""
    return MessagesDecoder(names_of(request.tools))


def relay(request: ModelRequest, reply: Reply) -> Relay:
    """A relay for the streamed answer to this request."""
    return MessagesRelay(request, reply)


def usage_of(body: Any) -> Usage | None:
    """What a whole answer says that it used."""
    return read_usage(body.get("usage")) if type(body) is dict else None


def decode_response(body: Any, request: ModelRequest) -> ModelResponse:
    """A whole answer, read as if each block were streamed in one piece."""
    if type(body) is dict and (body.get("type") == "error" or body.get("error")):
        raise read_error_object(body)
    content = body.get("content") if type(body) is dict else None
    if type(content) is not list:
        raise Garbled("The upstream's answer holds no content.")
    decoder = MessagesDecoder(names_of(request.tools))
    events: list[StepEvent] = decoder.read({"type": "message_start", "message": body})
    for index, block in enumerate(content):
        events += decoder.read({"type": "content_block_start", "index": index, "content_block": block})
        if _is_whole_without_arguments(block, request):
            delta = {"type": "input_json_delta", "partial_json": NO_ARGUMENTS}
            events += decoder.read({"type": "content_block_delta", "index": index, "delta": delta})
        events += decoder.read({"type": "content_block_stop", "index": index})
    end = {name: value for name, value in body.items() if name not in _OF_THE_MESSAGE}
    events += decoder.read({"type": "message_delta", "delta": end, "usage": body.get("usage")})
    return fold([*events, *decoder.read({"type": "message_stop"})])


def _is_whole_without_arguments(block: Any, request: ModelRequest) -> bool:
    """Whether an empty input is all there is to say; where the tool demands arguments, it may have been cut off."""
    if type(block) is not dict or block.get("type") != "tool_use" or block.get("input") != {}:
        return False
    schemas = [tool.input_schema for tool in request.tools if tool.name == block.get("name")]
    return not any(schema.get("required") for schema in schemas if schema)


def relay_response(body: Any, response: ModelResponse, request: ModelRequest, reply: Reply) -> dict[str, Any]:
    """A whole answer as a Messages client should see it."""
    return mend_response(body, response, reply)


def decode_error(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
    """The failure that an answer with a bad status tells of."""
    return read_refusal(status, headers, body)


def encode_request(request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body to post, and what could not be said in this dialect."""
    dropped: list[str] = []
    turns = Turns(request, quirks, dropped)
    plan = plan_thinking(request, quirks, turns.messages, dropped)
    body: dict[str, Any] = {"model": request.model, "max_tokens": plan.max_tokens}
    body |= write_system(turns.system)
    body["messages"] = turns.messages
    body |= _tools(request, turns.messages, dropped)
    body |= write_sampling(request, plan, dropped)
    body |= _output_config(request, plan, quirks, dropped)
    if plan.thinking:
        body["thinking"] = plan.thinking
    settings = request.settings
    if (user := settings.user or settings.safety_identifier) is not None:
        body["metadata"] = {"user_id": user}
    if request.dialect != NAME and settings.service_tier is not None:
        body |= _tier(settings.service_tier, dropped)
    if request.stream:
        body["stream"] = True
    own = request.extra.get(NAME, {})
    body |= {name: value for name, value in own.items() if name not in ("thinking", "output_config")}
    for field in quirks.unsupported:
        if body.pop(field, None) is not None:
            dropped.append(f"{field} is not supported by the upstream")
    return body, tuple(dropped)


def _tools(request: ModelRequest, messages: list[dict[str, Any]], dropped: list[str]) -> dict[str, Any]:
    choice = request.tool_choice
    offered = request.tools
    if choice is not None and choice.names and (choice.mode != "required" or len(choice.names) > 1):
        offered = tuple([tool for tool in offered if tool.name in choice.names])
    tools, lost = _written(offered)
    dropped += lost
    if tools:
        return {"tools": tools, **_choice(choice)}
    if request.dialect != NAME and (called := calls_in(messages)):
        # A history with calls is refused without tools, so those that were called are named, and forbidden.
        named = [{"name": name, "input_schema": _EMPTY_SCHEMA} for name in called]
        return {"tools": named, "tool_choice": {"type": "none"}}
    return {}


@made_once
def _written(tools: tuple[ToolDef, ...]) -> tuple[list[Any] | Raw, tuple[str, ...]]:
    """The tools as they are written, and what of them cannot be said; a stock's are JSON already."""
    dropped: list[str] = []
    written = [entry for tool in tools if (entry := _tool(tool, dropped))]
    return Raw(encode(written)) if written and isinstance(tools, Stock) else written, tuple(dropped)


def _tool(tool: ToolDef, dropped: list[str]) -> dict[str, Any] | None:
    own = dict(tool.extra.get(NAME, {}))
    if tool.kind == "hosted" and own:
        return own
    if tool.kind != "function":
        dropped.append(f"the {tool.kind} tool {tool.name!r} is known to its own API only")
        return None
    written = {**own, "name": tool.name}
    if tool.description is not None:
        written["description"] = tool.description
    schema = _EMPTY_SCHEMA if tool.input_schema is None else tool.input_schema
    written["input_schema"] = schema if "type" in schema else {**schema, "type": "object"}
    if tool.strict is not None:
        written["strict"] = tool.strict
    return written


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    written: dict[str, Any]
    match choice:
        case ToolChoice("none"):
            return {"tool_choice": {"type": "none"}}
        case ToolChoice("required", (name,)):
            written = {"type": "tool", "name": name}
        case ToolChoice(mode):
            written = {"type": "any" if mode == "required" else "auto"}
    if choice.parallel is not None:
        written["disable_parallel_tool_use"] = not choice.parallel
    return {"tool_choice": written}


def _output_config(request: ModelRequest, plan: Plan, quirks: Quirks, dropped: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = dict(request.extra.get(NAME, {}).get("output_config", {}))
    if plan.effort is not None:
        config["effort"] = plan.effort
    output = request.settings.output
    if output is not None and (form := _format(output, quirks, dropped)):
        config["format"] = form
    return {"output_config": config} if config else {}


def _tier(tier: str, dropped: list[str]) -> dict[str, str]:
    if tier not in _TIERS:
        dropped.append(f"service_tier {tier!r} has no place here")
        return {}
    return {"service_tier": _TIERS[tier]}


def _format(output: OutputFormat, quirks: Quirks, dropped: list[str]) -> dict[str, Any] | None:
    if output.schema is None:
        dropped.append("an answer in JSON cannot be asked for without a schema")
        return None
    if quirks.output_format != "schema":
        dropped.append("the upstream takes no output schema")
        return None
    return {"type": "json_schema", "schema": described(output)}
