"""FunctionGemma and Gemma 4: `call:f{k:v}` with special tokens for quotes.

FunctionGemma puts every value between `<escape>` tokens, so types come from the schema; Gemma 4 quotes strings alone.
"""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import tagged
from toolgate.text.kinds import kinds, parameter
from toolgate.text.literal import Literal
from toolgate.text.reading import Call, Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Spelt, Tools, bare, members, without

_OPENING, _CLOSING, _ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"
_OPENING4, _CLOSING4, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME, _KEY = re.compile(r"[^\s{}<>]*"), re.compile(r"[^:{}<>]*")
_BROKEN = "the arguments are not written as key:value pairs in braces"


def _head(reading: Reading) -> Steps[tuple[Call, str] | None]:
    """Reads `call:f` and begins the call, if an opening brace follows."""
    yield from reading.source.blanks()
    if not (yield from reading.source.word("call:")):
        return None
    name = yield from reading.source.run(_NAME)
    begun = reading.begin(name) if (yield from reading.source.sees("{")) else None
    return (begun, name) if begun else None


def _read4(reading: Reading, _: str) -> Steps[None]:
    head = yield from _head(reading)
    if head is None:
        return
    begun, name = head
    if not (yield from Literal(reading.source, begun.raw, fence=_QUOTE).copy()):
        yield from reading.broken(begun, name, _BROKEN, _CLOSING4)
    begun.end()
    yield from reading.close(_CLOSING4)


def _read(reading: Reading, _: str) -> Steps[None]:
    head = yield from _head(reading)
    if head is None:
        return
    begun, name = head
    reading.source.take(1)
    if not (yield from _pairs(reading, begun, name)):
        yield from reading.broken(begun, name, _BROKEN, _CLOSING)
    begun.end()
    yield from reading.close(_CLOSING)


def _pairs(reading: Reading, begun: Call, name: str) -> Steps[bool]:
    """Reads the pairs and the closing brace."""
    source = reading.source
    schema = begun.tool.input_schema if begun.tool else None
    while not (yield from source.word("}")):
        key = (yield from source.run(_KEY)).strip(" ,\n")
        if not key or not (yield from source.word(":")):
            return False
        begun.key(key)
        if (yield from source.word(_ESCAPE)):
            yield from tagged.value(reading, begun, name, _FORM, kinds(parameter(schema, key), schema))
        elif not (yield from Literal(source, begun.raw).copy()):
            return False
        yield from source.word(",")
    begun.end_members()
    return True


def _no_key(_: Reading) -> Steps[None]:
    return
    yield


_FORM = tagged.Form(_no_key, _ESCAPE, _ESCAPE, (), ("}", ","))


def _render(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "".join([f"{_OPENING}call:{_name(call)}{{{_written(call, tools)}}}{_CLOSING}" for call in calls])


def _written(call: ToolCall, tools: Tools) -> str:
    tool = tools.get(call.name)
    return ",".join(
        [
            f"{_key(key)}:{_ESCAPE}{without(bare(value, key, tool), _ESCAPE)}{_ESCAPE}"
            for key, value in members(call).items()
        ]
    )


def _render4(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{_OPENING4}call:{_name(call)}{_value4(members(call))}{_CLOSING4}" for call in calls])


def _value4(value: object) -> str:
    match value:
        case Spelt():
            return str(value)
        case str():
            return f"{_QUOTE}{without(value, _QUOTE)}{_QUOTE}"
        case dict():
            return f"{{{','.join([f'{_key(key)}:{_value4(inner)}' for key, inner in sorted(value.items())])}}}"
        case list():
            return f"[{','.join([_value4(inner) for inner in value])}]"
        case None:
            return "null"
        case _:
            return "true" if value else "false"


def _name(call: ToolCall) -> str:
    return without(call.name, "{", "}", "<", ">", " ")


def _key(key: str) -> str:
    key = without(key, *":{}<>,[]\"'\n")
    return without(key, key) if key != key.strip() or not key else key


SYNTAXES = (
    Syntax("functiongemma", always(Opener(_read, _OPENING)), _render),
    Syntax("gemma4", always(Opener(_read4, _OPENING4)), _render4),
)
