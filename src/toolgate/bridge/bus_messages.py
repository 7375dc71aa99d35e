"""The messages between processes that share windows: who has which window, and the frames of exchanges. Pure."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from toolgate.bridge.exchange import Signal
from toolgate.bridge.frames import LendingSwitches, WindowDescription
from toolgate.bridge.windows import ExchangeKind, WindowState


class MemberJoinedMessage(Struct, frozen=True, tag="joined"):
    """A process has started: the others answer with their windows."""


class MemberAliveMessage(Struct, frozen=True, tag="alive"):
    """A process is alive and has these windows, by their sessions."""

    sessions: tuple[str, ...]


class WindowAnnouncedMessage(Struct, frozen=True, tag="window"):
    """A window has joined, or has changed what it lends."""

    state: WindowState


class WindowDescriptionChangedMessage(Struct, frozen=True, tag="focus"):
    """A window has changed in something other than what it lends."""

    session: str
    window: WindowDescription
    lends: LendingSwitches
    focused_at: float


class WindowLeftMessage(Struct, frozen=True, tag="left"):
    """A window is gone."""

    session: str


class OpenExchangeMessage(Struct, frozen=True, tag="open"):
    """A process asks a window of another one; `frame` is what the editor receives."""

    session: str
    id: str
    kind: ExchangeKind
    caller: str
    frame: Raw


class ExchangeSignalMessage(Struct, frozen=True, tag="signal"):
    """The reader of an exchange cancels, pauses or resumes it."""

    session: str
    id: str
    signal: Signal


class EditorReplyFrameMessage(Struct, frozen=True, tag="frame"):
    """A frame of the editor, for the process that asked."""

    id: str
    frame: Raw


class ExchangeFailedMessage(Struct, frozen=True, tag="failed"):
    """An exchange ended without a frame: the window is lost, full, or takes no frame of this size."""

    id: str
    reason: Literal["lost", "full", "too_large"]
    message: str


BusMessage: TypeAlias = (
    MemberJoinedMessage
    | MemberAliveMessage
    | WindowAnnouncedMessage
    | WindowDescriptionChangedMessage
    | WindowLeftMessage
    | OpenExchangeMessage
    | ExchangeSignalMessage
    | EditorReplyFrameMessage
    | ExchangeFailedMessage
)

_decoder: msgspec.json.Decoder[BusMessage] = msgspec.json.Decoder(BusMessage)
_encode = msgspec.json.Encoder().encode


def encode_bus_message(message: BusMessage) -> bytes:
    """Encode a message."""
    return _encode(message)


def decode_bus_message(body: bytes) -> BusMessage | None:
    """Decode a message; None for one that another version sends and this one does not understand."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
