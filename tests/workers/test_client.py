"""What a worker reserves at its supervisor, whatever becomes of the request meanwhile (spec: D4)."""

import asyncio
import socket

import pytest

from toolgate.limits import KeyLimits, RateLimitReservation, RateLimitResult
from toolgate.wire.length_prefix import read_prefixed_async
from toolgate.workers import messages
from toolgate.workers.client import SupervisorClient


class Idle:
    """A worker that is commanded nothing."""

    def handle(self, command: messages.ToWorker) -> None:
        raise AssertionError(command)

    def metrics(self) -> bytes:
        return b""

    def supervisor_lost(self) -> None:
        pass


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_request_that_is_cancelled_as_its_reply_arrives_keeps_nothing_reserved(cancelled_first: bool) -> None:
    """A slot of its key's `concurrency` was lost until the worker ended, if the reply was the first of the two."""
    near, far = socket.socketpair()
    supervisor, worker = SupervisorClient(), Idle()
    await supervisor.open(near, worker)
    reader, writer = await asyncio.open_unix_connection(sock=far)

    async def sent() -> messages.FromWorker:
        return messages.decode_from_worker(await read_prefixed_async(reader.readexactly, messages.LONGEST))

    reserving = asyncio.ensure_future(supervisor.counters.reserve("ann", KeyLimits(concurrency=1), 0))
    request = await sent()
    assert isinstance(request, messages.ReserveRateLimitMessage)
    reply = messages.RateLimitReplyMessage(request.id, RateLimitResult(RateLimitReservation("ann", 0, slot=7)))
    # Both in one turn of the loop: the task has not gone on in between.
    if cancelled_first:
        reserving.cancel()
    supervisor.receive(reply, worker)
    reserving.cancel()
    await asyncio.wait({reserving})
    assert reserving.cancelled()
    async with asyncio.timeout(30):
        assert await sent() == messages.SettleRateLimitMessage(7, 0)
    await supervisor.aclose()
    writer.close()
    await writer.wait_closed()
