"""Encode and decode the frames of the bridge: JSON objects with a `type`. Knows no socket.

A frame or a part of a type that we do not know is ignored: editors may be newer than we are. A frame that is no JSON
object, or one of a known type with a wrong field, means that the other side does not speak this protocol.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.json_depth import MAX_DEPTH
from toolgate.wire.fields import MAX_TOKENS
from toolgate.wire.jsontext import check_depth, check_structure, repair_escapes

# Close codes of the protocol, after the HTTP statuses that mean much the same.
NOT_A_FRAME, BAD_PROOF, SILENCE, REPLACED, WINDOW_GONE, NO_COMMON_PROTOCOL = 4400, 4401, 4408, 4409, 4410, 4426

MAX_FRAME = 16 * 1024 * 1024
# A larger frame is decoded in a thread, so that it does not hold up the event loop.
LARGE_FRAME = 64 * 1024

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Nonce: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{22,128}$")]
Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class MalformedFrame(Exception):
    """What was received is no frame of the protocol."""


class _Frame(Struct, frozen=True, tag_field="type"):
    """Any frame."""


class _Piece(Struct, frozen=True, tag_field="type"):
    """Any part of a message or an answer."""


class BridgeTextPart(_Piece, frozen=True, tag="text"):
    """Text."""

    text: str


class BridgeDataPart(_Piece, frozen=True, tag="data"):
    """Bytes of a type, such as a picture, in base64."""

    mime: str
    data: str


class BridgeThinkingPart(_Piece, frozen=True, tag="thinking"):
    """Reasoning of the model."""

    text: str
    id: str | None = None


class BridgeToolCall(_Piece, frozen=True, tag="tool_call"):
    """A call of a tool; `input` is a JSON object as it was received."""

    call_id: str
    name: str
    input: Raw


class BridgeToolResult(_Piece, frozen=True, tag="tool_result"):
    """The result of a call."""

    call_id: str
    parts: tuple[BridgeTextPart | BridgeDataPart, ...]
    is_error: bool = False


Piece: TypeAlias = BridgeTextPart | BridgeDataPart | BridgeThinkingPart | BridgeToolCall | BridgeToolResult
AnswerPiece: TypeAlias = BridgeTextPart | BridgeThinkingPart | BridgeToolCall | BridgeDataPart | BridgeToolResult


class BridgeChallengeFrame(_Frame, frozen=True, tag="challenge"):
    """The first frame: which protocols we speak, our nonce, and whether a token or a key is to be proven."""

    protocols: tuple[str, ...]
    nonce: str
    auth: Literal["token", "key"]


class GatewayNameAndVersion(Struct, frozen=True):
    """Who we are."""

    name: str
    version: str


class BridgeWelcomeFrame(_Frame, frozen=True, tag="welcome"):
    """The editor may join; `heartbeat` is the number of seconds between two pings."""

    protocol: str
    session: str
    heartbeat: float
    max_frame: int
    gateway: GatewayNameAndVersion
    proof: str | None = None


class EditorModelSelector(Struct, frozen=True):
    """A model as its editor knows it."""

    vendor: str
    id: str


class EditorMessage(Struct, frozen=True):
    """A message of the conversation; editors have no role for system messages."""

    role: Literal["user", "assistant"]
    parts: tuple[Piece, ...]
    name: str | None = None


class EditorChatTool(Struct, frozen=True):
    """A tool that the model may call."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class BridgeAskFrame(_Frame, frozen=True, tag="ask"):
    """Ask a model; `request` is the same for all frames of one client request, `round` counts them."""

    id: str
    model: EditorModelSelector
    messages: tuple[EditorMessage, ...]
    tools: tuple[EditorChatTool, ...] = ()
    tool_mode: Literal["auto", "required"] = "auto"
    options: Mapping[str, Any] = {}
    justification: str = ""
    caller: str = ""
    request: str = ""
    round: int = 1


class BridgeInvokeToolFrame(_Frame, frozen=True, tag="invoke"):
    """Run a tool; `input` was checked against its schema."""

    id: str
    tool: str
    input: Raw
    seconds: float
    caller: str = ""
    request: str = ""


class BridgeCountFrame(_Frame, frozen=True, tag="count"):
    """Count the tokens of texts as a model does."""

    id: str
    model: EditorModelSelector
    texts: tuple[str, ...]


