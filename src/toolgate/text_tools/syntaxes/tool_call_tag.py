"""Read and write `<tool_call>`, the commonest mark: JSON follows in Hermes, Qwen and many more, tags in Qwen3-Coder.

What follows the mark shows which syntax it is, so all syntaxes that begin with it read each other.
"""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, ascii_text, call_object, json_array
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers
from toolgate.text_tools.syntaxes import function_tag, glm


def read(state: ParserState, matched: str) -> Parse[None]:
    # <tool_call>{"name": …}</tool_call>, <tool_call><function=f>…</tool_call> or, in GLM, <tool_call>f<arg_key>…
    closer = f"</{matched[1:]}"
    yield from state.buffer.read_blanks()
    char = yield from state.buffer.peek()
    if char in ("{", "["):
        yield from json_calls.read_calls(state, closer)
    elif char == "<":
        yield from function_tag.read_functions(state, closer)
    elif char:
        yield from glm.read_call(state, ":opensource" if ":opensource" in matched else "")


def _render_lines(opening: str, gap: str, between: str, calls: Sequence[ToolCall], _: Tools) -> str:
    closing = f"</{opening[1:]}"
    return between.join([f"{opening}{gap}{call_object(call)}{gap}{closing}" for call in calls])


def render_ascii(calls: Sequence[ToolCall], tools: Tools) -> str:
    return ascii_text(_render_lines("<tool_call>", "\n", "", calls, tools))


def render_granite31(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<tool_call>{json_array([call_object(call) for call in calls])}"


def render_ernie(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "".join([f"\n\n{_render_lines('<tool_call>', chr(10), '', [call], tools)}\n" for call in calls])


_MARKERS = fixed_markers(
    CallMarker(read, "<tool_call>"), CallMarker(read, "<tool_call:opensource>"), function_tag.MARKER
)
_RESPONSE = CallMarker(lambda state, _: state.read_plain_text("</response>"), "<response>")
_LONGCAT = CallMarker(read, "<longcat_tool_call>")
_SEED = CallMarker(read, "<seed:tool_call>")
_SEED_THINKS = (("<seed:think>", "</seed:think>"),)

SYNTAXES = (
    Syntax("hermes", _MARKERS, partial(_render_lines, "<tool_call>", "\n", "\n")),
    Syntax("hermes_tight", _MARKERS, partial(_render_lines, "<tool_call>", "", "")),
    Syntax("hermes_ascii", _MARKERS, render_ascii),
    Syntax("ernie45", fixed_markers(*_MARKERS(()), _RESPONSE), render_ernie, detected=False),
    Syntax("granite31", _MARKERS, render_granite31),
    Syntax("longcat", fixed_markers(_LONGCAT), partial(_render_lines, "<longcat_tool_call>", "\n", "\n")),
    Syntax("qwen3_coder", _MARKERS, function_tag.render_qwen),
    Syntax(
        "seed_oss", fixed_markers(_SEED, function_tag.MARKER), function_tag.render_seed, reasoning_marks=_SEED_THINKS
    ),
    Syntax("glm45", _MARKERS, glm.render_glm45),
    Syntax("glm47", _MARKERS, glm.render_glm47),
)
