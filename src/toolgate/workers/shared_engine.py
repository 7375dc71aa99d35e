"""Use the local model's engine in a worker: the supervisor owns it and leases it for one answer at a time."""

import asyncio
from collections.abc import Callable
from itertools import count

from msgspec import Raw, json, structs

from toolgate.conversation.errors import GatewayOverloaded, UpstreamUnavailable
from toolgate.upstreams.local import frames
from toolgate.upstreams.local.engine_lease import EngineLease
from toolgate.upstreams.local.engine_process import EngineFault, EngineGeneration
from toolgate.upstreams.local.state import LocalModelState
from toolgate.workers import messages
from toolgate.workers.client import SupervisorClient


class BorrowedEngine:
    """The engine during one lease; `granted` is done once the lease has begun."""

    def __init__(self, supervisor: SupervisorClient, caller: str) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = supervisor
        self._ids = count(1)
        self._generations: dict[int, EngineGeneration] = {}
        self._lease = supervisor.request_engine(caller, self._receive)

    def generate(self, order: frames.EngineGenerateFrame, over: Callable[[], None] = lambda: None) -> EngineGeneration:
        """Start to generate; `over` is called as soon as the engine has finished."""
        id = next(self._ids)
        generation = self._generations[id] = EngineGeneration(self, id, over)
        self._command(structs.replace(order, id=id))
        return generation

    def cancel(self, id: int) -> None:
        """Cancel a generation."""
        if self._generations.pop(id, None) is not None:
            self._command(frames.EngineCancelFrame(id))

    def release(self) -> None:
        """End the lease; a second time does nothing."""
        self._supervisor.release_engine(self._lease)

    def _command(self, order: frames.Order) -> None:
        self._supervisor.send(messages.EngineCommandMessage(self._lease, Raw(json.encode(order))))

    def _receive(self, message: messages.EngineMessage | None) -> None:
        match message:
            case None:
                self._break("The server is shutting down.")
            case messages.EngineGrantedMessage() if not self.granted.done():
                self.granted.set_result(None)
            case messages.EngineDeclinedMessage(_, text, code, overloaded, retry_after) if not self.granted.done():
                self.granted.set_exception(
                    GatewayOverloaded(text, code=code or "upstream_full", retry_after=retry_after)
                    if overloaded
                    else UpstreamUnavailable(text, status=503)
                )
            case messages.EngineOutputMessage(_, output):
                match report := frames.decode_report(bytes(output)):
                    case frames.EngineGenerationEndFrame(id) | frames.EngineGenerationFailedFrame(id):
                        if generation := self._generations.pop(id, None):
                            generation.receive(report)
                    case frames.EngineTextFrame(id) | frames.EnginePromptProgressFrame(id):
                        if generation := self._generations.get(id):
                            generation.receive(report)
            case messages.EngineEndedMessage(_, reason):
                self._break(reason)

    def _break(self, reason: str) -> None:
        """Fail everything that waits for the engine, which has ended or cannot be reached."""
        if not self.granted.done():
            self.granted.set_exception(UpstreamUnavailable(reason, status=503))
        for generation in tuple(self._generations.values()):
            generation.receive(EngineFault(reason))
        self._generations.clear()


class BorrowedEngineProvider:
    """Leases the supervisor's engine."""

    def __init__(self, supervisor: SupervisorClient, model: str) -> None:
        self._supervisor = supervisor
        self._model = model

    @property
    def state(self) -> LocalModelState:
        """The state that the supervisor sent last."""
        return self._supervisor.engine_state or LocalModelState("asleep", self._model, "It has not been started.")

    def start(self) -> None:
        """Do nothing: the supervisor starts the engine."""

    async def lease(self, caller: str) -> EngineLease:
        """Wait for the engine; the callers of all workers take turns."""
        engine = BorrowedEngine(self._supervisor, caller)
        try:
            await engine.granted
        except BaseException:  # also a cancelled request: else the engine would be granted to nobody
            engine.release()
            raise
        return EngineLease(engine, engine.release)

    async def aclose(self) -> None:
        """Do nothing: the supervisor ends the engine."""
