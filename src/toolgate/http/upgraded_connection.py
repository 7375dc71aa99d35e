"""The two sides of a connection that changes from HTTP to another protocol."""

import asyncio
from typing import Protocol

from toolgate.http.flow_control import FlowControl
from toolgate.http.request_limits import RequestLimits


class UpgradedByteReceiver(Protocol):
    """Receives the bytes of a connection that was upgraded, and speaks the new protocol."""

    def feed(self, data: bytes) -> None:
        """Receive bytes."""

    def drain(self) -> None:
        """Start nothing new, and close when everything is done."""

    def lost(self) -> None:
        """Note that the connection is closed."""


class UpgradedConnectionInterface(Protocol):
    """The connection, as far as the receiver of its bytes uses it."""

    loop: asyncio.AbstractEventLoop
    limits: RequestLimits
    transport: asyncio.Transport
    flow: FlowControl

    def abort(self, error: Exception) -> None:
        """Log the failure of a callback and abort the connection."""

    def hang_up(self) -> None:
        """Close, after the client had time to read what was sent last, though it may still be sending."""
