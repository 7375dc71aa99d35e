"""A conversation as the embedded model is told it: questions, what the tools gave for each, and what was answered.

Its own template for tool results serves it badly, so calls and results are told in plain words. Pure.
"""

from collections.abc import Sequence

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    Media,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    plain_text,
    spoken_content,
)

UNSEEN = "{} were left out of the conversation: the embedded model reads text only"


class Used(Struct, frozen=True):
    """A call, and what came of it."""

    name: str
    arguments: str
    result: str
    failed: bool = False

    def told(self) -> str:
        """The same in plain words."""
        outcome = "failed with" if self.failed else "returned"
        return f"The tool {self.name} was called with {self.arguments} and {outcome}:\n{self.result}"


class Turn(Struct, frozen=True):
    """A question, the tools used for it, and the answer so far."""

    question: str
    used: tuple[Used, ...] = ()
    answer: str = ""


class Talk(Struct, frozen=True):
    """A whole conversation; the last turn is the one to answer."""

    system: str
    turns: tuple[Turn, ...]
    warnings: tuple[str, ...] = ()

    @property
    def last(self) -> Turn:
        """The turn to answer."""
        return self.turns[-1]


def read(messages: Sequence[Message]) -> Talk:
    """The conversation in turns; InvalidRequest if the newest question holds what cannot be read."""
    last = max([number for number, message in enumerate(messages) if message.role == "user"], default=-1)
    unseen: set[str] = set()
    for number, message in enumerate(messages):
        kinds = {part.kind for part in message.parts if isinstance(part, Media)}
        if kinds and number == last:
            raise _unreadable(sorted(kinds)[0], number)
        unseen |= kinds | {kind for part in message.parts for kind in _kinds_within(part)}
    system = "\n\n".join([plain_text(message.parts) for message in messages if message.role == "system"])
    warnings = tuple([UNSEEN.format(f"parts of kind {kind}") for kind in sorted(unseen)])
    return Talk(system, _turns(messages), warnings)


def _unreadable(kind: str, number: int) -> InvalidRequest:
    message = f"The embedded model reads text only, and messages[{number}] holds a part of kind {kind}."
    return InvalidRequest(message, param=f"messages[{number}].content", code="unsupported_content")


def _kinds_within(part: Part) -> set[str]:
    return {one.kind for one in part.content if isinstance(one, Media)} if isinstance(part, ToolResult) else set()


def _turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    results = {part.call_id: part for message in messages for part in message.parts if isinstance(part, ToolResult)}
    turns: list[Turn] = []
    fresh = True
    for message in messages:
        match message.role:
            case "user":
                text = plain_text(message.parts)
                if turns and fresh:  # two messages in a row are one question
                    turns[-1] = Turn(f"{turns[-1].question}\n\n{text}")
                else:
                    turns.append(Turn(text))
                fresh = True
            case "assistant":
                turn = turns.pop() if turns else Turn("")
                turns.append(_answered(turn, message.parts, results))
                fresh = False
    return tuple(turns) or (Turn(""),)


def _answered(turn: Turn, parts: Sequence[Part], results: dict[str, ToolResult]) -> Turn:
    used, answer = list(turn.used), turn.answer
    for part in parts:
        match part:
            case Text(text) | Refusal(text):
                answer += text
            case ToolCall():
                used.append(_used(part, results.get(part.id)))
            case Reasoning() | _:
                pass  # thoughts of other models would only mislead a small one
    return Turn(turn.question, tuple(used), answer)


def _used(call: ToolCall, result: ToolResult | None) -> Used:
    if result is None:
        return Used(call.name, call.arguments, "There is no result.", failed=True)
    said = "".join([part.text if isinstance(part, Text) else f"[{part.kind}]" for part in spoken_content(result)])
    return Used(call.name, call.arguments, said, bool(result.is_error))
