"""What is written down of a run, step by step, and what an attempt that comes later makes of it.

A step is finished once it is written. Whatever happened between the last finished step and the end of the process is not
known: the model is asked again, harmless calls are run again, and a call that may have done harm is not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.engine.rounds import Past


class Answered(Struct, frozen=True, tag=True):
    """The model has answered with calls; `told` is how many frames the client could have heard by then."""

    message: Message
    usage: Usage | None = None
    told: int = 0


class Intended(Struct, frozen=True, tag=True):
    """A call that may do harm was about to start: from here on nobody knows whether it has."""

    call: str


class Again(Struct, frozen=True, tag=True):
    """A person wants a call of unknown outcome to be run again."""

    call: str


class Ended(Struct, frozen=True, tag=True):
    """A call has given this."""

    result: ToolResult


Step: TypeAlias = Answered | Intended | Again | Ended

_step = msgspec.json.Decoder(Step)


class Steps(Protocol):
    """The steps of one run, in the hands of the attempt that runs it."""

    @property
    def recorded(self) -> Sequence[str]:
        """What earlier attempts wrote, in their order."""

    async def keep(self, name: str, value: str) -> None:
        """Write a step; once this returns it survives a crash. Raises LeaseLost if the run is another's by now."""


def write(step: Step) -> str:
    """The step as text."""
    return msgspec.json.encode(step).decode()


def read(recorded: Iterable[str]) -> list[Step]:
    """The steps that were written; an empty text is the place of one that was not."""
    return [_step.decode(text) for text in recorded if text]


def told(steps: Iterable[Step]) -> int:
    """How many frames tell of finished steps alone; those behind them may tell of what never happened."""
    return max([step.told for step in steps if isinstance(step, Answered)], default=0)


def past(steps: Iterable[Step]) -> Past:
    """The conversation so far, and the calls that have begun without an end."""
    messages: list[Message] = []
    results: dict[str, ToolResult] = {}
    started: set[str] = set()
    usage: Usage | None = None
    for step in steps:
        match step:
            case Answered(message, used):
                messages += _in_order(messages, results)
                messages.append(message)
                results = {}
                usage = usage + used if usage and used else usage or used
            case Intended(call):
                started.add(call)
            case Again(call):
                started.discard(call)
            case Ended(result):
                results[result.call_id] = result
                started.discard(result.call_id)
    return Past((*messages, *_in_order(messages, results)), frozenset(started), usage=usage)


def _in_order(messages: Sequence[Message], results: Mapping[str, ToolResult]) -> list[Message]:
    """The results of the last answer's calls, in the order of the calls and not of their ends."""
    calls = [part.id for part in messages[-1].parts if isinstance(part, ToolCall)] if messages else []
    return [Message("tool", (results[id],)) for id in [*calls, *(results.keys() - set(calls))] if id in results]
