"""Read a conversation for the local model: questions, the tool results for each, and the answers.

Calls and results are written as plain text, because the model makes little of them in its own template for tools. Pure.
"""

from collections.abc import Sequence

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    Media,
    Message,
    ModelRefusal,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    content_with_error_prefix,
    plain_text,
)
from toolgate.conversation.result_delimiters import ResultDelimiters, wrap_result
from toolgate.upstreams.foreign_field_warnings import unread_parts

UNSEEN = "{} were left out of the conversation: the embedded model reads text only"


class LocalHistoryToolCall(Struct, frozen=True):
    """A call and its result; `mark` is a word that the result cannot know."""

    name: str
    arguments: str
    result: str
    mark: str
    failed: bool = False

    def render(self) -> str:
        """The call and result as plain text."""
        outcome = "failed with" if self.failed else "returned"
        result = wrap_result(self.result, self.mark)
        return f"The tool {self.name} was called with {self.arguments} and {outcome}:\n{result}"


class LocalHistoryTurn(Struct, frozen=True):
    """A question, the tools used for it, and the answer so far."""

    question: str
    used: tuple[LocalHistoryToolCall, ...] = ()
    answer: str = ""


class LocalHistory(Struct, frozen=True):
    """A whole conversation; the last turn is the one to answer."""

    system: str
    turns: tuple[LocalHistoryTurn, ...]
    warnings: tuple[str, ...] = ()

    @property
    def last(self) -> LocalHistoryTurn:
        """The turn to answer."""
        return self.turns[-1]


def read(messages: Sequence[Message], secret: bytes) -> LocalHistory:
    """Return the conversation in turns; InvalidRequest if the newest question has unsupported parts.

    Results stand between marks made of `secret`.
    """
    last = max([number for number, message in enumerate(messages) if message.role == "user"], default=-1)
    unseen: set[str] = set()
    for number, message in enumerate(messages):
        kinds = {part.kind for part in message.parts if isinstance(part, Media)}
        if kinds and number == last:
            text = f"The embedded model reads text only, and messages[{number}] holds a part of kind {min(kinds)}."
            raise InvalidRequest(text, param=f"messages[{number}].content", code="unsupported_content")
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        unseen |= kinds | {one.kind for result in results for one in result.content if isinstance(one, Media)}
    system = "\n\n".join([plain_text(message.parts) for message in messages if message.role == "system"])
    warnings = [UNSEEN.format(f"parts of kind {kind}") for kind in sorted(unseen)]
    return LocalHistory(system, _turns(messages, ResultDelimiters(secret)), (*warnings, *unread_parts(messages)))


def _turns(messages: Sequence[Message], marks: ResultDelimiters) -> tuple[LocalHistoryTurn, ...]:
    results = {part.call_id: part for message in messages for part in message.parts if isinstance(part, ToolResult)}
    turns: list[LocalHistoryTurn] = []
    fresh = True
    for message in messages:
        marks.add(message)
        match message.role:
            case "user":
                text = plain_text(message.parts)
                if turns and fresh:  # two messages in a row are one question
                    turns[-1] = LocalHistoryTurn(f"{turns[-1].question}\n\n{text}")
                else:
                    turns.append(LocalHistoryTurn(text))
                fresh = True
            case "assistant":
                turn = turns.pop() if turns else LocalHistoryTurn("")
                turns.append(_answered(turn, message.parts, results, marks))
                fresh = False
    return tuple(turns) or (LocalHistoryTurn(""),)


def _answered(
    turn: LocalHistoryTurn, parts: Sequence[Part], results: dict[str, ToolResult], marks: ResultDelimiters
) -> LocalHistoryTurn:
    used, answer = list(turn.used), turn.answer
    for part in parts:
        match part:
            case Text(text) | ModelRefusal(text):
                answer += text
            case ToolCall():
                used.append(_used(part, results.get(part.id), marks))
            case Reasoning() | _:
                pass  # thoughts of other models would only mislead a small one
    return LocalHistoryTurn(turn.question, tuple(used), answer)


def _used(call: ToolCall, result: ToolResult | None, marks: ResultDelimiters) -> LocalHistoryToolCall:
    if result is None:
        return LocalHistoryToolCall(call.name, call.arguments, "There is no result.", marks.mark(()), failed=True)
    text = "".join(
        [part.text if isinstance(part, Text) else f"[{part.kind}]" for part in content_with_error_prefix(result)]
    )
    return LocalHistoryToolCall(call.name, call.arguments, text, marks.mark([text]), bool(result.is_error))
