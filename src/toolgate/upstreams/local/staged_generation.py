"""Generate one answer of the local model: first choose a tool, if any; then write its arguments, or text.

A grammar constrains both stages of a call: the name is one of the offered tools, and the arguments are JSON by the tool's
schema. Knows the engine only by its Protocol.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.arguments import is_object
from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import (
    FinishReason,
    PartDelta,
    PartEnd,
    PartStart,
    StepEnd,
    StepEvent,
    StepStart,
    Usage,
)
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.upstreams.local import frames, grammar, stage_prompts
from toolgate.upstreams.local.engine_lease import GenerationEngine
from toolgate.upstreams.local.engine_process import EngineFault
from toolgate.upstreams.local.tool_choice_plan import GREEDY, NAME, ToolChoicePlan, sampling
from toolgate.upstreams.tool_definition_rewrite import ToolNameRestorer

_NAME_TOKENS = 64
# A limit, because a small model that does not end a string would go on to the end of its context.
_ARGUMENT_TOKENS = 1024
_RETRY = 5.0
# The penalty for choosing no tool: found by measuring, see bench/embedded.py.
_NO_TOOL_PENALTY = -1.0


class LocalModelStream:
    """An answer that is being generated; its first events have arrived."""

    upstream = NAME
    dialect: str | None = None
    whole = False

    def __init__(
        self, first: list[StepEvent], rest: AsyncGenerator[list[StepEvent], None], warnings: tuple[str, ...]
    ) -> None:
        self.warnings = warnings
        self._first = first
        self._rest = rest

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events as they are generated."""
        yield self._first
        async for batch in self._rest:
            yield batch

    async def aclose(self) -> None:
        """Stop the generation, if it still runs."""
        await self._rest.aclose()


class StageOutput(Struct):
    """The text of one generation, filled while it runs."""

    pieces: list[str] = []
    over: frames.EngineGenerationEndFrame | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


