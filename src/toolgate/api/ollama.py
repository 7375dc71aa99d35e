"""Serve Ollama's API below /api: chat and generate, loading a model, and the lists from which editors choose one."""

import time
from types import ModuleType

from toolgate.api.chat import ChatHandler
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.ollama import DIALECT, generate, model_listings, server
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.upstreams.router import ModelRoute, Router
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_CONTEXT = 131_072  # reported for models whose context window is not known
_LOADED_SECONDS = 300  # Ollama's own keep_alive: how long it reports that a model stays loaded


class OllamaEndpoints:
    """The endpoints below /api."""

    def __init__(self, chat: ChatHandler, router: Router) -> None:
        self._chat = chat
        self._router = router

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints; the version needs no key."""
        errors = DIALECT.server
        return [
            HttpRoute("POST", "/api/chat", self.chat, errors),
            HttpRoute("POST", "/api/generate", self.generate, errors),
            HttpRoute("GET", "/api/tags", self.tags, errors),
            HttpRoute("POST", "/api/show", self.show, errors),
            HttpRoute("GET", "/api/ps", self.ps, errors),
            HttpRoute("GET", "/api/version", self.version, errors, scope=None),
        ]

    async def chat(self, call: AdmittedHttpRequest) -> None:
        """Answer an Ollama chat request, whole or streamed."""
        await self._respond(call, server)

    async def generate(self, call: AdmittedHttpRequest) -> None:
        """Answer an Ollama generate request, whole or streamed."""
        await self._respond(call, generate)

    async def tags(self, call: AdmittedHttpRequest) -> None:
        """List the models, as Ollama does."""
        await call.exchange.respond(200, encode(model_listings.tags(self._cards(call))))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return what a model can do, as Ollama does."""
        fields = Fields(await call.exchange.json())
        route = self._route(call, fields.text("model") or fields.required_text("name"))
        await call.exchange.respond(200, encode(model_listings.show(_card(route))))

    async def ps(self, call: AdmittedHttpRequest) -> None:
        """List the models that are ready, as Ollama does: here, all of them."""
        until = int(time.time()) + _LOADED_SECONDS
        await call.exchange.respond(200, encode(model_listings.ps(self._cards(call), until)))

    async def version(self, call: AdmittedHttpRequest) -> None:
        """Return the version of Ollama's API that is served."""
        await call.exchange.respond(200, encode(model_listings.version()))

    async def _respond(self, call: AdmittedHttpRequest, codec: ModuleType) -> None:
        body = await call.exchange.json()
        if not codec.is_load_request(body):
            await self._chat.respond_and_record(call, await self._chat.prepare(call, DIALECT, codec, body))
            return
        # A request without a prompt only loads the model, which here is always loaded.
        body = self._router.with_model(body, call.caller.may_use)
        route = self._route(call, Fields(body).required_text("model"))
        metadata = AnswerMetadata(codec.reply_id(call.record.request_id), int(time.time()), route.name)
        await call.exchange.respond(200, codec.encode_load(body, metadata))

    def _route(self, call: AdmittedHttpRequest, name: str) -> ModelRoute:
        route = self._router.find(name)
        call.caller.require_model(route.name, name)
        return route

    def _cards(self, call: AdmittedHttpRequest) -> list[model_listings.ModelCard]:
        return [_card(route) for route in self._router.routes.values() if call.caller.may_use(route.name)]


def _card(route: ModelRoute) -> model_listings.ModelCard:
    flags = {"completion": True, "tools": route.tools, "vision": route.images, "thinking": route.thinking}
    capabilities = tuple([name for name, is_set in flags.items() if is_set])
    return model_listings.ModelCard(route.name, route.context or _CONTEXT, capabilities, modified=route.created)
