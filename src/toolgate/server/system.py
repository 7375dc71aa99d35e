"""What operators ask: is it alive, is it ready, what does it count, what can it do."""

from collections.abc import Awaitable, Callable, Sequence

from toolgate import __version__
from toolgate.conversation.errors import Overloaded
from toolgate.server.app import Call, Endpoint
from toolgate.server.openapi import document
from toolgate.wire.jsontext import encode

_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class System:
    """Health, readiness, metrics and the OpenAPI document."""

    def __init__(self, metrics: Callable[[], bytes], add_up: Callable[[bytes], Awaitable[bytes]] | None = None) -> None:
        """`metrics` are this process's; `add_up` adds those of others that serve with it."""
        self.draining = False
        self.served: Sequence[Endpoint] = ()
        self._metrics = metrics
        self._add_up = add_up

    async def root(self, call: Call) -> None:
        """What this is."""
        await call.exchange.respond(
            200, encode({"name": "toolgate", "version": __version__, "openapi": "/openapi.json"})
        )

    async def healthz(self, call: Call) -> None:
        """Whether the process lives."""
        await call.exchange.respond(200, b'{"status":"ok"}')

    async def readyz(self, call: Call) -> None:
        """Whether new requests are welcome."""
        if self.draining:
            raise Overloaded("The server is shutting down.", retry_after=1)
        await call.exchange.respond(200, b'{"status":"ready"}')

    async def metrics(self, call: Call) -> None:
        """The counters, in Prometheus' format."""
        counted = self._metrics()
        if self._add_up is not None:
            counted = await self._add_up(counted)
        await call.exchange.respond(200, counted, content_type=_PROMETHEUS)

    async def openapi(self, call: Call) -> None:
        """The OpenAPI document."""
        await call.exchange.respond(200, encode(document(self.served)))
