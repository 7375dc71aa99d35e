"""Define the tree of errors, split by whose fault they are.

    ToolgateError
    ├── ClientRequestError      the request cannot be served as it was asked
    │   ├── InvalidRequest      400, with the path of the offending field in `param`
    │   ├── Unauthenticated     401
    │   ├── Forbidden           403
    │   ├── NotFound            404
    │   ├── Conflict            409
    │   ├── TooLarge            413
    │   ├── WrongMediaType      415
    │   ├── MisdirectedRequest  421, a Host or Origin that is not served
    │   └── RateLimited         429, with `retry_after`
    ├── UpstreamError           the upstream did not answer, or answered badly
    │   ├── UpstreamRejected    it rejected this request; its status is kept where the client can correct the request
    │   ├── UpstreamUnavailable 502/503, it could not be reached or reported that it is broken or busy
    │   │   └── UpstreamUnreachable  no connection could be opened, so no request was sent
    │   ├── UpstreamTimeout     504
    │   ├── InvalidUpstreamAnswer   502, it broke its own protocol or stopped in the middle
    │   └── EmptyModelAnswer    502, its answer holds neither text nor a call
    └── InternalGatewayError    500, our own fault
        └── GatewayOverloaded   503, we are full or shutting down

An error is an exception, never an event. Dialects encode it in their own form; nothing here knows a wire format.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.events import Usage
from toolgate.conversation.surrogates import repair_surrogates

# Characters of a message: it is logged, searched for secrets and sent, and each of these costs time by its length.
MAX_MESSAGE = 16_000


class ToolgateError(Exception):
    """An error with everything a dialect needs to encode it; `details` are for programs, where a dialect has a field."""

    status = 500
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        # It may quote what a client or an upstream sent: at any length, and with halves of surrogate pairs, which neither
        # a log, a database nor a response can hold.
        if len(message) > MAX_MESSAGE:
            message = message[:MAX_MESSAGE] + "…"
        if not message.isascii():
            message = repair_surrogates(message)
        super().__init__(message)
        self.message = message
        self.param = param if param is None or param.isascii() else repair_surrogates(param)
        self.details = details
        self.retry_after = retry_after
        if code is not None:
            self.code = code if code.isascii() else repair_surrogates(code)
        if status is not None:
            self.status = status


class ClientRequestError(ToolgateError):
    """The request cannot be served as it is."""

    status = 400


class InvalidRequest(ClientRequestError):
    """The body breaks its dialect's rules at `param`."""

    code = "invalid_request"


class Unauthenticated(ClientRequestError):
    """The request has no key, or an unknown one."""

    status = 401
    code = "invalid_api_key"


class Forbidden(ClientRequestError):
    """The key is valid but may not do this."""

    status = 403
    code = "forbidden"


class NotFound(ClientRequestError):
    """The resource does not exist, or this caller may not see it."""

    status = 404
    code = "not_found"


class Conflict(ClientRequestError):
    """The resource was decided already, or another request is changing it."""

    status = 409
    code = "conflict"


class TooLarge(ClientRequestError):
    """A size limit was exceeded; the message names it."""

    status = 413
    code = "request_too_large"


class WrongMediaType(ClientRequestError):
    """The body is not JSON in UTF-8."""

    status = 415
    code = "unsupported_media_type"


class MisdirectedRequest(ClientRequestError):
    """The Host or Origin is not served here: a web page that attacks a server on loopback would send such a one."""

    status = 421
    code = "misdirected_request"


class RateLimited(ClientRequestError):
    """The caller sent too many requests; `retry_after` is in seconds."""

    status = 429
    code = "rate_limit_exceeded"


class UpstreamError(ToolgateError):
    """The upstream did not answer, or answered badly; `upstream_status` is its HTTP status, if it sent one.

    `usage` is what it reported nevertheless.
    """

    status = 502
    code = "upstream_error"
    upstream_status: int | None = None
    usage: Usage | None = None


class UpstreamRejected(UpstreamError):
    """The upstream rejected this request; sending it again would not help."""

    status = 400
    code = "upstream_rejected"


class UpstreamUnavailable(UpstreamError):
    """The upstream could not be reached, or reported that it is broken or busy; another one may answer."""

    code = "upstream_unavailable"


class UpstreamUnreachable(UpstreamUnavailable):
    """No connection to the upstream could be opened, so no request was sent."""


class UpstreamTimeout(UpstreamError):
    """The upstream took longer than the configured limit named in the message."""

    status = 504
    code = "upstream_timeout"


class InvalidUpstreamAnswer(UpstreamError):
    """The upstream broke its own protocol or stopped in the middle; what it sent so far is not an answer."""

    code = "upstream_garbled"


class EmptyModelAnswer(UpstreamError):
    """The model answered with neither text nor a call, though it was asked more than once."""

    code = "empty_answer"


class InternalGatewayError(ToolgateError):
    """The error is our own fault, or our own limit."""

    code = "internal_error"


class GatewayOverloaded(InternalGatewayError):
    """This server is full or shutting down; `retry_after` is in seconds."""

    status = 503
    code = "overloaded"
