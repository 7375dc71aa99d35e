"""One configured MCP server as a source of tools: it is connected to in the background, again and again if need be.

Whatever the server does, it harms nothing but its own tools: a call that was under way fails at once and is never sent
again, and `trouble` says in words what is wrong. Knows nothing of models, approvals or other sources.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolgate.conversation.errors import Conflict, NotFound, ToolgateError
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.sources.mcp.backoff import Backoff
from toolgate.tools.sources.mcp.line import Broken, CheckUrl, Forgotten, Http, Line, LoginNeeded, Refused, Trouble
from toolgate.tools.sources.mcp.naming import borrowed, public_names
from toolgate.tools.sources.mcp.oauth.bearer import Bearer
from toolgate.tools.sources.mcp.oauth.tokens import Tokens
from toolgate.tools.sources.mcp.offers import Offer, Unusable, read_offer
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.tools.sources.mcp.pinning import Pins, Quarantined, Trust, digest, judge
from toolgate.tools.sources.mcp.process import ProcessLine
from toolgate.tools.sources.mcp.remote import RemoteLine, header_value
from toolgate.tools.sources.mcp.results import is_small, output
from toolgate.tools.sources.mcp.servers import Remote, Stdio
from toolgate.tools.sources.mcp.session import STATELESS, Session
from toolgate.tools.tool import Invocation, OnChange, Output, Preparation, ToolFailure, ToolSpec

_LIST_SECONDS = 60.0
_BETWEEN_LISTS = 1.0
_MOST_LEFT_OUT = 1000


class McpTool:
    """A tool of an MCP server, for as long as its definition is the accepted one."""

    def __init__(self, source: "McpSource", spec: ToolSpec, offer: Offer) -> None:
        self.spec = spec
        self.offer = offer
        self._source = source

    async def prepare(self, invocation: Invocation) -> Preparation:
        """Servers cannot be asked beforehand."""
        return Preparation()

    async def invoke(self, invocation: Invocation) -> Output:
        """Send the call, once, with the arguments as they were written."""
        return await self._source.call(self.offer, invocation)


class McpSource:
    """The tools of one server; `name` is `mcp/` and the name it is configured by."""

    def __init__(
        self,
        name: str,
        server: Stdio | Remote,
        *,
        pins: Pins,
        http: Http | None = None,
        schemas: SchemaCheck | None = None,
        tokens: Tokens | None = None,
        check_url: CheckUrl | None = None,
        prefix: str | None = None,
        foreign_prefixes: Sequence[str] = (),
        trust: Trust = "pinned",
        tags: Sequence[str] = (),
        timeout: float | None = None,
        connect_seconds: float = 10.0,
        check_seconds: float = 300.0,
        first_retry: float = 0.5,
        last_retry: float = 60.0,
    ) -> None:
        """Open nothing yet; a remote server needs `http`, and `tokens` if it may want a login.

        `prefix` stands before every name, by default the server's name and an underscore. A tool whose name then begins
        with one of `foreign_prefixes` waits for a person.
        Every `check_seconds` the list is asked for anew, which shows whether the server is still there.
        """
        if isinstance(server, Remote) and http is None:
            raise ValueError("a remote MCP server needs an HTTP client")
        self.name = f"mcp/{name}"
        self._short = name
        self._server = server
        self._pins = pins
        self._http = http
        self._check_url = check_url
        self._prefix = f"{name}_" if prefix is None else prefix
        self._foreign_prefixes = tuple(foreign_prefixes)
        self._trust = trust
        self._tags = tuple(tags)
        self._timeout = timeout
        self._connect_seconds = connect_seconds
        self._check_seconds = check_seconds
        self._retries = (first_retry, last_retry)
        self._bearer = (
            Bearer(name, server, http, tokens, check_url)
            if isinstance(server, Remote) and http is not None and tokens is not None
            else None
        )
        self._schemas = schemas or SchemaCheck()
        self._session: Session | None = None
        self._trouble: str | None = "is being connected to"
        self._left_out: list[str] = []
        self._offers: tuple[Offer, ...] = ()
        self._tools: tuple[McpTool, ...] = ()
        self._waiting: tuple[Quarantined, ...] = ()
        self._borrowed: Mapping[str, str] = {}
        self._changed = asyncio.Event()
        self._tried = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._on_change: OnChange = _nobody_cares

    @property
    def tools(self) -> Sequence[McpTool]:
        """The accepted tools; empty while the server cannot be reached."""
        return self._tools

    @property
    def quarantined(self) -> Sequence[Quarantined]:
        """The tools that wait for a person, because they are not what was accepted."""
        return self._waiting

    @property
    def trouble(self) -> str | None:
        """Why tools are missing."""
        if self._trouble is not None:
            return f"The MCP server {self._short} {self._trouble}."
        notes = [f"{len(self._left_out)} left out ({'; '.join(self._left_out[:5])})"] if self._left_out else []
        if self._waiting:
            names = ", ".join(printable(tool.name) for tool in self._waiting[:5])
            notes.append(f"{len(self._waiting)} changed or new, waiting to be accepted ({names})")
            notes += [
                f"{printable(tool.name)} would begin with {prefix}, as another server's tools do"
                for tool in self._waiting[:5]
                if (prefix := self._borrowed.get(tool.name))
            ]
        return f"Tools of the MCP server {self._short}: {'; '.join(notes)}." if notes else None

    async def open(self, on_change: OnChange) -> None:
        """Begin to connect, in the background."""
        self._on_change = on_change
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=self.name)
        self._keeper.add_done_callback(self._stopped)

    async def settled(self) -> None:
        """Wait until the first try to connect has come to its end, good or bad."""
        await self._tried.wait()

    async def accept(self, name: str, seen: str | None = None) -> None:
        """A person accepts the present definition of a waiting tool; `seen` is the digest of the one they looked at."""
        public = public_names(self._prefix, [offer.name for offer in self._offers])
        found = next((tool for tool in self._waiting if name in (tool.name, public.get(tool.name))), None)
        if found is None:
            raise NotFound(f"The MCP server {self._short} has no tool {name!r} that waits to be accepted.")
        if seen is not None and seen != found.digest:
            raise Conflict(f"The tool {name!r} has changed again since it was looked at.")
        offer = next(offer for offer in self._offers if digest(offer.definition) == found.digest)
        await self._pins.save(self.name, {offer.name: offer.definition})
        await self._apply(self._offers)

    def look_again(self) -> None:
        """List anew soon: another process may have accepted what waits here."""
        if self._waiting:
            self._changed.set()

    async def call(self, offer: Offer, invocation: Invocation) -> Output:
        """Run a tool; ToolFailure says why it could not."""
        session = self._session
        if session is None:
            raise ToolFailure(f"The MCP server {self._short} {self._trouble or 'is not connected'}; nothing was run.")
        if not any(tool.offer.definition == offer.definition for tool in self._tools):
            raise ToolFailure(f"The tool {offer.name} has changed and waits to be accepted; nothing was run.")
        headers = _mirrored(offer, invocation.arguments) if session.version == STATELESS else {}
        try:
            result = await session.call(offer.name, invocation.text, invocation.tell, headers)
            return output(result) if is_small(result) else await asyncio.to_thread(output, result)
        except Refused as refusal:
            raise ToolFailure(str(refusal)) from None
        except RecursionError:
            raise ToolFailure("The tool gave a result that is nested too deeply to be read.") from None
        except Trouble as trouble:
            if isinstance(trouble, Broken):
                self._changed.set()  # listing anew shows whether the server is still there
            raise ToolFailure(
                f"The MCP server {self._short} {trouble}; the call may or may not have taken effect."
            ) from None

    async def aclose(self) -> None:
        """Disconnect and leave nothing behind."""
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._on_change = _nobody_cares

    async def _keep(self) -> None:
        """Be connected, for ever."""
        backoff = Backoff(asyncio.get_running_loop().time, *self._retries)
        while True:
            backoff.start()
            loss = await self._live()
            if self._closing:  # a task group that fails while it is cancelled tells of the failure alone
                return
            self._trouble = self._words(loss)
            if isinstance(loss, Forgotten) and backoff.held:
                continue  # it is there and works: its tools need not vanish while we introduce ourselves again
            self._show(())
            self._tried.set()
            await asyncio.sleep(backoff.seconds())

    def _stopped(self, keeper: asyncio.Task[None]) -> None:
        """A defect of ours must not leave tools on show that nobody looks after."""
        if keeper.cancelled() or (defect := keeper.exception()) is None:
            return
        self._trouble = f"is given up because of a defect in Toolgate: {type(defect).__name__}"
        self._tried.set()
        self._show(())
        words = f"the source {self.name} stopped"
        keeper.get_loop().call_exception_handler({"message": words, "exception": defect, "task": keeper})

    async def _live(self) -> Exception:
        """Connect and stay connected; how that ended."""
        session = Session(self._line(), self._changed.set)
        ended: Exception = Forgotten("was closed")
        try:
            async with asyncio.timeout(self._connect_seconds):
                stateless = isinstance(self._server, Remote) and not self._server.handshake
                await session.open(stateless_first=stateless)
            await self._list(session)
            self._session, self._trouble = session, None
            self._tried.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(_raise_loss(session))
                group.create_task(session.attend())
                group.create_task(self._stay_listed(session))
        except* (Trouble, ToolgateError, TimeoutError) as group_of:
            ended = _first(group_of)
        finally:
            self._session = None
            await _to_the_end(session.aclose())
        return ended

    def _line(self) -> Line:
        if isinstance(self._server, Stdio):
            return ProcessLine(self._server)
        assert self._http is not None
        if self._bearer is not None:
            self._bearer.forget()
        return RemoteLine(self._server, self._http, self._bearer, self._check_url)

    async def _stay_listed(self, session: Session) -> None:
        """List anew when the server says so, however often it says so, and now and then unasked."""
        while True:
            await asyncio.sleep(_BETWEEN_LISTS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_seconds):
                    await self._changed.wait()
            await self._list(session)

    async def _list(self, session: Session) -> None:
        self._changed.clear()
        async with asyncio.timeout(_LIST_SECONDS):
            listing = await session.tools()
        offers, unusable = await asyncio.to_thread(self._read, listing.definitions)
        self._left_out = [*listing.left_out, *unusable][:_MOST_LEFT_OUT]
        await self._apply(offers)

    def _read(self, values: Sequence[Any]) -> tuple[tuple[Offer, ...], list[str]]:
        offers: dict[str, Offer] = {}
        left_out: list[str] = []
        for value in values:
            try:
                offer = read_offer(value, self._schemas)
            except Unusable as reason:
                left_out.append(str(reason))
                continue
            if offer.name in offers:
                left_out.append(f"{printable(offer.name)}: it is listed twice")
            else:
                offers[offer.name] = offer
        return tuple(offers.values()), left_out

    async def _apply(self, offers: tuple[Offer, ...]) -> None:
        """Show the accepted tools and set the others aside; what is accepted is pinned before it is shown."""
        pins = await self._pins.load(self.name)
        # Names are given to all that is offered, so that accepting one tool does not rename another.
        names = public_names(self._prefix, [offer.name for offer in offers])
        self._borrowed = borrowed(names, self._foreign_prefixes)
        judgement = judge(offers, pins, self._trust, self._borrowed)
        if judgement.fresh or pins is None:
            await self._pins.save(self.name, judgement.fresh)
        self._offers, self._waiting = offers, judgement.waiting
        self._show([McpTool(self, self._spec(names[offer.name], offer), offer) for offer in judgement.accepted])

    def _spec(self, name: str, offer: Offer) -> ToolSpec:
        return ToolSpec(
            name=name,
            description=offer.description,
            source=self.name,
            input_schema=offer.input_schema,
            output_schema=offer.output_schema,
            origin=offer.name,
            display_name=offer.title,
            icon=offer.icon,
            tags=self._tags,
            annotations=offer.annotations,
            timeout=self._timeout,
        )

    def _show(self, tools: Sequence[McpTool]) -> None:
        changed = [tool.spec for tool in tools] != [tool.spec for tool in self._tools]
        self._tools = tuple(tools)
        if changed:
            self._on_change()

    def _words(self, loss: Exception) -> str:
        if isinstance(loss, TimeoutError):
            return f"did not finish its handshake within {self._connect_seconds:g} s, or its list within {_LIST_SECONDS:g} s"
        if isinstance(loss, LoginNeeded) and self._bearer is not None:
            if self._bearer.failure is not None:
                return f"{loss}: {self._bearer.failure}"
            return f"{loss}: run `toolgate mcp login {self._short}`"
        return printable(str(loss), 500)


async def _raise_loss(session: Session) -> None:
    raise await session.lost()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for it even when cancelled meanwhile: half a farewell would leave a process behind."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found


def _mirrored(offer: Offer, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers in which a server of the new era wants to see some of the arguments."""
    headers: dict[str, str] = {}
    for mirror in offer.mirrors:
        value: Any = arguments
        for key in mirror.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str | int | float):
            headers[f"mcp-param-{mirror.header.lower()}"] = header_value(value)
    return headers


def _nobody_cares() -> None:
    """Before it is opened and after it is closed."""
