"""Parse a model's text, as it comes, into text, reasoning and tool calls.

Plain text is scanned for the markers of a syntax. A marker's reader takes over and, if it finds a call of a declared tool,
emits it while it is being written; otherwise what it read was text. These do not begin calls: names of undeclared tools,
anything in code spans and code fences (of backticks or tildes), and drafts inside reasoning that is closed later.

Streamed and whole text go through the same code: a whole text is one `feed` and one `end`. No I/O, no clock.
"""

from collections.abc import Callable, Mapping, Sequence

from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import PartDelta, StepEvent
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.input_buffer import InputBuffer
from toolgate.text_tools.parsing.parser_state import CallProblem, ParserState
from toolgate.text_tools.parsing.scanner import Scanner
from toolgate.text_tools.parsing.syntax import Syntax

_FEW_EVENTS = 8  # up to here, joining deltas costs more than it saves


class TextParser:
    """Parses one answer: `feed` it text, take the events, then `end` it.

    `answer` is the name under which a model may write its answer as if it were a call. `thinking` is set if the text starts
    inside reasoning, as some templates make it. `calls_end_thinking` is for models that never close their reasoning: a call
    in it ends it at once, while otherwise only the end of the text shows that the call was no draft. With `any_tool`, calls
    of undeclared tools are calls, too.
    """

    def __init__(
        self,
        syntax: Syntax,
        tools: Sequence[ToolDef],
        *,
        answer: str | None = "final_answer",
        thinking: bool = False,
        calls_end_thinking: bool = False,
        any_tool: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._assembler = EventAssembler([tool.name for tool in tools], new_id)
        self._assembler.start()
        self._assembler.take()  # the start of the step is emitted by the stream of the model
        self._buffer = InputBuffer()
        self._state = ParserState(self._buffer, self._assembler, tools, answer, any_tool)
        self._parse = Scanner(self._state, syntax, calls_end_thinking).run(thinking)

    @property
    def called(self) -> bool:
        """Whether the answer has called a tool."""
        return self._assembler.called

    @property
    def problems(self) -> Sequence[CallProblem]:
        """The calls whose arguments could not be parsed, and why."""
        return self._state.problems

    @property
    def renamed(self) -> Mapping[str, str]:
        """The declared names of tools, by the names that the model wrote instead."""
        return self._state.renamed

    def feed(self, text: str) -> list[StepEvent]:
        """Add text and return the events that are certain now."""
        if text:
            self._buffer.push(text)
            next(self._parse)
        return _join_deltas(self._assembler.take())

    def end(self, *, cut: bool = True) -> list[StepEvent]:
        """Return the remaining events; `cut` is false if the model stopped by itself: then closing marks may be missing."""
        self._state.cut = cut
        self._buffer.ended = True
        # A reader never waits once `ended` is set, so the generator runs to its end.
        for _ in self._parse:
            raise AssertionError("a reader waits for more text after the end")
        self._state.finish()
        # A call that its reader has not ended is open: it is complete only if its arguments are an object.
        self._assembler.flush(cut=True)
        return _join_deltas(self._assembler.take())


def _join_deltas(events: list[StepEvent]) -> list[StepEvent]:
    """Join adjacent deltas: some readers read one character at a time."""
    if len(events) <= _FEW_EVENTS:
        return events
    joined: list[StepEvent] = []
    texts: list[str] = []
    for event in events:
        if type(event) is PartDelta:
            texts.append(event.text)
            continue
        if texts:
            joined.append(PartDelta("".join(texts)))
            texts.clear()
        joined.append(event)
    return [*joined, PartDelta("".join(texts))] if texts else joined
