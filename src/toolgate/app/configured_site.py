"""Build what serves one configuration: its models, endpoints, limits and the ASGI application.

Building a site changes no object that serves already, so that a configuration can be refused without a trace.
"""

from toolgate.api.chat import ChatHandler
from toolgate.api.count_tokens import TokenCountHandler
from toolgate.api.health import SystemEndpoints
from toolgate.api.keys import KeyEndpoints
from toolgate.api.models import ModelEndpoints
from toolgate.api.ollama import OllamaEndpoints
from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.api.responses import BackgroundServices, ResponseEndpoints
from toolgate.api.responses.conversations import ConversationEndpoints
from toolgate.api.runs import RunEndpoints, RunForker
from toolgate.api.status import StatusEndpoint
from toolgate.app.models import ModelFactory
from toolgate.app.reloadable_tool_settings import reloadable_tool_settings
from toolgate.app.services import Services
from toolgate.config import Config
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.http.application import Application, ErrorEncoder
from toolgate.http.origins import OriginPolicy
from toolgate.mcp.server import http_errors

# How errors are encoded, by the beginning of the path.
_ERROR_ENCODERS: dict[str, ErrorEncoder] = {
    "/": OPENAI_CHAT.server,
    "/v1/messages": ANTHROPIC.server,
    "/api/": OLLAMA.server,
    "/mcp": http_errors,
}


class ConfiguredSite:
    """Everything that serves one configuration."""

    def __init__(self, config: Config, services: Services) -> None:
        """ValueError, OSError or ToolgateError if the configuration cannot be used."""
        self.config = config
        tools, server = services.tools, config.server
        self.reloadable_tool_settings = reloadable_tool_settings(config) if tools else None
        self.limits = services.quotas.admission(config)
        self.peers = services.peers.factory()
        factory = ModelFactory(
            config, services.transport, services.builtin, self.peers, services.telemetry, services.bridge.windows
        )
        router = factory.router()
        chat = ChatHandler(
            router,
            StreamKeepaliveTimings(server.first_event_wait, server.keepalive_seconds),
            services.telemetry,
            tools.tool_runs if tools else None,
            services.records.chats,
        )
        self.background = BackgroundServices(chat, services.keys.authenticator.named, self.limits)
        responses = ResponseEndpoints(chat, services.responses, OPENAI_RESPONSES, services.state, self.limits)
        limited = [
            *chat.endpoints(),
            *TokenCountHandler(router).endpoints(),
            *ModelEndpoints(router).endpoints(),
            *OllamaEndpoints(chat, router).endpoints(),
            *responses.endpoints(),
            *services.sockets.endpoints(server.limits.websockets, server.limits.websockets_per_key),
            *ConversationEndpoints(services.responses, services.state).endpoints(),
            *services.records.endpoints(),
            *RunEndpoints(
                services.records.timelines,
                services.records.writer,
                services.responses,
                services.state,
                services.notifier,
                RunForker(responses, services.responses, services.records.timelines.store, services.state),
                lambda: services.draining,
            ).endpoints(),
            *StatusEndpoint(config, router, services.keys.authenticator, services.local_state).endpoints(),
            *(tools.endpoints(lambda: services.draining) if tools else []),
        ]
        # Key endpoints stay outside: idempotency would store the response that holds a new secret.
        endpoints = services.quotas.wrap(limited, self.limits)
        endpoints += KeyEndpoints(config, services.keys, services.quotas.budgets, services.telemetry.log).endpoints()
        endpoints += services.bridge.endpoints(config.vscode)
        # Probes are outside of the limits, too: a busy server is still alive.
        system = SystemEndpoints(
            endpoints,
            services.telemetry.render,
            services.supervisor.sum_metrics if services.supervisor else None,
            lambda: services.draining,
        )
        self.app = Application(
            [*endpoints, *system.endpoints(), *services.console.endpoints()],
            _ERROR_ENCODERS,
            services.keys.authenticator,
            OriginPolicy(config),
            services.telemetry,
            services.keys.active_requests,
            services.keys.stored.find_new_keys,
        )
