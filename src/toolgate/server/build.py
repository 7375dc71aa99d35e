"""The composition root: from a configuration to a running server. Only here do implementations meet."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from toolgate.config import BUILTIN, Config, ConfigError, diff, load
from toolgate.conversation.errors import ToolgateError
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine import ports
from toolgate.server.app import App, Endpoint
from toolgate.server.callers.access import Access
from toolgate.server.callers.accounts import Accounts
from toolgate.server.callers.keys import KeyTable
from toolgate.server.edge.head import Limits
from toolgate.server.edge.listen import NotStarted, run
from toolgate.server.endpoints import Conversations, Pace
from toolgate.server.exchange import Receive, Scope, Send
from toolgate.server.mcp import words
from toolgate.server.mcp.door import Door
from toolgate.server.models.counting import TokenCounts
from toolgate.server.models.lists import ModelLists
from toolgate.server.models.local import Absent, embedded_model
from toolgate.server.models.peers import Peers
from toolgate.server.models.upstreams import Models
from toolgate.server.news import open_fanout
from toolgate.server.ollama import Ollama
from toolgate.server.origins import Origins
from toolgate.server.records import Records
from toolgate.server.responses import Responses, Sockets, State
from toolgate.server.responses.conversations import ConversationObjects
from toolgate.server.runs import make_state
from toolgate.server.startup import announce, log_of, open_storage, spare_the_collector
from toolgate.server.supervisor.foreman import Foreman
from toolgate.server.system import System
from toolgate.server.workshop.shop import Workshop
from toolgate.storage.database import Database
from toolgate.storage.responses import ResponseStore
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redact import Redactor
from toolgate.telemetry.traced import Traced
from toolgate.tools.tool import ToolSource
from toolgate.upstreams.echo import EchoModel
from toolgate.upstreams.router import Router
from toolgate.upstreams.transport import Transport


class Site:
    """Everything that serves one configuration; transport, storage and telemetry outlive it."""

    def __init__(
        self,
        config: Config,
        transport: Transport,
        builtin: Mapping[str, ports.Model],
        peers: Peers,
        store: ResponseStore,
        state: State,
        sockets: Sockets,
        accounts: Accounts,
        access: Access,
        traced: Traced,
        records: Records,
        workshop: Workshop | None,
        foreman: Foreman | None,
    ) -> None:
        self.traced = traced
        self.system = System(traced.render, foreman.sum if foreman else None)
        router = Models(config, transport, builtin, peers, traced).router()
        pace = Pace(config.server.first_event_wait, config.server.keepalive_seconds)
        conversations = Conversations(router, pace, traced, workshop.tooling if workshop else None, records.chats)
        endpoints = _endpoints(router, conversations, self.system)
        endpoints += Responses(conversations, store, OPENAI_RESPONSES, state, access.keys.named).endpoints()
        endpoints += sockets.endpoints(config.server.limits.websockets, config.server.limits.websockets_per_key)
        endpoints += ConversationObjects(store, state).endpoints()
        endpoints += records.endpoints()
        endpoints += workshop.endpoints() if workshop else []
        limits = accounts.limits(config)
        endpoints = accounts.around(endpoints, limits)
        endpoints += KeyTable(config, access, accounts.purse, traced.log).endpoints()
        self.system.served = endpoints
        self.app = App(
            endpoints,
            {"/": OPENAI_CHAT.server, "/v1/messages": ANTHROPIC.server, "/api/": OLLAMA.server, "/mcp": words},
            access.keys,
            Origins(config),
            traced,
            access.present,
        )

        def take_over() -> None:
            names = [name for model in config.models for name in model.names]
            traced.metrics.know(names, [*config.upstreams, BUILTIN])
            accounts.use(limits, config)
            state.background.goes_on, state.background.charge = limits.goes_on, limits.charge

        self.take_over = take_over
        """Put into force what this site shares with others; making one changes nothing, so that a reload can be refused."""


def _database(config: Config) -> Database:
    return Database(config.storage.reveal(), connections=config.storage_pool)


def _endpoints(router: Router, conversations: Conversations, system: System) -> list[Endpoint]:
    """The paths that need no memory."""
    models, counts = ModelLists(router), TokenCounts(router)
    ollama = Ollama(conversations, router)
    chat, messages, own = OPENAI_CHAT.server, ANTHROPIC.server, OLLAMA.server
    return [
        Endpoint("POST", "/v1/chat/completions", conversations.handler(OPENAI_CHAT), chat),
        Endpoint("POST", "/chat/completions", conversations.handler(OPENAI_CHAT), chat),
        Endpoint("POST", "/v1/messages", conversations.handler(ANTHROPIC), messages),
        Endpoint("POST", "/v1/messages/count_tokens", counts.count, messages),
        Endpoint("GET", "/v1/models", models.list, chat),
        Endpoint("GET", "/v1/models/{}", models.show, chat),
        Endpoint("POST", "/api/chat", ollama.chat, own),
        Endpoint("POST", "/api/generate", ollama.generate, own),
        Endpoint("GET", "/api/tags", ollama.tags, own),
        Endpoint("POST", "/api/show", ollama.show, own),
        Endpoint("GET", "/api/ps", ollama.ps, own),
        Endpoint("GET", "/api/version", ollama.version, own, scope=None),
        Endpoint("GET", "/", system.root, chat, scope=None),
        Endpoint("GET", "/healthz", system.healthz, chat, scope=None),
        Endpoint("GET", "/readyz", system.readyz, chat, scope=None),
        Endpoint("GET", "/metrics", system.metrics, chat, scope="admin"),
        Endpoint("GET", "/openapi.json", system.openapi, chat, scope=None),
    ]


class Toolgate:
    """A server: the site of the configuration in force, and what is shared when that changes."""

    def __init__(
        self,
        config: Config,
        builtin: Mapping[str, ports.Model] | None = None,
        sources: Sequence[ToolSource] = (),
        foreman: Foreman | None = None,
    ) -> None:
        """`builtin` are the models that need no upstream, by name; `sources` bring tools beside the configured ones.

        With a `foreman` this is one of several workers.
        """
        self.config = config
        self._transport = Transport()
        self._database = _database(config)
        self._store = ResponseStore(self._database)
        self._peers = Peers(self._database)
        log = log_of(config)
        self._traced = Traced(log, Metrics())
        self._foreman = foreman
        self._fanout = open_fanout(config, log, foreman)
        self._state = make_state(config, self._database, self._store, self._traced, self._fanout)
        self._sockets = Sockets(self)
        self._accounts = Accounts(config, self._database, self._traced, foreman)
        self._access = Access(config, self._database, self._traced)
        self._access.on_held(self._accounts.hold)
        self._access.review_runs = self._state.background.runs.review
        self._records = Records(self._database, self._traced)
        self._records.renew(config)
        self._local = embedded_model(config, log, foreman) if builtin is None else None
        self._builtin = builtin or {"local": self._local or Absent(), "echo": EchoModel()}
        self._workshop = (
            Workshop(config, self._database, self._traced, sources, self._fanout, self._records.tools.ran)
            if config.tools.enabled
            else None
        )
        if self._workshop is not None:
            self._workshop.heed(self._access)
        self._site = self._build(config)
        self._site.take_over()
        self._to_reload: tuple[Path, bytes | None, Callable[[], None]] | None = None
        self._reloading: asyncio.Task[None] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request with the configuration in force when it came, or the server's start and stop."""
        if scope["type"] == "http":
            return self._site.app(scope, receive, send)
        return self._live(receive, send)

    def refuse(self, path: str | None, error: ToolgateError) -> tuple[int, bytes]:
        """How the edge below ASGI says no, in the words of the path's dialect."""
        return error.status, self._site.app.half_for(path or "/").encode_error(error)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """What is served now."""
        return self._site.app.endpoints

    def drain(self) -> None:
        """From now on this server is not ready."""
        self._site.system.draining = True
        if self._workshop is not None:
            self._workshop.mcp.close()

    def stay(self) -> None:
        """Say that a process alone cannot be renewed while it serves, rather than end as the signal would have it."""
        self._traced.log.warning("not renewed", problem="only a server of several workers is renewed while it serves")

    def reload(self, path: Path) -> None:
        """Read the configuration again; what can change at run time does, and a bad file changes nothing."""
        self._renew(self._loader(path)())

    def reload_soon(self, path: Path, text: bytes | None = None, accepted: Callable[[], None] = lambda: None) -> None:
        """Do the same, but read the file in a thread: answers go on meanwhile, however much there is to read.

        `text` is what the file held if that was read already; `accepted` is called when it is in force.
        """
        self._to_reload = path, text, accepted
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload_off_loop())

    async def _reload_off_loop(self) -> None:
        """Reload until nobody has asked for it since the file was read."""
        while self._to_reload is not None:
            (path, text, accepted), self._to_reload = self._to_reload, None
            if self._renew(await asyncio.to_thread(self._loader(path, text))):
                accepted()

    def _loader(self, path: Path, text: bytes | None = None) -> Callable[[], Config | ConfigError]:
        """What reads the file; what the command line said of the address still holds."""
        server = self.config.server

        def read() -> Config | ConfigError:
            try:
                return load(path, os.environ, host=server.host, port=server.port, workers=server.workers, text=text)
            except ConfigError as error:
                return error

        return read

    def _renew(self, new: Config | ConfigError) -> bool:
        """Whether what was read is in force now; the log says why not."""
        log = self._traced.log
        try:
            if isinstance(new, ConfigError):
                raise new
            changes = diff(self.config, new)
        except ConfigError as error:
            log.error("reload refused", problems=[str(problem) for problem in error.problems])
            return False
        try:
            site = self._build(changes.config)
            if self._workshop is not None:
                self._workshop.renew(changes.config)
        except (ValueError, OSError, ToolgateError) as error:
            log.error("reload refused", problems=[str(error)])
            return False
        self.config, self._site = changes.config, site
        site.take_over()
        self._records.renew(changes.config)
        self._access.renew(changes.config)
        log.level, log.redact = changes.config.log.level, Redactor(changes.config.secrets())
        log.info("reloaded", changed=changes.live, needs_restart=changes.restart)
        return True

    def count(self) -> bytes:
        """What this process counts, as Prometheus reads it."""
        return self._traced.render()

    def _build(self, config: Config) -> Site:
        return Site(
            config,
            self._transport,
            self._builtin,
            self._peers,
            self._store,
            self._state,
            self._sockets,
            self._accounts,
            self._access,
            self._traced,
            self._records,
            self._workshop,
            self._foreman,
        )

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if wrong := await open_storage(self._database, self._traced.log):
                    await send({"type": "lifespan.startup.failed", "message": wrong})
                    return
                await self._access.open()
                if self._workshop is not None:
                    await self._workshop.open()
                if self._local is not None:
                    self._local.start()
                self._records.sweeper.start()
                self._state.background.open()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._state.aclose()
                if self._workshop is not None:
                    await self._workshop.aclose()
                if self._local is not None:
                    await self._local.aclose()
                await self._transport.aclose()
                await self._peers.aclose()
                await self._access.aclose()
                await self._accounts.aclose()
                await self._records.aclose()
                await self._fanout.aclose()
                await self._database.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return


