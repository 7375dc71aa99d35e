"""A stateless history as a peer knows it: turns of two speakers, ending in something new that the user side says.

Two histories are the same to us when their digests are: however their text is cut into parts and messages, whatever their
line ends, blanks at line ends and Unicode composition, in whatever order a call's arguments stand. What the model said is
compared without any blanks: clients trim it, and calls that it wrote are written anew on their way back. Pure.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import settle
from toolgate.conversation.likeness import arguments_text, dense, tidy
from toolgate.conversation.message import Media, Message, Part, Refusal, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.wire.jsontext import encode

Speaker: TypeAlias = Literal["user", "assistant"]
Retell: TypeAlias = Callable[[str], str]

_GAP = "\n\n"
_EXPLANATION = "This is our conversation so far. Go on from where it ends."


class Turn(Struct, frozen=True):
    """What one speaker said before the other did."""

    speaker: Speaker
    text: str


class Reading(Struct, frozen=True):
    """A history taken apart: `said` ends with the model's last word, `new` is what follows it."""

    system: str
    said: tuple[Turn, ...]
    new: str
    warnings: tuple[str, ...] = ()

    @property
    def opening(self) -> str:
        """The first message of a new conversation: all that the model must know, then what is new."""
        blocks = [_system_block(self), _transcript(self), self.new]
        return _GAP.join([block for block in blocks if block])

    def digest(self, retell: Retell) -> str:
        """The digest of what a peer's conversation holds that this history continues."""
        return _digest(self.system, self.said, retell)

    def digest_after(self, answer: str, retell: Retell) -> str:
        """The digest of what it will hold when the model has answered."""
        turns = (*self.said, Turn("user", self.new), Turn("assistant", answer))
        return _digest(self.system, turns, retell)


def read(request: ModelRequest) -> Reading:
    """Take the history apart; InvalidRequest when the peer could not be told what is new in it."""
    settled = settle(request, lenient=True)
    messages = [message for message in settled.messages if message.role != "system"]
    if not messages or messages[-1].role == "assistant":
        raise InvalidRequest(
            "The last message must be the user's or a tool's: this model's upstream keeps the conversation itself "
            "and cannot continue an answer.",
            param="messages",
        )
    _refuse_new_media(messages)
    system = _GAP.join([text for message in settled.messages if message.role == "system" if (text := _text(message))])
    turns = _turns(messages)
    warnings = (*settled.warnings[len(request.warnings) :], *_left_out(messages))
    return Reading(system, turns[:-1], turns[-1].text, warnings)


def _turns(messages: Iterable[Message]) -> tuple[Turn, ...]:
    """Neighbours of one speaker are one turn; a tool speaks on the user's side."""
    turns: list[tuple[Speaker, list[str]]] = []
    for message in messages:
        speaker: Speaker = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1][0] != speaker:
            turns.append((speaker, []))
        if text := _text(message):
            turns[-1][1].append(text)
    return tuple([Turn(speaker, _GAP.join(texts)) for speaker, texts in turns])


def _text(message: Message) -> str:
    """All that a message says; neighbouring texts are one, as their client wrote them."""
    pieces: list[str] = []
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            texts.append(part.text)
        elif spoken := _spoken(part):
            pieces += ["".join(texts), spoken]
            texts = []
    return _GAP.join([piece for piece in (*pieces, "".join(texts)) if piece])


def _spoken(part: Part) -> str:
    match part:
        case ToolCall(name=name):
            return f"Tool Call: {name}({arguments_text(part)})"
        case ToolResult(content=content, is_error=is_error, name=name):
            outcome = "ERROR" if is_error else "SUCCESS"
            told = "".join([one.text if isinstance(one, Text) else _placeholder(one) for one in content])
            return f"Tool Call: {name or 'tool'}\nResult [{outcome}]\n{told}"
        case Media():
            return _placeholder(part)
        case _:
            return ""


def _placeholder(media: Media) -> str:
    return f"[{media.kind}{': ' + media.name if media.name else ''}]"


def _refuse_new_media(messages: Sequence[Message]) -> None:
    for message in reversed(messages):
        if message.role == "assistant":
            return
        for part in message.parts:
            if isinstance(part, Media):
                told = f"This model's upstream takes text only: the {part.kind} cannot be sent to it."
                raise InvalidRequest(told, param="messages", code="unsupported_content")


def _left_out(messages: Iterable[Message]) -> Iterator[str]:
    """What of earlier turns and results the peer is told by name alone."""
    parts = [part for message in messages for part in message.parts]
    shown = [*parts, *[one for part in parts if isinstance(part, ToolResult) for one in part.content]]
    for kind in sorted({part.kind for part in shown if isinstance(part, Media)}):
        yield f"{kind} content was left out: the model's upstream takes text only"


def _system_block(reading: Reading) -> str:
    if not reading.system:
        return ""
    tag = _free_tag("system_context", reading)
    return f"<{tag}>\n{reading.system}\n</{tag}>"


def _transcript(reading: Reading) -> str:
    """All turns so far, in tags that occur in none of them."""
    if not reading.said:
        return ""
    outer, inner = _free_tag("conversation_so_far", reading), _free_tag("turn", reading)
    turns = [f'<{inner} speaker="{turn.speaker}">\n{turn.text}\n</{inner}>' for turn in reading.said]
    return "\n".join([f"<{outer}>", _EXPLANATION, *turns, f"</{outer}>"])


def _free_tag(tag: str, reading: Reading) -> str:
    """The tag, or if somebody has written it, one that nobody can have: it depends on all that was written."""
    texts = [reading.system, reading.new, *[turn.text for turn in reading.said]]
    if not any(f"<{tag}" in text or f"</{tag}" in text for text in texts):
        return tag
    return f"{tag}_{hashlib.sha256(encode(texts)).hexdigest()[:16]}"


def _digest(system: str, turns: Sequence[Turn], retell: Retell) -> str:
    compared = [[turn.speaker, _compared(turn, retell)] for turn in turns]
    return hashlib.sha256(encode([tidy(system), compared])).hexdigest()


def _compared(turn: Turn, retell: Retell) -> str:
    if turn.speaker == "user":
        return tidy(turn.text)
    return dense(retell(turn.text))
