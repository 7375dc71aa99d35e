"""Fakes for those who test against Toolgate: authors of tools, of clients and of Toolgate itself.

    model = ScriptedModel(["Hello there.", [ToolCall("call_1", "get_time", "{}")], Unavailable("out of order")])

gives three answers, one to each request, and keeps the requests for looking at afterwards.

    tools = FakeSource(FakeTool("add", lambda arguments: str(arguments["a"] + arguments["b"])))

brings a tool and keeps its calls. Nothing here opens a socket.
"""

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from toolgate.conversation.events import Delta, ModelResponse, StepEvent
from toolgate.conversation.fold import unfold
from toolgate.conversation.message import Part, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.tools.tool import Annotations, Invocation, OnChange, Output, Preparation, ToolSpec

Said: TypeAlias = ModelResponse | Sequence[Part | Exception] | str | Exception
Entry: TypeAlias = Said | Callable[[ModelRequest], "Said | Awaitable[Said]"]
Pace: TypeAlias = Callable[[], Awaitable[object]]

_WORDS = re.compile(r"\s*\S{1,12}|\s+")


class ScriptedAnswer:
    """Events told one at a time, `pace` awaited between them; an exception among them is raised in its place."""

    dialect: str | None = None
    warnings: tuple[str, ...] = ()
    whole = False

    def __init__(
        self, events: Iterable[StepEvent | Exception], upstream: str = "script", pace: Pace | None = None
    ) -> None:
        self.upstream = upstream
        self.told: list[StepEvent] = []
        self.complete = False
        self.closed = False
        self._events = iter(events)
        self._pace = pace

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """Each event in a batch of its own."""
        for event in self._events:
            if self.told and self._pace is not None:
                await self._pace()
            if self.closed:
                return
            if isinstance(event, Exception):
                raise event
            self.told.append(event)
            yield [event]
        self.complete = True

    async def aclose(self) -> None:
        """Stop telling."""
        self.closed = True


def scripted_answer(
    events: Iterable[StepEvent | Exception], upstream: str = "script", pace: Pace | None = None
) -> ScriptedAnswer:
    """An answer that tells these events; `told`, `complete` and `closed` show afterwards what became of it."""
    return ScriptedAnswer(events, upstream, pace)


class ScriptedModel:
    """A model that answers by script, one entry for each request, word by word; long words come in pieces.

    An entry is a `ModelResponse`; a list of parts, which an exception breaks off; a plain string; an
    exception, raised before the first piece; or a function of the request, perhaps async, that gives any of these.
    `pace` is awaited between two events: `event.wait` stops the answer after its first event until the event is set,
    `queue.get` tells it step by step. `requests` and `answers` keep what was asked and given.
    """

    def __init__(self, script: Iterable[Entry], *, upstream: str = "script", pace: Pace | None = None) -> None:
        self.upstream = upstream
        self.requests: list[ModelRequest] = []
        self.answers: list[ScriptedAnswer] = []
        self._script: Iterator[Entry] = iter(script)
        self._pace = pace

    async def ask(self, request: ModelRequest) -> ScriptedAnswer:
        """The next answer of the script."""
        self.requests.append(request)
        said = await self._next(request)
        if isinstance(said, Exception):
            raise said
        answer = scripted_answer(_told(said), self.upstream, self._pace)
        self.answers.append(answer)
        return answer

    async def _next(self, request: ModelRequest) -> Said:
        try:
            entry = next(self._script)
        except StopIteration:
            raise AssertionError(f"The script has no answer for request {len(self.requests)}.") from None
        if not callable(entry):
            return entry
        said = entry(request)
        return await said if inspect.isawaitable(said) else said


def _told(said: ModelResponse | Sequence[Part | Exception] | str) -> Iterator[StepEvent | Exception]:
    match said:
        case ModelResponse():
            yield from _word_by_word(unfold(said))
        case str():
            yield from _told((Text(said),))
        case _:
            yield from _told_parts(said)


def _told_parts(said: Sequence[Part | Exception]) -> Iterator[StepEvent | Exception]:
    parts: list[Part] = []
    for part in said:
        if isinstance(part, Exception):
            yield from list(_word_by_word(unfold(_response(parts))))[:-1]
            yield part
            return
        parts.append(part)
    yield from _word_by_word(unfold(_response(parts)))


def _response(parts: Sequence[Part]) -> ModelResponse:
    calls = [part for part in parts if isinstance(part, ToolCall) and part.executor != "provider"]
    return ModelResponse(tuple(parts), "tool_calls" if calls else "stop")


def _word_by_word(events: Iterable[StepEvent]) -> Iterator[StepEvent]:
    for event in events:
        if isinstance(event, Delta):
            yield from [Delta(word) for word in _WORDS.findall(event.text)]
        else:
            yield event


Made: TypeAlias = Output | str
HARMLESS = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)


class FakeTool:
    """A tool that gives what a function of its arguments gives, perhaps async, or fails as that fails.

    `calls` keeps every invocation. It takes any arguments and is harmless, unless the spec is told otherwise.
    """

    def __init__(self, name: str, give: Callable[[Mapping[str, Any]], Made | Awaitable[Made]], **spec: Any) -> None:
        told: dict[str, Any] = {
            "description": f"The tool {name}.",
            "source": "python",
            "input_schema": {"type": "object"},
            "annotations": HARMLESS,
        }
        self.spec = ToolSpec(name=name, **{**told, **spec})
        self.calls: list[Invocation] = []
        self._give = give

    async def prepare(self, invocation: Invocation) -> Preparation:
        """Nothing needs to be said before."""
        return Preparation()

    async def invoke(self, invocation: Invocation) -> Output:
        """What the function gives."""
        self.calls.append(invocation)
        given = self._give(invocation.arguments)
        made = await given if inspect.isawaitable(given) else given
        return Output((Text(made),)) if isinstance(made, str) else made


class FakeSource:
    """A source of these tools; setting `tools` and calling `changed` is a change while it is open."""

    def __init__(self, *tools: FakeTool, name: str = "python") -> None:
        self.name = name
        self.tools: Sequence[FakeTool] = tools
        self.trouble: str | None = None
        self.changed: OnChange = lambda: None

    async def open(self, on_change: OnChange) -> None:
        """Remember whom to tell of changes."""
        self.changed = on_change

    async def aclose(self) -> None:
        """Nothing was opened."""
