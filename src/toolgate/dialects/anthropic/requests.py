"""Messages requests, read into the conversation's values; content blocks have a file of their own, `blocks.py`."""

import hashlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import NO_EXTRA, Extra, Message, Opaque, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, OutputFormat, Settings, Thinking, ToolChoice, ToolDef
from toolgate.dialects.anthropic.blocks import own_result, read_content
from toolgate.dialects.anthropic.words import NAME, extra_of
from toolgate.wire.fields import Fields

MAX_STOPS = 64
LONGEST_USER = 64
_TIERS = {"standard_only": "default"}  # the same tier in OpenAI's words; the other one is everybody's default
_PLACEHOLDER = "DeferredToolPlaceholder"
_BILLING = "x-anthropic-billing-header"


def decode_request(body: Any) -> ModelRequest:
    """The request that the body makes."""
    return _decode(Fields(body), needs_limit=True)


def decode_count_request(body: Any) -> ModelRequest:
    """The request whose tokens are to be counted: the same, but nothing will be answered, so it needs no limit."""
    return _decode(Fields(body), needs_limit=False)


def _decode(fields: Fields, needs_limit: bool) -> ModelRequest:
    _refuse_thread(fields)
    model = fields.required_text("model")
    messages = (*_system(fields), *_messages(fields))
    tools = tuple([_tool(Fields(value, f"tools[{i}]")) for i, value in enumerate(fields.items("tools") or [])])
    choice = _tool_choice(fields)
    settings = _settings(fields, needs_limit)
    stream = bool(fields.flag("stream"))
    return ModelRequest(model, messages, tools, choice, settings, stream, NAME, extra=extra_of(fields.rest))


def _refuse_thread(fields: Fields) -> None:
    """A thread leaves the history with the server; the SDKs send it whole when told that this server keeps none."""
    if fields.rest.get("thread") is None:
        fields.raw("thread")
        return
    code = "thread_unsupported_request"
    raise InvalidRequest(
        "thread is not supported here: send the whole conversation in messages.",
        param="thread",
        code=code,
        details={"error_code": code, "unsupported": ["thread"]},
    )


def _system(fields: Fields) -> Iterator[Message]:
    parts = tuple([_system_part(part) for part in read_content(fields, "system")])
    if parts:
        yield Message("system", parts)


def _system_part(part: Part) -> Part:
    """Claude Code's billing line means something to Anthropic alone, and other upstreams refuse it."""
    if isinstance(part, Text) and part.text.startswith(_BILLING):
        return Opaque(NAME, {"type": "text", "text": part.text, **part.extra.get(NAME, {})})
    return part


def _messages(fields: Fields) -> Iterator[Message]:
    values = fields.items("messages")
    if not values:
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    ours: set[str] = set()
    for number, value in enumerate(values):
        yield from _message(Fields(value, f"messages[{number}]"), ours)


def _message(fields: Fields, ours: set[str]) -> Iterator[Message]:
    role = fields.text("role")
    parts = read_content(fields, "content")
    extra = extra_of(fields.rest)
    match role:
        case "user":
            yield from _user(parts, extra)
        case "assistant":
            yield from _assistant(parts, extra, ours)
        case "system":
            yield Message("system", tuple(parts), extra)
        case _:
            raise InvalidRequest(f"{fields.at('role')} must be user, assistant or system.", param=fields.at("role"))


def _user(parts: list[Part], extra: Extra) -> Iterator[Message]:
    """Tool results come first, whatever stands beside them follows as the user's words."""
    results = [part for part in parts if isinstance(part, ToolResult)]
    words = [part for part in parts if not isinstance(part, ToolResult)]
    if results:
        yield Message("tool", tuple(results), extra)
    if words or not results:
        yield Message("user", tuple(words), NO_EXTRA if results else extra)


