"""Read and write the calls of DeepSeek V3.2 and V4: `invoke` in full-width bars; a parameter has a flag for strings."""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.call_rendering import NumberAsWritten, Tools, argument_values, free_of, json_text
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers
from toolgate.text_tools.syntaxes import invoke

# <｜DSML｜function_calls>
# <｜DSML｜invoke name="f">
# <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
# <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
# </｜DSML｜invoke>
# </｜DSML｜function_calls>
_BAR = "｜DSML｜"
_WRAPPERS = (f"{_BAR}function_calls", f"{_BAR}tool_calls")


def read(state: ParserState, matched: str) -> Parse[None]:
    if matched.endswith(">"):
        yield from invoke.read_calls(state, _BAR, matched[1:-1], escapes=False, framed=False)
    elif (yield from invoke.read_call(state, _BAR, "", escapes=False, framed=False)):
        yield from state.accept_closing(*[f"</{wrapper}>" for wrapper in _WRAPPERS])


def render(wrapper: str, gap: str, calls: Sequence[ToolCall], _: Tools) -> str:
    lines = [f"<{wrapper}>"]
    for call in calls:
        lines.append(f'<{_BAR}invoke name="{free_of(call.name, *tagged.MARKUP)}">')
        values = argument_values(call)
        for key, value in values.items():
            is_string = isinstance(value, str) and not isinstance(value, NumberAsWritten)
            text = free_of(str(value), f"</{_BAR}parameter", f"<{_BAR}parameter") if is_string else json_text(value)
            attributes = f'name="{free_of(key, *tagged.MARKUP)}" string="{"true" if is_string else "false"}"'
            lines.append(f"<{_BAR}parameter {attributes}>{text}</{_BAR}parameter>")
        if not values and gap:  # V4's template has an empty line in place of the parameters
            lines.append("")
        lines.append(f"</{_BAR}invoke>")
    return "\n".join([*lines, f"</{wrapper}>"])


_MARKERS = fixed_markers(
    *[CallMarker(read, word) for word in (*[f"<{wrapper}>" for wrapper in _WRAPPERS], f"<{_BAR}invoke")]
)
SYNTAXES = (
    Syntax("deepseek_v32", _MARKERS, partial(render, _WRAPPERS[0], "")),
    Syntax("deepseek_v4", _MARKERS, partial(render, _WRAPPERS[1], "\n")),
)
