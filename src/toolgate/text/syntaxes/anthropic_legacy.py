"""Claude 2's prompt format: `<invoke><tool_name>f</tool_name><parameters><k>v</k></parameters></invoke>` in a wrapper.

The wrapper's opening tag is read in `invoke.py`, which shares it.
"""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import tagged
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.writing import Tools, bare, members, tag_name, without

_TEXT = re.compile(r"[^<>]*")


def _key(reading: Reading) -> Steps[tuple[str, bool | None] | None]:
    if not (yield from reading.source.word("<")):
        return None
    name = yield from reading.source.run(_TEXT)
    if not name or name.startswith("/") or not (yield from reading.source.word(">")):
        return None
    return name, None


def by_tag(*ends: str) -> tagged.Form:
    """Parameters whose names are their tags."""
    return tagged.Form(_key, "</{}>", "<{}>", ends, ("<",), framed=True, dynamic=True)


_FORM = by_tag("</parameters>")


def call(reading: Reading) -> Steps[bool]:
    """Reads one call behind `<invoke>`; False if it is none."""
    source = reading.source
    yield from source.blanks()
    if not (yield from source.word("<tool_name>")):
        return False
    name = yield from source.run(_TEXT)
    if not (yield from source.word("</tool_name>")):
        return False
    begun = reading.begin(name.strip())
    if begun is None:
        return False
    yield from source.blanks()
    if (yield from source.word("<parameters>")):
        yield from tagged.parameters(reading, begun, name, _FORM)
    else:
        if (yield from source.sees("</invoke>")):
            begun.end_members()
        else:
            yield from reading.broken(begun, name, tagged.MALFORMED, "</invoke>")
        begun.end()
    yield from reading.close("</invoke>")
    return True


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Writes the calls in their wrapper."""
    return f"<function_calls>\n{chr(10).join([_written(call, tools) for call in calls])}\n</function_calls>"


def _written(call: ToolCall, tools: Tools) -> str:
    lines = [f"<invoke>\n<tool_name>{without(call.name, '<')}</tool_name>\n<parameters>"]
    lines += [tag_line(key, value, call, tools) for key, value in members(call).items()]
    return "\n".join([*lines, "</parameters>\n</invoke>"])


def tag_line(key: str, value: object, call: ToolCall, tools: Tools) -> str:
    """One parameter whose name is its tag."""
    name = tag_name(key)
    text = without(bare(value, key, tools.get(call.name)), f"</{name}>", f"<{name}>")
    return f"<{name}>{f'{chr(10)}{text}{chr(10)}' if text.startswith((chr(10), chr(13))) else text}</{name}>"
