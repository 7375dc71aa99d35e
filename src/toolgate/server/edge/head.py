"""What a request may be, judged from its head alone, and how much of everything a client may send.

Pure: bytes in, the terms for the body or a refusal out.  It must not know sockets, clocks or the parser's state.
The parser has already refused what no reader of HTTP accepts; here stands what two readers might read differently.
"""

from functools import lru_cache
from urllib.parse import unquote

import httptools
import msgspec

from toolgate.conversation.errors import InvalidRequest, TooLarge, WrongMediaType

Headers = list[tuple[bytes, bytes]]

_CODINGS = frozenset((b"transfer-encoding", b"content-encoding"))
_KNOWN_TARGETS = 256
_HOST_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may send and how long it may take; sizes in bytes, times in seconds."""

    head_bytes: int = 32 * 1024
    headers: int = 100
    url_bytes: int = 8 * 1024
    head_seconds: float = 10.0
    body_bytes: int = 10 * 1024 * 1024
    body_bytes_at: tuple[tuple[str, int], ...] = ()
    """Other body sizes by path prefix; the first that fits counts."""
    body_idle_seconds: float = 30.0
    body_seconds: float = 120.0
    keep_alive_seconds: float = 75.0
    write_stall_seconds: float = 30.0
    connections: int = 4096
    pipelined: int = 32


def terms(version: str, url: bytes, headers: Headers, limits: Limits) -> tuple[int, bool]:
    """Return how large the body may be and whether the client waits to be asked for it."""
    if version != "1.1" and version != "1.0":
        raise InvalidRequest("Only HTTP/1.1 is spoken here.", status=505, code="http_version_not_supported")
    most = body_limit(url, limits) if limits.body_bytes_at else limits.body_bytes
    host, waits = None, False
    for name, value in headers:
        if name == b"host":
            host = _host(host, value.strip())
        elif name == b"content-length":
            if int(value) > most:
                raise body_too_large(most)
        elif name == b"expect":
            waits = value.strip().lower() == b"100-continue"
        elif name in _CODINGS:
            _check_coding(name, value.strip().lower(), version)
    if host is None and version == "1.1":
        raise InvalidRequest("The Host header is missing.", code="bad_host")
    if not url.startswith(b"/"):
        _check_authority(url, host)
    return most, waits


@lru_cache(maxsize=_KNOWN_TARGETS)
def target_of(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a request target, decoded and as it came, and the query."""
    if b"#" in url:
        raise _bad_target()
    if url.startswith(b"/") or url == b"*":
        raw_path, _, query = url.partition(b"?")
    else:
        absolute = httptools.parse_url(url)
        raw_path, query = absolute.path or b"/", absolute.query or b""
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, query


def path_of(url: bytes) -> str | None:
    """Return the path as far as it was received, for whoever words a refusal."""
    return url.partition(b"?")[0].decode("latin-1") or None


def size_of(url: bytes, headers: Headers) -> int:
    """Return what a head takes on the wire, but for its first line's fixed parts."""
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def body_too_large(limit: int) -> TooLarge:
    """Return the refusal of a body beyond `limit`."""
    return TooLarge(f"The body is larger than {limit} bytes.")


def head_too_large(limit: int) -> TooLarge:
    """Return the refusal of a head beyond `limit`."""
    return TooLarge(f"The headers are larger than {limit} bytes.", status=431, code="headers_too_large")


def too_many_headers(limit: int) -> TooLarge:
    """Return the refusal of more headers than `limit`."""
    return TooLarge(f"There are more than {limit} headers.", status=431, code="too_many_headers")


def url_too_long(limit: int) -> TooLarge:
    """Return the refusal of a target beyond `limit`."""
    return TooLarge(f"The URL is longer than {limit} bytes.", status=414, code="url_too_long")


def body_limit(url: bytes, limits: Limits) -> int:
    """Return how large a body may be at this target."""
    path = path_of(url) or ""
    fitting = (size for prefix, size in limits.body_bytes_at if path.startswith(prefix))
    return next(fitting, limits.body_bytes)


def _host(earlier: bytes | None, value: bytes) -> bytes:
    if earlier is not None or not value or value.translate(None, _HOST_BYTES):
        raise InvalidRequest("There must be one Host header, with a host and perhaps a port.", code="bad_host")
    return value


def _check_coding(name: bytes, value: bytes, version: str) -> None:
    if name == b"transfer-encoding":
        # A coding before "chunked", or a second header, is where two readers of one request come to disagree.
        if value != b"chunked" or version == "1.0":
            raise InvalidRequest("The only Transfer-Encoding understood is chunked.", code="malformed_request")
    elif value not in (b"", b"identity"):
        raise WrongMediaType("Compressed request bodies are not accepted; send the body as it is.")


def _check_authority(url: bytes, host: bytes | None) -> None:
    """Refuse a target that names another host than the Host header, which is the one that gets checked later."""
    if url == b"*":
        return
    target = httptools.parse_url(url)
    authority = target.host if target.port is None else b"%s:%d" % (target.host, target.port)
    if target.userinfo or authority is None or host is None or authority.lower() != host.lower():
        raise _bad_target()


def _bad_target() -> InvalidRequest:
    return InvalidRequest("The request target must be a path on this host.", code="bad_target")
