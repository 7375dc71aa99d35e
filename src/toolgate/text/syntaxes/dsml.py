"""DeepSeek V3.2 and V4: invoke in full-width bars, where each parameter says whether it is a string."""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import tagged
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.syntaxes import invoke
from toolgate.text.writing import Spelt, Tools, json_text, members, without

_BAR = "｜DSML｜"
_WRAPPERS = (f"{_BAR}function_calls", f"{_BAR}tool_calls")


def _read(reading: Reading, opened: str) -> Steps[None]:
    if opened.endswith(">"):
        yield from invoke.calls(reading, _BAR, opened[1:-1], escapes=False, framed=False)
    elif (yield from invoke.call(reading, _BAR, "", escapes=False, framed=False)):
        yield from reading.close(*[f"</{wrapper}>" for wrapper in _WRAPPERS])


def _render(wrapper: str, gap: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<{wrapper}>\n{chr(10).join([_written(call, gap) for call in calls])}\n</{wrapper}>"


def _written(call: ToolCall, gap: str) -> str:
    lines = [f'<{_BAR}invoke name="{without(call.name, *tagged.MARKUP)}">']
    for key, value in members(call).items():
        is_string = isinstance(value, str) and not isinstance(value, Spelt)
        text = without(str(value), f"</{_BAR}parameter", f"<{_BAR}parameter") if is_string else json_text(value)
        name = without(key, *tagged.MARKUP)
        kind = "true" if is_string else "false"
        lines.append(f'<{_BAR}parameter name="{name}" string="{kind}">{text}</{_BAR}parameter>')
    if len(lines) == 1 and gap:
        lines.append("")
    return "\n".join([*lines, f"</{_BAR}invoke>"])


_OPENERS = always(*[Opener(_read, word) for word in (*[f"<{wrapper}>" for wrapper in _WRAPPERS], f"<{_BAR}invoke")])
SYNTAXES = (
    Syntax("deepseek_v32", _OPENERS, partial(_render, _WRAPPERS[0], "")),
    Syntax("deepseek_v4", _OPENERS, partial(_render, _WRAPPERS[1], "\n")),
)
