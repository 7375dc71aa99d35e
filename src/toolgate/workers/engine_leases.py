"""Lease the local model's engine to workers, one answer at a time; the supervisor owns it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from msgspec import Raw, json, structs

from toolgate.conversation.errors import GatewayOverloaded, ToolgateError
from toolgate.upstreams.local import frames
from toolgate.upstreams.local.engine_lease import EngineLease, EngineLeaseProvider, TextGeneration
from toolgate.upstreams.local.engine_process import EngineFault
from toolgate.upstreams.local.state import LocalModelState
from toolgate.workers import messages


class EngineLeasingWorker(Protocol):
    """A worker, as far as it leases the engine."""

    def send(self, message: messages.EngineMessage) -> None:
        """Send a message to the worker."""


class _WorkerLease:
    """One lease of a worker, from its request to its release."""

    def __init__(self) -> None:
        self.granted: EngineLease | None = None
        self.generations: dict[int, TextGeneration] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def end(self) -> None:
        """Cancel what is generated under the lease, and let the next worker have the engine."""
        for task in self.tasks:  # also the one that still waits for the engine
            task.cancel()
        for generation in self.generations.values():
            generation.cancel()
        if self.granted is not None:
            self.granted.release()


class EngineLeases:
    """Leases the engine to workers."""

    def __init__(self, engines: EngineLeaseProvider) -> None:
        self._engines = engines
        self._workers: set[EngineLeasingWorker] = set()
        self._leases: dict[tuple[EngineLeasingWorker, int], _WorkerLease] = {}

    def receive(
        self,
        worker: EngineLeasingWorker,
        message: messages.EngineLeaseRequestMessage | messages.EngineCommandMessage | messages.EngineReleaseMessage,
    ) -> None:
        """Handle a worker's message about the engine."""
        at = (worker, message.lease)
        lease = self._leases.get(at)
        match message:
            case messages.EngineLeaseRequestMessage(id, caller):
                lease = self._leases[at] = _WorkerLease()
                lease.start(self._grant(worker, id, caller, lease))
            case messages.EngineCommandMessage(id, order) if lease is not None:
                match frames.decode_order(bytes(order)):
                    case frames.EngineGenerateFrame(number) as generate if lease.granted is not None:
                        generation = lease.generations[number] = lease.granted.engine.generate(generate, lambda: None)
                        lease.start(_relay(worker, id, number, generation))
                    case frames.EngineCancelFrame(number):
                        if (cancelled := lease.generations.pop(number, None)) is not None:
                            cancelled.cancel()
            case messages.EngineReleaseMessage() if lease is not None:  # None: it was declined
                self._leases.pop(at).end()

    def worker_started(self, worker: EngineLeasingWorker) -> None:
        """Send the state of the engine to a worker, now and at every change."""
        self._workers.add(worker)
        worker.send(messages.EngineStateMessage(self._engines.state))

    def state_changed(self, state: LocalModelState) -> None:
        """Send the engine's state to all workers."""
        for worker in self._workers:
            worker.send(messages.EngineStateMessage(state))

    def worker_ended(self, worker: EngineLeasingWorker) -> None:
        """End all leases of a worker that is gone."""
        self._workers.discard(worker)
        for at in [at for at in self._leases if at[0] is worker]:
            self._leases.pop(at).end()

    def start(self) -> None:
        """Start to download and load the weights."""
        self._engines.start()

    async def aclose(self) -> None:
        """End the engine."""
        await self._engines.aclose()

    async def _grant(self, worker: EngineLeasingWorker, id: int, caller: str, lease: _WorkerLease) -> None:
        try:
            lease.granted = await self._engines.lease(caller)
        except ToolgateError as error:
            self._leases.pop((worker, id), None)
            overloaded = isinstance(error, GatewayOverloaded)
            worker.send(messages.EngineDeclinedMessage(id, error.message, error.code, overloaded, error.retry_after))
        else:
            worker.send(messages.EngineGrantedMessage(id))


async def _relay(worker: EngineLeasingWorker, lease: int, number: int, generation: TextGeneration) -> None:
    """Send the engine's reports to the worker, under the number that the worker gave the generation."""
    try:
        async for report in generation:
            worker.send(messages.EngineOutputMessage(lease, Raw(json.encode(structs.replace(report, id=number)))))
    except EngineFault as fault:
        worker.send(messages.EngineEndedMessage(lease, str(fault)))
