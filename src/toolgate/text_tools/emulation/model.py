"""Emulate tool calling for a model that only writes text: tools go into its prompt, calls are parsed from its text.

The model inside is asked without tools. What it writes is parsed while it comes, so a call reaches the client while the
model still writes it. An answer that cannot be used is requested again, a bounded number of times and only if nothing of the
fault was sent to the client; in the end it is plain text, and a note is logged.

An answer that is not streamed is complete when `ask` returns, so whatever can fail fails there.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import EmptyModelAnswer
from toolgate.conversation.events import StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import is_request_larger
from toolgate.engine.json_thread import LARGE_BODY
from toolgate.engine.ports import Model, ModelStream
from toolgate.text_tools.emulation.bounded_batches import sliced
from toolgate.text_tools.emulation.emulation_notes import EmulationNote, OnNote, ignore_note
from toolgate.text_tools.emulation.reasoning_stream import ReasoningStream
from toolgate.text_tools.emulation.request_plan import EmulationPlan, correction, plan
from toolgate.text_tools.emulation.stream_decoder import EMPTY, TextDecoderOptions, TextStreamDecoder
from toolgate.text_tools.prompts.conversation_writer import ConversationWriter
from toolgate.text_tools.prompts.prompt_renderer import TextToolPromptRenderer
from toolgate.text_tools.prompts.system_messages_to_user import inject, lost_of_system, system_texts
from toolgate.text_tools.syntaxes import syntax as syntax_named
from toolgate.upstreams import token_counting_offline
from toolgate.upstreams.tool_definition_rewrite import ToolNameRestorer
from toolgate.upstreams.wrapped_streams import with_warning

_BLANK_LINE = "\n\n"


class EmulatedModelParts(Struct, frozen=True):
    """The model inside, how its prompts are written, how its text is decoded, and what to call with notes."""

    model: Model
    writer: ConversationWriter
    decoder: TextDecoderOptions
    reasks: int
    on_note: OnNote


class EmulatedModel:
    """A model whose tools are emulated.

    `syntax` names the format of its calls; `inject` is set if it takes no system messages, `images` that it sees images,
    `parallel` that it may write several calls at once. An answer is requested again at most `reasks` times. `stops` has the
    upstream stop a model that makes up results. `thinking` and `calls_end_thinking` are those of `TextParser`.
    """

    def __init__(
        self,
        model: Model,
        *,
        syntax: str = "invoke",
        prompts: TextToolPromptRenderer | None = None,
        inject: bool = True,
        images: bool = False,
        parallel: bool = True,
        reasks: int = 1,
        stops: bool = True,
        thinking: bool = False,
        calls_end_thinking: bool = False,
        on_note: OnNote = ignore_note,
    ) -> None:
        named = syntax_named(syntax)
        writer = ConversationWriter(prompts or TextToolPromptRenderer(), named, inject, images, parallel)
        decoder = TextDecoderOptions(named, thinking=thinking, calls_end_thinking=calls_end_thinking)
        self._options = EmulatedModelParts(model, writer, decoder, reasks, on_note)
        self._stops = stops

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the answer once its first batch has arrived, or all of it if it is not streamed."""
        if is_request_larger(request, LARGE_BODY):
            planned = await asyncio.to_thread(plan, request, self._options.writer, self._stops)  # it may take seconds
        else:
            planned = plan(request, self._options.writer, self._stops)
        if planned is None:
            return ReasoningStream(await self._options.model.ask(request), self._options.decoder)
        answer = EmulatedStream(self._options, planned, await self._options.model.ask(planned.asked))
        return answer if request.stream else await read_whole(answer)


class SystemToUserModel:
    """A model that supports tools but no system messages: they are put before the user's first message."""

    def __init__(self, model: Model, prompts: TextToolPromptRenderer | None = None) -> None:
        self._model = model
        self._prompts = prompts or TextToolPromptRenderer()

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the model's answer; without system messages the request is passed on unchanged."""
        if not system_texts(request.messages):
            return await self._model.ask(request)
        injected = replace(request, messages=inject(request.messages, self._prompts.system_context))
        answer = await self._model.ask(injected)
        for warning in lost_of_system(request.messages):
            answer = with_warning(answer, warning)
        return answer


