"""Define a background request as it is stored: all that is needed to run it, on this node or another, now or later.

The headers that matter are stored, credentials are not: the caller is known by name, and its rights are checked when the
response is made.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from toolgate.api.response_writer import ResponseSink
from toolgate.api.responses.save import ContinuedRequest
from toolgate.auth.authenticator import Caller
from toolgate.http.exchange import Header
from toolgate.limits.local_budgets import BudgetReservation
from toolgate.telemetry.request_log import RequestRecord
from toolgate.wire.jsontext import decode_in_steps, encode_in_steps

_OWN_PREFIX = b"x-toolgate-"  # choices of tools, sessions and windows
_LEVELS = 6  # of a stored request, down to the texts of the parts of its items


class BackgroundRequest(Struct, frozen=True):
    """A request as it was accepted; `streamed` if the client wants events, `headers` are those that the response needs.

    `held` is the reservation from its key's budget, settled when the response ends, on whichever node that is.
    """

    id: str
    created: int
    turn: ContinuedRequest
    streamed: bool
    request_id: str = ""
    path: str = "/v1/responses"
    headers: tuple[tuple[str, str], ...] = ()
    held: BudgetReservation | None = None

    def new_record(self) -> RequestRecord:
        """Return the log record of one attempt at the response."""
        return RequestRecord(
            self.request_id,
            "POST",
            self.path,
            endpoint=self.path,
            caller=self.turn.owner,
            stream=True,
            run=self.id,
            background=True,
        )


class BackgroundChatRequestContext(Struct, frozen=True):
    """A stored request on its way through the chat handler (`toolgate.api.chat.ChatRequestContext`)."""

    exchange: ResponseSink
    caller: Caller
    record: RequestRecord
    headers: Mapping[bytes, bytes]
    body_size: int = 0


def select_headers(headers: Iterable[Header], passed: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the headers that a response depends on: our own, those for the upstream, and whether a web page asked."""
    # With an origin the caller may use less: see `with_rights`.
    names = {b"origin", *[name.encode() for name in passed]}
    selected = [(name, value) for name, value in headers if name in names or name.startswith(_OWN_PREFIX)]
    return tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in selected])


def headers_by_name(headers: Iterable[tuple[str, str]]) -> dict[bytes, bytes]:
    """Return stored headers as a call has them."""
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in headers}


def encode_request(request: BackgroundRequest) -> bytes:
    """Return the request as it is stored: in steps, because a call of the encoder holds the interpreter."""
    return encode_in_steps({**asdict(request), "turn": asdict(request.turn)}, _LEVELS)


def decode_request(stored: bytes) -> BackgroundRequest:
    """Return a stored request."""
    return msgspec.convert(decode_in_steps(stored), BackgroundRequest)


def failure(message: str, code: str = "server_error") -> dict[str, Any]:
    """Return the `error` field of a response that failed."""
    return {"code": code, "message": message}