class BridgeCancelFrame(_Frame, frozen=True, tag="cancel"):
    """The answer is not wanted any more."""

    id: str


class BridgePauseWritingFrame(_Frame, frozen=True, tag="pause"):
    """The reader of this answer is slow: send no more of it for now."""

    id: str


class BridgeResumeWritingFrame(_Frame, frozen=True, tag="resume"):
    """Go on sending."""

    id: str


class BridgeApprovalFrame(_Frame, frozen=True, tag="approval"):
    """A call that waits for a person; `approval` is what `GET /v1/approvals/{id}` returns."""

    id: str
    approval: Raw


class BridgeApprovalClosedFrame(_Frame, frozen=True, tag="approval_closed"):
    """An approval does not wait any more."""

    id: str
    state: str


class BridgeApprovalAnswerAckFrame(_Frame, frozen=True, tag="answered"):
    """The editor's answer to an approval was stored."""

    id: str
    state: str


class BridgeHelloFrame(_Frame, frozen=True, tag="hello"):
    """The editor's first frame; nothing in it is of use to a stranger."""

    protocol: str
    nonce: Nonce
    address: Annotated[str, Meta(max_length=300)] = ""
    proof: Annotated[str, Meta(max_length=128)] | None = None


class EditorNameAndVersion(Struct, frozen=True):
    """Which editor it is."""

    name: str = ""
    version: str = ""


class ExtensionIdentity(Struct, frozen=True):
    """Which version of the extension it is."""

    version: str = ""


class WindowDescription(Struct, frozen=True):
    """One window of an editor; `context` are context keys for the when-clauses of tools."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    folders: tuple[str, ...] = ()
    remote: str | None = None
    focused: bool = False
    context: Mapping[str, Any] = {}


class LendingSwitches(Struct, frozen=True):
    """What the person has switched on."""

    models: bool = False
    tools: bool = False
    approvals: bool = False


class BridgeRegisterWindowFrame(_Frame, frozen=True, tag="register"):
    """Who joins, after both sides have proven themselves."""

    window: WindowDescription
    editor: EditorNameAndVersion = EditorNameAndVersion()
    extension: ExtensionIdentity = ExtensionIdentity()
    lends: LendingSwitches = LendingSwitches()
    max_frame: Annotated[int, Meta(ge=1024)] = MAX_FRAME


class BridgeWindowChangedFrame(_Frame, frozen=True, tag="window"):
    """The window has changed."""

    window: WindowDescription
    lends: LendingSwitches | None = None


class LentModel(Struct, frozen=True):
    """A model of an editor; `access` None means that the person was not asked yet."""

    vendor: str
    id: str
    family: str = ""
    version: str = ""
    name: str = ""
    max_input_tokens: int = 0
    access: bool | None = None
    tools: bool | None = None
    images: bool | None = None


class BridgeModelsFrame(_Frame, frozen=True, tag="models"):
    """All models that the window lends now."""

    rev: int
    items: tuple[LentModel, ...]


class LentTool(Struct, frozen=True):
    """A tool of an editor."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()


class BridgeToolsFrame(_Frame, frozen=True, tag="tools"):
    """All tools that the window lends now."""

    rev: int
    items: tuple[LentTool, ...]


class BridgeModelAskedFrame(_Frame, frozen=True, tag="started"):
    """The model was asked."""

    id: Id


class BridgeWaitingFrame(_Frame, frozen=True, tag="waiting", rename={"what": "for"}):
    """The editor waits for its person."""

    id: Id
    what: str = "consent"


class BridgeDeltaFrame(_Frame, frozen=True, tag="delta"):
    """More of the answer."""

    id: Id
    parts: tuple[AnswerPiece, ...]


class EditorTokenUsage(Struct, frozen=True):
    """The tokens of an answer."""

    input: Tokens
    output: Tokens
    cached: Tokens | None = None


class BridgeDoneFrame(_Frame, frozen=True, tag="done"):
    """The answer is complete; a tool's result is in `parts`, counts are in `tokens`."""

    id: Id
    parts: tuple[AnswerPiece, ...] = ()
    usage: EditorTokenUsage | None = None
    finish: Literal["stop", "length", "content_filter"] | None = None
    tokens: tuple[Tokens, ...] = ()


