"""Every field of the official SDKs' request types, as pairs of bodies that differ in that field alone.

The types are walked, so a new version of an SDK adds cases by itself. What a type cannot say (that a result needs a call
before it, that an image's data is base64) stands in the tables here.
"""

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import ollama._types as ollama_types
from anthropic.types.beta import message_create_params as anthropic_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params
from pydantic import BaseModel

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF = "JVBERi0xLjQKJSVFT0YK"
CALL = "call_0123456789abcdef01234567"


class FieldCase(NamedTuple):
    """A field by its path, and a body without and one with it (or with two values of it, if it is required)."""

    path: str
    value: Any
    without: dict[str, Any]
    given: dict[str, Any]


class Api(NamedTuple):
    """One client API: its dialect, where it is posted, the type of its requests and a plain one of them."""

    dialect: str
    path: str
    type: Any
    plain: dict[str, Any]


_TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_CHAT_TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks up.", "parameters": _TOOL_SCHEMA},
}
_CHAT_CALL = {"id": CALL, "type": "function", "function": {"name": "look_up", "arguments": '{"city":"Rome"}'}}
_USER = {"role": "user", "content": "Hello."}
_RESPONSES_CALL = {"type": "function_call", "call_id": CALL, "name": "look_up", "arguments": '{"city":"Rome"}'}
_RESPONSES_TOOL = {"type": "function", "name": "look_up", "parameters": _TOOL_SCHEMA, "strict": False}
_ANTHROPIC_CALL = {"type": "tool_use", "id": CALL, "name": "look_up", "input": {"city": "Rome"}}

APIS = (
    Api(
        "openai_chat",
        "/v1/chat/completions",
        chat_params.CompletionCreateParamsNonStreaming,
        {"model": "", "messages": [_USER]},
    ),
    Api(
        "openai_responses",
        "/v1/responses",
        responses_params.ResponseCreateParamsNonStreaming,
        {"model": "", "input": [{"type": "message", **_USER}]},
    ),
    Api(
        "anthropic",
        "/v1/messages",
        anthropic_params.MessageCreateParamsNonStreaming,
        {"model": "", "max_tokens": 4000, "messages": [_USER]},
    ),
    Api("ollama", "/api/chat", ollama_types.ChatRequest, {"model": "", "stream": False, "messages": [_USER]}),
    Api("ollama", "/api/generate", ollama_types.GenerateRequest, {"model": "", "stream": False, "prompt": "Hello."}),
)

BESIDE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("openai_chat", "tool_choice"): {"tools": [_CHAT_TOOL]},
    ("openai_chat", "parallel_tool_calls"): {"tools": [_CHAT_TOOL]},
    ("openai_chat", "function_call"): {"functions": [_CHAT_TOOL["function"]]},
    ("openai_chat", "top_logprobs"): {"logprobs": True},
    ("openai_chat", "stream_options"): {"stream": True},
    ("openai_responses", "tool_choice"): {"tools": [_RESPONSES_TOOL]},
    ("openai_responses", "parallel_tool_calls"): {"tools": [_RESPONSES_TOOL]},
    ("openai_responses", "stream_options"): {"stream": True},
    ("anthropic", "tool_choice"): {"tools": [{"name": "look_up", "input_schema": _TOOL_SCHEMA}]},
    ("ollama", "top_logprobs"): {"logprobs": True},
}
"""What a field needs beside it to mean anything."""

BEFORE: Mapping[tuple[str, str, str], Sequence[Any]] = {
    ("openai_chat", "messages", "tool"): [_USER, {"role": "assistant", "content": None, "tool_calls": [_CHAT_CALL]}],
    ("openai_chat", "messages", "function"): [
        _USER,
        {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": "{}"}},
    ],
    ("openai_responses", "input", "function_call_output"): [{"type": "message", **_USER}, _RESPONSES_CALL],
    ("openai_responses", "input", "custom_tool_call_output"): [
        {"type": "message", **_USER},
        {"type": "custom_tool_call", "call_id": CALL, "name": "look_up", "input": "Rome"},
    ],
    ("openai_chat", "messages", ""): [_USER],
    ("openai_responses", "input", ""): [{"type": "message", **_USER}],
    ("anthropic", "messages", "user"): [_USER, {"role": "assistant", "content": [_ANTHROPIC_CALL]}],
    ("anthropic", "messages", ""): [_USER],
    ("ollama", "messages", ""): [_USER],
    ("ollama", "messages", "tool"): [
        _USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "look_up", "arguments": {"city": "Rome"}}}],
        },
    ],
}
"""What an element of a list needs in front of it."""

