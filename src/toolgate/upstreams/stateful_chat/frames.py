"""Encode and decode the frames of a peer connection: JSON objects with a `type`. Knows no socket.

Frames of unknown types are ignored, because a peer may be newer than this server. A frame that is no JSON object, or that
has a known type and a wrong field, violates the protocol.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.wire.fields import MAX_TOKENS
from toolgate.wire.jsontext import encode, excerpt

PROTOCOL = 1
# Close codes of a peer, after HTTP's 426 and 401: RFC 6455 leaves 4000 to 4999 to applications.
ANOTHER_PROTOCOL = 4426
BAD_TOKEN = 4401


class _Frame(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Any frame."""


class StatefulChatHelloFrame(_Frame, frozen=True, tag="hello"):
    """The first frame that we send."""

    protocol: int
    client: str


class StatefulChatWelcomeFrame(_Frame, frozen=True, tag="welcome"):
    """The peer's first frame; `max_frame` is the longest frame that it accepts, in bytes."""

    protocol: int
    peer: str = ""
    max_frame: int | None = None


class CreateStatefulChatConversationFrame(_Frame, frozen=True, tag="create_conversation"):
    """Request a new conversation, with that model where the peer has several."""

    id: str
    model: str


class StatefulChatConversationCreated(_Frame, frozen=True, tag="conversation_created"):
    """The peer created a conversation, under this id."""

    id: str
    conversation: Annotated[str, Meta(min_length=1, max_length=512)]


class StatefulChatUserMessageFrame(_Frame, frozen=True, tag="send_message"):
    """The user's next message in a conversation."""

    id: str
    conversation: str
    text: str


class StatefulChatTextDeltaFrame(_Frame, frozen=True, tag="delta"):
    """More text of the answer."""

    id: str
    text: str


class StatefulChatTokenUsage(Struct, frozen=True):
    """The tokens of an answer."""

    input: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    output: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class StatefulChatAnswerDoneFrame(_Frame, frozen=True, tag="done"):
    """The answer is complete."""

    id: str
    usage: StatefulChatTokenUsage | None = None
    reason: Literal["stop", "length", "content_filter"] = "stop"


class StatefulChatErrorFrame(_Frame, frozen=True, tag="error"):
    """A request failed; without an id the whole connection did."""

    code: str
    message: str = ""
    id: str | None = None
    retry_after: float | None = None


class StatefulChatCancelAnswerFrame(_Frame, frozen=True, tag="cancel"):
    """The reader has left."""

    id: str


class StatefulChatPingFrame(_Frame, frozen=True, tag="ping"):
    """Check whether the other side is alive."""


class StatefulChatPongFrame(_Frame, frozen=True, tag="pong"):
    """Reply to a ping."""


SentFrame: TypeAlias = (
    StatefulChatHelloFrame
    | CreateStatefulChatConversationFrame
    | StatefulChatUserMessageFrame
    | StatefulChatCancelAnswerFrame
    | StatefulChatPingFrame
    | StatefulChatPongFrame
)
ReceivedFrame: TypeAlias = (
    StatefulChatWelcomeFrame
    | StatefulChatConversationCreated
    | StatefulChatTextDeltaFrame
    | StatefulChatAnswerDoneFrame
    | StatefulChatErrorFrame
    | StatefulChatPingFrame
    | StatefulChatPongFrame
)


# Decoded first and alone: the decoder of all frames would refuse a type that it does not know.
class _Kind(Struct, frozen=True):
    type: str


_kind = msgspec.json.Decoder(_Kind)
_decoder = msgspec.json.Decoder(ReceivedFrame)
_KNOWN = {
    kind.__struct_config__.tag
    for kind in (
        StatefulChatWelcomeFrame,
        StatefulChatConversationCreated,
        StatefulChatTextDeltaFrame,
        StatefulChatAnswerDoneFrame,
        StatefulChatErrorFrame,
        StatefulChatPingFrame,
        StatefulChatPongFrame,
    )
}


def encode_frame(frame: SentFrame) -> str:
    """Encode a frame."""
    return encode(frame).decode()


def decode_frame(text: str) -> ReceivedFrame | None:
    """Decode a frame; None for an unknown type, InvalidUpstreamAnswer for anything else."""
    try:
        return _decoder.decode(text) if _kind.decode(text).type in _KNOWN else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        shown = excerpt(text[:200].encode("utf-8", "replace"))
        raise InvalidUpstreamAnswer(f"The peer sent something that is no frame ({error}): {shown}") from None
