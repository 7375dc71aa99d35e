"""`<tool_call>`, the commonest mark: behind it Hermes, Qwen and many more write JSON, Qwen3-Coder tags, GLM a name.

What stands behind the mark tells them apart, so all syntaxes that begin with it read each other.
"""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.bodies.plain import between
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.syntaxes import function_tag, glm
from toolgate.text.writing import Tools, ascii_text, call_object, listed


def _read(reading: Reading, opened: str) -> Steps[None]:
    closer = f"</{opened[1:]}"
    yield from reading.source.blanks()
    char = yield from reading.source.peek()
    if char in ("{", "["):
        yield from json_calls.calls(reading, closer)
    elif char == "<":
        yield from function_tag.functions(reading, closer)
    elif char:
        yield from glm.call(reading, ":opensource" if ":opensource" in opened else "")


def _lines(opening: str, gap: str, between: str, calls: Sequence[ToolCall], _: Tools) -> str:
    closing = f"</{opening[1:]}"
    return between.join([f"{opening}{gap}{call_object(call)}{gap}{closing}" for call in calls])


def _ascii(calls: Sequence[ToolCall], tools: Tools) -> str:
    return ascii_text(_lines("<tool_call>", "\n", "", calls, tools))


def _granite31(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<tool_call>{listed([call_object(call) for call in calls])}"


def _ernie(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "".join([f"\n\n{_lines('<tool_call>', chr(10), '', [call], tools)}\n" for call in calls])


_OPENERS = always(Opener(_read, "<tool_call>"), Opener(_read, "<tool_call:opensource>"), function_tag.OPENER)
_RESPONSE = Opener(lambda reading, _: between(reading, "</response>"), "<response>")
_LONGCAT = Opener(_read, "<longcat_tool_call>")
_SEED = Opener(_read, "<seed:tool_call>")
_SEED_THINKS = (("<seed:think>", "</seed:think>"),)

SYNTAXES = (
    Syntax("hermes", _OPENERS, partial(_lines, "<tool_call>", "\n", "\n")),
    Syntax("hermes_tight", _OPENERS, partial(_lines, "<tool_call>", "", "")),
    Syntax("hermes_ascii", _OPENERS, _ascii),
    Syntax("ernie45", always(*_OPENERS(()), _RESPONSE), _ernie, detected=False),
    Syntax("granite31", _OPENERS, _granite31),
    Syntax("longcat", always(_LONGCAT), partial(_lines, "<longcat_tool_call>", "\n", "\n")),
    Syntax("qwen3_coder", _OPENERS, function_tag.render_qwen),
    Syntax("seed_oss", always(_SEED, function_tag.OPENER), function_tag.render_seed, thinks=_SEED_THINKS),
    Syntax("glm45", _OPENERS, glm.render45),
    Syntax("glm47", _OPENERS, glm.render47),
)
