"""Find out whether a client that sends no more has left or waits for its response.

Both send the same FIN. They differ once something is sent to them: a client that has left resets the connection. A
response that comes soon shows it; in place of a slow one, bytes without meaning are sent.
"""

import asyncio
import select

from toolgate.http.request_cycle import CONTINUE, RequestResponseCycle

# How often to call `client_left`.
CHECK_SECONDS = 0.1

# A response that comes within this time is probe enough.
_PROBE_AFTER = 0.4


class HalfClosedClientProbe:
    """Probes one client that has closed its side of the connection while a response was running."""

    __slots__ = ("_probe_at", "_transport", "_waiting_for")

    def __init__(self, transport: asyncio.Transport, running: RequestResponseCycle, now: float) -> None:
        self._transport = transport
        self._waiting_for = (running, running.started)
        self._probe_at = now + _PROBE_AFTER

    def client_left(self, running: RequestResponseCycle | None, now: float) -> bool:
        """Return whether the client has reset the connection; provoke a reset once, if nothing else was sent."""
        # With an empty mask only errors are reported: POLLIN would always be, for the end that the client has sent.
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):
            return True
        if now >= self._probe_at:
            self._probe_at = float("inf")
            if running is None or self._waiting_for != (running, running.started) or self._transport.is_closing():
                return False  # the response itself has been the probe
            # Clients must skip a "100 Continue" that they did not ask for.
            if not running.started:
                self._transport.write(CONTINUE)
            elif running.chunked:
                self._transport.write(b"0")  # a leading zero of the next chunk's size
        return False
