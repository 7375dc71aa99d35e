"""Send a tool's request and follow its redirects, each hop checked first: address, budget, and headers that may be sent.

Knows no socket: a `PinnedAddressTransport` makes a single exchange with addresses that were checked. Keeps no cookies and
no connections.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolgate.tools.egress.account_request_quota import EgressBudget
from toolgate.tools.egress.http import EgressNoResponse, EgressRefused, EgressRequest, EgressResponse
from toolgate.tools.egress.policy import EgressPolicy
from toolgate.tools.egress.url import ParsedEgressUrl, follow, read_url

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
# What may cross to another origin; any other header could be a credential, whatever its name.
_HARMLESS = frozenset({"accept", "accept-language", "user-agent"})


class HttpHopLogEntry(Struct, frozen=True):
    """One exchange that was made, for logs and metrics; `status` is None if there was no response."""

    account: str
    method: str
    host: str
    port: int
    sent: int
    status: int | None


OnHop: TypeAlias = Callable[[HttpHopLogEntry], None]


class PinnedAddressTransport(Protocol):
    """Makes one exchange with one of the given addresses and no other."""

    async def carry(self, target: ParsedEgressUrl, addresses: Sequence[str], request: EgressRequest) -> EgressResponse:
        """Return the response as it comes, a redirect included; EgressNoResponse if there is none."""


def ignore_hop(hop: HttpHopLogEntry) -> None:
    """Record nothing."""


class GuardedHttp:
    """The HTTP client of tools: it checks every hop of a request."""

    def __init__(
        self, carrier: PinnedAddressTransport, policy: EgressPolicy, budget: EgressBudget, on_hop: OnHop = ignore_hop
    ) -> None:
        self._carrier = carrier
        self._policy = policy
        self._budget = budget
        self._on_hop = on_hop

    def trusting(self, url: str) -> "GuardedHttp":
        """Return a client that may also reach the host of this URL, private or not, because the operator configured it."""
        return GuardedHttp(self._carrier, self._policy.trusting(read_url(url).exact), self._budget, self._on_hop)

    async def check(self, url: str) -> None:
        """Raise EgressRefused if a request to the URL would be refused; sends nothing."""
        await self._policy.addresses(read_url(url))

    async def send(self, request: EgressRequest) -> EgressResponse:
        """Send the request and follow redirects within its time."""
        target = first = read_url(request.url)
        try:
            async with asyncio.timeout(request.seconds):
                for _ in range(request.redirects + 1):
                    # The name is looked up and checked again at every hop: a public page may redirect to 127.0.0.1.
                    response = await self._exchange(target, request)
                    location = response.headers.get("location")
                    if response.status not in _REDIRECTS or location is None or not request.redirects:
                        return response
                    previous, target = target, follow(target, location)
                    request = redirected(request, response.status, crossing=previous.origin != target.origin)
        except TimeoutError:
            raise EgressNoResponse(f"{first.host} did not answer within {request.seconds:g} s") from None
        raise EgressRefused(f"more than {request.redirects} redirects")

    async def _exchange(self, target: ParsedEgressUrl, request: EgressRequest) -> EgressResponse:
        addresses = await self._policy.addresses(target)
        # What a tool can send out is its URL, headers and body: a page could be read and sent elsewhere in a query.
        headers = sum([len(name) + len(value) + 4 for name, value in request.headers.items()])
        sent = len(target.rest) + headers + len(request.body)
        self._budget.spend(request.account, sent)
        status = None
        try:
            response = await self._carrier.carry(target, addresses, request)
            status = response.status
        finally:
            self._on_hop(HttpHopLogEntry(request.account, request.method, target.host, target.port, sent, status))
        return replace(response, url=target.url)


def redirected(request: EgressRequest, status: int, *, crossing: bool) -> EgressRequest:
    """Make the request for the next hop: no credential and no request with effects is sent to another origin."""
    # As browsers do: 303 asks for a GET, and 301 and 302 after a POST have meant one since HTTP/1.0.
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        method = "HEAD" if request.method == "HEAD" else "GET"
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-type"}
        request = replace(request, method=method, body=b"", headers=headers)
    elif crossing and request.method not in _SAFE_METHODS:
        raise EgressRefused(f"the response redirects a {request.method} to another origin, where it is not repeated")
    if crossing:
        kept = {name: value for name, value in request.headers.items() if name.lower() in _HARMLESS}
        request = replace(request, headers=kept)
    return request
