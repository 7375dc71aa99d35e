"""Find the fields of a request that only the client's own dialect has, and warn of them.

What a dialect does not understand is kept in `extra` under its own name, and no other dialect reads that. Here each such
field is found, so that a warning names it.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

from toolgate.conversation.message import (
    REASONING_DROPPED,
    Message,
    Opaque,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest

Found: TypeAlias = Iterator[str]

_EXTRA = attrgetter("extra")

# Parts that are the same in every dialect unless they have extra fields.
_PLAIN = frozenset({Text, ToolCall, Reasoning, RefusalPart})

# Fields for the server, or fields that are read as well: the upstream codec warns of what it cannot encode.
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

# Objects that are read in part: the rest is named field by field.
_NESTED = frozenset({"options", "output_config", "reasoning", "text"})

_OF_THINKING = frozenset({"type", "budget_tokens", "display"})

# Fields that a dialect stores for itself, or that are encoded in another way for others.
_MARKS = frozenset({"instructions", "role", "continues", "part", "namespace", "in_input", "input_examples"})

# Fields of responses that clients send back, and cache marks: other upstreams cache by themselves.
_ECHOED = frozenset({"annotations", "logprobs", "id", "status", "index", "cache_control"})

# Blocks whose content is sent to other upstreams in another form.
_REENCODED_BLOCKS = frozenset(
    {"document", "document_piece", "search_result", "text", "tool_reference", "image_generation_call"}
)


def unusual_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with extra fields or with other parts than texts, calls and results: only they are searched.

    It is one loop, because every translated request pays for it, and most have no such message.
    """
    unusual: list[Message] = []
    for message in messages:
        if message.extra:
            unusual.append(message)
            continue
        for part in message.parts:
            if type(part) is ToolResult:
                if part.extra or any(type(piece) is not Text or piece.extra for piece in part.content):
                    break
            elif type(part) not in _PLAIN or part.extra:  # type: ignore[union-attr]  # the plain ones have it
                break
        else:
            continue
        unusual.append(message)
    return unusual


def foreign_fields(request: ModelRequest, upstream: str, unusual: Iterable[Message]) -> tuple[str, ...]:
    """Return a warning for each field that the client's dialect has and the upstream's has not.

    `unusual` are the messages to search.
    """
    dialect = request.dialect
    own = request.extra.get(dialect)
    names = dict.fromkeys(_top(own, upstream)) if own else {}
    for message in unusual:
        if message.extra:
            found = _beside(message.extra.get(dialect, {}), "messages")
            # The name of a result's tool was read.
            names |= dict.fromkeys([name for name in found if message.role != "tool" or name != "messages.name"])
        parts: Iterable[Part] = message.parts
        for part in parts:
            if isinstance(part, ToolResult):
                for piece in part.content:
                    found = _beside(piece.extra.get(dialect, {}), "messages", isinstance(piece, Text))
                    names |= dict.fromkeys(found)
            # An opaque part is a whole block of its dialect, of which the upstream codec warns.
            if not isinstance(part, Opaque) and (extra := getattr(part, "extra", None)):
                names |= dict.fromkeys(_beside(extra.get(dialect, {}), "messages", isinstance(part, Text)))
    for tool in request.tools if any(map(_EXTRA, request.tools)) else ():
        if not tool.extra or tool.kind == "hosted":
            continue
        # Chat has the fields of a function in an object of its own: {"type": "function", "function": {"name": …}}
        own = tool.extra.get(dialect, {})
        names |= dict.fromkeys(_beside({key: own[key] for key in own if key not in ("function", "type")}, "tools"))
        if type(function := own.get("function")) is dict:
            names |= dict.fromkeys(_beside({key: function[key] for key in function if key != "type"}, "tools"))
    return tuple([f"{name} is known to {dialect} only" for name in names]) if names else ()


def unread_parts(messages: Iterable[Message]) -> list[str]:
    """Return warnings for parts that are not sent to an upstream of text alone: reasoning, and unknown kinds."""
    parts = [part for message in messages for part in message.parts]
    lost = [REASONING_DROPPED] if any(isinstance(part, Reasoning) for part in parts) else []
    kinds = dict.fromkeys([(part.value.get("type"), part.dialect) for part in parts if isinstance(part, Opaque)])
    return lost + [f"a part of type {kind!r} is known to {dialect} only" for kind, dialect in kinds]


def _top(own: Mapping[str, Any], upstream: str) -> Found:
    for name, value in own.items():
        if name == "thinking":
            if type(value) is dict:
                yield from [f"thinking.{inner}" for inner in value if inner not in _OF_THINKING]
                shown = value.get("display", "summarized")
                if shown != "summarized" and (shown, upstream) != ("omitted", "openai_responses"):
                    yield "thinking.display"  # a Responses upstream gets no request for a summary
        elif name == "stream_options":
            # `include_usage` is read; obfuscation is padding of chunks that only OpenAI adds.
            if type(value) is dict and value.get("include_obfuscation") is True:
                yield "stream_options.include_obfuscation"
        elif name in _NESTED and type(value) is dict:
            yield from [f"{name}.{inner}" for inner in value if inner not in _READ]
        elif name == "tool_choice":
            if type(value) is dict and value.get("type") not in ("function", "custom", "allowed_tools"):
                yield f"tool_choice {value.get('type')!r}"
        elif name == "truncation":
            # `disabled` is what every other API does: it refuses a request that is too long.
            if value == "auto":
                yield name
        elif name == "/api/generate":  # the fields of Ollama's second endpoint, such as `raw` and `suffix`
            yield from value
        elif name not in _READ:
            yield name


def _beside(own: Mapping[str, Any], place: str, of_text: bool = False) -> Found:
    """Yield the fields of an object that were not read; a whole block was encoded as text for other dialects."""
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
    """Yield what the text of a block for other dialects does not contain."""
    kind, source = block["type"], block.get("source")
    if kind not in _REENCODED_BLOCKS:
        yield f"{place} {kind!r}"
    if type(citations := block.get("citations")) is dict and citations.get("enabled"):
        yield f"{place}.citations"
    content = source.get("content") if type(source) is dict else None
    for piece in content if type(content) is list else ():
        match piece:
            case {
                "type": "image",
                "source": {"type": "base64", "data": str()} | {"type": "url", "url": str()} | {"file_id": str()},
            }:  # it is a part of its own
                yield from _beside({name: piece[name] for name in piece if name not in ("type", "source")}, place)
            case {"type": str(inner)} if inner != "text":
                yield f"{place} {inner!r} in a document"
