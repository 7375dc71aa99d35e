"""Encode the head of a request: one cached start per URL, one join per request. Sends nothing."""

import re
from collections.abc import Mapping

from toolgate.conversation.errors import InternalGatewayError
from toolgate.upstreams.transport.address import Proxy, UpstreamOrigin

# The characters of a method or a header name (RFC 9110, 5.6.2).
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Headers that this client sets itself. From a caller they could contradict the framing: the upstream would then see
# another end of the request than we do, and take the rest for a second request.
_FRAMING = ("content-length", "transfer-encoding", "accept-encoding", "te", "trailer", "expect")
_HOP = ("host", "connection", "keep-alive", "upgrade", "proxy-authorization", "proxy-connection")
_OURS = frozenset(_FRAMING + _HOP)
_WITHOUT_BODY = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))
# Sets of header names that are kept as valid.
_KNOWN_NAMES = 1024


def head_start(origin: UpstreamOrigin, target: str, proxy: Proxy | None) -> bytes:
    """Return the part of a head that depends on the URL alone, from the blank after the method on."""
    lines = [f"host: {origin.authority}", "accept-encoding: identity"]
    # A proxy for plain HTTP wants the whole URL as the target; one for TLS only sees CONNECT, in `tunnel.py`.
    if proxy is not None and origin.scheme == "http":
        target = f"http://{origin.authority}{target}"
        if proxy.authorization is not None:
            lines.append(f"proxy-authorization: {proxy.authorization}")
    return "\r\n".join((f" {target} HTTP/1.1", *lines, "")).encode("ascii")


class RequestHeadWriter:
    """Writes request heads, and caches which methods and header names are valid."""

    def __init__(self) -> None:
        self._good: set[tuple[str, ...]] = set()
        self._last: tuple[Mapping[str, str], bytes] | None = None  # most requests carry the headers of the one before

    def head(self, method: str, start: bytes, headers: Mapping[str, str], length: int) -> bytes:
        """Join a head; a value that could end its line is refused, with its name and without its text."""
        last = self._last
        # By identity: models pass the same mapping with every request, and no caller changes one that it has passed.
        if last is not None and last[0] is headers and method == "POST":
            return b"".join((b"POST", start, last[1], b"content-length: %d\r\n\r\n" % length))
        names = (method, *headers)
        if names not in self._good:
            if not all(map(_TOKEN.fullmatch, names)):
                raise InternalGatewayError(
                    "an upstream request's method or header name holds a character that HTTP does not allow"
                )
            ours = next((name for name in headers if name.lower() in _OURS), None)
            if ours is not None:
                raise InternalGatewayError(
                    f"the header {ours} cannot be set: the connection to the upstream decides it"
                )
            if len(self._good) >= _KNOWN_NAMES:  # names may come from callers without end: start over
                self._good.clear()
            self._good.add(names)
        try:
            block = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")
        except UnicodeEncodeError:
            raise _refused(headers) from None
        # Any line break beyond one for each header stands in a value, and would begin a header of its own.
        lines = len(headers)
        if block.count(b"\n") != lines or block.count(b"\r") != lines or b"\0" in block:
            raise _refused(headers)
        self._last = (headers, block)
        end = b"\r\n" if not length and method in _WITHOUT_BODY else b"content-length: %d\r\n\r\n" % length
        return b"".join((method.encode("ascii"), start, block, end))


def _refused(headers: Mapping[str, str]) -> InternalGatewayError:
    bad = next(name for name, value in headers.items() if any(one in "\r\n\0" or ord(one) > 255 for one in value))
    return InternalGatewayError(
        f"the value of the header {bad} holds a line break or another character that HTTP cannot carry"
    )
