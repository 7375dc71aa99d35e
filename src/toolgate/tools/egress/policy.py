"""Decide where requests may go: to public addresses, and where the operator allows it. Names are looked up elsewhere."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct

from toolgate.tools.egress.address import Address, Network, bare, is_public, read_address, read_network
from toolgate.tools.egress.http import EgressNoResponse, EgressRefused
from toolgate.tools.egress.url import ParsedEgressUrl

# The addresses of a host, as text; raises OSError when there are none.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# A host and its port; the brackets of `[::1]:8080` tell the colons of an address from that of the port.
_PORTED = re.compile(r"(\[[^\]]+\]|[^:\]]+):([0-9]{1,5})")
_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


class EgressExemption(Struct, frozen=True):
    """One entry of the operator's list: a name, `*.` and a domain, or a network; for one port or for all."""

    host: str
    network: Network | None
    port: int | None

    @classmethod
    def of(cls, entry: str) -> "EgressExemption":
        """Parse `127.0.0.1`, `10.0.0.0/8`, `intranet.example`, `*.corp.example`, `localhost:8080` or `[::1]:8080`."""
        ported = _PORTED.fullmatch(entry)
        host, port = (ported[1], int(ported[2])) if ported else (entry, None)
        host = host.removeprefix("[").removesuffix("]")
        network = read_network(host)
        if network is None and not _NAME.fullmatch(host):
            raise ValueError(f"{entry!r} is not a host, an address or a network such as 10.0.0.0/8")
        return cls(host.lower().removesuffix("."), network, port)

    def names(self, target: ParsedEgressUrl) -> bool:
        """Whether the operator named this very host, so that its addresses do not matter."""
        if self.network is not None or self.port not in (None, target.port):
            return False
        if self.host.startswith("*."):  # the dot is compared, too: `*.corp.example` is no `evilcorp.example`
            return target.host.endswith(self.host[1:])
        return target.host == self.host

    def covers(self, address: Address, port: int) -> bool:
        """Whether the address is in its network."""
        return self.network is not None and self.port in (None, port) and bare(address) in self.network


class EgressPolicy:
    """Decides about destinations. The result is a list of checked addresses, because a name could change its addresses."""

    def __init__(self, resolve: Resolve, allow: Iterable[str] = ()) -> None:
        """Raises ValueError for a malformed entry."""
        self._resolve = resolve
        self._exemptions = tuple(map(EgressExemption.of, allow))

    def trusting(self, *hosts: str) -> "EgressPolicy":
        """Return this policy with further exceptions, for a tool whose address the operator configured."""
        wider = EgressPolicy(self._resolve)
        wider._exemptions = (*self._exemptions, *map(EgressExemption.of, hosts))
        return wider

    async def addresses(self, target: ParsedEgressUrl) -> tuple[str, ...]:
        """Look up and check the addresses to connect to; one private address refuses the host."""
        named = any(exemption.names(target) for exemption in self._exemptions)
        texts: Sequence[str] = ()
        if (literal := read_address(target.host)) is not None:
            texts = (str(literal),)
        elif ":" in target.host:  # no name has a colon
            raise EgressRefused("the URL's address is malformed")
        else:
            with suppress(OSError):
                texts = await self._resolve(target.host, target.port)
        if not texts:
            raise EgressNoResponse(f"the host {target.host} is not known; check its spelling")
        # The resolver may append an interface, as in `fe80::1%eth0`.
        found = [text.partition("%")[0] for text in texts]
        for address in [] if named else map(read_address, found):
            if address is not None and any(one.covers(address, target.port) for one in self._exemptions):
                continue
            # The message does not name the address: a model must not explore the network by trying names.
            if address is None or not is_public(address):
                why = "tools may not open it unless the operator allows it (tools.reach)"
                raise EgressRefused(f"{target.host} is a private or reserved address: {why}")
            if target.foreign_port:
                raise EgressRefused(f"port {target.port} of {target.host} is not for HTTP, and tools may not open it")
        return tuple(dict.fromkeys(found))
