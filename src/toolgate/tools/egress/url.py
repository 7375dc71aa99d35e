"""A URL that came from a model, a document or a redirect: taken apart once, or refused. Opens and resolves nothing.

What is checked is written out again from its parts, so that nobody further down can read the same text in another way.
"""

import re
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from toolgate.tools.egress.http import Refused

MAX_URL = 8 * 1024
PORTS = {"http": 80, "https": 443}
# Other people's protocols: a request that reaches one of these ports is not meant as HTTP.
_FOREIGN_PORTS = frozenset({2049, 2375, 3306, 5432, 5984, 6000, 6379, 6667, 9042, 11211, 27017})
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff\\]")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")
_DOTTED = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")


class Target(Struct, frozen=True):
    """Where a request goes; `host` is in lower case, without brackets and without the dot at its end."""

    scheme: str
    host: str
    port: int
    rest: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What has to be equal for credentials to go along."""
        return self.scheme, self.host, self.port

    @property
    def exact(self) -> str:
        """Host and port, as the operator's list of exceptions names them."""
        return f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        """The URL in its one spelling."""
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self._bracketed}{port}{self.rest}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def foreign_port(self) -> bool:
        """Whether the port belongs to another protocol."""
        return self.port in _FOREIGN_PORTS or (self.port < 1024 and self.port not in PORTS.values())


def read_url(text: str) -> Target:
    """Take a URL apart; whatever could be read in two ways is refused."""
    if len(text) > MAX_URL:
        raise Refused(f"the URL is longer than {MAX_URL} characters")
    if _UNSAFE.search(text):
        raise Refused("the URL holds a space, backslash or control character; percent-encode it")
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").removesuffix(".")
    except ValueError:
        raise Refused("the URL's host or port is malformed") from None
    if parts.scheme not in PORTS:
        raise Refused("only http and https URLs can be opened; write the whole URL, such as https://example.org/page")
    if "@" in parts.netloc:
        raise Refused("the URL holds a user name or password, which is not allowed")
    if port == 0:
        raise Refused("the URL's port is 0, which is not a port")
    _check_host(host)
    return Target(parts.scheme, host, port or PORTS[parts.scheme], _rest(parts.path, parts.query))


def follow(target: Target, location: str) -> Target:
    """Where a redirect leads."""
    try:
        return read_url(urljoin(target.url, location.strip()))
    except ValueError:
        raise Refused("the answer redirects to a malformed URL") from None


def _rest(path: str, query: str) -> str:
    # A percent sign stays as it is: what is encoded already is not encoded again.
    safe = "!#$%&'()*+,/:;=?@[]~"
    return quote(path or "/", safe=safe) + (f"?{quote(query, safe=safe)}" if query else "")


def _check_host(host: str) -> None:
    if ":" in host:  # an IPv6 address: the policy reads it; a zone names one of our own interfaces
        if "%" in host:
            raise Refused("the URL names a network interface in its address, which is not allowed")
        return
    if not host.isascii():
        raise Refused("the URL's host is not ASCII; write it in its xn-- form")
    if not _HOST.fullmatch(host) or ".." in host or len(host) > 253:
        raise Refused("the URL's host is malformed")
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not _DOTTED.fullmatch(host):
        raise Refused("the URL's host is an address in an unusual spelling; write it as four decimal numbers")
