"""Fakes for tests against Toolgate, for authors of tools, of clients and of Toolgate itself.

    model = ScriptedModel(["Hello there.", [ToolCall("call_1", "get_time", "{}")], Unavailable("out of order")])

gives three answers, one to each request, and keeps the requests in `model.requests`.

    tools = FakeSource(FakeTool("add", lambda arguments: str(arguments["a"] + arguments["b"])))

brings a tool and keeps its calls. Nothing here opens a socket.
"""

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from toolgate.conversation.events import ModelResponse, PartDelta, StepEvent
from toolgate.conversation.fold import unfold
from toolgate.conversation.message import Part, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.tools.tool import Annotations, CallPreview, OnChange, ServerToolDefinition, ToolCallInput, ToolOutput

ScriptedAnswer: TypeAlias = ModelResponse | Sequence[Part | Exception] | str | Exception
Entry: TypeAlias = ScriptedAnswer | Callable[[ModelRequest], "ScriptedAnswer | Awaitable[ScriptedAnswer]"]
Pace: TypeAlias = Callable[[], Awaitable[object]]

_WORDS = re.compile(r"\s*\S{1,12}|\s+")


class ScriptedModelStream:
    """A model's stream that yields these events one at a time; an exception among them is raised in its place.

    `pace` is awaited between two events. `read_events` keeps the events that were read, `complete` says that all were, and
    `closed` that the reader closed the stream.
    """

    dialect: str | None = None
    warnings: tuple[str, ...] = ()
    whole = False

    def __init__(
        self, events: Iterable[StepEvent | Exception], upstream: str = "script", pace: Pace | None = None
    ) -> None:
        self.upstream = upstream
        self.read_events: list[StepEvent] = []
        self.complete = False
        self.closed = False
        self._events = iter(events)
        self._pace = pace

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield each event in a batch of its own."""
        for event in self._events:
            if self.read_events and self._pace is not None:
                await self._pace()
            if self.closed:
                return
            if isinstance(event, Exception):
                raise event
            self.read_events.append(event)
            yield [event]
        self.complete = True

    async def aclose(self) -> None:
        """End the stream."""
        self.closed = True


def scripted_answer(
    events: Iterable[StepEvent | Exception], upstream: str = "script", pace: Pace | None = None
) -> ScriptedModelStream:
    """Make a stream of these events; its `read_events`, `complete` and `closed` show afterwards how far it was read."""
    return ScriptedModelStream(events, upstream, pace)


class ScriptedModel:
    """A model that answers by a script, one entry for each request, word by word; long words come in pieces.

    An entry is a `ModelResponse`; a list of parts, which an exception breaks off; a plain string; an
    exception, raised before the first piece; or a function of the request, perhaps async, that returns any of these.
    `pace` is awaited between two events: `event.wait` stops the answer after its first event until the event is set,
    `queue.get` sends it event by event. `requests` and `answers` keep what was received and sent.
    """

    def __init__(self, script: Iterable[Entry], *, upstream: str = "script", pace: Pace | None = None) -> None:
        self.upstream = upstream
        self.requests: list[ModelRequest] = []
        self.answers: list[ScriptedModelStream] = []
        self._script: Iterator[Entry] = iter(script)
        self._pace = pace

    async def ask(self, request: ModelRequest) -> ScriptedModelStream:
        """Answer with the next entry of the script."""
        self.requests.append(request)
        try:
            entry = next(self._script)
        except StopIteration:
            raise AssertionError(f"The script has no answer for request {len(self.requests)}.") from None
        given = entry(request) if callable(entry) else entry
        answer = await given if inspect.isawaitable(given) else given
        if isinstance(answer, Exception):
            raise answer
        stream = scripted_answer(_events(answer), self.upstream, self._pace)
        self.answers.append(stream)
        return stream


def _events(answer: ModelResponse | Sequence[Part | Exception] | str) -> Iterator[StepEvent | Exception]:
    """Unfold an answer; an exception among its parts takes the place of the end."""
    if isinstance(answer, ModelResponse):
        yield from _word_by_word(answer)
        return
    parts: list[Part] = []
    for part in (Text(answer),) if isinstance(answer, str) else answer:
        if isinstance(part, Exception):
            yield from list(_word_by_word(_response(parts)))[:-1]
            yield part
            return
        parts.append(part)
    yield from _word_by_word(_response(parts))


def _response(parts: Sequence[Part]) -> ModelResponse:
    calls = [part for part in parts if isinstance(part, ToolCall) and part.executor != "provider"]
    return ModelResponse(tuple(parts), "tool_calls" if calls else "stop")


def _word_by_word(response: ModelResponse) -> Iterator[StepEvent]:
    for event in unfold(response):
        if isinstance(event, PartDelta):
            yield from [PartDelta(word) for word in _WORDS.findall(event.text)]
        else:
            yield event


Made: TypeAlias = ToolOutput | str
HARMLESS = Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)


class FakeTool:
    """A tool that returns what a function of its arguments returns, perhaps async, and fails as that fails.

    `calls` keeps every invocation. It takes any arguments and is harmless, unless fields of the `spec` say otherwise.
    """

    def __init__(self, name: str, give: Callable[[Mapping[str, Any]], Made | Awaitable[Made]], **spec: Any) -> None:
        defaults: dict[str, Any] = {
            "description": f"The tool {name}.",
            "source": "python",
            "input_schema": {"type": "object"},
            "annotations": HARMLESS,
        }
        self.spec = ServerToolDefinition(name=name, **{**defaults, **spec})
        self.calls: list[ToolCallInput] = []
        self._give = give

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Describe nothing."""
        return CallPreview()

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Call the function."""
        self.calls.append(invocation)
        given = self._give(invocation.arguments)
        made = await given if inspect.isawaitable(given) else given
        return ToolOutput((Text(made),)) if isinstance(made, str) else made


class FakeSource:
    """A source of these tools; setting `tools` and calling `changed` is a change while it is open."""

    def __init__(self, *tools: FakeTool, name: str = "python") -> None:
        self.name = name
        self.tools: Sequence[FakeTool] = tools
        self.problem: str | None = None
        self.changed: OnChange = lambda: None

    @property
    def trouble(self) -> str | None:
        """The former name of `problem`."""
        return self.problem

    @trouble.setter
    def trouble(self, problem: str | None) -> None:
        self.problem = problem

    async def open(self, on_change: OnChange) -> None:
        """Keep `on_change` as `changed`."""
        self.changed = on_change

    async def aclose(self) -> None:
        """Close nothing."""
