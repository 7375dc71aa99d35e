"""The server as an ASGI application: passes requests to the site of the configuration in force, and reloads that.

It knows when a configuration changes. What a configuration consists of is known to `configured_site.py` and `services.py`.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from toolgate.app.configured_site import ConfiguredSite
from toolgate.app.services import Services
from toolgate.config import Config, ConfigError, diff, load
from toolgate.config.stable_read import wait_until_settled
from toolgate.conversation.errors import ToolgateError
from toolgate.engine import ports
from toolgate.http.application import HttpRoute
from toolgate.http.asgi_types import Receive, Scope, Send
from toolgate.tools.tool import ToolSource
from toolgate.workers.client import SupervisorClient


class Toolgate:
    """A server: the services that live as long as it does, and the site of the configuration in force."""

    def __init__(
        self,
        config: Config,
        builtin: Mapping[str, ports.Model] | None = None,
        sources: Sequence[ToolSource] = (),
        supervisor: SupervisorClient | None = None,
    ) -> None:
        """`builtin` are the models that need no upstream, by name; `sources` bring tools beside the configured ones.

        With a `supervisor` this server is one of several workers.
        ValueError, OSError or ToolgateError if the configuration cannot be used.
        """
        # A site needs the services, and these need the site in force when they make background responses: hence the lambda.
        self.services = Services(config, self, lambda: self._site.background, builtin, sources, supervisor)
        self._site = ConfiguredSite(config, self.services)
        self.services.start(self._site)
        self._pending_reloads: deque[tuple[Path, bytes | None, Callable[[], None]]] = deque()
        self._reloading: asyncio.Task[None] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request with the configuration in force when it arrives, or the server's start and stop."""
        if scope["type"] == "http":
            return self._site.app(scope, receive, send)
        return self._lifespan(receive, send)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._site.config

    @property
    def endpoints(self) -> tuple[HttpRoute, ...]:
        """The endpoints that are served now."""
        return self._site.app.endpoints

    def refuse(self, path: str | None, error: ToolgateError) -> tuple[int, bytes]:
        """Encode the response to a request that the listener refuses, in the dialect of its path."""
        return error.status, self._site.app.error_encoder(path or "/").encode_error(error)

    def drain(self) -> None:
        """Report from now on that this server is not ready."""
        self.services.drain()

    def render_metrics(self) -> bytes:
        """Return the metrics of this process in Prometheus' text format."""
        return self.services.telemetry.render()

    def reload(self, path: Path) -> None:
        """Read the configuration again; what can change at run time does, and a bad file changes nothing."""
        self._apply(self._load(path))

    def reload_soon(self, path: Path, text: bytes | None = None, accepted: Callable[[], None] = lambda: None) -> None:
        """Reload in a task that reads the file in a thread, so that responses go on meanwhile.

        A file that was changed a moment ago is read when it has stopped changing.
        `text` is the content of the file if it was read already; `accepted` is called when it is in force.
        """
        # Of several that wait to read the file only the last counts: it reads the newest one. Different texts are all
        # applied, in their order: the last of them may be refused, and then the one before it is in force.
        pending = self._pending_reloads
        if pending and pending[-1][1] == text:
            pending.pop()
        pending.append((path, text, accepted))
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload_pending())

    async def _reload_pending(self) -> None:
        """Reload until no reload was requested since the file was read."""
        while self._pending_reloads:
            path, text, accepted = self._pending_reloads.popleft()
            if text is None:
                await asyncio.to_thread(wait_until_settled, path)
            if self._apply(await asyncio.to_thread(self._load, path, text)):
                accepted()

    def _load(self, path: Path, text: bytes | None = None) -> Config | ConfigError:
        """Read the file; the address and workers of the command line still hold."""
        server = self.config.server
        try:
            return load(
                path,
                os.environ,
                host=server.host,
                port=server.port,
                workers=server.workers,
                text=text,
                regular=True,
            )
        except ConfigError as error:
            return error

    def _apply(self, new: Config | ConfigError) -> bool:
        """Put a configuration into force and return True, or log why it is refused and return False."""
        log = self.services.telemetry.log
        try:
            if isinstance(new, ConfigError):
                raise new
            changes = diff(self.config, new)  # raises if the new one loses all keys
            site = ConfiguredSite(changes.config, self.services)  # all that can fail, before anything changes
        except ConfigError as error:
            log.error("reload refused", problems=[str(problem) for problem in error.problems])
            return False
        except (ValueError, OSError, ToolgateError) as error:
            log.error("reload refused", problems=[str(error)])
            return False
        self._site = site  # requests that run go on with the site they began with
        self.services.apply(site)
        if changes.removed:
            log.warning("reload removed keys or rules", removed=changes.removed)
        log.info("reloaded", changed=changes.live, needs_restart=changes.restart)
        return True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if problem := await self.services.open():
                    await send({"type": "lifespan.startup.failed", "message": problem})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.services.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return
