"""Connect a worker to its supervisor: shared counters, summed metrics, changed topics, leases of the local engine.

Knows the messages and the socket. It must not know what the worker does with them. A worker whose supervisor is gone
ends, so nothing here reconnects.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from toolgate.change_notifications.notifier import LocalChangeNotifier
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.limits import KeyLimits, RateLimitReservation, RateLimitResult
from toolgate.upstreams.local.state import LocalModelState
from toolgate.wire.length_prefix import OverlongMessage, read_prefixed_async
from toolgate.workers import messages

_T = TypeVar("_T")

# Longer than the hub waits for the other workers, and shorter than a scrape of Prometheus may take.
_SUM_SECONDS = 2.0

# Receives the messages of one engine lease; None when the supervisor is gone.
EngineReceiver: TypeAlias = Callable[[messages.EngineMessage | None], None]


class WorkerCommandHandler(Protocol):
    """The worker, as far as its supervisor commands it."""

    def handle(self, command: messages.ToWorker) -> None:
        """Carry out a command."""

    def metrics(self) -> bytes:
        """Return this worker's metrics in Prometheus' text format."""

    def supervisor_lost(self) -> None:
        """End, because the supervisor is gone."""


class SupervisorClient:
    """The worker's connection to the supervisor; made before `open`, so that the server can be built around it."""

    def __init__(self) -> None:
        self.counters = WorkerRateLimitCounters(self)
        self.notifier = WorkerChangeNotifier(self)
        self.bridge = WorkerBridgeBus(self)
        self._ids = count(1)
        self._pending: dict[int, asyncio.Future[messages.ToWorker]] = {}
        self.engine_state: LocalModelState | None = None  # as the supervisor sent it last
        self._engine_leases: dict[int, EngineReceiver] = {}
        self._handler: WorkerCommandHandler | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self, connection: socket.socket, handler: WorkerCommandHandler) -> None:
        """Start to read; commands that were sent before are handled first."""
        self._handler = handler
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader, handler))

    def send(self, message: messages.FromWorker) -> None:
        """Send a message, unless the supervisor is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(messages.encode(message))

    async def request(self, make: Callable[[int], messages.FromWorker], reply: type[_T]) -> _T:
        """Send a request made with an id and return its reply; GatewayOverloaded if the supervisor is gone."""
        id = next(self._ids)
        future = self._pending[id] = asyncio.get_running_loop().create_future()
        try:
            self.send(make(id))
            # After the reader has ended, nothing would ever resolve the future.
            if self._reading is None or self._reading.done():
                raise _supervisor_gone()
            received = await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:  # the reply came just before
                self._discard(future.result())
            raise
        finally:
            del self._pending[id]
        assert isinstance(received, reply)  # the hub answers each request with its own reply
        return received

    async def sum_metrics(self, own: bytes) -> bytes:
        """Return the sum of all workers' metrics, or this worker's own if the supervisor does not answer in time."""
        with suppress(TimeoutError, GatewayOverloaded):
            async with asyncio.timeout(_SUM_SECONDS):
                total = await self.request(
                    lambda number: messages.MetricsTotalRequestMessage(number, own.decode()),
                    messages.MetricsTotalMessage,
                )
                return total.metrics.encode()
        return own

    def request_engine(self, caller: str, receive: EngineReceiver) -> int:
        """Ask for the local engine for a caller; `receive` gets all messages of the lease until `release_engine`."""
        lease = next(self._ids)
        self._engine_leases[lease] = receive
        self.send(messages.EngineLeaseRequestMessage(lease, caller))
        return lease

    def release_engine(self, lease: int) -> None:
        """Give the engine back; a second time does nothing."""
        if self._engine_leases.pop(lease, None) is not None:
            self.send(messages.EngineReleaseMessage(lease))

    async def aclose(self) -> None:
        """Send the last metrics and close the connection."""
        if self._handler is not None:
            # The hub keeps the counters of a worker that has ended; the id belongs to no request for them.
            self.send(messages.WorkerMetricsMessage(0, self._handler.metrics().decode()))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, handler: WorkerCommandHandler) -> None:
        # A supervisor that sends nonsense counts as gone, too: both run the same version.
        with suppress(asyncio.IncompleteReadError, ConnectionError, OverlongMessage, msgspec.DecodeError):
            while True:
                frame = await read_prefixed_async(reader.readexactly, messages.LONGEST)
                self.receive(messages.decode_to_worker(frame), handler)
        self.lose(handler)

    def receive(self, message: messages.ToWorker, handler: WorkerCommandHandler) -> None:
        """Pass a message to the request, engine lease or topic that it belongs to, and commands to the handler."""
        match message:
            case messages.RateLimitReplyMessage(id) | messages.MetricsTotalMessage(id):
                future = self._pending.get(id)
                if future is not None and not future.done():
                    future.set_result(message)
                else:
                    self._discard(message)
            case messages.TopicChangedMessage(topic):
                self.notifier.deliver(topic)
            case messages.BridgeRelayMessage(sender, _, body):
                self.bridge.deliver(sender, bytes(body))
            case messages.BridgeMemberExitedMessage(member):
                self.bridge.lose(member)
            case messages.MetricsRequestMessage(id):
                self.send(messages.WorkerMetricsMessage(id, handler.metrics().decode()))
            case messages.EngineStateMessage(state):
                self.engine_state = state
            case (
                messages.EngineGrantedMessage()
                | messages.EngineDeclinedMessage()
                | messages.EngineOutputMessage()
                | messages.EngineEndedMessage()
            ):
                if receive := self._engine_leases.get(message.lease):
                    receive(message)
            case _:
                handler.handle(message)

    def _discard(self, reply: messages.ToWorker) -> None:
        """Release what a reply reserves whose request was cancelled meanwhile."""
        if isinstance(reply, messages.RateLimitReplyMessage) and reply.result.reservation is not None:
            self.send(messages.SettleRateLimitMessage(reply.result.reservation.slot, 0))

    def lose(self, handler: WorkerCommandHandler) -> None:
        """Fail everything that waits for the supervisor, which is gone."""
        for future in self._pending.values():
            if not future.done():
                future.set_exception(_supervisor_gone())
        for receive in tuple(self._engine_leases.values()):
            receive(None)
        handler.supervisor_lost()


class WorkerRateLimitCounters:
    """Rate limit counters that all workers of this machine share; the supervisor keeps them."""

    def __init__(self, supervisor: SupervisorClient) -> None:
        self._supervisor = supervisor

    async def reserve(self, key: str, limits: KeyLimits, tokens: int) -> RateLimitResult:
        """Reserve one request and so many tokens, if every limit allows."""
        reply = await self._supervisor.request(
            lambda number: messages.ReserveRateLimitMessage(number, key, limits, tokens), messages.RateLimitReplyMessage
        )
        return reply.result

    def settle(self, reservation: RateLimitReservation, tokens: int) -> None:
        """End a reservation whose request used so many tokens; a second time does nothing."""
        if not reservation.settled:
            reservation.settled = True
            self._supervisor.send(messages.SettleRateLimitMessage(reservation.slot, tokens))

    def charge(self, key: str, tokens: int) -> None:
        """Count tokens that were used without a reservation."""
        self._supervisor.send(messages.ChargeTokensMessage(key, tokens))

    async def aclose(self) -> None:
        """Do nothing: the connection is the supervisor client's."""