class EmulatedStream:
    """The answer of a model that only writes text, with its calls as calls; it may take several requests."""

    dialect: str | None = None
    whole = False

    def __init__(self, options: EmulatedModelParts, planned: EmulationPlan, answer: ModelStream) -> None:
        self.upstream = answer.upstream
        # A warning about stop sequences is none of the client's business if only we have set any.
        hide_stops = bool(planned.own_stops) and len(planned.own_stops) == len(planned.asked.settings.stop)
        warnings = [warning for warning in answer.warnings if not (hide_stops and warning.startswith("stop "))]
        self.warnings = (*planned.warnings, *warnings)
        self._options = options
        self._plan = planned
        self._asked = planned.asked
        self._answer = answer
        self._names = ToolNameRestorer(planned.originals) if planned.originals else None
        self._usage = Usage()

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the step's events in batches, a call as soon as it is certain."""
        left, prefix, begun = self._options.reasks, "", False
        while True:
            decoder = TextStreamDecoder(self._plan, self._options.decoder, self._options.on_note, prefix)
            async with aclosing(self._decode(decoder)) as batches:
                async for batch in batches:
                    # Several answers are one step to the client.
                    yield batch if not begun else [event for event in batch if not isinstance(event, StepStart)]
                    begun = True
            self.warnings = (*self.warnings, *decoder.warnings)
            usage = decoder.stop.usage if decoder.stop else None
            if usage is None:  # not reported, or the answer was cancelled behind its last call
                usage = await token_counting_offline.estimate(self._asked, [*decoder.reasoning, Text(decoder.text)])
            self._usage += usage
            problems = decoder.problems()
            if not problems or not left:
                break
            # A model that ignores a required call is asked once more and not again: it will hardly change its mind.
            left = min(left - 1, 0 if not decoder.calls and self._plan.choice.mode == "required" else left)
            # Text that was sent cannot be taken back, so the next answer follows it as another paragraph.
            prefix = _BLANK_LINE if prefix or decoder.text_was_sent else ""
            self._options.on_note(EmulationNote("asked_again", " ".join(problems)))
            self._asked = correction(self._plan, self._options.writer, decoder.text, problems)
            self._answer = await self._options.model.ask(self._asked)
            self.upstream = self._answer.upstream
        yield self._end(decoder, problems, text_was_sent=bool(prefix))

    async def aclose(self) -> None:
        """Close the answer; if it is unfinished, it is cancelled at the upstream."""
        await self._answer.aclose()

    async def _decode(self, decoder: TextStreamDecoder) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events of one answer that need not be held."""
        answer = self._answer
        async with aclosing(answer.events()) as batches:
            async for batch in sliced(batches):
                first = decoder.start is None
                events = decoder.decode(batch)
                if first and decoder.start is not None:
                    events = [decoder.start, *events]
                if events := self._restore_names(events):
                    yield events
                # The rest costs tokens for nothing; of a whole answer it is there already, with the usage at its end.
                if decoder.done and not answer.whole:
                    break
        await answer.aclose()
        if events := self._restore_names(decoder.end()):
            yield events

    def _restore_names(self, events: list[StepEvent]) -> list[StepEvent]:
        return self._names.restore(events) if self._names else events

    def _end(self, decoder: TextStreamDecoder, problems: list[str], text_was_sent: bool) -> list[StepEvent]:
        if problems:
            self._options.on_note(EmulationNote("given_up", " ".join(problems)))
            self.warnings = (*self.warnings, *[f"the model's answer was not as asked: {one}" for one in problems])
        if EMPTY in problems and not text_was_sent:
            raise EmptyModelAnswer("The model gave an empty answer, however often it was asked.")
        rest = self._restore_names(decoder.rest(problems))
        stop = decoder.stop or StepEnd("stop")
        if not rest and problems and not decoder.has_content and not text_was_sent:
            raise EmptyModelAnswer("The model gave an empty answer where a call was required.")
        sequence = stop.stop_sequence
        if sequence in self._plan.own_stops:
            # Without a call there was no result to make up: the line was part of an answer, which is now cut short.
            if not decoder.calls:
                mark = (sequence or "").split("\n")[1]
                self.warnings = (*self.warnings, f"the answer ends where it had a line {mark!r}, like a tool's result")
            sequence = None
        reason = stop.reason
        if reason in ("stop", "tool_calls"):  # the upstream does not know of the calls in the text
            reason = "tool_calls" if decoder.calls else "stop"
        return [*rest, StepEnd(reason, self._usage, sequence, stop.extra)]


class AlreadyReadStream:
    """An answer that has been read to its end."""

    dialect: str | None = None
    whole = True

    def __init__(self, upstream: str, warnings: tuple[str, ...], batches: list[list[StepEvent]]) -> None:
        self.upstream = upstream
        self.warnings = warnings
        self._batches = batches

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the step's events."""
        for batch in self._batches:
            yield batch

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""


async def read_whole(answer: ModelStream) -> ModelStream:
    """Read the answer to its end."""
    try:
        batches = [batch async for batch in answer.events()]
    finally:
        await answer.aclose()
    return AlreadyReadStream(answer.upstream, answer.warnings, batches)