SAMPLES: Mapping[str, Any] = {
    "arguments": '{"city":"Rome"}',
    "call_id": CALL,
    "tool_call_id": CALL,
    "tool_use_id": CALL,
    "data": PDF,
    "file_data": f"data:application/pdf;base64,{PDF}",
    "image_url": "https://example.com/sample.png",
    "url": "https://example.com/sample.png",
    "file_url": "https://example.com/sample.pdf",
    "parameters": _TOOL_SCHEMA,
    "input_schema": _TOOL_SCHEMA,
    "schema": _TOOL_SCHEMA,
    "json_schema.name": "sample",
    "num_predict": 77,
    "budget_tokens": 2048,
    "max_tokens": 3000,
    "max_output_tokens": 77,
    "temperature": 0.25,
    "top_p": 0.75,
    "top_logprobs": 3,
    "n": 2,
    "server_url": "https://example.com/mcp",
    "name": "look_up",
    "role": "user",
    "tools": {"type": "function", "name": "look_up", "function": {"name": "look_up"}},
}
"""Values that must be more than any string or number."""

OTHERS: Mapping[str, Any] = {
    "role": "assistant",
    "max_tokens": 3001,
    "arguments": '{"city":"Oslo"}',
    "image_url": "https://example.com/other.png",
    "url": "https://example.com/other.png",
    "data": "JVBERi0xLjUKJSVFT0YK",
    "input_schema": {**_TOOL_SCHEMA, "title": "Other"},
    "schema": {**_TOOL_SCHEMA, "title": "Other"},
    "parameters": {**_TOOL_SCHEMA, "title": "Other"},
}
"""A second value of a field that is always there."""


UNDERSTOOD = frozenset(
    {
        *(
            "user",
            "assistant",
            "system",
            "developer",
            "tool",
            "function",
            "message",
            "custom",
            "json_schema",
            "json_object",
        ),
        *("text", "image_url", "input_audio", "file", "refusal", "allowed_tools", "adaptive", "enabled", "disabled"),
        *(
            "input_text",
            "input_image",
            "input_file",
            "output_text",
            "function_call",
            "function_call_output",
            "reasoning",
        ),
        *("custom_tool_call", "custom_tool_call_output", "image", "document", "tool_use", "tool_result", "thinking"),
        *(
            "redacted_thinking",
            "search_result",
            "base64",
            "url",
            "content",
            "any",
            "auto",
            "none",
            "namespace",
            "ephemeral",
        ),
    }
)
"""Objects that are read field by field; one of any other type is kept or left out whole, so its own fields suffice."""


_OF_THE_USER = ("image", "document", "search_result", "tool_result")
_OF_THE_ASSISTANT = ("tool_use", "thinking", "redacted_thinking")
IMPOSSIBLE = {
    "user": _OF_THE_ASSISTANT,
    "assistant": _OF_THE_USER,
    "system": (*_OF_THE_ASSISTANT, *_OF_THE_USER),
}
"""Blocks that Anthropic's types allow in a message and its API refuses there."""

ABSENT = object()
MOST_WORDS = 8
Variation: TypeAlias = tuple[str, Any, Any, Any]


def cases(api: Api) -> list[FieldCase]:
    """Every field of the API's requests."""
    return [case for case in _Walk(api).cases() if case.without != case.given]


