"""A model's text, as it comes, told as text, reasoning and tool calls.

Plain text is scanned for the openers of a syntax. An opener's reader takes over and, if there is a call of a tool on offer,
tells it while it is being written; if there is none, what it read was text. These do not begin calls: names of no tool on
offer, anything in code spans and code fences (of backticks or tildes), and what is drafted inside reasoning that is closed
later.

Streaming and whole text are the same code: a whole text is one `feed` and one `end`. No I/O, no clock.
"""

from collections.abc import Callable, Mapping, Sequence

from toolgate.conversation.assemble import Assembler
from toolgate.conversation.events import Delta, StepEvent
from toolgate.conversation.ids import new_call_id
from toolgate.conversation.request import ToolDef
from toolgate.text.reading import Problem, Reading
from toolgate.text.scanner import Scanner
from toolgate.text.source import Source
from toolgate.text.syntax import Syntax

_FEW = 8


class Parser:
    """Reads one answer: `feed` it text and take events, then `end` it.

    `answer` is the name under which a model may write its answer as if it were a call. `thinking` says that the text begins
    inside reasoning, as some templates make it. `calls_end_thinking` is for models that never close their reasoning: a call
    in it ends it at once, where otherwise only the end of the text shows that it was no draft. `any_tool` takes calls of
    undeclared tools for calls, too.
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
        self._assembler = Assembler([tool.name for tool in tools], new_id)
        self._assembler.start()
        self._assembler.take()  # the step is told by whoever asked the model
        self._source = Source()
        self._reading = Reading(self._source, self._assembler, tools, answer, any_tool)
        self._machine = Scanner(self._reading, syntax, calls_end_thinking).run(thinking)

    @property
    def called(self) -> bool:
        """Whether the answer has called a tool."""
        return self._assembler.called

    @property
    def problems(self) -> Sequence[Problem]:
        """The calls whose arguments could not be made out, and why."""
        return self._reading.problems

    @property
    def renamed(self) -> Mapping[str, str]:
        """Names of tools that were written otherwise than they were declared, and what they were taken for."""
        return self._reading.renamed

    def feed(self, text: str) -> list[StepEvent]:
        """The events that more text makes certain."""
        if text:
            self._source.push(text)
            next(self._machine)
        return _joined(self._assembler.take())

    def end(self, *, cut: bool = True) -> list[StepEvent]:
        """The remaining events; `cut` unless the model stopped by itself, which lets a call lack its last closing marks."""
        self._reading.cut = cut
        self._source.ended = True
        for _ in self._machine:
            raise AssertionError("a reader waits for more though the text has ended")
        self._reading.finish()
        self._assembler.flush(cut=True)
        return _joined(self._assembler.take())


def _joined(events: list[StepEvent]) -> list[StepEvent]:
    """Join deltas that follow each other: some readers take one character at a time."""
    if len(events) <= _FEW:
        return events
    joined: list[StepEvent] = []
    texts: list[str] = []
    for event in events:
        if type(event) is Delta:
            texts.append(event.text)
            continue
        if texts:
            joined.append(Delta("".join(texts)))
            texts.clear()
        joined.append(event)
    return [*joined, Delta("".join(texts))] if texts else joined
