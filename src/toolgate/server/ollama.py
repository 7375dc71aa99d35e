"""Ollama's endpoints: chat and generate, loading a model, and the lists by which editors pick one."""

import time
from types import ModuleType
from typing import Any

from toolgate.dialects.dialect import Reply
from toolgate.dialects.ollama import DIALECT, generate, listings, server
from toolgate.server.app import Call
from toolgate.server.endpoints import Conversations
from toolgate.upstreams.router import Route, Router
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_CONTEXT = 131_072
_LOADED_SECONDS = 300


class Ollama:
    """Everything below /api."""

    def __init__(self, conversations: Conversations, router: Router) -> None:
        self._conversations = conversations
        self._router = router

    async def chat(self, call: Call) -> None:
        """Answer an Ollama chat request, whole or streamed."""
        await self._answer(call, server)

    async def generate(self, call: Call) -> None:
        """Answer an Ollama generate request, whole or streamed."""
        await self._answer(call, generate)

    async def tags(self, call: Call) -> None:
        """List the models, as Ollama does."""
        await call.exchange.respond(200, encode(listings.tags(self._cards(call))))

    async def show(self, call: Call) -> None:
        """Tell what a model can do, as Ollama does."""
        fields = Fields(await call.exchange.json())
        route = self._route(call, fields.text("model") or fields.required_text("name"))
        await call.exchange.respond(200, encode(listings.show(_card(route))))

    async def ps(self, call: Call) -> None:
        """List the models that are ready, as Ollama does: here, all of them."""
        until = int(time.time()) + _LOADED_SECONDS
        await call.exchange.respond(200, encode(listings.ps(self._cards(call), until)))

    async def version(self, call: Call) -> None:
        """The version of Ollama's API that is served."""
        await call.exchange.respond(200, encode(listings.version()))

    async def _answer(self, call: Call, half: ModuleType) -> None:
        body = await call.exchange.json()
        if half.is_load_request(body):
            await self._load(call, half, body)
        else:
            await self._conversations.converse(call, await self._conversations.question(call, DIALECT, half, body))

    async def _load(self, call: Call, half: ModuleType, body: dict[str, Any]) -> None:
        """A request without a prompt only makes sure that the model is there."""
        body = self._router.with_model(body, call.caller.may_use)
        route = self._route(call, Fields(body).required_text("model"))
        reply = Reply(half.reply_id(), int(time.time()), route.name)
        await call.exchange.respond(200, half.encode_load(body, reply))

    def _route(self, call: Call, name: str) -> Route:
        route = self._router.find(name)
        call.caller.require_model(route.name, name)
        return route

    def _cards(self, call: Call) -> list[listings.Card]:
        return [_card(route) for route in self._router.routes.values() if call.caller.may_use(route.name)]


def _card(route: Route) -> listings.Card:
    able = {"completion": True, "tools": route.tools, "vision": route.images, "thinking": route.thinking}
    words = tuple([word for word, can in able.items() if can])
    return listings.Card(route.name, route.context or _CONTEXT, words, modified=route.created)
