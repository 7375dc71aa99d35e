"""Read a conversation for the local model: questions, the tool results for each, and the answers.

Calls and results are written as plain text, because the model makes little of them in its own template for tools. Pure.
"""

from collections.abc import Sequence

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    Media,
    Message,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
    content_with_error_prefix,
    plain_text,
)
from toolgate.conversation.result_delimiters import ResultDelimiterGenerator, wrap_result
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


class LocalQuestionTurn(Struct, frozen=True):
    """A question, the tools used for it, and the answer so far."""

    question: str
    used: tuple[LocalHistoryToolCall, ...] = ()
    answer: str = ""


class LocalHistory(Struct, frozen=True):
    """A whole conversation; the last turn is the one to answer."""

    system: str
    turns: tuple[LocalQuestionTurn, ...]
    warnings: tuple[str, ...] = ()

    @property
    def last(self) -> LocalQuestionTurn:
        """The turn to answer."""
        return self.turns[-1]


def read(messages: Sequence[Message], secret: bytes) -> LocalHistory:
    """Return the conversation in turns; InvalidRequest if the newest question has unsupported parts.

    Results stand between marks made of `secret`.
    """
    # Media in the question itself would change the answer, so that they are refused; earlier ones are left out.
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
    return LocalHistory(
        system, _turns(messages, ResultDelimiterGenerator(secret)), (*warnings, *unread_parts(messages))
    )


def _turns(messages: Sequence[Message], marks: ResultDelimiterGenerator) -> tuple[LocalQuestionTurn, ...]:
    results = {part.call_id: part for message in messages for part in message.parts if isinstance(part, ToolResult)}
    turns: list[LocalQuestionTurn] = []
    fresh = True
    for message in messages:
        marks.add(message)
        match message.role:
            case "user":
                text = plain_text(message.parts)
                if turns and fresh:  # two messages in a row are one question
                    turns[-1] = LocalQuestionTurn(f"{turns[-1].question}\n\n{text}")
                else:
                    turns.append(LocalQuestionTurn(text))
                fresh = True
            case "assistant":
                turn = turns.pop() if turns else LocalQuestionTurn("")
                turns.append(_answered(turn, message.parts, results, marks))
                fresh = False
    return tuple(turns) or (LocalQuestionTurn(""),)


def _answered(
    turn: LocalQuestionTurn, parts: Sequence[Part], results: dict[str, ToolResult], marks: ResultDelimiterGenerator
) -> LocalQuestionTurn:
    used, answer = list(turn.used), turn.answer
    for part in parts:
        match part:
            case Text(text) | RefusalPart(text):
                answer += text
            case ToolCall(name=name, arguments=arguments):
                text, failed, result = "There is no result.", True, results.get(part.id)
                if result is not None:
                    pieces = content_with_error_prefix(result)
                    text = "".join([one.text if isinstance(one, Text) else f"[{one.kind}]" for one in pieces])
                    failed = bool(result.is_error)
                mark = marks.mark([text] if result is not None else ())
                used.append(LocalHistoryToolCall(name, arguments, text, mark, failed))
            case Reasoning() | _:
                pass  # thoughts of other models would only mislead a small one
    return LocalQuestionTurn(turn.question, tuple(used), answer)
