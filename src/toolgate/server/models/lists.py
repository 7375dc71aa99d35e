"""The list of models at /v1/models, in the shape of whoever asks: OpenAI's or Anthropic's."""

from typing import Any

from toolgate.dialects.anthropic.server import write_model, write_models
from toolgate.server.app import Call
from toolgate.upstreams.router import Route, Router
from toolgate.wire.jsontext import encode

_WINDOW_FIELDS = ("context_length", "max_model_len", "context_window")


class ModelLists:
    """Tells which models there are; a caller sees only those it may use."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def list(self, call: Call) -> None:
        """List the models."""
        routes = [route for route in self._router.routes.values() if call.caller.may_use(route.name)]
        if _asks_anthropic(call):
            body = write_models([_anthropic(route) for route in routes])
        else:
            body = {"object": "list", "data": [_openai(route) for route in routes]}
        await call.exchange.respond(200, encode(body))

    async def show(self, call: Call) -> None:
        """Tell about one model."""
        route = self._router.find(call.arguments[0])
        call.caller.require_model(route.name, call.arguments[0])
        await call.exchange.respond(200, encode(_anthropic(route) if _asks_anthropic(call) else _openai(route)))


def _asks_anthropic(call: Call) -> bool:
    return call.exchange.header(b"anthropic-version") is not None


def _openai(route: Route) -> dict[str, Any]:
    """OpenAI has no field for a model's window; these are OpenRouter's, vLLM's and Groq's, which clients look for."""
    window = {} if route.context is None else dict.fromkeys(_WINDOW_FIELDS, route.context)
    return {"id": route.name, "object": "model", "created": route.created, "owned_by": route.owner, **window}


def _anthropic(route: Route) -> dict[str, Any]:
    return write_model(route.name, route.name, route.created, route.context)