def _assistant(parts: list[Part], extra: Extra, ours: set[str]) -> Iterator[Message]:
    """The answer as it was; where the gateway ran tools in the midst of it, it is cut into its steps again.

    `ours` are the gateway's calls so far: a turn that paused has its results in the next message.
    """
    ours |= {part.id for part in parts if isinstance(part, ToolCall) and part.executor == "gateway"}
    parts = [own_result(part, ours) for part in parts] if ours else parts
    if not parts:
        yield Message("assistant", (), extra)
    for is_result, group in groupby(parts, lambda part: isinstance(part, ToolResult)):
        yield Message("tool" if is_result else "assistant", tuple(group), extra)


def _tool(fields: Fields) -> ToolDef:
    whole = dict(fields.rest)
    kind, name = fields.rest.get("type"), fields.text("name")
    if kind == "function" or (kind is not None and type(kind) is not str):
        raise InvalidRequest(
            f"{fields.at('type')} must be custom or a hosted tool's; here a tool has name and input_schema.",
            param=fields.at("type"),
            code="invalid_tool",
        )
    if kind not in (None, "custom"):
        return ToolDef(name or str(whole.get("mcp_server_name") or kind), kind="hosted", extra={NAME: whole})
    if not name:
        raise InvalidRequest(f"{fields.at('name')} is required.", param=fields.at("name"), code="invalid_tool")
    if name == _PLACEHOLDER and fields.rest.get("defer_loading"):
        return ToolDef(name, kind="hosted", extra={NAME: whole})  # nobody is meant to call it
    description, schema = fields.text("description"), fields.mapping("input_schema")
    return ToolDef(name, description, schema, fields.flag("strict"), extra=extra_of(fields.rest))


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


def _settings(fields: Fields, needs_limit: bool) -> Settings:
    limit = fields.integer("max_tokens", least=0)
    if limit is None and needs_limit:
        raise InvalidRequest("max_tokens is required.", param="max_tokens", code="missing_required_parameter")
    thinking, output = _thinking_and_output(fields)
    return Settings(
        max_tokens=limit,
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        stop=_stop(fields),
        output=output,
        thinking=thinking,
        user=_user_id(fields),
        service_tier=_TIERS.get(str(fields.rest.get("service_tier"))),
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    words = fields.items("stop_sequences") or []
    if not all(type(word) is str for word in words):
        raise fields.wrong("stop_sequences", "a list of strings")
    if len(words) > MAX_STOPS:
        raise InvalidRequest(f"stop_sequences may hold at most {MAX_STOPS} strings.", param="stop_sequences")
    return tuple(words)


def _user_id(fields: Fields) -> str | None:
    """The user, short enough for every upstream; Anthropic itself gets back what the client wrote."""
    metadata = fields.rest.get("metadata")
    if type(metadata) is not dict:
        return None
    user = metadata.get("user_id")
    if type(user) is not str or len(user) <= LONGEST_USER:
        return user if type(user) is str else None
    return hashlib.sha256(user.encode("utf-8", "replace")).hexdigest()


def _thinking_and_output(fields: Fields) -> tuple[Thinking | None, OutputFormat | None]:
    """How to think and in what form to answer; the client's own `thinking` stays for an upstream of its dialect."""
    wanted = fields.rest.get("thinking")
    config = fields.object("output_config") or Fields({}, "output_config")
    effort = config.text("effort")
    output = _output(config, "format") or _output(fields, "output_format")
    if config.rest:
        fields.rest["output_config"] = config.rest
    if type(wanted) is not dict:
        return (Thinking(effort=effort) if effort else None), output
    budget = wanted.get("budget_tokens")
    shown = wanted.get("display") != "omitted"
    enabled = wanted.get("type") != "disabled"
    budget = budget if type(budget) is int else None
    adaptive = wanted.get("type") == "adaptive"
    return Thinking(enabled, effort, budget, "auto" if enabled and shown else None, adaptive), output


def _output(fields: Fields, name: str) -> OutputFormat | None:
    match fields.rest.get(name):
        case {"type": "json_schema", "schema": dict(schema)}:
            fields.raw(name)
            return OutputFormat(schema)
        case None:
            fields.raw(name)
    return None
