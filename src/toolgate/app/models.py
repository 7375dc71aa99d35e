"""Build the models of a configuration: chains of wrappers with one method, `ask`, and the router over them."""

import time
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from toolgate.app.bridge import exchange_timeouts
from toolgate.app.stateful_chat import StatefulChatFactory
from toolgate.app.tool_sources import base_of
from toolgate.bridge.frames import LentModel
from toolgate.bridge.windows import EditorWindows
from toolgate.config import BUILTIN, VSCODE, Config, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.conversation.request import NO_SETTINGS
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import Dialect
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine import ports
from toolgate.engine.run_limits import Price
from toolgate.telemetry.request_log import Telemetry
from toolgate.upstreams.http_model import HttpModel, UpstreamEndpoint
from toolgate.upstreams.router import ModelRoute, Router, TokenCounter
from toolgate.upstreams.token_count_client import UpstreamTokenCountClient
from toolgate.upstreams.transport import UpstreamHttpClient, UpstreamTimeouts
from toolgate.upstreams.vscode.demanded_calls import DemandedCallModel
from toolgate.upstreams.vscode.model import VscodeModel
from toolgate.upstreams.vscode.routes import LentRoutes
from toolgate.upstreams.wrappers import (
    BalancedModel,
    CircuitBreaker,
    ConcurrencyLimitedModel,
    Deployment,
    FallbackModel,
    RetryBudget,
    RetryingModel,
    ToolNameCorrectingModel,
    UsageCountingModel,
)

if TYPE_CHECKING:
    from toolgate.text_tools.prompts.prompt_renderer import TextToolPromptRenderer

DIALECTS: dict[str, Dialect] = {one.name: one for one in (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, OLLAMA)}