class _Walk:
    """Walks the types of one API; a type is walked once inside each type that holds it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._walked: set[tuple[Any, Any]] = set()

    def cases(self) -> Iterator[FieldCase]:
        """Every field of the API's requests."""
        api = self._api
        for name, (kind, is_required) in _fields(api.type).items():
            if name == "model":
                continue
            beside = {**api.plain, **BESIDE.get((api.dialect, name), {})}
            for path, value, without, given in self._variations(
                kind, name, (api.type,), is_required or name in api.plain
            ):
                lacking = {key: held for key, held in beside.items() if key != name or name in api.plain}
                yield FieldCase(
                    path, value, lacking if without is ABSENT else {**beside, name: without}, {**beside, name: given}
                )

    def _variations(self, kind: Any, name: str, inside: tuple[Any, ...], is_required: bool) -> Iterator[Variation]:
        """Ways in which a value of this type can differ in one field: its path and value, one without and one with it."""
        if (element := _element(_bare(kind))) is not None:
            yield from self._of_list(element, name, inside)
            return
        options = _options(kind)
        structures = [option for option in options if _is_structure(option)]
        lists = [option for option in options if _element(option) is not None]
        scalars = [option for option in options if option not in structures and option not in lists]
        if scalars:
            yield from _of_scalar(scalars, name, is_required)
        for option in lists:
            yield from self._of_list(_element(option), name, inside)
        for option in structures:
            label = _label(option)
            path = f"{name}[{label}]" if label and len(structures) > 1 else name
            whole = sample(option, name)
            if (not is_required or len(structures) > 1) and (whole or len(inside) == 1):
                yield path, whole, ABSENT, whole
            for inner, value, without, given in self._of_structure(option, label, inside):
                yield f"{path}.{inner}", value, without, given

    def _of_list(self, element: Any, name: str, inside: tuple[Any, ...]) -> Iterator[Variation]:
        structures = [option for option in _options(element) if _is_structure(option)]
        if not structures:
            value = sample(element, name)
            yield name, value, ABSENT, [value]
        for option in structures:
            label = _label(option)
            if label in IMPOSSIBLE.get(_label(inside[-1]) if _is_structure(inside[-1]) else "", ()):
                continue
            path = f"{name}[{label}]" if label else name
            before = list(BEFORE.get((self._api.dialect, name, label), BEFORE.get((self._api.dialect, name, ""), ())))
            value = sample(option, name)
            yield path, value, before or ABSENT, [*before, value]
            for inner, value, without, given in self._of_structure(option, label, inside):
                yield f"{path}.{inner}", value, [*before, without], [*before, given]

    def _of_structure(self, kind: Any, label: str, inside: tuple[Any, ...]) -> Iterator[Variation]:
        if (inside[-1], kind) in self._walked or kind in inside:
            return
        self._walked.add((inside[-1], kind))
        base, is_opaque = sample(kind), bool(label) and label not in UNDERSTOOD
        for name, (inner, is_required) in _fields(kind).items():
            if name in _TIES or (name in ("type", "role") and len(_words_of(inner)) == 1):
                continue
            if is_opaque:
                held = sample(inner, name)
                varied: Iterable[Variation] = () if is_required else [(name, held, ABSENT, held)]
            else:
                varied = self._variations(inner, name, (*inside, kind), is_required)
            lacking = {key: held for key, held in base.items() if key != name or is_required}
            beside = {key: held for key, held in base.items() if not {key, name} <= _SOURCES}
            for path, value, without, given in varied:
                yield path, value, lacking if without is ABSENT else {**base, name: without}, {**beside, name: given}


_TIES = {"call_id", "tool_call_id", "tool_use_id"}
"""What ties a result to its call: another value is another call."""

_SOURCES = {"file_data", "file_id", "file_url", "image_url"}
"""Where a file is: one of them is given."""


def _of_scalar(options: list[Any], name: str, is_required: bool) -> Iterator[Variation]:
    words = [word for option in options for word in _words(option)]
    if words:
        words = words if len(words) <= MOST_WORDS else [words[0], words[-1]]
        for word in words[1:] if is_required else words:
            path = f"{name}={word}" if len(words) > 1 and type(word) is str else name
            yield path, word, words[0] if is_required else ABSENT, word
        return
    value = _scalar(options[0], name)
    if options[0] is bool:
        yield f"{name}=false", False, True if is_required else ABSENT, False
    if is_required:
        yield name, _other(value, name), value, _other(value, name)
    else:
        yield name, value, ABSENT, value


