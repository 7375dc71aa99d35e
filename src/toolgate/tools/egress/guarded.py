"""Http as a chain of hops, each checked before it is made: address, budget, and what of the request may go along.

Knows no socket: a Carrier makes a single exchange with addresses that were checked. Keeps no cookie and no connection.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolgate.tools.egress.budget import Budget
from toolgate.tools.egress.http import HttpAnswer, HttpRequest, Refused, Unanswered
from toolgate.tools.egress.policy import Policy
from toolgate.tools.egress.url import Target, follow, read_url

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
# What may cross to another origin; any other header could be a credential, whatever its name.
_HARMLESS = frozenset({"accept", "accept-language", "user-agent"})


class Hop(Struct, frozen=True):
    """One exchange that was made, for whoever keeps the books; `status` is None when no answer came."""

    account: str
    method: str
    host: str
    port: int
    sent: int
    status: int | None


Watch: TypeAlias = Callable[[Hop], None]


class Carrier(Protocol):
    """Makes one exchange with one of the given addresses and no other."""

    async def carry(self, target: Target, addresses: Sequence[str], request: HttpRequest) -> HttpAnswer:
        """The answer as it comes, a redirect included; Unanswered if none does."""


def unwatched(hop: Hop) -> None:
    """Keeps no books."""


class GuardedHttp:
    """The guard that every tool's request passes."""

    def __init__(self, carrier: Carrier, policy: Policy, budget: Budget, watch: Watch = unwatched) -> None:
        self._carrier = carrier
        self._policy = policy
        self._budget = budget
        self._watch = watch

    def trusting(self, url: str) -> "GuardedHttp":
        """The same guard for a tool whose address the operator wrote down: that host is open to it, private or not."""
        return GuardedHttp(self._carrier, self._policy.trusting(read_url(url).exact), self._budget, self._watch)

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Make the request and follow where it leads, within its time."""
        target = read_url(request.url)
        try:
            async with asyncio.timeout(request.seconds):
                return await self._follow(target, request)
        except TimeoutError:
            raise Unanswered(f"{target.host} did not answer within {request.seconds:g} s") from None

    async def _follow(self, target: Target, request: HttpRequest) -> HttpAnswer:
        for _ in range(request.redirects + 1):
            answer = await self._exchange(target, request)
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or location is None or not request.redirects:
                return answer
            origin, target = target, follow(target, location)
            request = redirected(request, answer.status, crossing=origin.origin != target.origin)
        raise Refused(f"more than {request.redirects} redirects")

    async def _exchange(self, target: Target, request: HttpRequest) -> HttpAnswer:
        addresses = await self._policy.addresses(target)
        sent = _size(target, request)
        self._budget.spend(request.account, sent)
        status = None
        try:
            answer = await self._carrier.carry(target, addresses, request)
            status = answer.status
        finally:
            self._watch(Hop(request.account, request.method, target.host, target.port, sent, status))
        return replace(answer, url=target.url)


def redirected(request: HttpRequest, status: int, *, crossing: bool) -> HttpRequest:
    """The request for the next hop: no credential crosses to another origin, and no request with effects does."""
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        method = "HEAD" if request.method == "HEAD" else "GET"
        request = replace(request, method=method, body=b"", headers=_without(request.headers, "content-type"))
    elif crossing and request.method not in _SAFE_METHODS:
        raise Refused(f"the answer redirects a {request.method} to another origin, where it is not repeated")
    if crossing:
        kept = {name: value for name, value in request.headers.items() if name.lower() in _HARMLESS}
        request = replace(request, headers=kept)
    return request


def _without(headers: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() != name}


def _size(target: Target, request: HttpRequest) -> int:
    headers = sum([len(name) + len(value) + 4 for name, value in request.headers.items()])
    return len(target.rest) + headers + len(request.body)
