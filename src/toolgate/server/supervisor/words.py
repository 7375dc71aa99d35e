"""What the supervisor and its workers say to each other: JSON messages, each behind its length. Pure."""

from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from toolgate.limits import KeyLimits, Taken
from toolgate.wire.lengths import framed

LONGEST = 80 * 1024 * 1024
"""A prompt for the model on this machine is the longest thing that is said."""


class Ready(Struct, frozen=True, tag="ready"):
    """The worker serves."""


class Accepted(Struct, frozen=True, tag="accepted"):
    """The worker serves the configuration whose text has this digest."""

    digest: str


class Take(Struct, frozen=True, tag="take"):
    """May this key make a request of so many tokens?"""

    id: int
    key: str
    limits: KeyLimits
    tokens: int


class Settle(Struct, frozen=True, tag="settle"):
    """The request of this hold is over, and used so many tokens."""

    hold: int
    tokens: int


class Charge(Struct, frozen=True, tag="charge"):
    """Something that holds nothing used tokens."""

    key: str
    tokens: int


class Gather(Struct, frozen=True, tag="gather"):
    """What do all workers count together? This is what I do."""

    id: int
    own: str


class Counted(Struct, frozen=True, tag="counted"):
    """What this worker counts; the last of them is said at its end."""

    id: int
    own: str


class Changed(Struct, frozen=True, tag="changed"):
    """Something has changed under this name: said by one worker, passed on to the others."""

    topic: str


class Engage(Struct, frozen=True, tag="engage"):
    """May I have the model on this machine? The number stands for one answer of it."""

    turn: int


class Order(Struct, frozen=True, tag="order"):
    """What one who has the model wants of it."""

    turn: int
    order: Raw


class Release(Struct, frozen=True, tag="release"):
    """The model is free for the next one."""

    turn: int


class Drain(Struct, frozen=True, tag="drain"):
    """End when all is answered; said twice, at once."""


class Retire(Struct, frozen=True, tag="retire"):
    """End when all is answered, and let idle clients ask once more within these seconds: others serve on."""

    seconds: float


class Reload(Struct, frozen=True, tag="reload"):
    """Read the configuration again: this is what its file holds, None if it could not be read."""

    text: bytes | None = None


class Cover(Struct, frozen=True, tag="cover"):
    """Accept for a place whose worker is gone, too, or no longer."""

    place: int
    begin: bool


class Granted(Struct, frozen=True, tag="granted"):
    """How a `Take` went; a hold's slot is its number."""

    id: int
    taken: Taken


class Count(Struct, frozen=True, tag="count"):
    """What do you count?"""

    id: int


class Summed(Struct, frozen=True, tag="summed"):
    """What all workers count together."""

    id: int
    all: str


class Engaged(Struct, frozen=True, tag="engaged"):
    """The model is yours now."""

    turn: int


class Declined(Struct, frozen=True, tag="declined"):
    """The model cannot be had, as a failure that the client is told."""

    turn: int
    message: str
    code: str | None
    overloaded: bool
    retry_after: float | None


class Report(Struct, frozen=True, tag="report"):
    """What the model's engine says to one who has it."""

    turn: int
    report: Raw


class Broken(Struct, frozen=True, tag="broken"):
    """The engine has ended amid an answer."""

    turn: int
    how: str


Lent: TypeAlias = Engaged | Declined | Report | Broken
FromWorker: TypeAlias = (
    Ready | Accepted | Take | Settle | Charge | Gather | Counted | Changed | Engage | Order | Release
)
ToWorker: TypeAlias = Drain | Retire | Reload | Cover | Granted | Count | Summed | Changed | Lent

_FROM: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
_TO: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)


def encode(message: FromWorker | ToWorker) -> bytes:
    """The message as it travels."""
    return framed(msgspec.json.encode(message))


def decode_from_worker(body: bytes) -> FromWorker:
    """What a worker said."""
    return _FROM.decode(body)


def decode_to_worker(body: bytes) -> ToWorker:
    """What the supervisor said."""
    return _TO.decode(body)
