"""Which Host and Origin headers are served: what keeps a web page from talking to a server on loopback.

Without keys, whoever reaches us is let in, so the request must be meant for this machine and come from no foreign page.
With keys, the key decides, and these headers only say which pages a browser may let read our answers.
Pure functions over raw headers. It must not know routes or dialects.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

from toolgate.config import Config, is_loopback
from toolgate.conversation.errors import Forbidden, InvalidRequest, Misdirected

Header: TypeAlias = tuple[bytes, bytes]

_HOST = re.compile(rb"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::\d{1,5})?")
_ORIGIN = re.compile(rb"https?://(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{1,5})?")
_FIELD_LIST = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_EXPOSE = (b"access-control-expose-headers", b"*")
_METHODS = b"GET, POST, DELETE, OPTIONS"
_REMEMBERED = 256


class Origins:
    """The rules of one configuration; values found good are remembered, so that a request costs two look-ups."""

    def __init__(self, config: Config) -> None:
        self._open = not config.keys
        self._hosts = frozenset(host.lower().encode() for host in config.server.hosts)
        self._everybody = not self._open and "*" in config.server.origins
        self._origins = frozenset(origin.encode() for origin in config.server.origins)
        self._good_hosts: set[bytes] = set()
        self._good_origins: set[bytes] = set()

    def check(self, headers: Iterable[Header]) -> tuple[Header, ...]:
        """The headers that let a browser hand our answer to the page that asked; raises when we are not meant.

        400 for a Host that is missing or malformed, 421 for one that we do not serve, 403 for a foreign page.
        """
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
        return () if origin is None else self._welcome(origin)

    def preflight(self, headers: Iterable[Header]) -> list[Header]:
        """The headers of the 204 that allows what a browser asks leave for; Forbidden if the page is not welcome."""
        headers = tuple(headers)
        given = dict(headers)
        welcome = self.check(headers)
        if not welcome:
            raise _foreign()
        allowed = [*welcome, (b"access-control-allow-methods", _METHODS), (b"access-control-max-age", b"600")]
        wanted = given.get(b"access-control-request-headers", b"")
        if _FIELD_LIST.fullmatch(wanted):
            allowed.append((b"access-control-allow-headers", wanted))
        if given.get(b"access-control-request-private-network") == b"true":
            allowed.append((b"access-control-allow-private-network", b"true"))
        return allowed

    def _check_host(self, value: bytes | None) -> None:
        if value is None and not self._open and not self._hosts:
            return  # an old client, and we serve every name
        found = _HOST.fullmatch(value or b"")
        if value is None or found is None:
            raise InvalidRequest("The Host header is missing or malformed.", code="bad_host")
        name = found[1].lower().rstrip(b".")
        served = name in self._hosts or (self._open and is_loopback(name.decode()))
        if not served and (self._open or self._hosts):
            raise Misdirected(
                "This host name is not served here: call 127.0.0.1 or localhost, or name it in server.hosts."
            )
        _remember(self._good_hosts, value)

    def _welcome(self, origin: bytes) -> tuple[Header, ...]:
        """What an answer to this page carries, nothing if a browser shall keep it; there are no cookies to go with it."""
        if origin not in self._good_origins:
            found = _ORIGIN.fullmatch(origin)
            local = self._open and found is not None and is_loopback(found[1].decode())
            if not (local or self._everybody or origin in self._origins):
                if self._open:
                    raise _foreign()
                return ()
            _remember(self._good_origins, origin)
        if self._everybody:
            return (b"access-control-allow-origin", b"*"), _EXPOSE
        return (b"access-control-allow-origin", origin), _EXPOSE, (b"vary", b"origin")


def _foreign() -> Forbidden:
    return Forbidden("Pages of this origin may not call us; name it in server.origins.", code="origin_not_allowed")


def _twice(name: str) -> InvalidRequest:
    return InvalidRequest(f"The {name} header is given twice.", code=f"bad_{name.lower()}")


def _remember(good: set[bytes], value: bytes) -> None:
    if len(good) >= _REMEMBERED:
        good.clear()
    good.add(value)
