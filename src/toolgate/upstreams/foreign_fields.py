"""Names the fields of a request that only the client's own dialect knows, wherever they stand in it.

What a dialect does not understand is kept in `extra` under its own name, and no other dialect reads that. Here each such
field is found, so that a warning names it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from toolgate.conversation.message import Message, Opaque, Part, Text, ToolResult
from toolgate.conversation.request import ModelRequest, ToolDef

Found: TypeAlias = Iterator[str]

_READ = frozenset(
    {
        "background",
        "betas",
        "client_metadata",
        "conversation",
        "include",
        "keep_alive",
        "legacy_functions",
        "logprobs",
        "max_completion_tokens",
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "verbosity",
    }
)
"""Fields that concern the client and us, or were read as well as kept: the upstream half says what it cannot express."""

_NESTED = frozenset({"options", "output_config", "reasoning", "text"})
"""Objects that were read in part: what is left of them is named field by field."""

_OF_THINKING = frozenset({"type", "budget_tokens", "display"})

_MARKS = frozenset({"instructions", "role", "continues", "part", "namespace", "in_input", "input_examples"})
"""What a dialect notes of a part for itself, or what is written in another way for others."""

_ECHOED = frozenset({"annotations", "logprobs", "id", "status", "index", "cache_control"})
"""Fields of answers that clients send back, and marks for a cache: other upstreams cache by themselves."""


_IN_WORDS = frozenset({"document", "search_result", "text", "tool_reference", "image_generation_call"})
"""Blocks whose content is given to other upstreams in another form."""


def foreign_fields(request: ModelRequest) -> tuple[str, ...]:
    """A warning for each field that means something in the client's dialect only."""
    dialect = request.dialect
    names = dict.fromkeys(_top(request.extra.get(dialect, {})))
    for message in request.messages:
        if message.extra:
            found = _beside(message.extra.get(dialect, {}), "messages")
            # The name of a result's tool was read.
            names |= dict.fromkeys([name for name in found if message.role != "tool" or name != "messages.name"])
        if any(_has_extra(part) for part in message.parts):
            names |= dict.fromkeys(_of_parts(message, dialect))
    for tool in request.tools:
        if tool.extra and tool.kind != "hosted":
            names |= dict.fromkeys(_of_tool(tool, dialect))
    return tuple([f"{name} is known to {dialect} only" for name in names])


def _top(own: Mapping[str, Any]) -> Found:
    for name, value in own.items():
        if name == "thinking":
            if type(value) is dict:
                yield from [f"thinking.{inner}" for inner in value if inner not in _OF_THINKING]
        elif name in _NESTED and type(value) is dict:
            yield from [f"{name}.{inner}" for inner in value if inner not in _READ]
        elif name == "tool_choice":
            if type(value) is dict and value.get("type") not in ("function", "custom", "allowed_tools"):
                yield f"tool_choice {value.get('type')!r}"
        elif name == "truncation":
            if value == "auto":
                yield name
        elif name == "/api/generate":
            yield from value
        elif name not in _READ:
            yield name


def _has_extra(part: Part) -> bool:
    return type(part) is ToolResult or (type(part) is not Opaque and bool(getattr(part, "extra", None)))


def _of_parts(message: Message, dialect: str) -> Found:
    parts: Iterable[Part] = message.parts
    for part in parts:
        if isinstance(part, ToolResult):
            for piece in part.content:
                yield from _beside(piece.extra.get(dialect, {}), "messages", isinstance(piece, Text))
        if not isinstance(part, Opaque) and (extra := getattr(part, "extra", None)):
            yield from _beside(extra.get(dialect, {}), "messages", isinstance(part, Text))


def _beside(own: Mapping[str, Any], place: str, of_text: bool = False) -> Found:
    """The fields that an object says beside what was read; one that is kept whole was put in words for the others."""
    if "type" in own:
        yield from _of_block(own, place)
        return
    for name, value in own.items():
        if name == "message" and type(value) is dict:
            yield from _beside(value, place)
        elif name == "namespace" and type(value) is dict:
            yield from [f"{place}.namespace.{inner}" for inner in value]
        elif of_text and name == "citations":
            continue  # of an answer that is sent back
        elif name not in _MARKS and name not in _ECHOED and value not in (None, [], {}, ""):
            nested = [f"{name}.{inner}" for inner in value] if type(value) is dict else [name]
            yield from [f"{place}.{inner}" for inner in nested]


def _of_block(block: Mapping[str, Any], place: str) -> Found:
    """What a block that was put in words for others holds beside words."""
    kind, source = block["type"], block.get("source")
    if kind not in _IN_WORDS:
        yield f"{place} {kind!r}"
    if type(citations := block.get("citations")) is dict and citations.get("enabled"):
        yield f"{place}.citations"
    content = source.get("content") if type(source) is dict else None
    for piece in content if type(content) is list else ():
        if type(piece) is dict and piece.get("type") not in ("text", None):
            yield f"{place} {piece['type']!r} in a document"


def _of_tool(tool: ToolDef, dialect: str) -> Found:
    own = tool.extra.get(dialect, {})
    function = own.get("function")
    yield from _beside({name: value for name, value in own.items() if name not in ("function", "type")}, "tools")
    if type(function) is dict:
        yield from _beside({name: value for name, value in function.items() if name != "type"}, "tools")
