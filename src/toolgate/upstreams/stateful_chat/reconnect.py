"""Connect to one peer when it is needed, and again after the connection was lost.

After a failure there is a pause, which doubles with each further failure; requests in a pause fail at once, so that a
fallback can answer them.
"""

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from toolgate.conversation.errors import UpstreamError, UpstreamUnavailable, UpstreamUnreachable
from toolgate.upstreams.stateful_chat.connection import StatefulChatConnection, StatefulChatLimits
from toolgate.upstreams.stateful_chat.websocket import StatefulChatUrl, open_websocket
from toolgate.upstreams.transport.address import Proxies

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["ReconnectingStatefulChat", "StatefulChatLimits"]

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0  # a peer that is back is found again within half a minute
_NO_LIMITS = StatefulChatLimits()


class ReconnectingStatefulChat:
    """A peer and its connection, which all its models share."""

    def __init__(
        self,
        name: str,
        url: str,
        api_key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        limits: StatefulChatLimits = _NO_LIMITS,
        tls: "SSLContext | None" = None,
        environment: Mapping[str, str] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Open nothing yet; `tls` is a context that verifies, by default the system's."""
        self.name = name
        self._address = StatefulChatUrl.of(url)
        self._headers = {**({"authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        self._limits = limits
        self._tls = tls
        self._proxies = Proxies.of(os.environ if environment is None else environment)
        self._chance = chance
        self._connection: StatefulChatConnection | None = None
        self._opening = asyncio.Lock()
        self._failures = 0
        self._paused_until = 0.0
        self._closed = False

    async def connection(self) -> StatefulChatConnection:
        """Return the open connection; concurrent callers wait for the same one."""
        if self._connection is not None and self._connection.open:
            return self._connection
        async with self._opening:
            if self._connection is not None and self._connection.open:  # opened by the caller before
                return self._connection
            lost, self._connection = self._connection, None
            if lost is not None and lost.proven:
                self._failures = 0
            elif lost is not None:  # a connection that was never useful counts as a failure
                self._back_off()
            if self._closed:
                raise self._closed_error()
            left = self._paused_until - asyncio.get_running_loop().time()
            if left > 0:
                text = (
                    f"{self._address.origin.name} could not be reached a moment ago and is left alone for {left:.1f} s"
                )
                raise UpstreamUnavailable(text, status=503, retry_after=left)
            try:
                connection = await self._open()
            except UpstreamError:
                self._back_off()
                raise
            self._connection = connection
        if self._closed:  # meanwhile
            await self.aclose()
            raise self._closed_error()
        return connection

    async def aclose(self) -> None:
        """Close the connection for good."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _open(self) -> StatefulChatConnection:
        limit = self._limits.timeouts.connect
        name = self._address.origin.name
        try:
            async with asyncio.timeout(limit if limit < float("inf") else None):
                socket = await open_websocket(
                    self._address, self._headers, limit, self._limits.frame, self._tls, self._proxies
                )
                connection = StatefulChatConnection(socket, name, self._limits)
                try:
                    await connection.handshake()
                except BaseException:
                    connection.lose("was left")
                    await socket.aclose()
                    raise
        except TimeoutError:
            text = f"no welcome from {name} within {limit:g} s (limit: connect)"
            raise UpstreamUnreachable(text, status=504, code="upstream_timeout") from None
        return connection

    def _back_off(self) -> None:
        # Half of the pause is random: many servers that lost the same peer must not return at the same moment.
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 10)) * (0.5 + self._chance() / 2)
        self._failures += 1
        self._paused_until = asyncio.get_running_loop().time() + pause

    def _closed_error(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"the connection to {self._address.origin.name} was closed here", status=503)
