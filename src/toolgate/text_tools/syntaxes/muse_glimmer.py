"""Read and write the calls of Muse Glimmer (ATEM): a recipient, then `invoke` with the prefix `atem:`."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.parsing.call_rendering import Tools
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers
from toolgate.text_tools.syntaxes import invoke

#  to=f<|message|><atem:function_calls>
# <atem:invoke name="f">
# <atem:parameter name="city">Paris</atem:parameter>
# </atem:invoke>
# </atem:function_calls>
_PREFIX = "atem:"
_WRAPPER = f"{_PREFIX}function_calls"
_NEXT = "<|eom|><|start|>assistant"
_TO, _MESSAGE = "to=", "<|message|>"
_RECIPIENT = re.compile(r"[^\s<>]*")


def read(state: ParserState, matched: str) -> Parse[None]:
    buffer = state.buffer
    if matched != _TO and not (yield from buffer.accept(f" {_TO}")):
        return
    while True:
        yield from buffer.read_chars(_RECIPIENT)
        if not (yield from buffer.accept(_MESSAGE)) or not (yield from buffer.accept(f"<{_WRAPPER}>")):
            return
        yield from invoke.read_calls(state, _PREFIX, _WRAPPER, escapes=False)
        # What is still held was no call, and thus text.
        if buffer.held or not (yield from buffer.accept(f"{_NEXT} {_TO}")):
            return


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    messages: list[str] = []
    for call in calls:
        body = invoke.render_call(call, tools, _PREFIX, escapes=False)
        messages.append(f" {_TO}{call.name}{_MESSAGE}<{_WRAPPER}>\n{body}\n</{_WRAPPER}>")
    return _NEXT.join(messages)


SYNTAXES = (
    Syntax(
        "muse_glimmer",
        fixed_markers(CallMarker(read, _TO, at="line"), CallMarker(read, _NEXT), *invoke.MARKERS(())),
        render,
    ),
)