class _LastGeneration:
    """Calls `done` once a generation has ended and is known to be the last; it never does for one that is repeated."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._ended = self._accepted = False

    def end(self) -> None:
        """Note that the engine is done with it."""
        self._ended = True
        if self._accepted:
            self._done()

    def accept(self) -> None:
        """Note that no other one follows."""
        self._accepted = True
        if self._ended:
            self._done()


class StagedGeneration:
    """Runs the generations of a plan; `done` is called after the last one."""

    def __init__(self, engine: GenerationEngine, plan: ToolChoicePlan, model: str, done: Callable[[], None]) -> None:
        self._engine = engine
        self._plan = plan
        self._model = model
        self._done = done
        self._usage = Usage()

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events of the step; closing it stops the generation."""
        restorer = ToolNameRestorer(self._plan.adapted.originals)
        try:
            async with aclosing(self._step()) as step:
                async for batch in step:
                    if events := restorer.restore(batch):
                        yield events
        finally:
            self._done()

    async def _step(self) -> AsyncGenerator[list[StepEvent], None]:
        # Emitted with the first part: while a tool is chosen, a failure of the engine can still become a fallback.
        start: list[StepEvent] = [StepStart(model=self._model)]
        plan, settings, begun = self._plan, self._plan.settings, False
        tool = await self._choose_tool()
        if tool is not None:
            call = self._further_call if plan.conversation.last.used else self._call
            async with aclosing(call(tool, start)) as batches:
                async for batch in batches:
                    begun = True
                    yield batch
            if begun:
                return
        # No call: an answer in text, or in JSON if that was requested.
        order = frames.EngineGenerateFrame(
            0, stage_prompts.to_answer(plan.conversation), plan.max_tokens, sampling(plan), stop=settings.stop
        )
        written = StageOutput()
        forms = grammar.value(settings.output.schema) if settings.output else None
        writing = (
            self._write_with_grammar(order, forms, written, self._done)
            if forms
            else self._write(order, written, self._done)
        )
        async with aclosing(writing) as pieces:
            async for piece in pieces:
                yield [PartDelta(piece)] if begun else [*start, PartStart(Text("")), PartDelta(piece)]
                begun = True
        last: list[StepEvent] = [PartEnd(Text(written.text))] if begun else start
        over = written.over
        reason: FinishReason = "length" if over is not None and over.ending == "length" else "stop"
        yield [*last, StepEnd(reason, self._usage, over.stop_sequence if over else None)]

    async def _choose_tool(self) -> ToolDef | None:
        """Choose the tool to call next, if any."""
        plan = self._plan
        tools = plan.callable
        if not tools or (len(tools) == 1 and not plan.may_decline):
            return tools[0] if tools else None
        none = stage_prompts.name_for_no_tool(plan.tools) if plan.may_decline else None
        names = [tool.name for tool in tools] + ([none] if none else [])
        asked = stage_prompts.to_choose(plan.conversation, plan.tools, none)
        choosing = {**GREEDY, "logit_bias": [[none, _NO_TOOL_PENALTY]]} if none else GREEDY
        order = frames.EngineGenerateFrame(0, asked, _NAME_TOKENS, choosing, grammar=grammar.one_of(names))
        written = StageOutput()
        # The lease of the engine is not released yet: another generation follows.
        await _drain(self._write(order, written, lambda: None))
        return next((tool for tool in tools if tool.name == written.text.strip()), None)

    async def _call(self, tool: ToolDef, start: list[StepEvent]) -> AsyncGenerator[list[StepEvent], None]:
        """Yield a call whose arguments are emitted while they are generated."""
        opening = ToolCall(new_call_id(), tool.name, "")
        yield [*start, PartStart(opening)]
        written = StageOutput()
        async with aclosing(self._arguments(tool, written, self._done)) as pieces:
            async for piece in pieces:
                yield [PartDelta(piece)]
        yield self._end_call(opening, written)

    async def _further_call(self, tool: ToolDef, start: list[StepEvent]) -> AsyncGenerator[list[StepEvent], None]:
        """Yield a further call for the same question if it is a new one."""
        written = StageOutput()
        await _drain(self._arguments(tool, written, lambda: None))
        used = self._plan.conversation.last.used
        # The same call again would bring the same result: the model has what it needs, and is asked for text instead.
        if self._plan.may_decline and any((one.name, one.arguments) == (tool.name, written.text) for one in used):
            return
        self._done()
        opening = ToolCall(new_call_id(), tool.name, "")
        deltas = [PartDelta(written.text)] if written.pieces else []
        yield [*start, PartStart(opening), *deltas, *self._end_call(opening, written)]

    def _end_call(self, opening: ToolCall, written: StageOutput) -> list[StepEvent]:
        complete = is_object(written.text)
        # Arguments may be cut off by the limit of tokens; otherwise the grammar makes sure that they are JSON.
        if not complete and written.over is not None and written.over.ending != "length":
            raise InvalidUpstreamAnswer("The embedded model wrote arguments that are not JSON.")
        call = replace(opening, arguments=written.text, complete=complete)
        return [PartEnd(call), StepEnd("tool_calls" if complete else "length", self._usage)]

    def _arguments(self, tool: ToolDef, written: StageOutput, done: Callable[[], None]) -> AsyncGenerator[str, None]:
        most = min(self._plan.max_tokens, _ARGUMENT_TOKENS)
        order = frames.EngineGenerateFrame(0, stage_prompts.to_call(self._plan.conversation, tool), most, GREEDY)
        return self._write_with_grammar(order, grammar.arguments(tool.input_schema), written, done)

    async def _write_with_grammar(
        self, order: frames.EngineGenerateFrame, forms: Iterator[str], written: StageOutput, done: Callable[[], None]
    ) -> AsyncGenerator[str, None]:
        """Yield the text of the first of these grammars that the engine accepts; `done` is called when that has ended."""
        for form in forms:
            last = _LastGeneration(done)
            async with aclosing(self._write(replace(order, grammar=form), written, last.end)) as pieces:
                async for piece in pieces:
                    if not grammar.begins_like_json(written.pieces[0]):
                        break  # the engine has ignored this grammar: try the next, simpler one
                    last.accept()
                    yield piece
            if grammar.begins_like_json(written.text):
                last.accept()
                return
            written.pieces, written.over = [], None
        raise InvalidUpstreamAnswer("The embedded model could not be held to the form that was asked for.")

    async def _write(
        self, order: frames.EngineGenerateFrame, written: StageOutput, done: Callable[[], None]
    ) -> AsyncGenerator[str, None]:
        """Yield the pieces of one generation; `done` is called when it has ended, read or not."""
        generation = self._engine.generate(order, done)
        try:
            async for message in generation:
                match message:
                    case frames.EngineTextFrame(_, text):
                        written.pieces.append(text)
                        yield text
                    case frames.EngineGenerationEndFrame():
                        written.over = message
                        self._usage += Usage(message.prompt, message.written, cache_read=message.cached)
                    case frames.EngineGenerationFailedFrame(prompt=None):
                        raise InvalidUpstreamAnswer(f"The embedded model's engine refused: {message.message}")
                    case frames.EngineGenerationFailedFrame(prompt=prompt, context=context):
                        text = f"This model's context is {context} tokens, and the request takes {prompt}."
                        raise InvalidRequest(text, param="messages", code="context_length_exceeded")
        except EngineFault as fault:
            text = f"{fault} It is being started again; this answer is lost."
            if written.pieces:  # the client may have received some of it, so that it cannot be asked for again
                raise InvalidUpstreamAnswer(text) from None
            raise UpstreamUnavailable(text, status=503, retry_after=_RETRY) from None
        finally:
            generation.cancel()  # does nothing if it has ended; else the client has left


async def _drain(pieces: AsyncGenerator[str, None]) -> None:
    async with aclosing(pieces):
        async for _ in pieces:
            pass