def sample(kind: Any, name: str = "") -> Any:
    """The least valid value of a type."""
    kind = _bare(kind)
    options = _options(kind)
    scalars = [option for option in options if not _is_structure(option)]
    if scalars and not (_element(scalars[0]) and len(options) > len(scalars)):
        option = scalars[0]
        if words := _words(option):
            return words[0]
        if (element := _element(option)) is not None:
            return [sample(element, name)]
        value = _scalar(option, name)
        return value if value is not ABSENT else {}
    option = next(option for option in options if _is_structure(option))
    return {name: sample(inner, name) for name, (inner, is_required) in _fields(option).items() if is_required}


def _scalar(option: Any, name: str) -> Any:
    if name in SAMPLES:
        return SAMPLES[name]
    origin = get_origin(option) or option
    if option is bool:
        return True
    if option is int:
        return 7
    if option is float:
        return 0.5
    if option is str:
        return f"sample-{name}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return (
            {"key": f"sample-{name}"} if not (arguments := get_args(option)) or arguments[1] is not int else {"42": 7}
        )
    return f"sample-{name}"


def _other(value: Any, name: str) -> Any:
    if name in OTHERS:
        return OTHERS[name]
    if type(value) is str:
        return f"other-{name}"
    if type(value) is bool:
        return not value
    return value + 1 if type(value) in (int, float) else {**value, "other": "value"}


def _bare(kind: Any) -> Any:
    while True:
        origin = get_origin(kind)
        if origin in (Required, NotRequired):
            kind = get_args(kind)[0]
        elif hasattr(kind, "__metadata__"):
            kind = kind.__origin__
        elif hasattr(kind, "__value__"):
            kind = kind.__value__
        else:
            return kind


def _options(kind: Any) -> list[Any]:
    kind = _bare(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return [option for inner in get_args(kind) for option in _options(inner) if option is not type(None)]
    return [kind]


def _words(option: Any) -> list[Any]:
    return [word for word in get_args(option) if word is not None] if get_origin(option) is Literal else []


def _words_of(kind: Any) -> list[Any]:
    return [word for option in _options(kind) for word in _words(option)]


def _element(kind: Any) -> Any:
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, (Mapping, str)):
        return get_args(kind)[0]
    if getattr(origin, "__name__", "") == "SequenceNotStr":
        return get_args(kind)[0]
    return None


def _is_structure(option: Any) -> bool:
    return isinstance(option, type) and (hasattr(option, "__required_keys__") or issubclass(option, BaseModel))


_NEEDED = {
    ("Tool", "function"),
    ("Function", "name"),
    ("Message", "content"),
    ("FileFile", "file_data"),
    ("ResponseInputFileParam", "file_data"),
    ("ResponseInputFileContentParam", "file_data"),
    ("ResponseInputImageParam", "image_url"),
    ("ResponseInputImageContentParam", "image_url"),
    ("ResponseReasoningItemParam", "encrypted_content"),
}
"""Fields that may be left out by the types, but without which the object means nothing."""


def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    if hasattr(kind, "__required_keys__"):
        hints = get_type_hints(kind, include_extras=True)
        return {name: (hint, _is_required(hint, name, kind)) for name, hint in hints.items() if name != "stream"}
    return {
        field.alias or name: (field.annotation, field.is_required() or (kind.__name__, name) in _NEEDED)
        for name, field in kind.model_fields.items()
        if name != "stream"
    }


def _is_required(hint: Any, name: str, kind: Any) -> bool:
    needed = name in kind.__required_keys__ or (kind.__name__, name) in _NEEDED
    return needed or get_origin(hint) is Required


def _label(option: Any) -> str:
    for name in ("type", "role"):
        if name in (fields := _fields(option)) and (words := _words_of(fields[name][0])):
            return str(words[0])
    return ""
