"""GLM-4.5 and later, Laguna, HY 3: a name, then pairs of `<arg_key>` and `<arg_value>`; others read the marks around."""

import re
from collections.abc import Sequence
from functools import lru_cache

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls, tagged
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.writing import Tools, bare, members, without

_NAME = re.compile(r"[^<>{}\s]*")
_TEXT = re.compile(r"[^<>]*")


@lru_cache(8)
def _form(suffix: str) -> tagged.Form:
    opening, middle, end = f"<arg_key{suffix}>", f"</arg_key{suffix}>", f"</tool_call{suffix}>"
    value, close = f"<arg_value{suffix}>", f"</arg_value{suffix}>"

    def key(reading: Reading) -> Steps[tuple[str, bool | None] | None]:
        if not (yield from reading.source.word(opening)):
            return None
        name = yield from reading.source.run(_TEXT)
        if not (yield from reading.source.word(middle)):
            return None
        yield from reading.source.blanks()
        return (name, None) if (yield from reading.source.word(value)) else None

    return tagged.Form(key, close, value, (end,), (opening, end))


def call(reading: Reading, suffix: str = "") -> Steps[bool]:
    """Reads one call behind `<tool_call>`; False if it is none."""
    source, form = reading.source, _form(suffix)
    name = yield from source.run(_NAME)
    if not name or reading.declared(name) is None:
        return False
    yield from source.word(f"<tool_sep{suffix}>")
    yield from source.blanks()
    if (yield from source.sees("{")):
        return (yield from json_calls.arguments(reading, name, None, *form.ends))
    if not source.ended and not (yield from source.sees(*form.follows)):
        return False
    begun = reading.begin(name)
    if begun is None:
        return False
    yield from tagged.parameters(reading, begun, name, form)
    return True


def written(call: ToolCall, tools: Tools, gap: str, sep: str = "") -> str:
    """One call; `gap` stands between its marks, `sep` behind its name."""
    name = without(call.name, "<", ">", "{", "\n", " ")
    parts = [f"<tool_call>{name}{sep}{gap}"]
    for key, value in members(call).items():
        text = without(bare(value, key, tools.get(call.name)), "<arg_value>", "</arg_value>")
        parts.append(f"<arg_key>{without(key, '<', '>')}</arg_key>{gap}<arg_value>{text}</arg_value>{gap}")
    return "".join([*parts, "</tool_call>"])


def render45(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Writes the calls in lines."""
    return "\n".join([written(call, tools, "\n") for call in calls])


def render47(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Writes the calls without a line break."""
    return "".join([written(call, tools, "") for call in calls])


def render_hy3(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Writes the calls in lines and in a wrapper."""
    inner = "".join([written(call, tools, "\n", "<tool_sep>") + "\n" for call in calls])
    return f"<tool_calls>\n{inner}</tool_calls>"
