"""From a model's public name to whoever answers for it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from toolgate.conversation.errors import NotFound
from toolgate.conversation.request import NO_SETTINGS, ModelRequest, Settings
from toolgate.engine.limits import Price
from toolgate.engine.ports import Model
from toolgate.upstreams.model_names import ModelNames


class TokenCounter(Protocol):
    """Asks an upstream for the number of tokens of a request."""

    async def count(self, request: ModelRequest) -> int:
        """The input tokens; raises UpstreamFault when the upstream does not count."""


class Route(Struct, frozen=True):
    """A model as clients know it, and the one to ask."""

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
    defaults: Settings = NO_SETTINGS
    allow_tools: tuple[str, ...] = ()
    block_tools: tuple[str, ...] = ()
    price: Price = Price()
    counter: TokenCounter | None = None

    def with_defaults(self, request: ModelRequest) -> ModelRequest:
        """The request with this model's defaults where the client said nothing."""
        if self.defaults is NO_SETTINGS or self.defaults == NO_SETTINGS:
            return request
        unsaid = asdict(NO_SETTINGS)
        said = {name: value for name, value in asdict(request.settings).items() if value != unsaid[name]}
        return replace(request, settings=replace(self.defaults, **said))


def no_such_model(name: str) -> NotFound:
    """The one answer for a model that does not exist and for one that the caller may not use."""
    shown = name if len(name) <= 80 else name[:80] + "…"
    message = f"The model {shown!r} does not exist, or this key may not use it; GET /v1/models lists those you may."
    return NotFound(message, param="model", code="model_not_found")


class Router:
    """Finds the route for a name; knows every name that clients may use."""

    def __init__(self, routes: Iterable[Route], default: str | None = None) -> None:
        """`default` names the model for requests that name none; without it the first that the caller may use."""
        self.routes: Mapping[str, Route] = {route.name: route for route in routes}
        aliases = [(alias, route) for route in self.routes.values() for alias in route.aliases]
        self._names = ModelNames([*aliases, *self.routes.items()])
        self._default = default

    def find(self, name: str) -> Route:
        """The route for this name or alias."""
        route = self._names.find(name)
        if route is None:
            raise no_such_model(name)
        return route

    def with_model(self, body: Any, may_use: Callable[[str], bool]) -> Any:
        """Fill in the default model where a request body names none."""
        if type(body) is not dict or body.get("model") not in (None, ""):
            return body
        return {**body, "model": self._default_route(may_use).name}

    def _default_route(self, may_use: Callable[[str], bool]) -> Route:
        candidates = [self.find(self._default)] if self._default else self.routes.values()
        for route in candidates:
            if may_use(route.name):
                return route
        raise NotFound(
            "The request names no model, and this key may not use the default one; GET /v1/models lists those you may.",
            param="model",
            code="model_not_found",
        )