class BridgeErrorFrame(_Frame, frozen=True, tag="error"):
    """A request failed."""

    id: Id
    code: str
    message: str = ""
    retry_after: float | None = None


class BridgeApprovalAnswerFrame(_Frame, frozen=True, tag="answer"):
    """A person's answer to an approval."""

    id: Id
    decision: Literal["approve", "deny"]
    level: Literal["once", "session", "workspace", "always"] | None = None
    arguments: Mapping[str, Any] | None = None
    reason: Annotated[str, Meta(max_length=2000)] | None = None


class BridgePingFrame(_Frame, frozen=True, tag="ping"):
    """Check whether the other side is alive."""

    n: int = 0


class BridgePongFrame(_Frame, frozen=True, tag="pong"):
    """Reply to a ping."""

    n: int = 0


ToEditor: TypeAlias = (
    BridgeChallengeFrame
    | BridgeWelcomeFrame
    | BridgeAskFrame
    | BridgeInvokeToolFrame
    | BridgeCountFrame
    | BridgeCancelFrame
    | BridgePauseWritingFrame
    | BridgeResumeWritingFrame
    | BridgeApprovalFrame
    | BridgeApprovalClosedFrame
    | BridgeApprovalAnswerAckFrame
    | BridgeErrorFrame
    | BridgePingFrame
    | BridgePongFrame
)
ExchangeFrame: TypeAlias = (
    BridgeModelAskedFrame | BridgeWaitingFrame | BridgeDeltaFrame | BridgeDoneFrame | BridgeErrorFrame
)
FromEditor: TypeAlias = (
    ExchangeFrame
    | BridgeHelloFrame
    | BridgeRegisterWindowFrame
    | BridgeWindowChangedFrame
    | BridgeModelsFrame
    | BridgeToolsFrame
    | BridgeApprovalAnswerFrame
    | BridgePingFrame
    | BridgePongFrame
)


class _FrameType(Struct):
    """A frame of which only the type is read; skipping the rest makes no objects."""

    type: str


_KNOWN = {kind.__struct_config__.tag for kind in get_args(FromEditor)}
_PIECES = {kind.__struct_config__.tag for kind in get_args(AnswerPiece)}
_decoder: msgspec.json.Decoder[FromEditor] = msgspec.json.Decoder(FromEditor)
_decode = _decoder.decode
_decode_type = msgspec.json.Decoder(_FrameType).decode
_encode = msgspec.json.Encoder().encode


def encode_frame(frame: ToEditor) -> bytes:
    """Encode a frame."""
    return _encode(frame)


def decode_frame(text: bytes) -> FromEditor | None:
    """Decode a frame; None for an unknown type, MalformedFrame for anything else."""
    return decode_frame_and_text(text)[0]


def decode_frame_and_text(text: bytes) -> tuple[FromEditor | None, bytes]:
    """Decode a frame as `decode_frame` does, and return its text as valid JSON, which can be part of a message."""
    try:
        if len(text) > LARGE_FRAME:
            check_structure(text, MAX_DEPTH, subject="The frame")  # one C call holds the interpreter, even in a thread
        else:
            check_depth(text, subject="The frame")
        return _decode(text), text
    except msgspec.ValidationError as error:  # an unknown type or part, or a wrong field
        return _decode_tolerantly(text, error), text
    except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidRequest) as error:
        # JavaScript cuts texts inside of characters and sends the halves as escapes. That must not end the connection,
        # and with it the answers to all other callers.
        repaired = repair_escapes(text)
        if repaired is not None:
            return decode_frame_and_text(repaired)
        raise MalformedFrame(str(error)[:200]) from None


def _decode_tolerantly(text: bytes, error: msgspec.ValidationError) -> FromEditor | None:
    """Decode a frame without the parts of unknown types; None if its own type is unknown."""
    try:
        if _decode_type(text).type not in _KNOWN:
            return None
        fields = msgspec.json.decode(text)
        if type(fields) is dict:
            parts = fields.get("parts")
            if type(parts) is list and all(type(one) is dict and type(one.get("type")) is str for one in parts):
                known = [one for one in parts if one["type"] in _PIECES]
                if len(known) < len(parts):
                    return _decode(_encode({**fields, "parts": known}))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as second:
        error_text = str(second)
    else:
        error_text = str(error)
    raise MalformedFrame(error_text[:200])
