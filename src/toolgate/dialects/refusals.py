"""How upstreams say no: the error objects they agree on, read into whose fault it is.

Every dialect's error object is a variation of `{"error": {"message": …}}`, so one reader serves them all.
"""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import Garbled, Rejected, TimedOut, Unavailable, UpstreamFault
from toolgate.conversation.request import ModelRequest
from toolgate.wire.jsontext import decode_event, excerpt

MAX_RETRY_AFTER = 3600.0
REDIRECTED = "upstream_redirect"
_WISHES = {
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
"""Fields without which a request still means the same, and the settings that they are written from."""

_OF_THINKING = frozenset({"reasoning", "reasoning_effort"})
_BUSY_CODES = {
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "api_error",
    "server_error",
    "timeout_error",
}


def read_refusal(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
    """The failure that an answer with a bad status tells of.

    What the client can mend keeps its status. A refused credential is ours, not the client's, so it becomes a 502.
    """
    message, code, param = _read(body)
    wait = retry_after(headers)
    said = message or f"The upstream answered with status {status}."
    if status == 429:
        return _fault(Unavailable(said, code=code or "rate_limit_exceeded", status=429, retry_after=wait), status)
    if status in (401, 403, 407):
        return _fault(
            Unavailable(f"The upstream refused our credentials ({status}): {said}", code="upstream_auth"), status
        )
    if status in (408, 504):
        return _fault(TimedOut(said, code=code), status)
    if status < 400:
        return _fault(Unavailable(_redirected(status, headers), code=REDIRECTED), status)
    if status >= 500:
        unwell = 503 if status in (503, 529) else 502
        return _fault(Unavailable(said, code=code or "upstream_error", status=unwell, retry_after=wait), status)
    kept = status if status in (400, 404, 409, 413) else 400
    return _fault(Rejected(said, code=code, param=param, status=kept), status)


def without_refused_wishes(dialect: str, request: ModelRequest, fault: Rejected) -> tuple[ModelRequest, str] | None:
    """The request without the wishes that this upstream refused, if they came here by translation.

    Servers that imitate OpenAI's know some of its fields only, and some refuse a request for one that they do not know. A
    client of the upstream's own dialect knows what it may ask for.
    """
    said = f"{fault.param or ''} {fault.message}"
    refused = [name for name in _WISHES if re.search(rf"\b{name}\b", said)]
    if request.dialect == dialect or not refused:
        return None
    # A server that refuses one of the lesser wishes would refuse the next one in turn, and it is asked once more only.
    lesser = [name for name in _WISHES if name not in _OF_THINKING] if set(refused) - _OF_THINKING else []
    given = {
        _WISHES[name]: name for name in (*refused, *lesser) if getattr(request.settings, _WISHES[name]) is not None
    }
    if not given:
        return None
    settings = replace(request.settings, **dict.fromkeys(given))
    return replace(request, settings=settings), f"{', '.join(given.values())} left out: the upstream refused it"


def _redirected(status: int, headers: Mapping[str, str]) -> str:
    place = headers.get("location", "").partition("?")[0].partition("#")[0]
    shown = "".join([letter for letter in place if letter.isprintable()])[:200]
    to = f" to {shown}" if shown and "@" not in shown else ""
    return (
        f"The upstream answered with status {status} and redirects{to}. Redirects are not followed, because credentials "
        "would go along: set base_url to the final address."
        if 300 <= status < 400
        else f"The upstream answered with status {status}, which is no answer."
    )


def read_error_object(value: Any) -> UpstreamFault:
    """The failure that an error event in the middle of a stream tells of."""
    message, code, param = _of(value)
    said = message or "The upstream reported an error while answering."
    if code in _BUSY_CODES or code is None:
        return Unavailable(said, code=code or "upstream_error")
    return Rejected(said, code=code, param=param, status=502)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from a number or a date, within reason; nonsense counts as unsaid."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(seconds, MAX_RETRY_AFTER) if seconds >= 0 else None


def _fault(error: UpstreamFault, status: int) -> UpstreamFault:
    error.upstream_status = status
    return error


def _read(body: bytes) -> tuple[str | None, str | None, str | None]:
    try:
        value = decode_event(body)
    except Garbled:
        return (f"The upstream answered {excerpt(body)}" if body.strip() else None), None, None
    return _of(value)


def _of(value: Any) -> tuple[str | None, str | None, str | None]:
    """Message, code and parameter of an error object, however deep it is wrapped."""
    match value:
        case str(text):
            return text, None, None
        case [first, *_]:
            return _of(first)
        case {"error": inner} if inner:
            return _of(inner)
        case {"response": {"error": dict(inner)}}:
            return _of(inner)
        case dict():
            message = value.get("message") or value.get("detail") or value.get("msg")
            code = value.get("code") if type(value.get("code")) is str else None
            param = value.get("param")
            kind = value.get("type") if type(value.get("type")) is str and value.get("type") != "error" else None
            return (str(message) if message else None), code or kind, str(param) if param else None
    return None, None, None
