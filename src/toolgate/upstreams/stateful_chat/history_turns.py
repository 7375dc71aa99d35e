"""Read a stateless history as turns of two speakers that end in a new message of the user.

Histories with the same digest count as the same conversation. The digest ignores how text is split into parts and messages,
line ends, blanks at line ends, Unicode composition and the order of a call's arguments. Text of the model is compared
without any blanks, because clients trim it and calls in it are written anew when they are sent back. Pure.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import match_results
from toolgate.conversation.history_digest import canonical_arguments, normalize_text, remove_whitespace
from toolgate.conversation.message import Media, Message, RefusalPart, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.result_delimiters import ResultDelimiterGenerator, new_secret, wrap_result
from toolgate.upstreams.foreign_field_warnings import unread_parts
from toolgate.wire.jsontext import encode

Speaker: TypeAlias = Literal["user", "assistant"]
Replay: TypeAlias = Callable[[str], str]

_GAP = "\n\n"
_EXPLANATION = "This is our conversation so far. Go on from where it ends."


class StatefulChatHistoryTurn(Struct, frozen=True):
    """The texts of one speaker in a row: `text` as it is sent to the peer, `compared` without marks of results."""

    speaker: Speaker
    text: str
    compared: str


class HistoryForStatefulChat(Struct, frozen=True):
    """A history: `earlier` turns end with the model's last one, `last` is the turn that follows."""

    system: str
    earlier: tuple[StatefulChatHistoryTurn, ...]
    last: StatefulChatHistoryTurn
    warnings: tuple[str, ...] = ()

    @property
    def new(self) -> str:
        """The message that continues a conversation."""
        return self.last.text

    @property
    def opening(self) -> str:
        """The first message of a new conversation: system prompt, earlier turns, and the new message."""
        blocks: list[str] = []
        if self.system:
            tag = _free_tag("system_context", self)
            blocks.append(f"<{tag}>\n{self.system}\n</{tag}>")
        if self.earlier:
            outer, inner = _free_tag("conversation_so_far", self), _free_tag("turn", self)
            turns = [f'<{inner} speaker="{turn.speaker}">\n{turn.text}\n</{inner}>' for turn in self.earlier]
            blocks.append("\n".join([f"<{outer}>", _EXPLANATION, *turns, f"</{outer}>"]))
        return _GAP.join([*blocks, self.new] if self.new else blocks)

    def digest(self, replay: Replay) -> str:
        """Return the digest of the conversation that this history continues."""
        return _digest(self.system, self.earlier, replay)

    def digest_after(self, answer: str, replay: Replay) -> str:
        """Return the digest of the conversation after this answer."""
        turns = (*self.earlier, self.last, StatefulChatHistoryTurn("assistant", answer, answer))
        return _digest(self.system, turns, replay)


def read_history(request: ModelRequest, secret: bytes | None = None) -> HistoryForStatefulChat:
    """Read the history of a request; InvalidRequest when its new message cannot be sent to a peer.

    Results stand between marks made of `secret`. The digests leave the marks out, so a conversation goes on whatever the
    secret was when it began.
    """
    settled = match_results(request, lenient=True)
    messages = [message for message in settled.messages if message.role != "system"]
    if not messages or messages[-1].role == "assistant":
        raise InvalidRequest(
            "The last message must be the user's or a tool's: this model's upstream keeps the conversation itself "
            "and cannot continue an answer.",
            param="messages",
        )
    # Media of the new turn are what the question is about, so that they are refused; earlier ones become placeholders.
    for message in takewhile(lambda one: one.role != "assistant", reversed(messages)):
        for part in message.parts:
            if isinstance(part, Media):
                text = f"This model's upstream takes text only: the {part.kind} cannot be sent to it."
                raise InvalidRequest(text, param="messages", code="unsupported_content")
    system = _GAP.join([text for message in settled.messages if message.role == "system" if (text := _text(message))])
    turns = _turns(messages, ResultDelimiterGenerator(secret or new_secret()))
    parts = [part for message in settled.messages for part in message.parts]
    shown = [*parts, *[one for part in parts if isinstance(part, ToolResult) for one in part.content]]
    kinds = sorted({part.kind for part in shown if isinstance(part, Media)})
    warnings = (
        *settled.warnings[len(request.warnings) :],  # those of the request itself reach the client anyway
        *[f"{kind} content was left out: the model's upstream takes text only" for kind in kinds],
        *unread_parts(settled.messages),
    )
    return HistoryForStatefulChat(system, turns[:-1], turns[-1], warnings)


def _turns(messages: Iterable[Message], marks: ResultDelimiterGenerator) -> tuple[StatefulChatHistoryTurn, ...]:
    """Join neighbouring messages of one speaker to a turn; tool results are the user's."""
    turns: list[tuple[Speaker, list[str], list[str]]] = []
    for message in messages:
        speaker: Speaker = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1][0] != speaker:
            turns.append((speaker, [], []))
        marks.add(message)
        if text := _text(message):
            # A result of a tool may contain anything, also text that looks like a turn: the mark shows where it ends.
            turns[-1][1].append(_text(message, marks.mark([text])) if message.role == "tool" else text)
            turns[-1][2].append(text)
    return tuple(
        [StatefulChatHistoryTurn(speaker, _GAP.join(texts), _GAP.join(compared)) for speaker, texts, compared in turns]
    )


def _text(message: Message, mark: str = "") -> str:
    """Return a message as text, results between marks; neighbouring texts are joined as the client wrote them."""
    pieces: list[str] = []
    texts: list[str] = []
    for part in message.parts:
        match part:
            case Text(text) | RefusalPart(text):
                texts.append(text)
                continue
            case ToolCall(name=name):
                piece = f"Tool Call: {name}({canonical_arguments(part)})"
            case ToolResult(content=content, is_error=is_error, name=name):
                outcome = "ERROR" if is_error else "SUCCESS"
                text = "".join([one.text if isinstance(one, Text) else _placeholder(one) for one in content])
                piece = f"Tool Call: {name or 'tool'}\nResult [{outcome}]\n{wrap_result(text, mark) if mark else text}"
            case Media():
                piece = _placeholder(part)
            case _:
                continue
        pieces += ["".join(texts), piece]
        texts = []
    return _GAP.join([piece for piece in (*pieces, "".join(texts)) if piece])


def _placeholder(media: Media) -> str:
    return f"[{media.kind}{': ' + media.name if media.name else ''}]"


def _free_tag(tag: str, history: HistoryForStatefulChat) -> str:
    """Return the tag, or if a text contains it, one that depends on all texts: no text can close it by itself."""
    texts = [history.system, history.new, *[turn.text for turn in history.earlier]]
    if not any(f"<{tag}" in text or f"</{tag}" in text for text in texts):
        return tag
    return f"{tag}_{hashlib.sha256(encode(texts)).hexdigest()[:16]}"


def _digest(system: str, turns: Sequence[StatefulChatHistoryTurn], replay: Replay) -> str:
    compared: list[tuple[Speaker, str]] = []
    for turn in turns:
        is_user = turn.speaker == "user"
        text = normalize_text(turn.compared) if is_user else remove_whitespace(replay(turn.compared))
        compared.append((turn.speaker, text))
    return hashlib.sha256(encode([normalize_text(system), compared])).hexdigest()
