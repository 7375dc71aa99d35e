"""Share between workers what exists once: limit counters, the sum of metrics, topics and the local engine.

Runs in the supervisor. Knows messages and workers; it must not know how workers are started or replaced.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Protocol

import msgspec

from toolgate.limits import LocalCounters, RateLimitReservation
from toolgate.telemetry.metrics_sum import MetricsSum
from toolgate.telemetry.prometheus import family
from toolgate.workers import messages
from toolgate.workers.process import ServerWorkerProcess

# How long a sum waits for a worker that is busy; after that, the metrics it sent last are used.
_METRICS_SECONDS = 0.5


class EngineMessageHandler(Protocol):
    """The local model's engine, leased to one worker after the other."""

    def receive(
        self,
        worker: ServerWorkerProcess,
        message: messages.EngineLeaseRequestMessage | messages.EngineCommandMessage | messages.EngineReleaseMessage,
    ) -> None:
        """Handle a worker's message about the engine."""

    def worker_started(self, worker: ServerWorkerProcess) -> None:
        """Send the state of the engine to a worker, now and at every change."""

    def worker_ended(self, worker: ServerWorkerProcess) -> None:
        """End all leases of a worker that is gone."""


class SupervisorHub:
    """Handles the messages of all workers."""

    def __init__(
        self, engine: EngineMessageHandler | None = None, accepted: Callable[[str], None] = lambda digest: None
    ) -> None:
        """`accepted` is called with the digest of each configuration that a worker serves."""
        self._accepted = accepted
        self._engine = engine
        self._workers: set[ServerWorkerProcess] = set()
        self._counters = LocalCounters()
        self._reservations: dict[ServerWorkerProcess, dict[int, RateLimitReservation]] = {}
        self._ids = count(1)
        self._ended_metrics = MetricsSum()
        self._collecting: dict[int, tuple[set[ServerWorkerProcess], asyncio.Event]] = {}
        self._sums: set[asyncio.Task[None]] = set()
        self._bridge_members: dict[str, ServerWorkerProcess] = {}

    def worker_started(self, worker: ServerWorkerProcess) -> None:
        """Add a worker."""
        self._workers.add(worker)
        self._reservations[worker] = {}
        if self._engine is not None:
            self._engine.worker_started(worker)

    def worker_ended(self, worker: ServerWorkerProcess) -> None:
        """Remove a worker and settle its reservations; its counters stay in the sum of metrics."""
        self._workers.discard(worker)
        # How much its requests have used is unknown, so that what they reserved counts as used.
        for reservation in self._reservations.pop(worker, {}).values():
            self._counters.settle(reservation, reservation.tokens)
        self._ended_metrics.add(worker.metrics, gauges=False)
        for id in list(self._collecting):  # it sends no metrics any more
            self._metrics_received(id, worker)
        if self._engine is not None:
            self._engine.worker_ended(worker)
        for member in [member for member, one in self._bridge_members.items() if one is worker]:
            del self._bridge_members[member]
            for other in self._workers:
                other.send(messages.BridgeMemberExitedMessage(member))

    async def receive(self, worker: ServerWorkerProcess, message: messages.FromWorker) -> None:
        """Handle a worker's message."""
        match message:
            case messages.WorkerReadyMessage():
                worker.note_ready()
            case messages.WorkerServesConfigMessage(digest):
                self._accepted(digest)
            case messages.ReserveRateLimitMessage(id, key, limits, tokens):
                result = await self._counters.reserve(key, limits, tokens)
                if result.reservation is not None:
                    # The worker gets a number for it; the reservation stays here, to be settled if the worker dies.
                    slot = next(self._ids)
                    self._reservations[worker][slot] = result.reservation
                    result = msgspec.structs.replace(
                        result, reservation=RateLimitReservation(key, result.reservation.tokens, slot=slot)
                    )
                worker.send(messages.RateLimitReplyMessage(id, result))
            case messages.SettleRateLimitMessage(slot, tokens):
                if reservation := self._reservations[worker].pop(slot, None):
                    self._counters.settle(reservation, tokens)
            case messages.ChargeTokensMessage(key, tokens):
                self._counters.charge(key, tokens)
            case messages.MetricsTotalRequestMessage(id, metrics):
                worker.metrics = metrics
                # Not awaited here: the next messages of this worker would wait for the metrics of the others.
                task = asyncio.get_running_loop().create_task(self._sum_metrics(worker, id))
                self._sums.add(task)
                task.add_done_callback(self._sums.discard)
            case messages.WorkerMetricsMessage(id, metrics):
                worker.metrics = metrics
                self._metrics_received(id, worker)
            case messages.TopicChangedMessage():
                for other in self._workers - {worker}:
                    other.send(message)
            case messages.BridgeRelayMessage():
                self._pass_bridge_message(worker, message)
            case (
                messages.EngineLeaseRequestMessage() | messages.EngineCommandMessage() | messages.EngineReleaseMessage()
            ):
                if self._engine is not None:
                    self._engine.receive(worker, message)

    def _pass_bridge_message(self, worker: ServerWorkerProcess, message: messages.BridgeRelayMessage) -> None:
        """Pass a message on to the worker that it names, or to all others; the sender learns of one that is gone."""
        self._bridge_members[message.sender] = worker
        if message.to is None:
            for other in self._workers - {worker}:
                other.send(message)
        elif receiver := self._bridge_members.get(message.to):
            receiver.send(message)
        else:
            worker.send(messages.BridgeMemberExitedMessage(message.to))

    async def _sum_metrics(self, worker: ServerWorkerProcess, request_id: int) -> None:
        id, others = next(self._ids), {one for one in self._workers if one is not worker and one.serving}
        if others:
            complete = asyncio.Event()
            self._collecting[id] = (others, complete)
            for other in set(others):  # a copy, since replies remove from the set
                other.send(messages.MetricsRequestMessage(id))
            with suppress(TimeoutError):
                async with asyncio.timeout(_METRICS_SECONDS):
                    await complete.wait()
            del self._collecting[id]
        total = MetricsSum()
        for one in sorted(self._workers, key=lambda one: one.place):
            total.add(one.metrics)
        # Counters of workers that have ended must not fall; their gauges are gone with them.
        total.add(self._ended_metrics.text(), gauges=False)
        serving = sum(one.serving for one in self._workers)
        total.add(family("toolgate_workers", "gauge", "Workers that serve.", [("", (), serving)]))
        worker.send(messages.MetricsTotalMessage(request_id, total.text()))

    def _metrics_received(self, id: int, worker: ServerWorkerProcess) -> None:
        missing, complete = self._collecting.get(id, (set(), None))
        missing.discard(worker)
        if complete is not None and not missing:
            complete.set()
