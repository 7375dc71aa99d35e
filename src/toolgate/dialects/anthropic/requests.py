"""Decode Messages requests. Content blocks are decoded in `decode_content_blocks.py`."""

import hashlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import NO_EXTRA, Message, Opaque, Text, ToolCall, ToolResult
from toolgate.conversation.request import (
    ModelRequest,
    ReasoningSettings,
    RequestSettings,
    StructuredOutputFormat,
    ToolChoice,
    ToolDef,
)
from toolgate.dialects.anthropic.decode_content_blocks import gateway_result, read_content
from toolgate.dialects.anthropic.shared_codec import NAME, extra_of
from toolgate.dialects.read_tools import read_tools
from toolgate.wire.fields import Fields

# Stop texts that the upstream does not take cut the answer here: each delta is compared with all of them.
MAX_STOPS = 64
MAX_USER_ID = 64  # OpenAI's limit for the same field
_TIERS = {"standard_only": "default"}  # the same tier in OpenAI's values; the other one is the default everywhere
_PLAIN_FIELDS = frozenset({"model", "messages", "stream", "max_tokens"})
_PLACEHOLDER_TOOL = "DeferredToolPlaceholder"
_BILLING = "x-anthropic-billing-header"


def decode_request(body: Any) -> ModelRequest:
    """Decode the body of a request."""
    return _decode_plain_request(body) or _decode(Fields(body), needs_limit=True)


def _decode_plain_request(body: Any) -> ModelRequest | None:
    """Decode the most common kind of request, plain messages and little else; None for any other."""
    if type(body) is not dict or not body.keys() <= _PLAIN_FIELDS:
        return None
    model, values, limit = body.get("model"), body.get("messages"), body.get("max_tokens")
    stream = body.get("stream", False)
    if type(model) is not str or not model or type(values) is not list or type(stream) is not bool:
        return None
    if not values or type(limit) is not int or limit < 0:
        return None
    messages: list[Message] = []
    for value in values:
        if type(value) is not dict or len(value) != 2:
            return None
        role, content = value.get("role"), value.get("content")
        if type(content) is not str or not content or (role != "user" and role != "assistant"):
            return None
        messages.append(Message(role, (Text(content),)))
    return ModelRequest(model, tuple(messages), settings=RequestSettings(limit), stream=stream, dialect=NAME)


def decode_count_request(body: Any) -> ModelRequest:
    """Decode the body of a token count request, which needs no `max_tokens`."""
    return _decode(Fields(body), needs_limit=False)


def _decode(fields: Fields, needs_limit: bool) -> ModelRequest:
    if fields.raw("thread") is not None:
        # A thread leaves the history with the server; the SDKs send the whole of it after this error code.
        code = "thread_unsupported_request"
        raise InvalidRequest(
            "thread is not supported here: send the whole conversation in messages.",
            param="thread",
            code=code,
            details={"error_code": code, "unsupported": ["thread"]},
        )
    model = fields.required_text("model")
    messages: list[Message] = []
    system = read_content(fields, "system")
    for number, part in enumerate(system):
        if isinstance(part, Text) and part.text.startswith(_BILLING):
            # Claude Code's billing line is for Anthropic only, and other upstreams reject it.
            system[number] = Opaque(NAME, {"type": "text", "text": part.text, **part.extra.get(NAME, {})})
    if system:
        messages.append(Message("system", tuple(system)))
    values = fields.items("messages")
    if not values:
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    gateway_calls: set[str] = set()
    for number, value in enumerate(values):
        messages += _message(Fields(value, f"messages[{number}]"), gateway_calls)
    tools = read_tools(fields.items("tools") or [], _read_tools)
    choice = _tool_choice(fields)
    settings = _settings(fields, needs_limit)
    stream = bool(fields.flag("stream"))
    return ModelRequest(model, tuple(messages), tools, choice, settings, stream, NAME, extra=extra_of(fields.rest))


def _message(fields: Fields, gateway_calls: set[str]) -> Iterator[Message]:
    """Decode a message; `gateway_calls` are the ids of the calls so far that the gateway ran."""
    role = fields.text("role")
    parts = read_content(fields, "content")
    extra = extra_of(fields.rest)
    match role:
        case "user":
            # A result is a block of a user message here, and a message of its own for all other dialects.
            results = [part for part in parts if isinstance(part, ToolResult)]
            others = [part for part in parts if not isinstance(part, ToolResult)]
            if results:
                yield Message("tool", tuple(results), extra)
            if others or not results:
                yield Message("user", tuple(others), NO_EXTRA if results else extra)
        case "assistant":
            # Where the gateway ran tools inside an answer, it is split into its steps again. A turn that paused has the
            # results of its last calls in the next message, so the ids are kept from message to message.
            gateway_calls |= {part.id for part in parts if isinstance(part, ToolCall) and part.executor == "gateway"}
            parts = [gateway_result(part, gateway_calls) for part in parts] if gateway_calls else parts
            if not parts:
                yield Message("assistant", (), extra)
            for is_result, group in groupby(parts, lambda part: isinstance(part, ToolResult)):
                yield Message("tool" if is_result else "assistant", tuple(group), extra)
        case "system":
            yield Message("system", tuple(parts), extra)
        case _:
            raise InvalidRequest(f"{fields.at('role')} must be user, assistant or system.", param=fields.at("role"))


