"""Read and write the calls of FunctionGemma and Gemma 4: `call:f{k:v}` with special tokens for quotes.

FunctionGemma puts every value between `<escape>` tokens, so types come from the schema; Gemma 4 quotes strings alone.
"""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.call_rendering import NumberAsWritten, Tools, argument_values, bare_text, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.lenient_json import LenientJsonReader
from toolgate.text_tools.parsing.parser_state import CallSink, ParserState
from toolgate.text_tools.parsing.schema_types import types_of
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# FunctionGemma: <start_function_call>call:f{city:<escape>Paris<escape>,days:<escape>3<escape>}<end_function_call>
# Gemma 4:       <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>
_OPENING, _CLOSING, _ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"
_OPENING4, _CLOSING4, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME, _KEY = re.compile(r"[^\s{}<>]*"), re.compile(r"[^:{}<>]*")
_BROKEN = "the arguments are not written as key:value pairs in braces"


def _begin_call(state: ParserState) -> Parse[tuple[CallSink, str] | None]:
    """Read `call:f` and begin the call, if an opening brace follows."""
    yield from state.buffer.read_blanks()
    if not (yield from state.buffer.accept("call:")):
        return None
    name = yield from state.buffer.read_chars(_NAME)
    parsed = state.begin_call(name) if (yield from state.buffer.starts_with("{")) else None
    return (parsed, name) if parsed else None


def read_gemma4(state: ParserState, _: str) -> Parse[None]:
    begun = yield from _begin_call(state)
    if begun is None:
        return
    parsed, name = begun
    if not (yield from LenientJsonReader(state.buffer, parsed.raw, quote_mark=_QUOTE).copy()):
        yield from state.copy_broken(parsed, name, _BROKEN, _CLOSING4)
    parsed.end()
    yield from state.accept_closing(_CLOSING4)


def read(state: ParserState, _: str) -> Parse[None]:
    begun = yield from _begin_call(state)
    if begun is None:
        return
    parsed, name = begun
    state.buffer.take(1)
    if not (yield from _read_pairs(state, parsed, name)):
        yield from state.copy_broken(parsed, name, _BROKEN, _CLOSING)
    parsed.end()
    yield from state.accept_closing(_CLOSING)


def _read_pairs(state: ParserState, parsed: CallSink, name: str) -> Parse[bool]:
    """Read the pairs and the closing brace."""
    buffer = state.buffer
    while not (yield from buffer.accept("}")):
        key = (yield from buffer.read_chars(_KEY)).strip(" ,\n")
        if not key or not (yield from buffer.accept(":")):
            return False
        parsed.key(key)
        if (yield from buffer.accept(_ESCAPE)):
            yield from tagged.read_value(state, parsed, name, _TAGS, parsed.types.of(key))
        elif not (yield from LenientJsonReader(buffer, parsed.raw).copy()):
            return False
        yield from buffer.accept(",")
    parsed.end_members()
    return True


def _no_key(_: ParserState) -> Parse[None]:
    """Read no key: `_read_pairs` has read it already."""
    yield from ()


_TAGS = tagged.TagFormat(_no_key, _ESCAPE, _ESCAPE, (), ("}", ","))


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    rendered: list[str] = []
    for call in calls:
        types = types_of(tools.get(call.name))
        pairs = [
            f"{_key(key)}:{_ESCAPE}{free_of(bare_text(value, key, types), _ESCAPE)}{_ESCAPE}"
            for key, value in argument_values(call).items()
        ]
        rendered.append(f"{_OPENING}call:{_name(call)}{{{','.join(pairs)}}}{_CLOSING}")
    return "".join(rendered)


def render_gemma4(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join(
        [f"{_OPENING4}call:{_name(call)}{_gemma4_value(argument_values(call))}{_CLOSING4}" for call in calls]
    )


def _gemma4_value(value: object) -> str:
    match value:
        case NumberAsWritten():
            return str(value)
        case str():
            return f"{_QUOTE}{free_of(value, _QUOTE)}{_QUOTE}"
        case dict():
            return f"{{{','.join([f'{_key(key)}:{_gemma4_value(inner)}' for key, inner in sorted(value.items())])}}}"
        case list():
            return f"[{','.join([_gemma4_value(inner) for inner in value])}]"
        case None:
            return "null"
        case _:
            return "true" if value else "false"


def _name(call: ToolCall) -> str:
    return free_of(call.name, "{", "}", "<", ">", " ")


def _key(key: str) -> str:
    # A key is not quoted, so one that is empty or has blanks around it cannot be written: `free_of` raises for it.
    key = free_of(key, *":{}<>,[]\"'\n")
    return free_of(key, key) if key != key.strip() or not key else key


SYNTAXES = (
    Syntax("functiongemma", fixed_markers(CallMarker(read, _OPENING)), render),
    Syntax("gemma4", fixed_markers(CallMarker(read_gemma4, _OPENING4)), render_gemma4),
)
