"""Read and write the calls of Step-3: `invoke` with the prefix `steptml:`, each between marks like DeepSeek's."""

from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.parsing.call_rendering import Tools
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers
from toolgate.text_tools.syntaxes import invoke

# <｜tool_calls_begin｜>
# <｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">
# <steptml:parameter name="city">Paris</steptml:parameter>
# </steptml:invoke><｜tool_call_end｜>
# <｜tool_calls_end｜>
_BEGIN, _END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_CALL, _CALL_END = "<｜tool_call_begin｜>", "<｜tool_call_end｜>"
_HEAD = "function<｜tool_sep｜>"
_PREFIX = "steptml:"


def read(state: ParserState, matched: str) -> Parse[None]:
    buffer = state.buffer
    if matched == _CALL:
        buffer.push_back(_CALL)  # the mark that begins all calls is missing
        state.drop_markup()
    while True:
        yield from buffer.read_blanks()
        if not (yield from buffer.accept(_CALL)):
            break
        yield from buffer.accept(_HEAD)
        yield from buffer.read_blanks()
        if not (yield from buffer.accept(f"<{_PREFIX}invoke")):
            return
        if not (yield from invoke.read_call(state, _PREFIX, "", escapes=False, framed=False)):
            return
        yield from state.accept_closing(_CALL_END)
    yield from state.accept_closing(_END)


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    written = [invoke.render_call(call, tools, _PREFIX, escapes=False, framed=False) for call in calls]
    return f"{_BEGIN}\n{''.join([f'{_CALL}{_HEAD}{one}{_CALL_END}{chr(10)}' for one in written])}{_END}"


SYNTAXES = (Syntax("step3", fixed_markers(CallMarker(read, _BEGIN)), render),)
