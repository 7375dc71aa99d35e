"""Serve what a page or a terminal shows of the server at first: its version, its models, who asks, and the base URLs."""

from collections.abc import Callable
from typing import Protocol

from toolgate import __version__
from toolgate.auth.authenticator import Authenticator
from toolgate.config import Config
from toolgate.conversation.errors import ToolgateError
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.upstreams.router import Router
from toolgate.wire.jsontext import encode

# The states of the local model where they are not called as its phases are.
_STATES = {"asleep": "absent", "fetching": "downloading", "checking": "loading", "closed": "off", "failed": "absent"}


class LocalModelProgressReader(Protocol):
    """How far the local model is."""

    @property
    def phase(self) -> str:
        """The phase, such as `fetching`."""

    @property
    def message(self) -> str:
        """The same as a sentence."""

    @property
    def percent(self) -> float | None:
        """The progress of the phase."""


class StatusEndpoint:
    """Describes the server to a caller."""

    def __init__(
        self,
        config: Config,
        router: Router,
        authenticator: Authenticator,
        local_model: Callable[[], LocalModelProgressReader | None],
    ) -> None:
        """`local_model` returns the state of the local model, None if the configuration does not use it."""
        self._config = config
        self._router = router
        self._authenticator = authenticator
        self._local_model = local_model

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoint."""
        return [HttpRoute("GET", "/v1/status", self.show, OPENAI_CHAT.server)]

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Describe the server: version, models, the state of the local model, the caller and the base URLs."""
        caller, config = call.caller, self._config
        # The URLs are for the person who asks, who sees the server through a proxy: under its name and scheme.
        scheme = "https" if call.exchange.header(b"x-forwarded-proto") == "https" else "http"
        url = f"{scheme}://{call.exchange.header(b'host') or 'localhost'}"
        try:
            default: str | None = self._router.with_model({}, caller.may_use)["model"]
        except ToolgateError:  # the caller may not use it
            default = None
        local_state, percent, message = "off", None, "The configuration does not use the embedded model."
        if (local := self._local_model()) is not None:
            local_state, percent, message = _STATES.get(local.phase, local.phase), local.percent, local.message
        body = {
            "object": "status",
            "version": __version__,
            "models": sum(caller.may_use(route.name) for route in self._router.routes.values()),
            "default_model": default,
            "local_model": {"state": local_state, "percent": percent, "message": message},
            "keys_required": not self._authenticator.allows_anonymous,
            "caller": {"name": caller.name, "scopes": sorted(caller.scopes)},
            "base_urls": {"openai": f"{url}/v1", "anthropic": url, "ollama": url},
            "prices": any(model.price.input or model.price.output for model in config.models),
            "tools": config.tools.enabled,
            "records": {"requests_days": config.records.requests},
        }
        await call.exchange.respond(200, encode(body))
