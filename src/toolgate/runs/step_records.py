"""Define the steps of a run, and rebuild its history from those that are stored.

A step is finished once it is written. What happened between the last finished step and the end of the process is not
known: the model is asked again, harmless calls are run again, and a call that may have done harm is not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.engine.tool_loop import EarlierAttempts


class ModelAnswerStep(Struct, frozen=True, tag="Answered"):
    """The model has answered with calls; `frames` is how many frames the client could have received by then.

    `by_model` is the usage of the run up to here, failed requests included, by the models that were asked: each has its
    price. Steps of earlier versions do not have it.
    """

    message: Message
    usage: Usage | None = None
    frames: int = msgspec.field(default=0, name="told")
    by_model: dict[str, Usage] = {}


class CallStartedStep(Struct, frozen=True, tag="Intended"):
    """A call that may do harm was about to start: without a later step it is not known whether it did."""

    call: str


class CallRerunApprovedStep(Struct, frozen=True, tag="Again"):
    """A person wants a call of unknown outcome to be run again."""

    call: str


class CallFinishedStep(Struct, frozen=True, tag="Ended"):
    """A call has ended with this result."""

    result: ToolResult


Step: TypeAlias = ModelAnswerStep | CallStartedStep | CallRerunApprovedStep | CallFinishedStep

_decoder = msgspec.json.Decoder(Step)


class DurableStepLog(Protocol):
    """The steps of one run, as the attempt that makes it reads and writes them."""

    @property
    def recorded(self) -> Sequence[str]:
        """The steps that earlier attempts wrote, in their order."""

    async def keep(self, name: str, value: str) -> None:
        """Write a step, which survives a crash once this returns; RunLeaseLost if another node has the run by now."""


def encode_step(step: Step) -> str:
    """Return the step as it is stored."""
    return msgspec.json.encode(step).decode()


def decode_steps(recorded: Iterable[str]) -> list[Step]:
    """Return stored steps; an empty text is the place of one that was not written."""
    return [_decoder.decode(text) for text in recorded if text]


def finished_frames(steps: Iterable[Step]) -> int:
    """Return how many frames belong to finished steps; later ones may show what never happened."""
    return max([step.frames for step in steps if isinstance(step, ModelAnswerStep)], default=0)


def history_of(steps: Iterable[Step]) -> EarlierAttempts:
    """Return the messages of the run so far, and the calls that were started and have not ended."""
    messages: list[Message] = []
    results: dict[str, ToolResult] = {}
    started: set[str] = set()
    usage: Usage | None = None
    by_model: dict[str, Usage] = {}
    for step in steps:
        match step:
            case ModelAnswerStep(message, used, by_model=asked):
                messages += _in_order(messages, results)
                messages.append(message)
                results = {}
                usage = usage + used if usage and used else usage or used
                by_model = asked or by_model
            case CallStartedStep(call):
                started.add(call)
            case CallRerunApprovedStep(call):
                started.discard(call)
            case CallFinishedStep(result):
                results[result.call_id] = result
                started.discard(result.call_id)
    if not by_model and usage is not None:  # steps of an earlier version name no models
        by_model = {"": usage}
    added = (*messages, *_in_order(messages, results))
    return EarlierAttempts(added, frozenset(started), usage=usage, by_model=by_model)


def _in_order(messages: Sequence[Message], results: Mapping[str, ToolResult]) -> list[Message]:
    """Return the results of the last answer's calls in the order of the calls, not of their ends."""
    calls = [part.id for part in messages[-1].parts if isinstance(part, ToolCall)] if messages else []
    return [Message("tool", (results[id],)) for id in [*calls, *(results.keys() - set(calls))] if id in results]
