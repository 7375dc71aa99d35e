"""Read and write the messages of gpt-oss (harmony): each has a channel and perhaps a recipient.

`analysis` is reasoning, `final` and `commentary` are text, and a message to a tool on offer is a call. The recipient may
stand before or after the channel. It counts in `commentary`, and in `analysis`, where the model often puts it, but not in
`final`.
"""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, free_of
from toolgate.text_tools.parsing.input_buffer import Parse, TextSink, word_set
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# <|channel|>analysis<|message|>I need the weather.<|end|>
# <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Paris"}<|call|>
# <|start|>assistant<|channel|>final<|message|>It rains.<|return|>
_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|call|>", "<|end|>", "<|return|>")
_STOPS = word_set(*_ENDS, _START, _CHANNEL)
_HEADER = re.compile(r"[^<>{}\n]*")
_RECIPIENT = re.compile(r"to=(\S+)")


def read(state: ParserState, matched: str) -> Parse[None]:
    # The words and marks of the header come in any order, and `<|constrain|>` may be missing.
    buffer, pieces, mark = state.buffer, [" ", matched], ""
    while mark != _MESSAGE:
        pieces.append((yield from buffer.read_chars(_HEADER)))
        mark = yield from buffer.accept_any(_MESSAGE, _CHANNEL, _CONSTRAIN)
        if not mark:  # no header
            return
    header = " ".join(pieces)
    recipient = _RECIPIENT.search(header)
    channel = next((name for name in ("analysis", "commentary", "final") if name in header), "")
    if recipient and channel != "final":
        yield from json_calls.read_arguments(state, recipient[1], None, *_ENDS)
        return
    if not channel and "assistant" not in header:
        return
    out: TextSink = state.reasoning if channel == "analysis" else state.text
    state.drop_markup()
    buffer.held = None
    yield from buffer.copy_until(_STOPS, out)
    state.hold_text()
    yield from buffer.accept_any(*_ENDS)
    state.drop_markup()


def render_sampled(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [f"commentary to=functions.{_name(call)} {_CONSTRAIN}json{_body(call)}" for call in calls]
    return f"{_CHANNEL}{f'{_START}assistant{_CHANNEL}'.join(each)}"


def render_templated(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join(
        [f"{_START}assistant to=functions.{_name(call)}{_CHANNEL}commentary json{_body(call)}" for call in calls]
    )


def _name(call: ToolCall) -> str:
    return free_of(call.name, "<", ">", " ", "{")


def _body(call: ToolCall) -> str:
    return f"{_MESSAGE}{argument_json(call)}<|call|>"


def read_stray_end(state: ParserState, _: str) -> Parse[None]:
    """Drop an end mark without a message."""
    state.drop_markup()
    yield from state.buffer.read_blanks()


_MARKERS = fixed_markers(CallMarker(read, _START), CallMarker(read, _CHANNEL))
SYNTAXES = (
    Syntax(
        "gpt_oss", fixed_markers(*_MARKERS(()), *[CallMarker(read_stray_end, end) for end in _ENDS]), render_sampled
    ),
    Syntax("gpt_oss_tpl", _MARKERS, render_templated),
)
