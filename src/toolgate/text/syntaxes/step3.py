"""Step-3: invoke under the prefix `steptml:`, each call between DeepSeek-like marks."""

from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.syntaxes import invoke
from toolgate.text.writing import Tools

_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_call_end｜>"
_HEAD = "function<｜tool_sep｜>"
_PREFIX = "steptml:"


def _read(reading: Reading, opened: str) -> Steps[None]:
    source = reading.source
    if opened == _CALL:
        source.push_back(_CALL)  # a call without the mark that begins them all
        reading.drop()
    while True:
        yield from source.blanks()
        if not (yield from source.word(_CALL)):
            break
        yield from source.word(_HEAD)
        yield from source.blanks()
        if not (yield from source.word(f"<{_PREFIX}invoke")):
            return
        if not (yield from invoke.call(reading, _PREFIX, "", escapes=False, framed=False)):
            return
        yield from reading.close(_CALL_END)
    yield from reading.close(_END)


def _render(calls: Sequence[ToolCall], tools: Tools) -> str:
    written = [invoke.written(call, tools, _PREFIX, escapes=False, framed=False) for call in calls]
    return f"{_BEGIN}\n{''.join([f'{_CALL}{_HEAD}{one}{_CALL_END}{chr(10)}' for one in written])}{_END}"


SYNTAXES = (Syntax("step3", always(Opener(_read, _BEGIN)), _render),)
