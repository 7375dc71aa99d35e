"""Read and write `<tool_calls>` and `<TOOLCALL>`: MiniMax-M1, Jamba, Hunyuan, Apriel, Nemotron v2 and HY 3."""

from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, call_object, json_array
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers
from toolgate.text_tools.syntaxes import glm, invoke


def read(state: ParserState, matched: str) -> Parse[None]:
    closer = f"</{matched[1:]}"
    suffix = ":opensource" if ":opensource" in matched else ""
    yield from state.buffer.read_blanks()
    # JSON, an array or line by line; `<invoke>` from models that mix up the formats; GLM's calls in HY 3.
    if not (yield from state.buffer.starts_with("<")):
        yield from json_calls.read_calls(state, closer)
    elif (yield from state.buffer.starts_with("<invoke")):
        yield from invoke.read_calls(state, "", matched[1:-1])
    else:
        while (yield from state.buffer.accept(f"<tool_call{suffix}>")):
            if not (yield from glm.read_call(state, suffix)):
                return
            yield from state.buffer.read_blanks()
        yield from state.accept_closing(closer)


# minimax_m1:  <tool_calls>\n{"name": "f", "arguments": {…}}\n</tool_calls>
# jamba:        <tool_calls>[\n    {"name": "f", "arguments": {…}}\n]</tool_calls>
# nemotron_v2: <TOOLCALL>[{"name": "f", "arguments": {…}}]</TOOLCALL>
# hy3:         <tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n…
def render_minimax_m1(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<tool_calls>\n{''.join([call_object(call) + chr(10) for call in calls])}</tool_calls>"


def render_array(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<tool_calls>{json_array([call_object(call) for call in calls])}</tool_calls>"


def render_jamba(calls: Sequence[ToolCall], _: Tools) -> str:
    lines = ",\n".join([f"    {call_object(call)}" for call in calls])
    return f" <tool_calls>[\n{lines}\n]</tool_calls>"


def render_nemotron(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<TOOLCALL>{json_array([call_object(call) for call in calls])}</TOOLCALL>"


_MARKERS = fixed_markers(
    *[CallMarker(read, word) for word in ("<tool_calls>", "<tool_calls:opensource>", "<TOOLCALL>")]
)
SYNTAXES = (
    Syntax("minimax_m1", _MARKERS, render_minimax_m1),
    Syntax("tool_calls_array", _MARKERS, render_array),
    Syntax("jamba", _MARKERS, render_jamba),
    Syntax("nemotron_v2", _MARKERS, render_nemotron),
    Syntax("hy3", _MARKERS, glm.render_hy3),
)
