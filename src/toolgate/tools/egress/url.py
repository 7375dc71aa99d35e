"""Parse a URL from a model, a document or a redirect, or refuse it. Opens and looks up nothing.

The URL is written again from its checked parts, so that no later parser can read the same text in another way.
"""

import re
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from toolgate.tools.egress.http import EgressRefused

MAX_URL = 8 * 1024
PORTS = {"http": 80, "https": 443}
# Ports of other protocols, which a request could abuse: Redis and memcached, for two, execute lines of its body.
_FOREIGN_PORTS = frozenset({2049, 2375, 3306, 5432, 5984, 6000, 6379, 6667, 9042, 11211, 27017})
# Control characters, spaces, line separators, halves of surrogate pairs and the backslash, which browsers read as a slash.
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff\\]")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")
# An IPv4 address in its usual form. `inet_aton` also reads `127.1`, `0x7f.1` and `2130706433`, all of them 127.0.0.1.
_DOTTED = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")


class ParsedEgressUrl(Struct, frozen=True):
    """A URL in checked parts; `host` is in lower case, without brackets and without the dot at its end."""

    scheme: str
    host: str
    port: int
    rest: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port; credentials are sent only where they stay the same."""
        return self.scheme, self.host, self.port

    @property
    def exact(self) -> str:
        """Host and port, as the operator's list of exceptions names them."""
        return f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        """The URL in its canonical form."""
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self._bracketed}{port}{self.rest}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def foreign_port(self) -> bool:
        """Whether the port belongs to another protocol."""
        return self.port in _FOREIGN_PORTS or (self.port < 1024 and self.port not in PORTS.values())


def read_url(text: str) -> ParsedEgressUrl:
    """Parse a URL; EgressRefused if parsers could read it in two ways."""
    if len(text) > MAX_URL:
        raise EgressRefused(f"the URL is longer than {MAX_URL} characters")
    if _UNSAFE.search(text):
        raise EgressRefused("the URL contains a space, backslash or control character; percent-encode it")
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").removesuffix(".")
    except ValueError:
        raise EgressRefused("the URL's host or port is malformed") from None
    if parts.scheme not in PORTS:
        raise EgressRefused(
            "only http and https URLs can be opened; write the whole URL, such as https://example.org/page"
        )
    if "@" in parts.netloc:  # `https://bank.example@evil.example/` misleads the person who approves it
        raise EgressRefused("the URL contains a user name or password, which is not allowed")
    if port == 0:
        raise EgressRefused("the URL's port is 0, which is not a port")
    if ":" in host:  # an IPv6 address: the policy reads it; a zone names one of our own interfaces
        if "%" in host:
            raise EgressRefused("the URL names a network interface in its address, which is not allowed")
    elif not host.isascii():
        raise EgressRefused("the URL's host is not ASCII; write it in its xn-- form")
    elif not _HOST.fullmatch(host) or ".." in host or len(host) > 253:
        raise EgressRefused("the URL's host is malformed")
    elif _NUMBER.fullmatch(host.rpartition(".")[2]) and not _DOTTED.fullmatch(host):
        raise EgressRefused("the URL's host is an address in an unusual spelling; write it as four decimal numbers")
    # A percent sign stays as it is: what is encoded already is not encoded again.
    safe = "!#$%&'()*+,/:;=?@[]~"
    rest = quote(parts.path or "/", safe=safe) + (f"?{quote(parts.query, safe=safe)}" if parts.query else "")
    return ParsedEgressUrl(parts.scheme, host, port or PORTS[parts.scheme], rest)


def follow(target: ParsedEgressUrl, location: str) -> ParsedEgressUrl:
    """Parse the location of a redirect."""
    try:
        return read_url(urljoin(target.url, location.strip()))
    except ValueError:
        raise EgressRefused("the response redirects to a malformed URL") from None
