"""The lists of models, in the shape of whoever asks: OpenAI's, Anthropic's or Ollama's."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.dialects.ollama import listings
from toolgate.server.app import Call
from toolgate.upstreams.router import Route, Router
from toolgate.wire.jsontext import encode


class ModelLists:
    """Tells which models there are; a caller sees only those it may use."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def _visible(self, call: Call) -> list[Route]:
        return [route for route in self._router.routes.values() if call.caller.may_use(route.name)]

    def _one(self, call: Call, name: str) -> Route:
        route = self._router.find(name)
        call.caller.check_model(route.name)
        return route

    async def list(self, call: Call) -> None:
        """GET /v1/models."""
        routes = self._visible(call)
        if call.exchange.header(b"anthropic-version") is None:
            body: dict[str, Any] = {"object": "list", "data": [_openai(route) for route in routes]}
        else:
            entries = [_anthropic(route) for route in routes]
            ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {"first_id": None, "last_id": None}
            body = {"data": entries, "has_more": False, **ends}
        await call.exchange.respond(200, encode(body))

    async def show(self, call: Call) -> None:
        """GET /v1/models/{id}."""
        route = self._one(call, call.arguments[0])
        anthropic = call.exchange.header(b"anthropic-version") is not None
        await call.exchange.respond(200, encode(_anthropic(route) if anthropic else _openai(route)))


def _openai(route: Route) -> dict[str, Any]:
    return {"id": route.name, "object": "model", "created": route.created, "owned_by": route.owner}


def _anthropic(route: Route) -> dict[str, Any]:
    created = datetime.fromtimestamp(route.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": route.name, "display_name": route.name, "created_at": created}
