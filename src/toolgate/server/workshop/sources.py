"""The sources of server tools that a configuration names, and those that are registered while the server runs.

What is not configured is not imported: each kind of source brings its own weight.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.config import Config, Secret
from toolgate.config.settings import HttpTools, McpLogin, McpServer
from toolgate.conversation.errors import InvalidRequest
from toolgate.server.workshop.egress import guarded_http, guarded_streams
from toolgate.storage.database import Database
from toolgate.storage.files import own_files
from toolgate.storage.pins import PinStore
from toolgate.tools.builtin import BuiltinSource
from toolgate.tools.egress import Refused
from toolgate.tools.egress.guarded import Watch, unwatched
from toolgate.tools.egress.url import read_url
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.sources.api import Registration
from toolgate.tools.tool import ToolSource, ToolSpec
from toolgate.upstreams.embedded.cache import default_folder

if TYPE_CHECKING:
    from toolgate.server.workshop.egress import GuardedStreams
    from toolgate.tools.sources.mcp import Remote
    from toolgate.tools.sources.mcp.oauth.tokens import TokenFile

LOGINS = "toolgate-logins.json"
"""Where logins to MCP servers are kept, beside the configuration."""


class Sources:
    """Makes the sources of a configuration, and those that are registered at run time."""

    def __init__(
        self, config: Config, database: Database, watch: Watch = unwatched, schemas: SchemaCheck | None = None
    ) -> None:
        """`watch` hears of every request that a tool lets out; `schemas` checks the definitions of all tools."""
        self._schemas = schemas or SchemaCheck()
        self._config = config
        self._base = base_of(config)
        self._http = guarded_http(config.tools.reach, watch=watch)
        self._database = database.path
        self._pins = PinStore(database)

    def configured(self) -> Iterable[ToolSource]:
        """Those of the configuration, in its order."""
        tools = self._config.tools
        yield self._builtin()
        if tools.python:
            yield self._python()
        for name, server in tools.mcp.items():
            yield self._mcp(name, server, trusted=True)
        for name, service in tools.http.items():
            yield self._service(name, service)

    def prefixes(self) -> dict[str, str]:
        """What the names of tools of MCP servers and HTTP services begin with, by the names of the sources."""
        tools = self._config.tools
        found = {f"mcp/{name}": _prefix(name, server) for name, server in tools.mcp.items()}
        found |= {f"http/{name}": f"{name}_" for name in tools.http}
        return {source: prefix for source, prefix in found.items() if prefix}

    def registered(self, registration: Registration) -> ToolSource:
        """The source of a registration; InvalidRequest if its address could never be opened."""
        try:
            read_url(registration.url)
        except Refused as refused:
            raise InvalidRequest(f"url: {refused}", param="url") from None
        if registration.type == "mcp":
            server = McpServer(
                url=registration.url, headers={name: Secret(value) for name, value in registration.headers.items()}
            )
            return self._mcp(registration.name, server, trusted=False)
        return self._callback(registration)

    def _callback(self, registration: Registration) -> ToolSource:
        from toolgate.tools.sources.callback import CallbackTool
        from toolgate.tools.sources.fixed import FixedSource

        spec = ToolSpec(
            source="api",
            **{name: getattr(registration, name) for name in ToolSpec.__struct_fields__ if hasattr(registration, name)},
        )
        tool = CallbackTool(spec, registration.url, registration.headers, self._http, registration.secret)
        return FixedSource("api", [tool])

    def _builtin(self) -> ToolSource:
        builtin = self._config.tools.builtin
        protected = [self._base / LOGINS, *[self._base / place for place in self._config.tools.python]]
        protected += own_files(self._database) if self._database is not None else []
        protected += [self._config.source] if self._config.source is not None else []
        protected += [self._base / place for place in self._own_folders() if place is not None]
        return BuiltinSource(
            [self._base / root for root in builtin.roots],
            http=self._http,
            allow_commands=builtin.commands,
            disabled=frozenset(builtin.disabled),
            protected=protected,
        )

    def _own_folders(self) -> list[str | None]:
        """Weights and prompts, which decide what models say."""
        embedded = self._config.embedded
        weights = embedded.model if embedded.model.endswith(".gguf") else None
        return [embedded.folder or str(default_folder(os.environ)), weights, self._config.text.templates]

    def _python(self) -> ToolSource:
        from toolgate.tools.sources.python import PythonSource
        from toolgate.tools.workers.worker import Limits

        tools, workers = self._config.tools, self._config.tools.workers
        limits = Limits(
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

    def _mcp(self, name: str, server: McpServer, trusted: bool) -> ToolSource:
        from toolgate.tools.sources.mcp import McpSource, Stdio

        place = self._base / (server.cwd or ".")
        at, http, tokens = remote(self._config, server, trusted)
        return McpSource(
            name,
            at if server.url else Stdio(server.command, _revealed(server.env), str(place)),
            pins=self._pins,
            http=http,
            schemas=self._schemas,
            tokens=tokens,
            prefix=server.prefix,
            foreign_prefixes=self._foreign_prefixes(name, server, trusted),
            trust=server.trust,
            tags=server.tags,
            timeout=server.timeout,
            connect_seconds=server.connect_timeout,
        )

    def _foreign_prefixes(self, name: str, server: McpServer, trusted: bool) -> list[str]:
        """The prefixes of other sources that a tool of this MCP server could be named into.

        Two sources that the configuration gives one prefix are meant to share it; a registered one shares none.
        """
        own = _prefix(name, server)
        others = [prefix for source, prefix in self.prefixes().items() if not trusted or source != f"mcp/{name}"]
        return [prefix for prefix in others if prefix.startswith(own) and (prefix != own or not trusted)]

    def _service(self, name: str, service: HttpTools) -> ToolSource:
        from toolgate.tools.sources.openapi import OpenApiSource

        return OpenApiSource(
            name,
            self._document(service.openapi),
            self._http,
            base_url=service.base_url,
            headers=_revealed(service.headers),
            include=service.include,
            exclude=service.exclude,
            timeout=service.timeout,
            schemas=self._schemas,
        )

    def _document(self, place: str) -> str:
        return place if place.startswith(("http://", "https://")) else str(self._base / place)


def remote(config: Config, server: McpServer, trusted: bool = True) -> "tuple[Remote, GuardedStreams, TokenFile]":
    """An MCP server that is elsewhere, the HTTP to reach it by, and where its logins are kept.

    The address of a `trusted` one was written by the operator, and may be private.
    """
    from toolgate.tools.sources.mcp import OAuth, Remote
    from toolgate.tools.sources.mcp.oauth.tokens import TokenFile

    login = server.oauth or McpLogin()
    secret = login.client_secret.reveal() if login.client_secret else None
    oauth = OAuth(login.grant, login.client_id, secret, login.scope, login.audience, login.issuer)
    at = Remote(server.url or "", _revealed(server.headers), oauth, server.handshake)
    http = guarded_streams(config.tools.reach, [server.url] if server.url and trusted else [])
    return at, http, TokenFile(base_of(config) / LOGINS)


def _prefix(name: str, server: McpServer) -> str:
    return f"{name}_" if server.prefix is None else server.prefix


def base_of(config: Config) -> Path:
    """Where relative paths of the configuration start: at its file."""
    return config.source.parent if config.source else Path.cwd()


def _revealed(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in secrets.items()}
