"""Distinguish public IP addresses from private and reserved ones. Knows no names and no exceptions."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

# Written out instead of `is_global` of `ipaddress`, whose lists change between versions of Python and let some clouds'
# own addresses pass.
_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host, this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' NAT; some clouds keep their metadata there
            "127.0.0.0/8",
            "168.63.129.16/32",  # a cloud's own agent, at an address that looks public
            "169.254.0.0/16",  # link-local; most clouds' metadata
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast at its end
        ),
    )
)
# The only part of IPv6 that is assigned to the public Internet.
_PUBLIC_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",
            "2002::/16",  # 6to4: an IPv4 address inside, reached through relays that no longer exist
            "3fff::/20",
        ),
    )
)
# Networks whose last 32 bits are the IPv4 address that is reached.
_EMBEDDING_V4 = tuple(map(IPv6Network, ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))


def read_address(text: str) -> Address | None:
    """Parse an address, the IPv4 one where an IPv6 one embeds it; None for any other text."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return bare(address)


def bare(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one embeds, else the address itself."""
    if isinstance(address, IPv6Address) and any(address in network for network in _EMBEDDING_V4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def read_network(text: str) -> Network | None:
    """Parse a network or a single address; None for any other text."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether the address is public: every address that is not known to be is not."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return (
        address.scope_id is None and address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
    )