def _read_tools(values: list[Any]) -> list[ToolDef]:
    tools: list[ToolDef] = []
    for number, value in enumerate(values):
        fields = Fields(value, f"tools[{number}]")
        whole = dict(fields.rest)
        kind, name = fields.rest.get("type"), fields.text("name")
        # A tool in the form of OpenAI's APIs would be taken for a hosted tool, and be lost.
        if kind == "function" or (kind is not None and type(kind) is not str):
            raise InvalidRequest(
                f"{fields.at('type')} must be custom or the type of a hosted tool; other tools have name and input_schema.",
                param=fields.at("type"),
                code="invalid_tool",
            )
        if kind not in (None, "custom"):
            hosted = name or str(whole.get("mcp_server_name") or kind)
            tools.append(ToolDef(hosted, kind="hosted", extra={NAME: whole}))
        elif not name:
            raise InvalidRequest(f"{fields.at('name')} is required.", param=fields.at("name"), code="invalid_tool")
        elif name == _PLACEHOLDER_TOOL and fields.rest.get("defer_loading"):
            tools.append(ToolDef(name, kind="hosted", extra={NAME: whole}))  # it is not meant to be called
        else:
            description, schema = fields.text("description"), fields.mapping("input_schema")
            strict = fields.flag("strict")
            tools.append(ToolDef(name, description, schema, strict, extra=extra_of(fields.rest)))
    return tools


def _tool_choice(fields: Fields) -> ToolChoice | None:
    choice = fields.object("tool_choice")
    if choice is None:
        return None
    disabled = choice.flag("disable_parallel_tool_use")
    parallel = None if disabled is None else not disabled
    match choice.one_of("type", "auto", "any", "tool", "none"):
        case "any":
            return ToolChoice("required", (), parallel)
        case "tool":
            return ToolChoice("required", (choice.required_text("name"),), parallel)
        case "none":
            return ToolChoice("none")
        case _:
            return ToolChoice("auto", (), parallel)


def _settings(fields: Fields, needs_limit: bool) -> RequestSettings:
    limit = fields.integer("max_tokens", least=0)
    if limit is None and needs_limit:
        raise InvalidRequest("max_tokens is required.", param="max_tokens", code="missing_required_parameter")
    thinking, output = _thinking_and_output(fields)
    stops = fields.items("stop_sequences") or []
    if not all(type(one) is str for one in stops):
        raise fields.wrong("stop_sequences", "a list of strings")
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop_sequences may hold at most {MAX_STOPS} strings.", param="stop_sequences")
    # `metadata` also stays in `extra`, so that Anthropic gets the user id itself, however long it is.
    metadata = fields.rest.get("metadata")
    user = metadata.get("user_id") if type(metadata) is dict else None
    user = user if type(user) is str else None
    if user is not None and len(user) > MAX_USER_ID:
        user = hashlib.sha256(user.encode("utf-8", "replace")).hexdigest()
    return RequestSettings(
        max_tokens=limit,
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        stop=tuple(stops),
        output=output,
        thinking=thinking,
        user=user,
        service_tier=_TIERS.get(str(fields.rest.get("service_tier"))),
    )


def _thinking_and_output(fields: Fields) -> tuple[ReasoningSettings | None, StructuredOutputFormat | None]:
    """Decode `thinking` and the output format; `thinking` also stays in `extra` for an upstream of this dialect."""
    sent = fields.rest.get("thinking")
    config = fields.object("output_config") or Fields({}, "output_config")
    effort = config.text("effort")
    # `output_format` is the name of the field in the first beta of structured outputs.
    output = _output(config, "format") or _output(fields, "output_format")
    if config.rest:
        fields.rest["output_config"] = config.rest
    if type(sent) is not dict:
        return (ReasoningSettings(effort=effort) if effort else None), output
    budget = sent.get("budget_tokens")
    shown = sent.get("display") != "omitted"
    enabled = sent.get("type") != "disabled"
    budget = budget if type(budget) is int else None
    adaptive = sent.get("type") == "adaptive"
    return ReasoningSettings(enabled, effort, budget, "auto" if enabled and shown else None, adaptive), output


def _output(fields: Fields, name: str) -> StructuredOutputFormat | None:
    match fields.rest.get(name):
        case {"type": "json_schema", "schema": dict(schema)}:
            fields.raw(name)
            return StructuredOutputFormat(schema)
        case None:
            fields.raw(name)
    return None
