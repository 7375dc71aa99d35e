"""One answer of the embedded model: first which tool, if any; then the call's arguments, or words.

Both stages of a call are held to a form: the name is one of those on offer, and the arguments are JSON by the tool's
schema. Knows the engine only as something that writes.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.arguments import is_object
from toolgate.conversation.errors import Garbled, InvalidRequest, Unavailable, UpstreamFault
from toolgate.conversation.events import Delta, PartEnd, PartStart, StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.ids import new_call_id
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.upstreams.adapt import Restorer
from toolgate.upstreams.embedded import frames, grammar, prompts
from toolgate.upstreams.embedded.plan import NAME, Plan, sampling
from toolgate.upstreams.embedded.process import EngineFault
from toolgate.upstreams.embedded.room import Engine

_NAME_TOKENS = 64
_ARGUMENT_TOKENS = 1024
"""A small model that has lost itself in a string would otherwise go on to the end of its context."""

_EXACTLY = {"temperature": 0.0}
_RETRY = 5.0
_RELUCTANCE = -1.0
"""How much less likely than it thinks it should choose no tool: found by trying, see bench/embedded.py."""


class EmbeddedAnswer:
    """An answer that is being written; its first events are here."""

    upstream = NAME
    dialect: str | None = None
    whole = False

    def __init__(
        self, first: list[StepEvent], rest: AsyncGenerator[list[StepEvent], None], warnings: tuple[str, ...]
    ) -> None:
        self.warnings = warnings
        self._first = first
        self._rest = rest

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events as they are written."""
        yield self._first
        async for batch in self._rest:
            yield batch

    async def aclose(self) -> None:
        """Stop the engine, if it is still writing."""
        await self._rest.aclose()


