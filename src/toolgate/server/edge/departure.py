"""Has a client that will send no more gone, or does it wait for its answer?

Both send the same FIN.  They differ once something is sent to them: one that left resets the connection.  An answer that
comes soon tells by itself; in place of one that is slow, bytes without meaning are sent.
"""

import asyncio
import select

from toolgate.server.edge.answer import CONTINUE, Answer

EVERY = 0.1
"""How often, in seconds, to ask `gone`."""

_PROBE_AFTER = 0.4


class HalfClosed:
    """A connection that the client has closed on its side while an answer was running."""

    __slots__ = ("_owed", "_probe_at", "_transport")

    def __init__(self, transport: asyncio.Transport, running: Answer, now: float) -> None:
        self._transport = transport
        self._owed = (running, running.started)
        self._probe_at = now + _PROBE_AFTER

    def gone(self, running: Answer | None, now: float) -> bool:
        """Say whether the client has reset the connection; provoke it once, if nothing else did."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):
            return True
        if now >= self._probe_at:
            self._probe_at = float("inf")
            self._probe(running)
        return False

    def _probe(self, running: Answer | None) -> None:
        if running is None or self._owed != (running, running.started) or self._transport.is_closing():
            return  # the answer itself has been the probe
        if not running.started:
            self._transport.write(CONTINUE)
        elif running.chunked:
            self._transport.write(b"0")  # a leading zero of the next chunk's size