class ModelFactory:
    """Builds the chain of wrappers that answers for each model of a configuration."""

    def __init__(
        self,
        config: Config,
        transport: UpstreamHttpClient,
        builtin: Mapping[str, ports.Model],
        peers: StatefulChatFactory,
        telemetry: Telemetry,
        windows: EditorWindows,
    ) -> None:
        self._windows = windows
        self._config = config
        self._by_name = config.by_name()
        self._transport = transport
        self._telemetry = telemetry
        self._builtin = builtin
        self._peers = peers
        self._budgets = {name: RetryBudget() for name in config.upstreams}

    def router(self) -> Router:
        """Build the router over all models."""
        models, created = self._config.models, int(time.time())
        balanced: dict[str, ports.Model] = {}
        for model in models:
            deployments = [self._deployment(model, target) for target in model.targets]
            upstream = deployments[0].model if len(deployments) == 1 else BalancedModel(deployments)
            # Outside of the balancer: the prompts are the same whichever target answers.
            balanced[model.name] = self._with_text_tools(model, upstream)
        names = {name: model.name for model in models for name in model.names}
        routes = []
        for model in models:
            chosen = [model.name, *[names[fallback] for fallback in model.fallbacks]]
            chain = [balanced[name] for name in chosen]
            routes.append(self._route(model, chain[0] if len(chain) == 1 else FallbackModel(chain, chosen), created))
        return Router(routes, self._config.default_model, LentRoutes(self._windows, self._lent))

    def _lent(self, name: str, lent: LentModel) -> tuple[ports.Model, TokenCounter | None]:
        """Build the model that an editor lends under a public name; one that calls no tools gets them in text."""
        model = self._vscode(lent.vendor, lent.id)
        built = self._counted(model, name)
        if lent.tools is not False:  # None: the editor does not know, and most models do
            return DemandedCallModel(built), model
        from toolgate.text_tools.emulation.model import EmulatedModel

        emulated = EmulatedModel(
            built,
            syntax="invoke",
            prompts=self._prompts("full"),
            inject=False,
            images=lent.images is not False,
            on_note=partial(self._telemetry.log_text_note, name),
        )
        return emulated, None

    def _vscode(self, vendor: str | None, model: str) -> VscodeModel:
        on_attempt = self._telemetry.metrics.count_attempt
        return VscodeModel(self._windows, vendor, model, exchange_timeouts(self._config.vscode), on_attempt)

    def _counted(self, model: ports.Model, name: str) -> ports.Model:
        return ToolNameCorrectingModel(UsageCountingModel(model, name))

    def _with_text_tools(self, model: ModelConfig, upstream: ports.Model) -> ports.Model:
        """Wrap a model that lacks tools or system messages, or that writes tool calls as text."""
        if model.tools == "native" and model.system == "native" and not model.promote:
            return upstream
        from toolgate.text_tools.emulation.model import (  # imported when needed: its templates are slow to load
            EmulatedModel,
            SystemToUserModel,
        )
        from toolgate.text_tools.emulation.promoted_calls import PromotedCallsModel

        on_note = partial(self._telemetry.log_text_note, model.name)
        if model.tools == "emulated":
            upstreams = [self._config.upstreams.get(target.upstream) for target in model.targets]
            return EmulatedModel(
                upstream,
                syntax=model.syntax,
                prompts=self._prompts(model.prompts),
                inject=model.system == "inject",
                images=model.capabilities.images,
                parallel=model.capabilities.parallel,
                thinking=model.thinking == "begun",
                calls_end_thinking=model.thinking == "unclosed",
                reasks=model.reasks,
                # A stateful peer takes no stop sequences.
                stops=not any(one is not None and one.dialect == "peer" for one in upstreams),
                on_note=on_note,
            )
        if model.promote:
            upstream = PromotedCallsModel(upstream, on_note=on_note)
        return SystemToUserModel(upstream, self._prompts(model.prompts)) if model.system == "inject" else upstream

    def _prompts(self, variant: str) -> "TextToolPromptRenderer":
        from toolgate.text_tools.prompts.prompt_renderer import TextToolPromptRenderer

        base, text = base_of(self._config), self._config.text
        # Results are marked with a secret that every worker and node knows and no tool does: the upstreams' keys.
        # A short one, such as the "none" of a local upstream, could be guessed.
        keys = [upstream.api_key.reveal() for upstream in self._config.upstreams.values() if upstream.api_key]
        known = "\0".join(sorted({key for key in keys if len(key) >= 16}))
        return TextToolPromptRenderer(
            variant,
            templates_dir=base / text.templates if text.templates else None,
            instructions=text.instructions,
            rules=[base / rule for rule in text.rules],
            secret=sha256(f"marks of results\0{known}".encode()).digest() if known else None,
        )

    def _deployment(self, model: ModelConfig, target: TargetConfig) -> Deployment:
        """Build the chain that asks one target."""
        if target.upstream == BUILTIN:
            return Deployment(UsageCountingModel(self._builtin[target.model], model.name), name=BUILTIN)
        if target.upstream == VSCODE:
            vendor, _, id = target.model.rpartition("/")
            lent = DemandedCallModel(self._counted(self._vscode(vendor or None, id), model.name))
            return Deployment(lent, target.weight, name=VSCODE)
        upstream = self._config.upstreams[target.upstream]
        on_attempt = self._telemetry.metrics.count_attempt
        built: ports.Model
        if upstream.dialect == "peer":
            built = self._peers.model(upstream, target.model, on_attempt)
        else:
            built = HttpModel(self._transport, _endpoint(upstream), target.model, target.quirks, on_attempt)
        # From the inside out. Usage is counted for each attempt, since each is paid. Retries are outside of the slots,
        # so that a request that pauses holds none. The breaker is outermost: an open one uses up neither.
        built = self._counted(built, model.name)
        built = ConcurrencyLimitedModel(built, concurrent=upstream.max_connections, queue=upstream.max_connections)
        if model.retries:
            built = RetryingModel(built, self._budgets[upstream.name], attempts=model.retries + 1)
        breaker = None
        if upstream.breaker.failures:
            breaker = built = CircuitBreaker(
                built,
                failures=upstream.breaker.failures,
                cooldown=upstream.breaker.seconds,
                # Where no other model can answer instead, occasional errors must not become an outage.
                unreachable_only=len(model.targets) == 1 and not model.fallbacks,
                on_change=partial(self._telemetry.log_circuit, upstream.name, model.name),
            )
        return Deployment(built, target.weight, breaker, upstream.name)

    def _counter(self, model: ModelConfig) -> TokenCounter | None:
        """Return what counts tokens as the model's first upstream does; None for tools in text, which count differently."""
        target = model.targets[0]
        upstream = self._config.upstreams.get(target.upstream)
        dialect = DIALECTS.get(upstream.dialect) if upstream else None
        if upstream is None or dialect is None or dialect.token_count is None or model.tools == "emulated":
            return None
        return UpstreamTokenCountClient(
            self._transport, _endpoint(upstream), dialect.token_count, target.model, target.quirks
        )

    def _route(self, model: ModelConfig, chain: ports.Model, created: int) -> ModelRoute:
        capabilities, config = model.capabilities, self._config
        candidates = [model, *[self._by_name[name] for name in model.fallbacks]]
        return ModelRoute(
            name=model.name,
            model=chain,
            aliases=model.aliases,
            owner=model.targets[0].upstream,
            created=created,
            max_tools=capabilities.max_tools,
            strict=model.strict,
            lenient=model.tools == "emulated",
            whole_arguments=model.whole_arguments,
            allow_tools=model.server_tools,
            block_tools=model.blocked_tools,
            price=_price(model),
            prices={one.name: _price(one) for one in candidates},
            context=capabilities.context or (config.embedded.context if config.is_local(model) else None),
            images=capabilities.images,
            tools=capabilities.tools or model.tools == "emulated",
            thinking=capabilities.thinking,
            defaults=NO_SETTINGS if model.defaults == NO_SETTINGS else model.defaults,
            counter=self._counter(model),
            editor=any(target.upstream == VSCODE for one in candidates for target in one.targets),
        )


def _endpoint(upstream: UpstreamConfig) -> UpstreamEndpoint:
    dialect = DIALECTS[upstream.dialect]
    own = {name: value.reveal() for name, value in upstream.headers.items()}
    key = upstream.api_key.reveal() if upstream.api_key else None
    limits = upstream.timeouts
    return UpstreamEndpoint(
        upstream.name,
        dialect,
        upstream.base_url,
        {**dialect.upstream.headers(key), **own},
        UpstreamTimeouts(limits.connect, limits.first_byte, limits.idle, limits.total),
    )


def _price(model: ModelConfig) -> Price:
    return Price(model.price.input, model.price.output)
