"""Muse Glimmer (ATEM): a recipient, then invoke under the prefix `atem:`; messages are joined by end and start marks."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.syntaxes import invoke
from toolgate.text.writing import Tools

_PREFIX = "atem:"
_WRAPPER = f"{_PREFIX}function_calls"
_NEXT = "<|eom|><|start|>assistant"
_TO, _MESSAGE = "to=", "<|message|>"
_RECIPIENT = re.compile(r"[^\s<>]*")


def _read(reading: Reading, opened: str) -> Steps[None]:
    source = reading.source
    if opened != _TO and not (yield from source.word(f" {_TO}")):
        return
    while True:
        yield from source.run(_RECIPIENT)
        if not (yield from source.word(_MESSAGE)) or not (yield from source.word(f"<{_WRAPPER}>")):
            return
        yield from invoke.calls(reading, _PREFIX, _WRAPPER, escapes=False)
        if source.held or not (yield from source.word(f"{_NEXT} {_TO}")):
            return


def _render(calls: Sequence[ToolCall], tools: Tools) -> str:
    return _NEXT.join([_written(call, tools) for call in calls])


def _written(call: ToolCall, tools: Tools) -> str:
    body = invoke.written(call, tools, _PREFIX, escapes=False)
    return f" {_TO}{call.name}{_MESSAGE}<{_WRAPPER}>\n{body}\n</{_WRAPPER}>"


SYNTAXES = (
    Syntax("muse_glimmer", always(Opener(_read, _TO, at="line"), Opener(_read, _NEXT), *invoke.OPENERS(())), _render),
)
