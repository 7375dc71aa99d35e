"""The way to one peer: a line that is opened when somebody needs it, and opened again after it was lost.

While that fails, it is tried ever more seldom; whoever asks in between is told so at once and may ask somebody else.
"""

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from toolgate.conversation.errors import Unavailable, Unreachable, UpstreamFault
from toolgate.upstreams.peers.line import Limits, Line
from toolgate.upstreams.peers.websocket import Place, open_websocket
from toolgate.upstreams.transport.address import Proxies

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Limits", "Peer"]

FIRST_REST = 0.5
LONGEST_REST = 30.0
_NO_LIMITS = Limits()


class Peer:
    """A peer and the line to it; one serves all its models."""

    def __init__(
        self,
        name: str,
        url: str,
        api_key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limits: Limits = _NO_LIMITS,
        tls: "SSLContext | None" = None,
        environment: Mapping[str, str] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Open nothing yet; `tls` is a context that verifies, by default the system's."""
        self.name = name
        self._place = Place.of(url)
        self._headers = {**({"authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        self._limits = limits
        self._tls = tls
        self._proxies = Proxies.of(os.environ if environment is None else environment)
        self._chance = chance
        self._line: Line | None = None
        self._opening = asyncio.Lock()
        self._failures = 0
        self._rest_until = 0.0
        self._closed = False

    async def line(self) -> Line:
        """The open line; those who need one at the same time wait for the same."""
        if self._line is not None and self._line.open:
            return self._line
        async with self._opening:
            if self._line is not None and self._line.open:
                return self._line
            self._account_for_loss()
            self._refuse_while_resting()
            try:
                line = await self._opened()
            except UpstreamFault:
                self._failed()
                raise
            self._line = line
        if self._closed:  # meanwhile
            await self.aclose()
            raise self._gone()
        return line

    async def aclose(self) -> None:
        """Close the line; nothing is asked any more."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.aclose()

    async def _opened(self) -> Line:
        limit = self._limits.timeouts.connect
        name = self._place.origin.name
        try:
            async with asyncio.timeout(limit if limit < float("inf") else None):
                socket = await open_websocket(
                    self._place, self._headers, limit, self._limits.frame, self._tls, self._proxies
                )
                line = Line(socket, name, self._limits)
                try:
                    await line.greet()
                except BaseException:
                    line.lose("was left")
                    await socket.aclose()
                    raise
        except TimeoutError:
            told = f"no welcome from {name} within {limit:g} s (limit: connect)"
            raise Unreachable(told, status=504, code="upstream_timeout") from None
        return line

    def _account_for_loss(self) -> None:
        """A line that was lost before it was of any use is a failure, one that served is not."""
        line, self._line = self._line, None
        if line is None:
            return
        if line.proven:
            self._failures = 0
        else:
            self._failed()

    def _failed(self) -> None:
        rest = min(LONGEST_REST, FIRST_REST * 2.0 ** min(self._failures, 10)) * (0.5 + self._chance() / 2)
        self._failures += 1
        self._rest_until = asyncio.get_running_loop().time() + rest

    def _refuse_while_resting(self) -> None:
        if self._closed:
            raise self._gone()
        left = self._rest_until - asyncio.get_running_loop().time()
        if left > 0:
            told = f"{self._place.origin.name} could not be reached a moment ago and is left alone for {left:.1f} s"
            raise Unavailable(told, status=503, retry_after=left)

    def _gone(self) -> Unavailable:
        return Unavailable(f"the connection to {self._place.origin.name} was closed here", status=503)
