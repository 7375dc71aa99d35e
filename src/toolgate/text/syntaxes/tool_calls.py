"""`<tool_calls>` and `<TOOLCALL>` around many calls: MiniMax-M1, Jamba, Hunyuan, Apriel, Nemotron v2 and HY 3."""

from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.syntaxes import glm, invoke
from toolgate.text.writing import Tools, call_object, listed


def _read(reading: Reading, opened: str) -> Steps[None]:
    closer = f"</{opened[1:]}"
    suffix = ":opensource" if ":opensource" in opened else ""
    yield from reading.source.blanks()
    if not (yield from reading.source.sees("<")):
        yield from json_calls.calls(reading, closer)
    elif (yield from reading.source.sees("<invoke")):
        yield from invoke.calls(reading, "", opened[1:-1])
    else:
        yield from _tagged(reading, closer, suffix)


def _tagged(reading: Reading, closer: str, suffix: str) -> Steps[None]:
    while (yield from reading.source.word(f"<tool_call{suffix}>")):
        if not (yield from glm.call(reading, suffix)):
            return
        yield from reading.source.blanks()
    yield from reading.close(closer)


def _minimax(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<tool_calls>\n{''.join([call_object(call) + chr(10) for call in calls])}</tool_calls>"


def _array(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<tool_calls>{listed([call_object(call) for call in calls])}</tool_calls>"


def _jamba(calls: Sequence[ToolCall], _: Tools) -> str:
    lines = ",\n".join([f"    {call_object(call)}" for call in calls])
    return f" <tool_calls>[\n{lines}\n]</tool_calls>"


def _nemotron(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<TOOLCALL>{listed([call_object(call) for call in calls])}</TOOLCALL>"


_OPENERS = always(*[Opener(_read, word) for word in ("<tool_calls>", "<tool_calls:opensource>", "<TOOLCALL>")])
SYNTAXES = (
    Syntax("minimax_m1", _OPENERS, _minimax),
    Syntax("tool_calls_array", _OPENERS, _array),
    Syntax("jamba", _OPENERS, _jamba),
    Syntax("nemotron_v2", _OPENERS, _nemotron),
    Syntax("hy3", _OPENERS, glm.render_hy3),
)
