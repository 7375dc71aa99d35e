"""Find the model for the name in a request."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from toolgate.conversation.errors import NotFound
from toolgate.conversation.request import NO_SETTINGS, ModelRequest, RequestSettings
from toolgate.engine.ports import Model
from toolgate.engine.run_limits import Price
from toolgate.upstreams.model_names import ModelNameTable


class TokenCounter(Protocol):
    """Has an upstream count the tokens of a request."""

    async def count(self, request: ModelRequest) -> int:
        """Return the input tokens; raise UpstreamError when the upstream does not count."""


# The beginning of the name of every model that an editor lends.
LENT_PREFIX = "vscode/"


class ModelRoute(Struct, frozen=True):
    """A model under its public name, with its settings; `editor` is true if an editor may answer for it."""

    name: str
    model: Model
    aliases: tuple[str, ...] = ()
    owner: str = "toolgate"
    created: int = 0
    max_tools: int = 128
    strict: bool = False
    lenient: bool = False
    whole_arguments: bool = False
    context: int | None = None
    images: bool = True
    tools: bool = True
    thinking: bool = False
    defaults: RequestSettings = NO_SETTINGS
    allow_tools: tuple[str, ...] = ()
    block_tools: tuple[str, ...] = ()
    price: Price = Price()
    prices: Mapping[str, Price] = {}  # of all models that may answer, by name: this one and its fallbacks
    counter: TokenCounter | None = None
    editor: bool = False

    def with_defaults(self, request: ModelRequest) -> ModelRequest:
        """Return the request with this model's defaults for settings that the client left out."""
        if self.defaults is NO_SETTINGS:
            return request
        # A setting that the client set to its default value counts as left out: nothing marks the difference.
        unset = asdict(NO_SETTINGS)
        given = {name: value for name, value in asdict(request.settings).items() if value != unset[name]}
        return replace(request, settings=replace(self.defaults, **given))


def no_such_model(name: str) -> NotFound:
    """Return the same error for a model that does not exist and for one that the caller may not use."""
    # The name is the client's and may be megabytes long.
    shown = name if len(name) <= 80 else name[:80] + "…"
    message = (
        f"The model {shown!r} does not exist, or this key may not use it; GET /v1/models lists those that it may use."
    )
    return NotFound(message, param="model", code="model_not_found")


class RouteProvider(Protocol):
    """Brings routes that come and go while the server runs."""

    @property
    def routes(self) -> Mapping[str, ModelRoute]:
        """The present routes by name."""

    def find(self, name: str) -> ModelRoute | None:
        """Find a present route by name or alias."""


class Router:
    """Finds the route of a model name or alias; those of the configuration before any other."""

    def __init__(
        self, routes: Iterable[ModelRoute], default: str | None = None, provider: RouteProvider | None = None
    ) -> None:
        """`default` names the model for requests that name none; without it the first that the caller may use.

        `provider` brings further routes.
        """
        self._configured: Mapping[str, ModelRoute] = {route.name: route for route in routes}
        # Names behind aliases: of equal ones the later wins, so that an alias never hides another model's name.
        aliases = [(alias, route) for route in self._configured.values() for alias in route.aliases]
        self._names = ModelNameTable([*aliases, *self._configured.items()])
        self._default = default
        self._provider = provider

    @property
    def routes(self) -> Mapping[str, ModelRoute]:
        """The present routes by name, those of the configuration first."""
        more = self._provider.routes if self._provider is not None else None
        return (
            {**self._configured, **{name: more[name] for name in more if name not in self._configured}}
            if more
            else self._configured
        )

    def find(self, name: str) -> ModelRoute:
        """Return the route of this name or alias."""
        route = self._configured.get(name) or self._names.find(name)
        if route is None and self._provider is not None:
            route = self._provider.find(name)
        if route is None:
            raise no_such_model(name)
        return route

    def with_model(self, body: Any, may_use: Callable[[str], bool]) -> Any:
        """Fill in the default model where a request body names none."""
        if type(body) is not dict or body.get("model") not in (None, ""):
            return body
        candidates = [self.find(self._default)] if self._default else self.routes.values()
        for route in candidates:
            if may_use(route.name):
                return {**body, "model": route.name}
        raise NotFound(
            "The request names no model, and this key may not use the default one; "
            "GET /v1/models lists those that it may use.",
            param="model",
            code="model_not_found",
        )
