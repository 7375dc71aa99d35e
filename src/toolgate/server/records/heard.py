"""What a client was told, read back from the bytes that went out by the upstream half of the client's own dialect.

So whatever answered, and whether it was translated or passed on, what is kept is what the client saw. Pure.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.events import ModelResponse, StepEvent
from toolgate.conversation.fold import fold
from toolgate.conversation.ids import original
from toolgate.conversation.likeness import Prefix
from toolgate.conversation.message import Message, Part, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Dialect
from toolgate.server.records.rows import About, rows
from toolgate.storage.chats import Head, StoredMessage
from toolgate.wire.jsontext import decode_body

_HEADS = 16
"""Answers, counted from the end, behind which a chat may have been left."""


def read_whole(dialect: Dialect, request: ModelRequest, pieces: Sequence[bytes]) -> ModelResponse:
    """The answer that a body in these pieces tells."""
    return _as_told(dialect.upstream.decode_response(decode_body(b"".join(pieces)), request))


def read_stream(dialect: Dialect, request: ModelRequest, pieces: Sequence[bytes]) -> ModelResponse:
    """The answer that these pieces of a stream tell; Garbled if it was cut short."""
    frames, decoder = dialect.frame_decoder(), dialect.upstream.decoder(request)
    events: list[StepEvent] = []
    for piece in pieces:
        for frame in frames.feed(piece):
            events += decoder.feed(frame)
    events += decoder.end()
    return _as_told(fold(events))


def _as_told(response: ModelResponse) -> ModelResponse:
    """Call ids as the client knows them: reading an answer makes ids that can be passed on, and ours can be already."""
    return replace(response, parts=tuple([_named(part) for part in response.parts]))


def _named(part: Part) -> Part:
    return replace(part, id=original(part.id)) if isinstance(part, ToolCall) else part


class History(Struct, frozen=True):
    """A request's messages as rows, where a chat may have been left in them, and the digests of all with the answer."""

    rows: tuple[StoredMessage, ...]
    heads: tuple[Head, ...]
    digest: str
    system_digest: str


def history(messages: Sequence[Message], answer: Message, about: About) -> History:
    """What a request and its answer say."""
    said, system, kept = Prefix(), Prefix(), [rows([message], about) for message in messages]
    points: list[tuple[int, str, str]] = []
    for place, message in enumerate(messages):
        said.hear(message)
        if message.role == "system":
            system.hear(replace(message, role="user"))
        elif message.role == "assistant":
            points.append((place, said.digest(), system.digest()))
    said.hear(answer)
    heads = [
        Head(digest, marks, _flat(_spoken_by_system(messages, kept, place)), _flat(kept[place + 1 :]))
        for place, digest, marks in reversed(points[-_HEADS:])
    ]
    return History(_flat(kept), tuple(heads), said.digest(), system.digest())


def _spoken_by_system(
    messages: Sequence[Message], kept: Sequence[list[StoredMessage]], last: int
) -> list[list[StoredMessage]]:
    return [kept[place] for place in range(last + 1) if messages[place].role == "system"]


def _flat(groups: Sequence[list[StoredMessage]]) -> tuple[StoredMessage, ...]:
    return tuple([row for group in groups for row in group])
