"""The messages between the supervisor and its workers: JSON, each behind its length. Pure."""

from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from toolgate.limits import KeyLimits, RateLimitResult
from toolgate.upstreams.local.state import LocalModelState
from toolgate.wire.length_prefix import encode_prefixed

# Bytes of the longest message: a prompt for the local model.
LONGEST = 80 * 1024 * 1024


class WorkerReadyMessage(Struct, frozen=True, tag="ready"):
    """The worker serves."""


class WorkerServesConfigMessage(Struct, frozen=True, tag="accepted"):
    """The worker serves the configuration whose text has this digest."""

    digest: str


class ReserveRateLimitMessage(Struct, frozen=True, tag="take"):
    """Asks to reserve one request and so many tokens of a key's limits."""

    id: int
    key: str
    limits: KeyLimits
    tokens: int


class SettleRateLimitMessage(Struct, frozen=True, tag="settle"):
    """Ends a reservation, whose request used so many tokens."""

    slot: int
    tokens: int


class ChargeTokensMessage(Struct, frozen=True, tag="charge"):
    """Counts tokens that were used without a reservation."""

    key: str
    tokens: int


class MetricsTotalRequestMessage(Struct, frozen=True, tag="gather"):
    """Asks for the sum of all workers' metrics, and brings the sender's own."""

    id: int
    metrics: str


class WorkerMetricsMessage(Struct, frozen=True, tag="counted"):
    """The worker's metrics; it sends the last of them when it ends."""

    id: int
    metrics: str


class TopicChangedMessage(Struct, frozen=True, tag="changed"):
    """One worker notifies of a topic; the supervisor passes it on to the others."""

    topic: str


class EngineLeaseRequestMessage(Struct, frozen=True, tag="engage"):
    """Asks for a lease of the local model's engine for a caller, under a number that the worker chose."""

    lease: int
    caller: str


class EngineCommandMessage(Struct, frozen=True, tag="order"):
    """A command to the leased engine."""

    lease: int
    order: Raw


class EngineReleaseMessage(Struct, frozen=True, tag="release"):
    """Ends the lease."""

    lease: int


class BridgeRelayMessage(Struct, frozen=True, tag="bridge"):
    """A message between workers that share the windows of editors: to one member of them, or to all others."""

    sender: str
    to: str | None
    body: Raw


class BridgeMemberExitedMessage(Struct, frozen=True, tag="bridge_lost"):
    """The worker that was this member is gone."""

    member: str


class DrainWorkerMessage(Struct, frozen=True, tag="drain"):
    """Ends the worker when all requests are answered; sent twice, at once."""


class RetireWorkerMessage(Struct, frozen=True, tag="retire"):
    """Ends the worker when all requests are answered; idle clients may send one more within these seconds."""

    seconds: float


class ReloadConfigMessage(Struct, frozen=True, tag="reload"):
    """Has the worker apply the configuration with this text."""

    text: bytes


class CoverWorkerSocketMessage(Struct, frozen=True, tag="cover"):
    """Has the worker accept from the socket of a place without a worker, or stop it."""

    place: int
    begin: bool


class RateLimitReplyMessage(Struct, frozen=True, tag="granted"):
    """The reply to a `ReserveRateLimitMessage`; the reservation's slot is the number to settle it by."""

    id: int
    result: RateLimitResult


class MetricsRequestMessage(Struct, frozen=True, tag="count"):
    """Asks for the worker's metrics."""

    id: int


class MetricsTotalMessage(Struct, frozen=True, tag="summed"):
    """The sum of all workers' metrics."""

    id: int
    metrics: str


class EngineGrantedMessage(Struct, frozen=True, tag="engaged"):
    """The lease has begun."""

    lease: int


class EngineDeclinedMessage(Struct, frozen=True, tag="declined"):
    """The lease was refused; the rest is the error that the client gets."""

    lease: int
    message: str
    code: str | None
    overloaded: bool
    retry_after: float | None


class EngineOutputMessage(Struct, frozen=True, tag="report"):
    """A report of the leased engine."""

    lease: int
    report: Raw


class EngineEndedMessage(Struct, frozen=True, tag="broken"):
    """The engine has ended before the answer was complete."""

    lease: int
    reason: str


class EngineStateMessage(Struct, frozen=True, tag="engine_state"):
    """How far the local model is; sent at every change, and to each worker that starts."""

    state: LocalModelState


EngineMessage: TypeAlias = (
    EngineGrantedMessage | EngineDeclinedMessage | EngineOutputMessage | EngineEndedMessage | EngineStateMessage
)
FromWorker: TypeAlias = (
    WorkerReadyMessage
    | WorkerServesConfigMessage
    | ReserveRateLimitMessage
    | SettleRateLimitMessage
    | ChargeTokensMessage
    | MetricsTotalRequestMessage
    | WorkerMetricsMessage
    | TopicChangedMessage
    | EngineLeaseRequestMessage
    | EngineCommandMessage
    | EngineReleaseMessage
    | BridgeRelayMessage
)
ToWorker: TypeAlias = (
    DrainWorkerMessage
    | RetireWorkerMessage
    | ReloadConfigMessage
    | CoverWorkerSocketMessage
    | RateLimitReplyMessage
    | MetricsRequestMessage
    | MetricsTotalMessage
    | TopicChangedMessage
    | EngineMessage
    | BridgeRelayMessage
    | BridgeMemberExitedMessage
)

_FROM: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
_TO: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)


def encode(message: FromWorker | ToWorker) -> bytes:
    """Encode a message behind its length."""
    return encode_prefixed(msgspec.json.encode(message))


def decode_from_worker(body: bytes) -> FromWorker:
    """Decode a message of a worker."""
    return _FROM.decode(body)


def decode_to_worker(body: bytes) -> ToWorker:
    """Decode a message of the supervisor."""
    return _TO.decode(body)
