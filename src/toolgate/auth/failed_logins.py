"""Limit how many different wrong keys an address may try.

A valid key always works, so that a client cannot lock out others that share its address. One wrong key that is sent again
and again counts once: a program with an old key gets the same error each time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from toolgate.conversation.errors import RateLimited

MOST = 20
SECONDS = 60.0
_ADDRESSES = 4096  # bounds the memory that strangers can fill
# Characters of an IPv6 address in hex that belong to one customer: the first 64 bits.
_NETWORK = 16


class FailedLogins:
    """The different wrong keys of the last minute by address; the addresses seen longest ago are forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, dict[bytes, float]] = OrderedDict()

    def add(self, address: str, digest: bytes) -> bool:
        """Count a wrong key; RateLimited if the address has tried too many others, True if this is the last allowed."""
        now, network = self._clock(), _network(address)
        tried = self._seen.pop(network, {})  # and put back at the end, as the address seen last
        tried = {one: moment for one, moment in tried.items() if now - moment < SECONDS}
        self._seen[network] = tried
        if len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)
        if len(tried) >= MOST and digest not in tried:
            wait = SECONDS - (now - min(tried.values()))
            raise RateLimited(
                "Too many wrong keys came from this address.", code="too_many_wrong_keys", retry_after=max(1.0, wait)
            )
        tried[digest] = now
        return len(tried) == MOST


def _network(address: str) -> str:
    """Return an IPv4 address, or of an IPv6 address the network that one customer gets."""
    if ":" not in address:
        return address
    try:
        return IPv6Address(address.partition("%")[0]).packed.hex()[:_NETWORK]  # fe80::1%eth0 names an interface
    except ValueError:
        return address
