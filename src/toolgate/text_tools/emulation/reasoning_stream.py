"""Emit marked thinking as reasoning, in the answers of a model that only writes text to requests without tools.

Everything else passes unchanged; a text in which the parser changes nothing keeps its log probabilities and extra fields.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
from toolgate.conversation.message import Text
from toolgate.engine.ports import ModelStream
from toolgate.text_tools.emulation.bounded_batches import sliced
from toolgate.text_tools.emulation.stream_decoder import TextDecoderOptions
from toolgate.text_tools.parsing.parser import TextParser


class ReasoningStream:
    """An answer without calls, parsed for reasoning."""

    dialect: str | None = None  # a relay would pass the marks on

    def __init__(self, answer: ModelStream, options: TextDecoderOptions) -> None:
        self.upstream = answer.upstream
        self.whole = answer.whole
        self._answer = answer
        self._options = options
        self._first = True
        self._parser: TextParser | None = None
        self._received_delta = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the answer."""
        return self._answer.warnings

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the step's events in batches."""
        async with aclosing(self._answer.events()) as batches:
            async for batch in sliced(batches):
                if events := self._parse(batch):
                    yield events

    async def aclose(self) -> None:
        """Close the answer; if it is unfinished, it is cancelled at the upstream."""
        await self._answer.aclose()

    def _parse(self, batch: Sequence[StepEvent]) -> list[StepEvent]:
        events: list[StepEvent] = []
        for event in batch:
            match event:
                case PartStart(Text()):
                    self._parser = self._options.parser((), first=self._first, plain=True)
                    self._first = self._received_delta = False
                case PartDelta(text) if self._parser is not None:
                    self._received_delta = True
                    events += self._parser.feed(text)
                case PartEnd(Text() as part) if self._parser is not None:
                    rest = [] if self._received_delta else self._parser.feed(part.text)
                    rest += self._parser.end(cut=False)
                    # Where nothing was taken out, the part itself ends the text, with its log probabilities.
                    unchanged = PartEnd(Text(part.text))
                    events += [PartEnd(part) if event == unchanged else event for event in rest]
                    self._parser = None
                case _:
                    events.append(event)
        return events
