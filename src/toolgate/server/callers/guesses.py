"""Wrong keys by the address that sent them: whoever tries many is told to stop.

A right key is always let in, so that nobody can lock others out from an address they share. One wrong key that is sent
again and again is one guess: a program with an old key hears each time that it is wrong.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from toolgate.conversation.errors import RateLimited

MOST = 20
SECONDS = 60.0
_ADDRESSES = 4096
_NETWORK = 16
"""Characters of an IPv6 address, written out in hex, that belong to one customer: the first 64 bits."""


class Guesses:
    """Different wrong keys of the last minute; the addresses seen longest ago are forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, dict[bytes, float]] = OrderedDict()

    def note(self, address: str, guess: bytes) -> bool:
        """Take note of a wrong key; RateLimited if the address has tried too many others, True if this is the last."""
        now, place = self._clock(), _place(address)
        tried = self._seen.pop(place, {})
        tried = {one: moment for one, moment in tried.items() if now - moment < SECONDS}
        self._seen[place] = tried
        if len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)
        if len(tried) >= MOST and guess not in tried:
            wait = SECONDS - (now - min(tried.values()))
            raise RateLimited(
                "Too many wrong keys came from this address.", code="too_many_wrong_keys", retry_after=max(1.0, wait)
            )
        tried[guess] = now
        return len(tried) == MOST


def _place(address: str) -> str:
    """The address, or of IPv6 the network that a customer gets."""
    if ":" not in address:
        return address
    try:
        return IPv6Address(address.partition("%")[0]).packed.hex()[:_NETWORK]
    except ValueError:
        return address