class WorkerChangeNotifier(LocalChangeNotifier):
    """Notifies subscribers in all workers of this machine."""

    poll_seconds = 1.0

    def __init__(self, supervisor: SupervisorClient) -> None:
        super().__init__()
        self._supervisor = supervisor

    def publish(self, topic: str) -> None:
        """Notify this worker's subscribers of the topic, and those of the other workers."""
        super().publish(topic)
        self._supervisor.send(messages.TopicChangedMessage(topic))

    def deliver(self, topic: str) -> None:
        """Notify this worker's subscribers of a topic that another worker has sent."""
        super().publish(topic)


class WorkerBridgeBus:
    """Carries messages between the workers of this machine that share the windows of editors."""

    heartbeat = False

    def __init__(self, supervisor: SupervisorClient) -> None:
        self._supervisor = supervisor
        self._member = ""
        self._receive: Callable[[str, bytes], None] = lambda sender, body: None
        self._lost: Callable[[str | None], None] = lambda member: None

    def open(self, member: str, receive: Callable[[str, bytes], None], lost: Callable[[str | None], None]) -> None:
        """Join as this member."""
        self._member, self._receive, self._lost = member, receive, lost

    def send(self, to: str | None, message: bytes) -> None:
        """Send a message to one member or to all others."""
        self._supervisor.send(messages.BridgeRelayMessage(self._member, to, msgspec.Raw(message)))

    async def aclose(self) -> None:
        """Do nothing: the connection is the supervisor client's."""

    def deliver(self, sender: str, body: bytes) -> None:
        """Pass on what another worker has sent."""
        self._receive(sender, body)

    def lose(self, member: str) -> None:
        """Note that a worker is gone."""
        self._lost(member)


def _supervisor_gone() -> GatewayOverloaded:
    return GatewayOverloaded("The server is shutting down.", retry_after=1)
