"""Check a request's head, and define how much of everything a client may send.

Pure: bytes in, limits for the body or an error out. It must not know sockets, clocks or the parser's state.
The parser has already rejected what no HTTP parser accepts; here is checked what two parsers might read differently.
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

import httptools
import msgspec

from toolgate.conversation.errors import InvalidRequest, TooLarge, WrongMediaType

Headers = list[tuple[bytes, bytes]]

# Headers that few requests have.
_RARE = frozenset((b"expect", b"transfer-encoding", b"content-encoding"))
# The parser refuses more than 64 bits, and takes zeros in front without end, for which `int` fails after 4300 digits.
_LENGTH_DIGITS = 32
_CACHED_TARGETS = 256  # and as many hosts: clients of a server send few
_HOST_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may send and how long it may take; sizes in bytes, times in seconds."""

    head_bytes: int = 32 * 1024
    headers: int = 100
    url_bytes: int = 8 * 1024
    head_seconds: float = 10.0
    body_bytes: int = 10 * 1024 * 1024
    # Other body sizes by path prefix; the first prefix that matches counts.
    body_bytes_at: tuple[tuple[str, int], ...] = ()
    body_idle_seconds: float = 30.0
    body_seconds: float = 120.0
    keep_alive_seconds: float = 75.0
    write_stall_seconds: float = 30.0
    connections: int = 4096
    pipelined: int = 32

    @property
    def reserved(self) -> int:
        """How many of the connections are kept for callers that hold less than their share."""
        return min(64, self.connections // 16)


def check_head(
    version: str, url: bytes, headers: Headers, named: Mapping[bytes, bytes], limits: RequestLimits
) -> tuple[int, bool]:
    """Return how large the body may be and whether the client waits for "100 Continue"; raise what is wrong.

    `named` are the headers by name: if it is as long as `headers`, no header is given twice.
    """
    if version != "1.1" and version != "1.0":
        raise InvalidRequest("Only HTTP/1.1 is supported.", status=505, code="http_version_not_supported")
    most = body_limit(url, limits) if limits.body_bytes_at else limits.body_bytes
    expects_continue = False
    if len(named) != len(headers) or not _RARE.isdisjoint(named):
        expects_continue = _check_rare_headers(version, headers)
    host = named.get(b"host")
    if host is not None and not _is_host(host):
        raise _bad_host()
    length = named.get(b"content-length")  # there is one at most, or the parser would have rejected the head
    if length is not None and len(length) > _LENGTH_DIGITS:
        raise InvalidRequest(f"The Content-Length has more than {_LENGTH_DIGITS} characters.", code="malformed_request")
    if length is not None and int(length) > most:
        raise body_too_large(most)
    if host is None and version == "1.1":
        raise InvalidRequest("The Host header is missing.", code="bad_host")
    if not url.startswith(b"/"):
        _check_authority(url, host)
    return most, expects_continue


def _check_rare_headers(version: str, headers: Headers) -> bool:
    """Return whether the client waits for "100 Continue"; raise what is wrong with rare or repeated headers."""
    hosts, expects_continue = 0, False
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if hosts > 1:
                raise _bad_host()
        elif name == b"expect":
            expects_continue = value.strip().lower() == b"100-continue"
        elif name == b"transfer-encoding":
            # A coding before "chunked", or a second header, is read differently by different parsers.
            if value.strip().lower() != b"chunked" or version == "1.0":
                raise InvalidRequest("The only Transfer-Encoding understood is chunked.", code="malformed_request")
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise WrongMediaType("Compressed request bodies are not accepted; send the body as it is.")
    return expects_continue


@lru_cache(maxsize=_CACHED_TARGETS)
def _is_host(value: bytes) -> bool:
    value = value.strip()
    return bool(value) and not value.translate(None, _HOST_BYTES)


@lru_cache(maxsize=_CACHED_TARGETS)
def parse_target(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a request target, decoded and as it was sent, and the query."""
    if b"#" in url:
        raise _bad_target()
    if url.startswith(b"/") or url == b"*":
        raw_path, _, query = url.partition(b"?")
    else:  # `GET http://host/path`, as clients send it to a proxy
        absolute = httptools.parse_url(url)
        raw_path, query = absolute.path or b"/", absolute.query or b""
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, query


def path_of(url: bytes) -> str | None:
    """Return the path as far as it was received; an error is encoded by it."""
    return url.partition(b"?")[0].decode("latin-1") or None


def head_size(url: bytes, headers: Headers) -> int:
    """Return the size of a head on the wire, without the fixed parts of its first line."""
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def body_too_large(limit: int) -> TooLarge:
    """Return the error for a body beyond `limit`."""
    return TooLarge(f"The body is larger than {limit} bytes.")


def head_too_large(limit: int) -> TooLarge:
    """Return the error for a head beyond `limit`."""
    return TooLarge(f"The headers are larger than {limit} bytes.", status=431, code="headers_too_large")


def too_many_headers(limit: int) -> TooLarge:
    """Return the error for more headers than `limit`."""
    return TooLarge(f"There are more than {limit} headers.", status=431, code="too_many_headers")


def url_too_long(limit: int) -> TooLarge:
    """Return the error for a target beyond `limit`."""
    return TooLarge(f"The URL is longer than {limit} bytes.", status=414, code="url_too_long")


def body_limit(url: bytes, limits: RequestLimits) -> int:
    """Return how large a body may be for this target."""
    path = path_of(url) or ""
    sizes = (size for prefix, size in limits.body_bytes_at if path.startswith(prefix))
    return next(sizes, limits.body_bytes)


def _check_authority(url: bytes, host: bytes | None) -> None:
    """Reject a target that names another host than the Host header, which is the one checked later."""
    if url == b"*":
        return
    target = httptools.parse_url(url)
    authority = target.host if target.port is None else b"%s:%d" % (target.host, target.port)
    if target.userinfo or authority is None or host is None or authority.lower() != host.strip().lower():
        raise _bad_target()


def _bad_host() -> InvalidRequest:
    return InvalidRequest("There must be one Host header, with a host and perhaps a port.", code="bad_host")


def _bad_target() -> InvalidRequest:
    return InvalidRequest("The request target must be a path on this host.", code="bad_target")
