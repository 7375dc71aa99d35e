"""Decode the errors of upstreams into `UpstreamError`s.

Every dialect's error object is a variation of `{"error": {"message": …}}`, so one decoder serves them all.
"""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import (
    InvalidUpstreamAnswer,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from toolgate.conversation.request import ModelRequest
from toolgate.wire.jsontext import decode_event, excerpt

# A faulty upstream must not make clients that obey the header wait for days.
MAX_RETRY_AFTER = 3600.0
REDIRECT_CODE = "upstream_redirect"
# Fields without which a request still means the same, and the settings that they are encoded from.
_OPTIONAL_FIELDS = {
    "reasoning": "thinking",
    "reasoning_effort": "thinking",
    "verbosity": "verbosity",
    "service_tier": "service_tier",
    "prompt_cache_key": "cache_key",
    "prompt_cache_retention": "cache_retention",
    "safety_identifier": "safety_identifier",
    "metadata": "metadata",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
}

# The first event of a body such as b'event: error\ndata: {"error": …}\n\n'.
_EVENT_DATA = re.compile(rb"\A(?:event:[^\n]*\n)?data:([^\n]+)")
_THINKING_FIELDS = frozenset({"reasoning", "reasoning_effort"})
# Codes of errors that another attempt or another upstream may not meet; with any other code the request is at fault.
_BUSY_CODES = {
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "api_error",
    "server_error",
    "timeout_error",
}


def decode_error_response(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
    """Decode an error response.

    Errors that the client can correct keep their status. Credentials are ours, not the client's, so their rejection
    becomes a 502.
    """
    sent = _EVENT_DATA.search(body)  # some servers send the error as an event of the stream that was requested
    value: Any
    try:
        value = decode_event(sent[1] if sent else body)
        message, code, param = _error_fields(value)
    except InvalidUpstreamAnswer:
        value, message, code, param = body.strip(), None, None, None
    wait = retry_after(headers)
    if not message:  # an unknown form is shown as it is, so that a person can read it
        message = f"The upstream answered {excerpt(body)}" if value else f"The upstream answered with status {status}."
    error: UpstreamError
    if status == 429:
        error = UpstreamUnavailable(message, code=code or "rate_limit_exceeded", status=429, retry_after=wait)
    elif status in (401, 403, 407):
        text = f"The upstream refused our credentials ({status}): {message}"
        error = UpstreamUnavailable(text, code="upstream_auth")
    elif status in (408, 504):
        error = UpstreamTimeout(message, code=code)
    elif 300 <= status < 400:
        # The address is shown to a person, so a query, which may have secrets, and user:password@ are left out.
        location = headers.get("location", "").partition("?")[0].partition("#")[0]
        shown = "".join([char for char in location if char.isprintable()])[:200]
        to = f" to {shown}" if shown and "@" not in shown else ""
        error = UpstreamUnavailable(
            f"The upstream answered with status {status} and redirects{to}. Redirects are not followed, because "
            "credentials would go along: set base_url to the final address.",
            code=REDIRECT_CODE,
        )
    elif status < 300:
        text = f"The upstream answered with status {status}, which is no answer."
        error = UpstreamUnavailable(text, code=REDIRECT_CODE)
    elif status >= 500:
        # 529 is Anthropic's for an overloaded API.
        ours = 503 if status in (503, 529) else 502
        error = UpstreamUnavailable(message, code=code or "upstream_error", status=ours, retry_after=wait)
    else:
        # Other codes, such as 402, 405 or 422, would say something about our own API.
        kept = status if status in (400, 404, 409, 413) else 400
        error = UpstreamRejected(message, code=code, param=param, status=kept)
    error.upstream_status = status
    return error


def without_rejected_settings(
    dialect: str, request: ModelRequest, fault: UpstreamRejected
) -> tuple[ModelRequest, str] | None:
    """Return the request without the optional fields that this upstream rejected, if they came by translation.

    Servers that imitate OpenAI's know only some of its fields, and some reject a request with an unknown one. A client of
    the upstream's own dialect knows which fields it may send.
    """
    text = f"{fault.param or ''} {fault.message}"
    rejected = [name for name in _OPTIONAL_FIELDS if re.search(rf"\b{name}\b", text)]
    if request.dialect == dialect or not rejected:
        return None
    # A server that rejects one of the other fields would reject the next one in turn, but it is asked only once more.
    # Thinking is left out only if it is named: without it the model answers worse.
    others = [name for name in _OPTIONAL_FIELDS if name not in _THINKING_FIELDS]
    names = (*rejected, *(others if set(rejected) - _THINKING_FIELDS else ()))
    given = {
        _OPTIONAL_FIELDS[name]: name for name in names if getattr(request.settings, _OPTIONAL_FIELDS[name]) is not None
    }
    if not given:
        return None
    settings = replace(request.settings, **dict.fromkeys(given))
    return replace(request, settings=settings), f"{', '.join(given.values())} left out: the upstream refused it"


def decode_error_object(value: Any) -> UpstreamError:
    """Decode an error event in the middle of a stream."""
    message, code, param = _error_fields(value)
    message = message or "The upstream reported an error while answering."
    if code in _BUSY_CODES or code is None:
        return UpstreamUnavailable(message, code=code or "upstream_error")
    return UpstreamRejected(message, code=code, param=param, status=502)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from a number or a date, at most an hour; an invalid value counts as absent."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):  # the latter for years and offsets of many digits
            return None
    return min(seconds, MAX_RETRY_AFTER) if seconds >= 0 else None


def _error_fields(value: Any) -> tuple[str | None, str | None, str | None]:
    """Return the message, code and parameter of an error object, however deeply it is nested."""
    match value:
        case str(text):
            return text, None, None
        case [first, *_]:  # Google's APIs wrap an error in a list
            return _error_fields(first)
        case {"error": inner} if inner:
            return _error_fields(inner)
        case {"response": {"error": dict(inner)}}:  # the event `response.failed`
            return _error_fields(inner)
        case dict():
            message = value.get("message") or value.get("detail") or value.get("msg")
            # OpenAI has a `code`, Anthropic a `type`; a `code` that is a number repeats the status.
            code = value.get("code") if type(value.get("code")) is str else None
            param = value.get("param")
            kind = value.get("type") if type(value.get("type")) is str and value.get("type") != "error" else None
            return (str(message) if message else None), code or kind, str(param) if param else None
    return None, None, None
