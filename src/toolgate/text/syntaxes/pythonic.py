"""Calls as Python behind a special mark: Llama 4, LFM2, MiniCPM3."""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls, python_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, call_object, listed, mixed_call, python_call

_LLAMA, _LLAMA_END = "<|python_start|>", "<|python_end|>"
_LFM, _LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"


def _read(close: str, reading: Reading, _: str) -> Steps[None]:
    source = reading.source
    yield from source.blanks()
    fence = yield from source.one_of("```python", "```tool_code", "```")
    if (yield from source.peek()) == "{" or (yield from source.followed(1, ("{",))):
        yield from json_calls.calls(reading, close)
    else:
        yield from python_calls.calls(reading, "```" if fence else close)
        if fence:
            yield from reading.close(close)


def _listed(opening: str, closing: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{opening}{listed([python_call(call) for call in calls])}{closing}"


def _mixed(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_LFM}{listed([mixed_call(call) for call in calls])}{_LFM_END}"


def _json(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_LFM}{listed([call_object(call) for call in calls])}{_LFM_END}"


def _minicpm3(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_LFM}\n```python\n{chr(10).join([python_call(call) for call in calls])}\n```\n{_LFM_END}"


_LFM_OPENERS = always(Opener(partial(_read, _LFM_END), _LFM))
SYNTAXES = (
    Syntax("llama4_pythonic", always(Opener(partial(_read, _LLAMA_END), _LLAMA)), partial(_listed, _LLAMA, _LLAMA_END)),
    Syntax("lfm2", _LFM_OPENERS, partial(_listed, _LFM, _LFM_END)),
    Syntax("lfm2_mixed", _LFM_OPENERS, _mixed),
    Syntax("lfm2_json", _LFM_OPENERS, _json),
    Syntax("minicpm3", _LFM_OPENERS, _minicpm3),
)
