"""Which addresses an MCP server may send us, or a person's browser, to. What it says is not trusted; opens nothing.

This judges the text of an address. Where a name leads is the business of the egress check, which is asked as well.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from toolgate.tools.sources.mcp.line import Trouble
from toolgate.tools.sources.mcp.pieces import printable

_PLAIN = re.compile(r"[\x21-\x7e]{1,2048}")
_STRANGE = re.compile(r"[\"'<>\\^`{|}]")
_NUMERIC = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+))*")


class Unsafe(Trouble):
    """An address that is not gone to."""


def check_address(url: str, server: str) -> None:
    """Raise Unsafe unless the address is https, or as near to us as the server is that gave it."""
    parts = _split(url)
    host = parts.hostname or ""
    near = _nearness(urlsplit(server).hostname or "")
    nearness = _nearness(host)
    if nearness == "forbidden" or (nearness != "public" and nearness != near):
        raise Unsafe(f"names an address that is not gone to: {printable(host, 100)}")
    if parts.scheme != "https" and not (parts.scheme == "http" and nearness == "loopback"):
        raise Unsafe(f"names an address that is not https: {printable(url, 100)}")


def same_place(audience: str, server: str) -> bool:
    """Whether a token made out to this audience is meant for the server: same origin, same path or one above it."""
    try:
        ours, theirs = urlsplit(server), urlsplit(audience)
        same = (ours.scheme, ours.hostname, _port(ours)) == (theirs.scheme, theirs.hostname, _port(theirs))
    except ValueError:
        return False
    path = theirs.path.rstrip("/")
    return same and (ours.path.rstrip("/") + "/").startswith(path + "/")


def _split(url: str) -> SplitResult:
    if not _PLAIN.fullmatch(url) or _STRANGE.search(url):
        raise Unsafe(f"names an address with strange characters: {printable(url, 100)}")
    try:
        parts = urlsplit(url)
        _port(parts)
    except ValueError:
        raise Unsafe(f"names an address that is none: {printable(url, 100)}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise Unsafe(f"names an address that is no plain web address: {printable(url, 100)}")
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _nearness(host: str) -> str:
    """`loopback`, `private` or `public`; `forbidden` for what nobody means: metadata services, odd spellings of numbers."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "forbidden" if _NUMERIC.fullmatch(host) or "%" in host else "public"
    if isinstance(address, ipaddress.IPv6Address):
        if address.sixtofour or address.teredo or address in ipaddress.ip_network("64:ff9b::/96"):
            return "forbidden"
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return "loopback"
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return "forbidden"
    if str(address) == "fd00:ec2::254":
        return "forbidden"
    return "public" if address.is_global else "private"
