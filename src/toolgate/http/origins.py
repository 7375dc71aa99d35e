"""Check Host and Origin headers, so that a web page cannot call a server on loopback.

Without keys, every request that arrives is served, so it must be meant for this machine and come from no foreign page.
With keys, the key decides, and these headers only decide which pages a browser may let read the response.
Pure functions over raw headers. It must not know routes or dialects.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from toolgate.config import Config, is_loopback
from toolgate.conversation.errors import Forbidden, InvalidRequest, MisdirectedRequest

Header: TypeAlias = tuple[bytes, bytes]

# A name or an address, IPv6 in brackets, and perhaps a port: `localhost:8000`, `[::1]:8000`.
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::\d{1,5})?")
_ORIGIN = re.compile(rb"https?://(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{1,5})?")
# Names of headers as RFC 9110 allows them, so that nothing else is sent back to the browser.
_FIELD_LIST = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_EXPOSE = (b"access-control-expose-headers", b"*")
_METHODS = b"GET, POST, DELETE, OPTIONS"
_CACHED = 256


class OriginPolicy:
    """The rules of one configuration; accepted values are cached, so that a request costs two look-ups."""

    def __init__(self, config: Config) -> None:
        self._open = not config.keys
        self._hosts = frozenset(host.lower().encode() for host in config.server.hosts)
        self._all_origins = not self._open and "*" in config.server.origins
        self._origins = frozenset(origin.encode() for origin in config.server.origins)
        self._good_hosts: set[bytes] = set()
        self._good_origins: set[bytes] = set()

    def check(self, headers: Collection[Header], named: Mapping[bytes, bytes] | None = None) -> tuple[Header, ...]:
        """Return the headers that let a browser show the response to its page; raise if the request is not for us.

        400 for a Host that is missing or malformed, 421 for one that is not served, 403 for a foreign page.
        `named` are the headers by name: if it is as long as `headers`, no header is given twice.
        """
        if named is not None and len(named) == len(headers) and named.get(b"host") in self._good_hosts:
            return () if b"origin" not in named else self._allow(named[b"origin"])
        host: bytes | None = None
        origin: bytes | None = None
        for name, value in headers:
            if name == b"host":
                if host is not None:
                    raise _twice("Host")
                host = value
            elif name == b"origin":
                if origin is not None:
                    raise _twice("Origin")
                origin = value
        if host not in self._good_hosts:
            self._check_host(host)
        return () if origin is None else self._allow(origin)

    def preflight(self, headers: Iterable[Header]) -> list[Header]:
        """Return the headers of the response to a preflight request; Forbidden if the page is not allowed."""
        headers = tuple(headers)
        given = dict(headers)
        allowed = self.check(headers)
        if not allowed:
            raise _foreign()
        response = [*allowed, (b"access-control-allow-methods", _METHODS), (b"access-control-max-age", b"600")]
        requested = given.get(b"access-control-request-headers", b"")
        if _FIELD_LIST.fullmatch(requested):
            response.append((b"access-control-allow-headers", requested))
        if given.get(b"access-control-request-private-network") == b"true":
            response.append((b"access-control-allow-private-network", b"true"))
        return response

    def _check_host(self, value: bytes | None) -> None:
        # A page can point a name of its own at 127.0.0.1 (DNS rebinding), and its requests are then of no foreign origin.
        if value is None and not self._open and not self._hosts:
            return  # an old client, and every name is served
        found = _HOST.fullmatch(value or b"")
        if value is None or found is None:
            raise InvalidRequest("The Host header is missing or malformed.", code="bad_host")
        name = found[1].lower().rstrip(b".")
        served = name in self._hosts or (self._open and is_loopback(name.decode()))
        if not served and (self._open or self._hosts):
            raise MisdirectedRequest(
                "This host name is not served here: call 127.0.0.1 or localhost, or name it in server.hosts."
            )
        _cache(self._good_hosts, value)

    def _allow(self, origin: bytes) -> tuple[Header, ...]:
        """Return the headers of a response to this page, none if the browser must not show it; cookies are not used."""
        if origin not in self._good_origins:
            found = _ORIGIN.fullmatch(origin)
            local = self._open and found is not None and is_loopback(found[1].decode())
            if not (local or self._all_origins or origin in self._origins):
                if self._open:
                    raise _foreign()
                return ()
            _cache(self._good_origins, origin)
        if self._all_origins:
            return (b"access-control-allow-origin", b"*"), _EXPOSE
        return (b"access-control-allow-origin", origin), _EXPOSE, (b"vary", b"origin")


def _foreign() -> Forbidden:
    return Forbidden(
        "Web pages of this origin may not call this server; add the origin to server.origins.",
        code="origin_not_allowed",
    )


def _twice(name: str) -> InvalidRequest:
    return InvalidRequest(f"The {name} header is given twice.", code=f"bad_{name.lower()}")


def _cache(good: set[bytes], value: bytes) -> None:
    # A client that sends many different values empties the cache, and does not make it grow.
    if len(good) >= _CACHED:
        good.clear()
    good.add(value)
