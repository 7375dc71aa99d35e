"""Serve what operators need: liveness, readiness, metrics and the OpenAPI document."""

from collections.abc import Awaitable, Callable, Sequence

from toolgate import __version__
from toolgate.api.openapi import openapi_document
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.wire.jsontext import encode

_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class SystemEndpoints:
    """The endpoints for operators and monitoring."""

    def __init__(
        self,
        others: Sequence[HttpRoute],
        metrics: Callable[[], bytes],
        sum_metrics: Callable[[bytes], Awaitable[bytes]] | None = None,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """`others` are the endpoints beside these, for the OpenAPI document.

        `metrics` are those of this process; `sum_metrics` adds those of the other workers.
        """
        self._others = others
        self._metrics = metrics
        self._sum_metrics = sum_metrics
        self._is_draining = is_draining

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints; only the metrics need a key."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/", self.root, errors, scope=None),
            HttpRoute("GET", "/healthz", self.healthz, errors, scope=None),
            HttpRoute("GET", "/readyz", self.readyz, errors, scope=None),
            HttpRoute("GET", "/metrics", self.metrics, errors, scope="admin"),
            HttpRoute("GET", "/openapi.json", self.openapi, errors, scope=None),
        ]

    async def root(self, call: AdmittedHttpRequest) -> None:
        """Return the name and version of the server; a browser is sent to the console."""
        vary = (b"vary", b"accept")  # a cache must not give a program the redirect of a browser
        if b"text/html" in call.headers.get(b"accept", b""):
            await call.exchange.respond(302, b"", [(b"location", b"console/"), vary], b"text/plain")
            return
        body = {"name": "toolgate", "version": __version__, "openapi": "/openapi.json", "console": "/console/"}
        await call.exchange.respond(200, encode(body), [vary])

    async def healthz(self, call: AdmittedHttpRequest) -> None:
        """Report that the process is alive."""
        await call.exchange.respond(200, b'{"status":"ok"}')

    async def readyz(self, call: AdmittedHttpRequest) -> None:
        """Report whether new requests are accepted; 503 while the server shuts down."""
        if self._is_draining():
            raise GatewayOverloaded("The server is shutting down.", retry_after=1)
        await call.exchange.respond(200, b'{"status":"ready"}')

    async def metrics(self, call: AdmittedHttpRequest) -> None:
        """Return the metrics in Prometheus' text format."""
        metrics = self._metrics()
        if self._sum_metrics is not None:
            metrics = await self._sum_metrics(metrics)
        await call.exchange.respond(200, metrics, content_type=_PROMETHEUS)

    async def openapi(self, call: AdmittedHttpRequest) -> None:
        """Return the OpenAPI document."""
        await call.exchange.respond(200, encode(openapi_document([*self._others, *self.endpoints()])))
