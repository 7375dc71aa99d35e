"""Encode the head of a request: one cached start per URL, one join per request. Sends nothing."""

import re
from collections.abc import Mapping

from toolgate.conversation.errors import GatewayError
from toolgate.upstreams.transport.address import Proxy, UpstreamOrigin

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = ("content-length", "transfer-encoding", "accept-encoding", "te", "trailer", "expect")
_HOP = ("host", "connection", "keep-alive", "upgrade", "proxy-authorization", "proxy-connection")
_OURS = frozenset(_FRAMING + _HOP)
_WITHOUT_BODY = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))
_KNOWN_NAMES = 1024


def head_start(origin: UpstreamOrigin, target: str, proxy: Proxy | None) -> bytes:
    """Return the part of a head that depends on the URL alone, from the blank after the method on."""
    lines = [f"host: {origin.authority}", "accept-encoding: identity"]
    if proxy is not None and origin.scheme == "http":
        target = f"http://{origin.authority}{target}"
        if proxy.authorization is not None:
            lines.append(f"proxy-authorization: {proxy.authorization}")
    return "\r\n".join((f" {target} HTTP/1.1", *lines, "")).encode("ascii")


class RequestWriter:
    """Writes request heads, and caches which methods and header names are valid."""

    def __init__(self) -> None:
        self._good: set[tuple[str, ...]] = set()
        self._last: tuple[Mapping[str, str], bytes] | None = None  # most requests carry the headers of the one before

    def head(self, method: str, start: bytes, headers: Mapping[str, str], length: int) -> bytes:
        """Join a head; a value that could end its line is refused, with its name and without its text."""
        last = self._last
        if last is not None and last[0] is headers and method == "POST":
            return b"".join((b"POST", start, last[1], b"content-length: %d\r\n\r\n" % length))
        block = self._block(method, headers)
        self._last = (headers, block)
        end = b"\r\n" if not length and method in _WITHOUT_BODY else b"content-length: %d\r\n\r\n" % length
        return b"".join((method.encode("ascii"), start, block, end))

    def _block(self, method: str, headers: Mapping[str, str]) -> bytes:
        names = (method, *headers)
        if names not in self._good:
            self._check(names)
        try:
            block = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")
        except UnicodeEncodeError:
            raise _refused(headers) from None
        lines = len(headers)
        if block.count(b"\n") != lines or block.count(b"\r") != lines or b"\0" in block:
            raise _refused(headers)
        return block

    def _check(self, names: tuple[str, ...]) -> None:
        if not all(map(_TOKEN.fullmatch, names)):
            raise GatewayError("an upstream request's method or header name holds a character that HTTP does not allow")
        ours = next((name for name in names[1:] if name.lower() in _OURS), None)
        if ours is not None:
            raise GatewayError(f"the header {ours} cannot be set: the connection to the upstream decides it")
        if len(self._good) >= _KNOWN_NAMES:
            self._good.clear()
        self._good.add(names)


def _refused(headers: Mapping[str, str]) -> GatewayError:
    bad = next(name for name, value in headers.items() if any(one in "\r\n\0" or ord(one) > 255 for one in value))
    return GatewayError(f"the value of the header {bad} holds a line break or another character that HTTP cannot carry")
