"""The tree of failures, split by whose fault they are.

    ToolgateError
    ├── ClientFault             the request cannot be served as it was asked
    │   ├── InvalidRequest      400, with the path of the offending field in `param`
    │   ├── Unauthenticated     401
    │   ├── Forbidden           403
    │   ├── NotFound            404
    │   ├── Conflict            409
    │   ├── TooLarge            413
    │   ├── WrongMediaType      415
    │   ├── Misdirected         421, a Host or Origin we do not serve
    │   └── RateLimited         429, with `retry_after`
    ├── UpstreamFault           whoever should have answered did not, or answered badly
    │   ├── Rejected            it refused this very request; its status is kept where the client can mend it
    │   ├── Unavailable         502/503, it could not be reached or said it is broken or busy
    │   │   └── Unreachable     no connection to it could be opened, so that nothing was asked
    │   ├── TimedOut            504
    │   ├── Garbled             502, it broke its own protocol or stopped in the middle
    │   └── EmptyAnswer         502, it answered, and said nothing
    └── GatewayFault            500/503, ours

A failure is an exception, never an event. Dialects turn it into their own words; nothing here knows a wire format.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.events import Usage

MAX_MESSAGE = 16_000
"""Characters of a message: it is logged, searched for secrets and sent, so that its length costs something each time."""


class ToolgateError(Exception):
    """A failure with everything a dialect needs to speak of it; `details` are for programs, where a dialect has them."""

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
        if len(message) > MAX_MESSAGE:  # it quotes what somebody sent
            message = message[:MAX_MESSAGE] + "…"
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = details
        self.retry_after = retry_after
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class ClientFault(ToolgateError):
    """The request cannot be served as it was asked."""

    status = 400


class InvalidRequest(ClientFault):
    """The body breaks its dialect's rules at `param`."""

    code = "invalid_request"


class Unauthenticated(ClientFault):
    """No key, or none that we know."""

    status = 401
    code = "invalid_api_key"


class Forbidden(ClientFault):
    """The key is good but not for this."""

    status = 403
    code = "forbidden"


class NotFound(ClientFault):
    """There is no such thing, or none that this caller may see."""

    status = 404
    code = "not_found"


class Conflict(ClientFault):
    """It was decided already, or is being changed by somebody else."""

    status = 409
    code = "conflict"


class TooLarge(ClientFault):
    """A size limit was passed; the message names it."""

    status = 413
    code = "request_too_large"


class WrongMediaType(ClientFault):
    """The body is not JSON in UTF-8."""

    status = 415
    code = "unsupported_media_type"


class Misdirected(ClientFault):
    """A Host or Origin that we do not serve: what a web page would send to a server on loopback."""

    status = 421
    code = "misdirected_request"


class RateLimited(ClientFault):
    """Too much, too soon; `retry_after` says when."""

    status = 429
    code = "rate_limit_exceeded"


class UpstreamFault(ToolgateError):
    """Whoever should have answered did not, or answered badly; `upstream_status` is what it said, if it spoke HTTP.

    `usage` is what it reported to have used all the same.
    """

    status = 502
    code = "upstream_error"
    upstream_status: int | None = None
    usage: Usage | None = None


class Rejected(UpstreamFault):
    """The upstream refused this very request; asking again would not help."""

    status = 400
    code = "upstream_rejected"


class Unavailable(UpstreamFault):
    """The upstream could not be reached, or said that it is broken or busy; another one may answer."""

    code = "upstream_unavailable"


class Unreachable(Unavailable):
    """No connection to the upstream could be opened, so that nothing was asked."""


class TimedOut(UpstreamFault):
    """The upstream took longer than the configured limit named in the message."""

    status = 504
    code = "upstream_timeout"


class Garbled(UpstreamFault):
    """The upstream broke its own protocol or stopped in the middle; what it said so far is not an answer."""

    code = "upstream_garbled"


class EmptyAnswer(UpstreamFault):
    """The model answered with neither text nor a call, though it was asked more than once."""

    code = "empty_answer"


class GatewayFault(ToolgateError):
    """Our own fault, or our own limit."""

    code = "internal_error"


class Overloaded(GatewayFault):
    """We are full or shutting down; `retry_after` says when to come back."""

    status = 503
    code = "overloaded"
