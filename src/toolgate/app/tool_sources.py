"""Build the sources of tools that a configuration names, and those that are registered while the server runs.

A kind of source that is not configured is not imported.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.config import Config, Secret
from toolgate.config.settings import McpLoginSettings, McpServerSettings, OpenApiSettings
from toolgate.conversation.errors import InvalidRequest
from toolgate.storage.accepted_definitions import AcceptedDefinitionStore
from toolgate.storage.database import Database
from toolgate.storage.sqlite_file_permissions import own_files
from toolgate.tools.builtin import BuiltinSource
from toolgate.tools.egress import EgressRefused
from toolgate.tools.egress.guarded_http import OnHop, ignore_hop
from toolgate.tools.egress.pinned_transport import guarded_http, guarded_streams
from toolgate.tools.egress.url import read_url
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.sources.registered import ToolRegistration
from toolgate.tools.tool import ServerToolDefinition, ToolSource
from toolgate.upstreams.local.weights_cache import default_folder

if TYPE_CHECKING:
    from toolgate.mcp.client import RemoteServerConfig
    from toolgate.mcp.oauth.login_storage import LoginFile
    from toolgate.tools.egress.pinned_transport import GuardedStreamClient
    from toolgate.tools.sources.openapi import OpenApiSource

# The file with the logins to MCP servers, beside the configuration.
LOGINS = "toolgate-logins.json"


class ToolSourceFactory:
    """Builds the sources of a configuration, and those that are registered at run time."""

    def __init__(
        self, config: Config, database: Database, on_hop: OnHop = ignore_hop, schemas: ToolSchemaValidator | None = None
    ) -> None:
        """`watch` is called with every HTTP request of a tool; `schemas` checks the definitions of all tools."""
        self._schemas = schemas or ToolSchemaValidator()
        self._config = config
        self._base = base_of(config)
        self._http = guarded_http(config.tools.reach, on_hop=on_hop)
        self._database = database.path
        self._accepted = AcceptedDefinitionStore(database)

    def configured(self) -> Iterable[ToolSource]:
        """Build the sources of the configuration, in its order."""
        tools = self._config.tools
        yield self._builtin()
        if tools.python:
            yield self._python()
        for name, server in tools.mcp.items():
            yield self._mcp(name, server, trusted=True)
        for name, service in tools.http.items():
            yield self._service(name, service)

    def prefixes(self) -> dict[str, str]:
        """Return the prefixes of tool names of MCP servers and HTTP services, by the names of the sources."""
        tools = self._config.tools
        found = {f"mcp/{name}": _prefix(name, server) for name, server in tools.mcp.items()}
        found |= {f"http/{name}": f"{name}_" for name in tools.http}
        return {source: prefix for source, prefix in found.items() if prefix}

    def registered(self, registration: ToolRegistration) -> ToolSource:
        """Build the source of a registration; InvalidRequest if its URL is not allowed for anyone."""
        try:  # the host is resolved and checked at every call, but a URL that can never be reached is refused at once
            read_url(registration.url)
        except EgressRefused as refused:
            raise InvalidRequest(f"url: {refused}", param="url") from None
        # Not `trusted`: a registration comes over the network and must not reach private addresses.
        if registration.type == "mcp":
            server = McpServerSettings(
                url=registration.url, headers={name: Secret(value) for name, value in registration.headers.items()}
            )
            return self._mcp(registration.name, server, trusted=False)
        from toolgate.tools.sources.callback import CallbackTool
        from toolgate.tools.sources.static import StaticSource

        spec = ServerToolDefinition(
            source="api",
            target=registration.url,
            registered=True,
            **{
                name: getattr(registration, name)
                for name in ServerToolDefinition.__struct_fields__
                if hasattr(registration, name)
            },
        )
        tool = CallbackTool(spec, registration.url, registration.headers, self._http, registration.secret)
        return StaticSource("api", [tool])

    def _builtin(self) -> ToolSource:
        builtin, embedded = self._config.tools.builtin, self._config.embedded
        # Tools may not touch the server's own files, nor weights and prompts, which decide what models write.
        weights = [embedded.folder or str(default_folder(os.environ))]
        weights += [embedded.model] if embedded.model.endswith(".gguf") else []
        prompts = [self._config.text.templates] if self._config.text.templates is not None else []
        protected = [self._base / path for path in (LOGINS, *self._config.tools.python, *weights, *prompts)]
        protected += own_files(self._database) if self._database is not None else []
        protected += [self._config.source] if self._config.source is not None else []
        return BuiltinSource(
            [self._base / root for root in builtin.roots],
            http=self._http,
            allow_commands=builtin.commands,
            disabled=frozenset(builtin.disabled),
            protected=protected,
        )

    def _python(self) -> ToolSource:
        from toolgate.tools.sources.python import PythonSource
        from toolgate.tools.workers.process import WorkerLimits

        tools, workers = self._config.tools, self._config.tools.workers
        limits = WorkerLimits(
            workers=workers.count,
            memory=workers.memory,
            output=workers.output,
            cpu=workers.cpu_seconds,
            idle=workers.idle_seconds,
            environment=workers.environment,
        )
        return PythonSource(
            tools.python, self._base, limits=limits, load_seconds=workers.load_seconds, schemas=self._schemas
        )

    def _mcp(self, name: str, server: McpServerSettings, trusted: bool) -> ToolSource:
        from toolgate.mcp.client import McpSource, StdioServerConfig

        address, http, logins = remote(self._config, server, trusted)
        own = _prefix(name, server)
        # No tool of this server may be named into the prefix of another source. Two sources that the configuration gives
        # one prefix are meant to share it; a registered one shares none, nor does its own prefix begin with another's.
        others = [prefix for source, prefix in self.prefixes().items() if not trusted or source != f"mcp/{name}"]
        foreign = [one for one in others if one.startswith(own) and (one != own or not trusted)]
        foreign += [one for one in others if own.startswith(one) and one != own and not trusted]
        return McpSource(
            name,
            address
            if server.url
            else StdioServerConfig(server.command, _revealed(server.env), str(self._base / (server.cwd or "."))),
            accepted=self._accepted,
            http=http,
            schemas=self._schemas,
            tokens=logins,
            prefix=server.prefix,
            foreign_prefixes=foreign,
            trust=server.trust,
            tags=server.tags,
            registered=not trusted,
            timeout=server.timeout,
            connect_seconds=server.connect_timeout,
        )

    def _service(self, name: str, service: OpenApiSettings) -> "OpenApiSource":
        from toolgate.tools.sources.openapi import OpenApiSource

        document = service.openapi
        return OpenApiSource(
            name,
            document if document.startswith(("http://", "https://")) else str(self._base / document),
            self._http,
            base_url=service.base_url,
            headers=_revealed(service.headers),
            include=service.include,
            exclude=service.exclude,
            timeout=service.timeout,
            schemas=self._schemas,
        )

    async def refused_services(self) -> dict[str, str]:
        """Return why tools may not reach a service, by its name; only OpenAPI documents in files are read."""
        refused: dict[str, str] = {}
        for name, service in self._config.tools.http.items():
            if service.base_url is not None or service.openapi.startswith(("http://", "https://")):
                continue
            source = self._service(name, service)
            await source.open(lambda: None)  # reads the document; nothing is connected
            refused |= {name: source.refused} if source.refused else {}
        return refused


def remote(
    config: Config, server: McpServerSettings, trusted: bool = True
) -> "tuple[RemoteServerConfig, GuardedStreamClient, LoginFile]":
    """Return a remote MCP server, the HTTP client that reaches it, and the file with its logins.

    The address of a `trusted` server was written by the operator and may be private.
    """
    from toolgate.mcp.client import OAuthConfig, RemoteServerConfig
    from toolgate.mcp.oauth.login_storage import LoginFile

    login = server.oauth or McpLoginSettings()
    secret = login.client_secret.reveal() if login.client_secret else None
    oauth = OAuthConfig(login.grant, login.client_id, secret, login.scope, login.audience, login.issuer)
    address = RemoteServerConfig(server.url or "", _revealed(server.headers), oauth, server.handshake)
    http = guarded_streams(config.tools.reach, [server.url] if server.url and trusted else [])
    return address, http, LoginFile(base_of(config) / LOGINS)


def _prefix(name: str, server: McpServerSettings) -> str:
    return f"{name}_" if server.prefix is None else server.prefix


def base_of(config: Config) -> Path:
    """Return the folder in which relative paths of the configuration start: that of its file."""
    return config.source.parent if config.source else Path.cwd()


def _revealed(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in secrets.items()}
