"""gpt-oss (harmony): a message has a channel and perhaps a recipient.

`analysis` is reasoning, `final` and `commentary` are text, and a message to a tool on offer is a call. The recipient may
stand before or after the channel. It counts in `commentary`, and in `analysis`, where the model often puts it, but not in
`final`.
"""

import re
from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Out, Steps, words
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, without

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|call|>", "<|end|>", "<|return|>")
_STOPS = words(*_ENDS, _START, _CHANNEL)
_HEADER = re.compile(r"[^<>{}\n]*")
_RECIPIENT = re.compile(r"to=(\S+)")


def _read(reading: Reading, opened: str) -> Steps[None]:
    source = reading.source
    header = yield from _header(reading, opened)
    if header is None:
        return
    recipient = _RECIPIENT.search(header)
    channel = next((name for name in ("analysis", "commentary", "final") if name in header), "")
    if recipient and channel != "final":
        yield from json_calls.arguments(reading, recipient[1], None, *_ENDS)
        return
    if not channel and "assistant" not in header:
        return
    out: Out = reading.reasoning if channel == "analysis" else reading.text
    reading.drop()
    source.held = None
    yield from source.until(_STOPS, out)
    reading.resume()
    yield from source.one_of(*_ENDS)
    reading.drop()


def _header(reading: Reading, opened: str) -> Steps[str | None]:
    """Reads up to the message itself; None if this is no header."""
    source, pieces = reading.source, [" ", opened]
    while True:
        pieces.append((yield from source.run(_HEADER)))
        mark = yield from source.one_of(_MESSAGE, _CHANNEL, _CONSTRAIN)
        if mark == _MESSAGE:
            return " ".join(pieces)
        if not mark:
            return None


def _sampled(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [f"commentary to=functions.{_name(call)} {_CONSTRAIN}json{_body(call)}" for call in calls]
    return f"{_CHANNEL}{f'{_START}assistant{_CHANNEL}'.join(each)}"


def _templated(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join(
        [f"{_START}assistant to=functions.{_name(call)}{_CHANNEL}commentary json{_body(call)}" for call in calls]
    )


def _name(call: ToolCall) -> str:
    return without(call.name, "<", ">", " ", "{")


def _body(call: ToolCall) -> str:
    return f"{_MESSAGE}{arguments(call)}<|call|>"


def _stray(reading: Reading, _: str) -> Steps[None]:
    """An end mark without a message: layout."""
    reading.drop()
    yield from reading.source.blanks()


_OPENERS = always(Opener(_read, _START), Opener(_read, _CHANNEL))
SYNTAXES = (
    Syntax("gpt_oss", always(*_OPENERS(()), *[Opener(_stray, end) for end in _ENDS]), partial(_sampled)),
    Syntax("gpt_oss_tpl", _OPENERS, _templated),
)
