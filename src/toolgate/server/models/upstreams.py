"""From the models of a configuration to whoever answers for them: chains of wrappers with one method, `ask`."""

import time
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from toolgate.config import BUILTIN, Config, Model, Target, Upstream
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import Dialect
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine import ports
from toolgate.engine.limits import Price
from toolgate.server.models.peers import Peers
from toolgate.server.workshop.sources import base_of
from toolgate.telemetry.traced import Traced
from toolgate.upstreams.http_model import Endpoint, HttpModel
from toolgate.upstreams.router import Route, Router, TokenCounter
from toolgate.upstreams.token_counter import UpstreamTokenCounter
from toolgate.upstreams.transport import Timeouts, Transport
from toolgate.upstreams.wrappers import (
    Balanced,
    Breaker,
    Counted,
    Deployment,
    Fallback,
    Limited,
    Named,
    RetryBudget,
    Retrying,
)

if TYPE_CHECKING:
    from toolgate.text.prompts.wording import Prompts

DIALECTS: dict[str, Dialect] = {one.name: one for one in (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, OLLAMA)}


class Models:
    """Builds the chain of wrappers that answers for each model of a configuration."""

    def __init__(
        self,
        config: Config,
        transport: Transport,
        builtin: Mapping[str, ports.Model],
        peers: Peers,
        traced: Traced,
    ) -> None:
        self._config = config
        self._transport = transport
        self._traced = traced
        self._builtin = builtin
        self._peers = peers
        self._budgets = {name: RetryBudget() for name in config.upstreams}

    def router(self) -> Router:
        """A router over all models."""
        balanced = {model.name: self._balanced(model) for model in self._config.models}
        names = {name: model.name for model in self._config.models for name in model.names}
        started = int(time.time())
        return Router(
            [
                _route(
                    model,
                    _chain([balanced[model.name], *[balanced[names[f]] for f in model.fallbacks]]),
                    started,
                    self._context(model),
                    self._counter(model),
                )
                for model in self._config.models
            ],
            self._config.default_model,
        )

    def _balanced(self, model: Model) -> ports.Model:
        deployments = [self._deployment(model, target) for target in model.targets]
        return self._worded(model, deployments[0].model if len(deployments) == 1 else Balanced(deployments))

    def _worded(self, model: Model, asked: ports.Model) -> ports.Model:
        """The model with what it lacks made up in text: tools, system messages, or calls that it leaks."""
        if model.tools == "native" and model.system == "native" and not model.promote:
            return asked
        from toolgate.upstreams.emulated import Emulated, Injected  # templates take their time to load
        from toolgate.upstreams.promoted import Promoted

        noted = partial(self._traced.text_noted, model.name)
        if model.tools == "emulated":
            return Emulated(
                asked,
                syntax=model.syntax,
                prompts=self._prompts(model.prompts),
                inject=model.system == "inject",
                images=model.capabilities.images,
                parallel=model.capabilities.parallel,
                thinking=model.thinking == "begun",
                calls_end_thinking=model.thinking == "unclosed",
                reasks=model.reasks,
                stops=not self._is_peer(model),
                noted=noted,
            )
        if model.promote:
            asked = Promoted(asked, noted=noted)
        return Injected(asked, self._prompts(model.prompts)) if model.system == "inject" else asked

    def _context(self, model: Model) -> int | None:
        """The model's window in tokens, if it is known."""
        return model.capabilities.context or (self._config.embedded.context if self._config.is_local(model) else None)

    def _is_peer(self, model: Model) -> bool:
        found = [self._config.upstreams.get(target.upstream) for target in model.targets]
        return any(upstream is not None and upstream.dialect == "peer" for upstream in found)

    def _prompts(self, variant: str) -> "Prompts":
        from toolgate.text.prompts.wording import Prompts

        base, text = base_of(self._config), self._config.text
        return Prompts(
            variant,
            templates_dir=base / text.templates if text.templates else None,
            instructions=text.instructions,
            rules=[base / rule for rule in text.rules],
            secret=self._marking_secret(),
        )

    def _marking_secret(self) -> bytes | None:
        """What every worker and node knows and no tool does: the upstreams' keys; None if there are none."""
        keys = [upstream.api_key.reveal() for upstream in self._config.upstreams.values() if upstream.api_key]
        known = "\0".join(sorted({key for key in keys if len(key) >= 16}))
        return sha256(f"marks of results\0{known}".encode()).digest() if known else None

    def _deployment(self, model: Model, target: Target) -> Deployment:
        if target.upstream == BUILTIN:
            return Deployment(Counted(self._builtin[target.model]))
        upstream = self._config.upstreams[target.upstream]
        asked: ports.Model = Named(Counted(self._reached(upstream, target)))
        asked = Limited(asked, concurrent=upstream.max_connections, queue=upstream.max_connections)
        if model.retries:
            asked = Retrying(asked, self._budgets[upstream.name], attempts=model.retries + 1)
        breaker = None
        if upstream.breaker.failures:
            breaker = asked = Breaker(
                asked,
                failures=upstream.breaker.failures,
                cooldown=upstream.breaker.seconds,
                unreachable_only=len(model.targets) == 1 and not model.fallbacks,
            )
        return Deployment(asked, target.weight, breaker)

    def _counter(self, model: Model) -> TokenCounter | None:
        """Whoever counts the tokens of a request as the model's first upstream does; not for tools that go into the text."""
        target = model.targets[0]
        upstream = self._config.upstreams.get(target.upstream)
        dialect = DIALECTS.get(upstream.dialect) if upstream else None
        if upstream is None or dialect is None or dialect.counting is None or model.tools == "emulated":
            return None
        return UpstreamTokenCounter(self._transport, _endpoint(upstream), dialect.counting, target.model, target.quirks)

    def _reached(self, upstream: Upstream, target: Target) -> ports.Model:
        attempted = self._traced.metrics.count_attempt
        if upstream.dialect == "peer":
            return self._peers.model(upstream, target.model, attempted)
        return HttpModel(self._transport, _endpoint(upstream), target.model, target.quirks, attempted)


def _chain(models: list[ports.Model]) -> ports.Model:
    return models[0] if len(models) == 1 else Fallback(models)


def _route(
    model: Model, answering: ports.Model, created: int, context: int | None, counter: TokenCounter | None
) -> Route:
    able = model.capabilities
    return Route(
        name=model.name,
        model=answering,
        aliases=model.aliases,
        owner=model.targets[0].upstream,
        created=created,
        max_tools=able.max_tools,
        strict=model.strict,
        lenient=model.tools == "emulated",
        whole_arguments=model.whole_arguments,
        allow_tools=model.server_tools,
        block_tools=model.blocked_tools,
        price=Price(model.price.input, model.price.output),
        context=context,
        images=able.images,
        tools=able.tools or model.tools == "emulated",
        thinking=able.thinking,
        defaults=model.defaults,
        counter=counter,
    )


def _endpoint(upstream: Upstream) -> Endpoint:
    dialect = DIALECTS[upstream.dialect]
    own = {name: value.reveal() for name, value in upstream.headers.items()}
    key = upstream.api_key.reveal() if upstream.api_key else None
    limits = upstream.timeouts
    return Endpoint(
        upstream.name,
        dialect,
        upstream.base_url,
        {**dialect.upstream.headers(key), **own},
        Timeouts(limits.connect, limits.first_byte, limits.idle, limits.total),
    )
