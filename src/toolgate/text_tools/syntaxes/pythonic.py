"""Read and write Python calls behind a special mark: Llama 4, LFM2 and MiniCPM3."""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls, python_calls
from toolgate.text_tools.parsing.call_rendering import Tools, call_object, json_array, mixed_call, python_call
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# llama4_pythonic: <|python_start|>[f(city="Paris"), g()]<|python_end|>
# lfm2:            <|tool_call_start|>[f(city="Paris"), g()]<|tool_call_end|>
# lfm2_mixed:      <|tool_call_start|>[f(where={"city": "Paris", "exact": true}, tags=['a'])]<|tool_call_end|>
# minicpm3:        <|tool_call_start|>\n```python\nf(city="Paris")\n```\n<|tool_call_end|>
_LLAMA, _LLAMA_END = "<|python_start|>", "<|python_end|>"
_LFM, _LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"


def read(close: str, state: ParserState, _: str) -> Parse[None]:
    buffer = state.buffer
    yield from buffer.read_blanks()
    # MiniCPM3 puts a fence around the calls. LFM2 writes an array of JSON objects if the tools were given as JSON.
    fence = yield from buffer.accept_any("```python", "```tool_code", "```")
    if (yield from buffer.peek()) == "{" or (yield from buffer.is_followed_by(1, ("{",))):
        yield from json_calls.read_calls(state, close)
    else:
        yield from python_calls.read_calls(state, "```" if fence else close)
        if fence:
            yield from state.accept_closing(close)


def _render_list(opening: str, closing: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{opening}{json_array([python_call(call) for call in calls])}{closing}"


def render_lfm2_mixed(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_LFM}{json_array([mixed_call(call) for call in calls])}{_LFM_END}"


def render_lfm2_json(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_LFM}{json_array([call_object(call) for call in calls])}{_LFM_END}"


def render_minicpm3(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_LFM}\n```python\n{chr(10).join([python_call(call) for call in calls])}\n```\n{_LFM_END}"


_LFM_OPENERS = fixed_markers(CallMarker(partial(read, _LFM_END), _LFM))
SYNTAXES = (
    Syntax(
        "llama4_pythonic",
        fixed_markers(CallMarker(partial(read, _LLAMA_END), _LLAMA)),
        partial(_render_list, _LLAMA, _LLAMA_END),
    ),
    Syntax("lfm2", _LFM_OPENERS, partial(_render_list, _LFM, _LFM_END)),
    Syntax("lfm2_mixed", _LFM_OPENERS, render_lfm2_mixed),
    Syntax("lfm2_json", _LFM_OPENERS, render_lfm2_json),
    Syntax("minicpm3", _LFM_OPENERS, render_minicpm3),
)
