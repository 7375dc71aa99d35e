"""The local model."""

from toolgate.conversation.request import ModelRequest
from toolgate.conversation.result_delimiters import new_secret
from toolgate.engine.ports import ModelStream
from toolgate.upstreams.local import tool_choice_plan
from toolgate.upstreams.local.engine_lease import EngineLeaseProvider, OwnEngineProvider
from toolgate.upstreams.local.engine_supervisor import EngineOptions, Fetch
from toolgate.upstreams.local.fetch import fetch
from toolgate.upstreams.local.staged_generation import LocalModelStream, StagedGeneration
from toolgate.upstreams.local.state import LocalModelState, OnState


class LocalModel:
    """A model on this machine, in its own process, that answers one request at a time.

    Its weights are fetched and loaded when it is started or first asked. `on_state` is called at every change of its state;
    `engines` is a pool that others use, too.
    """

    def __init__(
        self,
        options: EngineOptions,
        on_state: OnState = lambda state: None,
        fetch: Fetch = fetch,
        engines: EngineLeaseProvider | None = None,
    ) -> None:
        self._options = options
        self._engines = engines or OwnEngineProvider(options, on_state, fetch)
        self._secret = new_secret()

    @property
    def state(self) -> LocalModelState:
        """The state of the model."""
        return self._engines.state

    def start(self) -> None:
        """Start to download and load in the background."""
        self._engines.start()

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the answer once its first event is generated; waits for the weights, the engine and earlier requests."""
        planned = tool_choice_plan.make(request, self._options.max_tokens, self._secret)
        lease = await self._engines.lease(request.caller)
        try:
            events = StagedGeneration(lease.engine, planned, self._options.model, lease.release).events()
            first = await anext(events)
        except BaseException:
            lease.release()
            raise
        return LocalModelStream(first, events, planned.warnings)

    async def aclose(self) -> None:
        """End the engine and any download."""
        await self._engines.aclose()
