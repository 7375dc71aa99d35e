"""Decode the bytes that were sent to a client, with the upstream codec of the client's own dialect, to store them. Pure.

Whichever model answered, and whether its answer was translated or relayed, what is stored is what the client received.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.api.records.message_rows import StoredMessageMetadata, message_rows
from toolgate.conversation.call_ids import original_id
from toolgate.conversation.events import ModelResponse, StepEvent
from toolgate.conversation.fold import fold
from toolgate.conversation.history_digest import HistoryDigest
from toolgate.conversation.message import Message, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Dialect
from toolgate.storage.recorded_chats import ChatContinuationCandidate, StoredMessage
from toolgate.wire.jsontext import decode_body

# How many assistant messages, counted from the end, a request may have continued a stored chat after: a client may edit
# or repeat its last turns.
_HEADS = 16


def decode_whole(dialect: Dialect, request: ModelRequest, chunks: Sequence[bytes]) -> ModelResponse:
    """Decode a whole response."""
    return _with_original_ids(dialect.upstream.decode_response(decode_body(b"".join(chunks)), request))


def decode_stream(dialect: Dialect, request: ModelRequest, chunks: Sequence[bytes]) -> ModelResponse:
    """Decode the chunks of a stream; InvalidUpstreamAnswer if it was cut short."""
    frames, decoder = dialect.frame_decoder(), dialect.upstream.decoder(request)
    events: list[StepEvent] = []
    for chunk in chunks:
        for frame in frames.feed(chunk):
            events += decoder.feed(frame)
    events += decoder.end()
    return _with_original_ids(fold(events))


def _with_original_ids(response: ModelResponse) -> ModelResponse:
    """Restore the call ids that the client received: decoding makes others, which are safe to send to any upstream."""
    parts = [replace(part, id=original_id(part.id)) if isinstance(part, ToolCall) else part for part in response.parts]
    return replace(response, parts=tuple(parts))


class ChatRowsToStore(Struct, frozen=True):
    """A request's messages as rows, the points at which it may continue a stored chat, and the digests with the answer."""

    rows: tuple[StoredMessage, ...]
    heads: tuple[ChatContinuationCandidate, ...]
    digest: str
    system_digest: str


def record_history(messages: Sequence[Message], answer: Message, about: StoredMessageMetadata) -> ChatRowsToStore:
    """Turn a request's messages and its answer into rows and digests."""
    digest, system = HistoryDigest(), HistoryDigest()
    groups = [message_rows([message], about) for message in messages]
    points: list[tuple[int, str, str]] = []
    for place, message in enumerate(messages):
        digest.update(message)
        # `HistoryDigest` leaves out system messages, which clients change between turns: they have a digest of their own.
        if message.role == "system":
            system.update(replace(message, role="user"))
        elif message.role == "assistant":
            points.append((place, digest.digest(), system.digest()))
    digest.update(answer)
    heads = []
    for place, until_here, system_until_here in reversed(points[-_HEADS:]):
        instructions = [groups[at] for at in range(place + 1) if messages[at].role == "system"]
        heads.append(
            ChatContinuationCandidate(until_here, system_until_here, _flat(instructions), _flat(groups[place + 1 :]))
        )
    return ChatRowsToStore(_flat(groups), tuple(heads), digest.digest(), system.digest())


def _flat(groups: Sequence[list[StoredMessage]]) -> tuple[StoredMessage, ...]:
    return tuple([row for group in groups for row in group])