@asynccontextmanager
async def opened_door(config: Config) -> AsyncIterator[Door]:
    """The door to the configuration's tools, for a client that needs no HTTP."""
    database = _database(config)
    traced = Traced(log_of(config), Metrics())
    records = Records(database, traced)
    records.renew(config)
    workshop = Workshop(config, database, traced, ran=records.tools.ran)
    await workshop.open()
    try:
        yield workshop.door
    finally:
        await workshop.aclose()
        await records.aclose()
        await database.aclose()


def complaint(config: Config) -> str | None:
    """Why no server can be made of a configuration, which is known only by trying: patterns, folders, templates."""
    try:
        Toolgate(config)
    except (ValueError, OSError, ToolgateError) as error:
        return str(error)
    return None


def serve(config: Config, *, config_path: Path | None) -> int:
    """Serve until told to stop; SIGHUP reads the configuration again."""
    try:
        gate = Toolgate(config)
    except (
        ValueError,
        OSError,
        ToolgateError,
    ) as error:  # templates, folders and the like, which are looked at only now
        sys.stderr.write(f"{config.source or 'The built-in configuration'} cannot be used:\n  - {error}\n")
        return 2

    def ready(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR2, gate.stay)
        if config_path is not None:
            loop.add_signal_handler(signal.SIGHUP, gate.reload_soon, config_path)
        announce(url, config)
        spare_the_collector()

    try:
        run(gate, on_ready=ready, **edge(gate))
    except NotStarted:
        return 1
    return 0


def edge(gate: Toolgate) -> dict[str, Any]:
    """How the listener of this server is to behave."""
    server = gate.config.server
    limits = {name: value for name, value in asdict(server.limits).items() if name in Limits.__struct_fields__}
    return {
        "host": server.host,
        "port": server.port,
        "limits": Limits(**limits),
        "refuse": gate.refuse,
        "drain_seconds": server.drain_seconds,
        "on_drain": gate.drain,
    }
