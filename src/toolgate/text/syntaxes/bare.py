"""Calls with no mark at all: JSON or a Python list at the beginning of a line, perhaps in a fence.

Only what names a tool on offer and, in JSON, its arguments is a call; any other JSON is an answer.
"""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls, python_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, call_object, json_text, listed, members, python_call

_PYTHON_FENCES = ("```tool_code", "```python", "```py")


def _read(reading: Reading, _: str) -> Steps[None]:
    if (yield from reading.source.peek()) == "{" or (yield from _is_json_array(reading)):
        yield from json_calls.calls(reading, wordy=True)
    else:
        yield from python_calls.calls(reading)


def _is_json_array(reading: Reading) -> Steps[bool]:
    """Whether an object follows the bracket that comes next; reads nothing."""
    return (yield from reading.source.followed(1, ("{",)))


def _fenced(reading: Reading, opened: str) -> Steps[None]:
    if opened in _PYTHON_FENCES:
        yield from reading.source.blanks()
        yield from python_calls.calls(reading, "```")
    else:
        yield from json_calls.calls(reading, "```", wordy=True)


def _functools(reading: Reading, _: str) -> Steps[None]:
    yield from json_calls.calls(reading)


def _llama(calls: Sequence[ToolCall], _: Tools) -> str:
    return "; ".join([call_object(call, arguments_key="parameters") for call in calls])


def _array(opening: str, closing: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{opening}{listed([call_object(call) for call in calls])}{closing}"


def _json_fenced(calls: Sequence[ToolCall], _: Tools) -> str:
    objects = [{"name": call.name, "arguments": members(call)} for call in calls]
    return "\n".join([f"```json\n{json_text(one, '  ')}\n```" for one in objects])


def _python(calls: Sequence[ToolCall], _: Tools) -> str:
    return listed([python_call(call) for call in calls])


def _tool_code(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"```tool_code\n{chr(10).join([python_call(call) for call in calls])}\n```"


_BRACE = Opener(_read, pattern=r"(?=\{)", firsts="{", at="line")
_BRACKET = Opener(_read, pattern=r"(?=\[)", firsts="[", at="line")
_JSON_FENCE = Opener(
    _fenced, pattern=r"```(?:json)?[ \t]*\n(?=\s*[\[{])", partial=r"`{1,3}|```[a-z]*\s*", firsts="`", at="line"
)
_TOOL_CODE = Opener(_fenced, "```tool_code", at="line")

SYNTAXES = (
    Syntax("llama3_json", always(_BRACE, _BRACKET), _llama),
    Syntax("xlam", always(_BRACE, _BRACKET), partial(_array, "", "")),
    Syntax("xlam_fenced", always(_BRACE, _BRACKET, _JSON_FENCE), partial(_array, "```json\n", "\n```")),
    Syntax("json_fenced", always(_BRACE, _BRACKET, _JSON_FENCE), _json_fenced),
    Syntax("phi4_mini", always(Opener(_functools, "functools", at="line")), partial(_array, "functools", "")),
    Syntax("pythonic", always(_BRACKET), _python),
    Syntax("gemma3_tool_code", always(_TOOL_CODE), _tool_code),
)
