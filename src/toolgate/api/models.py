"""List the models at /v1/models, in OpenAI's form or, for clients that send `anthropic-version`, in Anthropic's."""

from typing import Any

from toolgate.dialects.anthropic.server import write_model, write_models
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.upstreams.router import ModelRoute, Router
from toolgate.wire.jsontext import encode

_WINDOW_FIELDS = ("context_length", "max_model_len", "context_window")


class ModelEndpoints:
    """Lists the models that the caller may use."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/models", self.list, errors),
            HttpRoute("GET", "/v1/models/{}", self.show, errors),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List the models."""
        routes = [route for route in self._router.routes.values() if call.caller.may_use(route.name)]
        if _wants_anthropic(call):
            body = write_models([_anthropic(route) for route in routes])
        else:
            body = {"object": "list", "data": [_openai(route) for route in routes]}
        await call.exchange.respond(200, encode(body))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return one model."""
        route = self._router.find(call.arguments[0])
        call.caller.require_model(route.name, call.arguments[0])
        await call.exchange.respond(200, encode(_anthropic(route) if _wants_anthropic(call) else _openai(route)))


def _wants_anthropic(call: AdmittedHttpRequest) -> bool:
    return call.exchange.header(b"anthropic-version") is not None


def _openai(route: ModelRoute) -> dict[str, Any]:
    # OpenAI has no field for the context window; these are OpenRouter's, vLLM's and Groq's, which clients look for.
    window = {} if route.context is None else dict.fromkeys(_WINDOW_FIELDS, route.context)
    return {"id": route.name, "object": "model", "created": route.created, "owned_by": route.owner, **window}


def _anthropic(route: ModelRoute) -> dict[str, Any]:
    return write_model(route.name, route.name, route.created, route.context)
