"""What a worker and its server say to each other: JSON messages, each behind its length.

Pure: bytes in, values out. Nothing here is ever executed, whatever a tool writes into its end of the pipe.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Media, MediaKind, Text
from toolgate.tools.authoring.loading import Place
from toolgate.tools.authoring.parts import ToolInvocationToken
from toolgate.tools.tool import Output, Preparation, ToolSpec
from toolgate.wire.lengths import framed


class Setup(Struct, frozen=True, tag="setup"):
    """Said once, first: the memory a worker may use and the output it may give, in bytes, and a call's CPU seconds."""

    memory: int
    output: int
    cpu: int


class Describe(Struct, frozen=True, tag="describe"):
    """Which tools does this place have?"""

    place: Place


class Prepare(Struct, frozen=True, tag="prepare"):
    """What should a person know before this call?"""

    place: Place
    tool: str
    arguments: Mapping[str, Any]


class Invoke(Struct, frozen=True, tag="invoke"):
    """Run this tool."""

    place: Place
    tool: str
    arguments: Mapping[str, Any]
    call: ToolInvocationToken


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for the answer any more."""


Question: TypeAlias = Describe | Prepare | Invoke


class Described(Struct, frozen=True):
    """One tool of a place, told without its code; `worker` says where its author wants it to run."""

    spec: ToolSpec
    worker: bool
    prepares: bool
    place: str


class Tools(Struct, frozen=True, tag="tools"):
    """The tools of a place."""

    tools: tuple[Described, ...]


class Prepared(Struct, frozen=True, tag="prepared"):
    """What a person should know."""

    preparation: Preparation


class Piece(Struct, frozen=True, omit_defaults=True):
    """A text, or a medium when it has a kind."""

    text: str = ""
    kind: MediaKind | None = None
    mime: str | None = None


class Gave(Struct, frozen=True, tag="gave"):
    """What a call gave back."""

    content: tuple[Piece, ...]
    structured: Any = None


class Failed(Struct, frozen=True, tag="failed"):
    """Why there is no other answer, in words for the model or the operator; after the `last` the process ends."""

    message: str
    last: bool = False


class Told(Struct, frozen=True, tag="told"):
    """How far the call has come; no answer yet."""

    message: str | None
    done: float | None
    total: float | None


Answer: TypeAlias = Tools | Prepared | Gave | Failed

_QUESTIONS: msgspec.json.Decoder[Setup | Question | Cancel] = msgspec.json.Decoder(
    Setup | Describe | Prepare | Invoke | Cancel
)
_ANSWERS: msgspec.json.Decoder[Answer | Told] = msgspec.json.Decoder(Tools | Prepared | Gave | Failed | Told)


def encode(message: Setup | Question | Cancel | Answer | Told) -> bytes:
    """The message as it travels."""
    return framed(msgspec.json.encode(message))


def longest(output: int) -> int:
    """How long a message may be where so many bytes of output may be given; escapes make JSON longer than its words."""
    return 2 * output + 1024 * 1024


def decode_question(body: bytes) -> Setup | Question | Cancel:
    """What the server said."""
    return _QUESTIONS.decode(body)


def decode_answer(body: bytes) -> Answer | Told:
    """What a worker said; DecodeError or RecursionError if it does not speak as agreed."""
    return _ANSWERS.decode(body)


def encode_output(output: Output) -> Gave:
    """An output as it travels."""
    return Gave(tuple(_piece(part) for part in output.content), output.structured)


def decode_output(gave: Gave) -> Output:
    """The output that travelled."""
    content = [Media(piece.kind, piece.mime, piece.text) if piece.kind else Text(piece.text) for piece in gave.content]
    return Output(tuple(content), structured=gave.structured)


def _piece(part: Text | Media) -> Piece:
    return Piece(part.text) if isinstance(part, Text) else Piece(part.data or "", part.kind, part.mime)