class Written(Struct):
    """What one generation gave, filled while it goes on."""

    pieces: list[str] = []
    over: frames.Over | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class Writing:
    """Has the engine write what a plan needs; `done` is called once it has no more to write."""

    def __init__(self, engine: Engine, plan: Plan, model: str, done: Callable[[], None]) -> None:
        self._engine = engine
        self._plan = plan
        self._model = model
        self._done = done
        self._usage = Usage()

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """The step, from its start to its end; whatever is being written stops when this is closed."""
        restorer = Restorer(self._plan.adapted.originals)
        try:
            async with aclosing(self._step()) as step:
                async for batch in step:
                    if told := restorer.restore(batch):
                        yield told
        finally:
            self._done()

    async def _step(self) -> AsyncGenerator[list[StepEvent], None]:
        start: list[StepEvent] = [StepStart(model=self._model)]
        tool, called = await self._chosen(), False
        if tool is not None:
            call = self._further_call if self._plan.talk.last.used else self._call
            async with aclosing(call(tool, start)) as batches:
                async for batch in batches:
                    called = True
                    yield batch
        if not called:
            async with aclosing(self._words(start)) as batches:
                async for batch in batches:
                    yield batch

    async def _chosen(self) -> ToolDef | None:
        """The tool to call next, if any."""
        plan = self._plan
        tools = plan.callable
        if not tools or (len(tools) == 1 and not plan.may_decline):
            return tools[0] if tools else None
        none = prompts.none_word(plan.tools) if plan.may_decline else None
        words = [tool.name for tool in tools] + ([none] if none else [])
        asked = prompts.to_choose(plan.talk, plan.tools, none)
        choosing = {**_EXACTLY, "logit_bias": [[none, _RELUCTANCE]]} if none else _EXACTLY
        order = frames.Generate(0, asked, _NAME_TOKENS, choosing, grammar=grammar.one_of(words))
        written = Written()
        await _exhaust(self._write(order, written, _not_yet))
        return next((tool for tool in tools if tool.name == written.text.strip()), None)

    async def _call(self, tool: ToolDef, start: list[StepEvent]) -> AsyncGenerator[list[StepEvent], None]:
        """A call whose arguments are told as they are written."""
        opening = ToolCall(new_call_id(), tool.name, "")
        yield [*start, PartStart(opening)]
        written = Written()
        async with aclosing(self._arguments(tool, written)) as pieces:
            async for piece in pieces:
                yield [Delta(piece)]
        yield self._call_ended(opening, written)

    async def _further_call(self, tool: ToolDef, start: list[StepEvent]) -> AsyncGenerator[list[StepEvent], None]:
        """A further call for the same question, told once it is known to be a new one; otherwise nothing is told."""
        written = Written()
        await _exhaust(self._arguments(tool, written))
        used = self._plan.talk.last.used
        if self._plan.may_decline and any((one.name, one.arguments) == (tool.name, written.text) for one in used):
            return
        opening = ToolCall(new_call_id(), tool.name, "")
        told = [Delta(written.text)] if written.pieces else []
        yield [*start, PartStart(opening), *told, *self._call_ended(opening, written)]

    def _call_ended(self, opening: ToolCall, written: Written) -> list[StepEvent]:
        complete = is_object(written.text)
        if not complete and written.over is not None and written.over.ending != "length":
            raise Garbled("The embedded model wrote arguments that are not JSON.")
        call = replace(opening, arguments=written.text, complete=complete)
        return [PartEnd(call), StepEnd("tool_calls" if complete else "length", self._usage)]

    async def _words(self, start: list[StepEvent]) -> AsyncGenerator[list[StepEvent], None]:
        """An answer in words, or in JSON if that was asked for."""
        plan, settings = self._plan, self._plan.settings
        order = frames.Generate(
            0, prompts.to_answer(plan.talk), plan.max_tokens, sampling(settings), stop=settings.stop
        )
        written = Written()
        forms = grammar.value(settings.output.schema) if settings.output else None
        begun = False
        writing = self._held(order, forms, written) if forms else self._write(order, written, self._done)
        async with aclosing(writing) as pieces:
            async for piece in pieces:
                yield [Delta(piece)] if begun else [*start, PartStart(Text("")), Delta(piece)]
                begun = True
        told: list[StepEvent] = [PartEnd(Text(written.text))] if begun else start
        yield [*told, self._ended(written)]

    def _ended(self, written: Written) -> StepEnd:
        over = written.over
        length = over is not None and over.ending == "length"
        return StepEnd("length" if length else "stop", self._usage, over.stop_sequence if over else None)

    def _arguments(self, tool: ToolDef, written: Written) -> AsyncGenerator[str, None]:
        most = min(self._plan.max_tokens, _ARGUMENT_TOKENS)
        order = frames.Generate(0, prompts.to_call(self._plan.talk, tool), most, _EXACTLY)
        return self._held(order, grammar.arguments(tool.input_schema), written)

    async def _held(self, order: frames.Generate, forms: Iterator[str], written: Written) -> AsyncGenerator[str, None]:
        """What is written in the first of these forms that the engine keeps to."""
        for form in forms:
            async with aclosing(self._write(replace(order, grammar=form), written, self._done)) as pieces:
                async for piece in pieces:
                    if not grammar.is_begun(written.pieces[0]):
                        break
                    yield piece
            if grammar.is_begun(written.text):
                return
            written.pieces, written.over = [], None
        raise Garbled("The embedded model could not be held to the form that was asked for.")

    async def _write(
        self, order: frames.Generate, written: Written, done: Callable[[], None]
    ) -> AsyncGenerator[str, None]:
        """The pieces of one generation; `done` is called when the engine has written it, read or not."""
        generation = self._engine.generate(order, done)
        try:
            async for told in generation:
                match told:
                    case frames.Said(_, text):
                        written.pieces.append(text)
                        yield text
                    case frames.Over():
                        written.over = told
                        self._usage += Usage(told.prompt, told.written, cache_read=told.cached)
                    case frames.Failed():
                        raise _fault(told)
        except EngineFault as fault:
            raise _broken(str(fault), bool(written.pieces)) from None
        finally:
            generation.cancel()


def _not_yet() -> None:
    """There is more to write after this."""


async def _exhaust(pieces: AsyncGenerator[str, None]) -> None:
    async with aclosing(pieces):
        async for _ in pieces:
            pass


def _fault(failed: frames.Failed) -> InvalidRequest | Garbled:
    if failed.prompt is not None:
        text = f"This model's context is {failed.context} tokens, and the request takes {failed.prompt}."
        return InvalidRequest(text, param="messages", code="context_length_exceeded")
    return Garbled(f"The embedded model's engine refused: {failed.message}")


def _broken(how: str, midway: bool) -> UpstreamFault:
    text = f"{how} It is being started again; this answer is lost."
    return Garbled(text) if midway else Unavailable(text, status=503, retry_after=_RETRY)
