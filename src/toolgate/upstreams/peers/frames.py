"""What is said on a line to a peer: JSON objects told apart by `type`. Knows no socket.

A frame of a type that we do not know is nothing to us: peers may be newer than we are. A frame that is no JSON object, or
one of a known type with a wrong field, means that whoever speaks is no peer.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from toolgate.conversation.errors import Garbled
from toolgate.wire.fields import MAX_TOKENS
from toolgate.wire.jsontext import encode, excerpt

PROTOCOL = 1
ANOTHER_PROTOCOL = 4426
BAD_TOKEN = 4401


class _Frame(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Whatever is said."""


class Hello(_Frame, frozen=True, tag="hello"):
    """Our first word."""

    protocol: int
    client: str


class Welcome(_Frame, frozen=True, tag="welcome"):
    """The peer's first word; `max_frame` is the longest frame that it takes, in bytes."""

    protocol: int
    peer: str = ""
    max_frame: int | None = None


class CreateConversation(_Frame, frozen=True, tag="create_conversation"):
    """We want a new conversation, with that model where the peer has several."""

    id: str
    model: str


class ConversationCreated(_Frame, frozen=True, tag="conversation_created"):
    """It exists, under the peer's own name for it."""

    id: str
    conversation: Annotated[str, Meta(min_length=1, max_length=512)]


class SendMessage(_Frame, frozen=True, tag="send_message"):
    """What the user says next in a conversation."""

    id: str
    conversation: str
    text: str


class Delta(_Frame, frozen=True, tag="delta"):
    """More of the answer."""

    id: str
    text: str


class Tokens(Struct, frozen=True):
    """What an answer cost."""

    input: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    output: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class Done(_Frame, frozen=True, tag="done"):
    """The answer is complete."""

    id: str
    usage: Tokens | None = None
    reason: Literal["stop", "length", "content_filter"] = "stop"


class Failed(_Frame, frozen=True, tag="error"):
    """Nothing more will come of it; without an id it speaks of the whole line."""

    code: str
    message: str = ""
    id: str | None = None
    retry_after: float | None = None


class Cancel(_Frame, frozen=True, tag="cancel"):
    """We no longer listen."""

    id: str


class Ping(_Frame, frozen=True, tag="ping"):
    """Are you there?"""


class Pong(_Frame, frozen=True, tag="pong"):
    """Yes."""


Told: TypeAlias = Hello | CreateConversation | SendMessage | Cancel | Ping | Pong
Heard: TypeAlias = Welcome | ConversationCreated | Delta | Done | Failed | Ping | Pong


class _Kind(Struct, frozen=True):
    type: str


_kind = msgspec.json.Decoder(_Kind)
_heard = msgspec.json.Decoder(Heard)
_KNOWN = {kind.__struct_config__.tag for kind in (Welcome, ConversationCreated, Delta, Done, Failed, Ping, Pong)}


def encode_frame(frame: Told) -> str:
    """A frame as it travels."""
    return encode(frame).decode()


def decode_frame(text: str) -> Heard | None:
    """The frame, or None for one of a type we do not know; Garbled when it is none."""
    try:
        return _heard.decode(text) if _kind.decode(text).type in _KNOWN else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        shown = excerpt(text[:200].encode("utf-8", "replace"))
        raise Garbled(f"The peer sent something that is no frame ({error}): {shown}") from None
