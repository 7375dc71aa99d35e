"""One MCP server as a source of tools: connects in the background and reconnects when the connection is lost.

A failing server affects only its own tools: a running call fails at once and is never sent again, and `problem` is what
is wrong. Knows nothing of models, approvals or other sources.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolgate.conversation.errors import Conflict, NotFound, ToolgateError
from toolgate.mcp.client.accepted_definitions import (
    AcceptedDefinitionStoreProtocol,
    QuarantinedTool,
    Trust,
    review,
)
from toolgate.mcp.client.backoff import Backoff
from toolgate.mcp.client.definitions import McpToolDefinition, UnusableToolError, parse_definition
from toolgate.mcp.client.http import HttpTransport
from toolgate.mcp.client.results import decode_result, is_small
from toolgate.mcp.client.session import ClientSession
from toolgate.mcp.client.stdio import StdioTransport
from toolgate.mcp.client.tool_names import ambiguous_names, public_names
from toolgate.mcp.oauth.bearer import BearerTokenRefresher
from toolgate.mcp.oauth.login_storage import LoginStoreProtocol
from toolgate.mcp.protocol.headers import argument_at, encode_value, header_text, parameter_header
from toolgate.mcp.protocol.line_reader import printable
from toolgate.mcp.protocol.revisions import STATELESS
from toolgate.mcp.protocol.server_config import RemoteServerConfig, StdioServerConfig
from toolgate.mcp.protocol.transport import (
    CheckUrl,
    HttpRequestSender,
    McpError,
    McpLoginRequired,
    McpResponseBroken,
    McpSessionExpired,
    McpTransport,
    RemoteMcpError,
)
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.tool import CallPreview, OnChange, ServerToolDefinition, ToolCallFailed, ToolCallInput, ToolOutput

_LIST_SECONDS = 60.0
# A server may announce changes thousands of times a second, and each list is parsed and compared with the database.
_BETWEEN_LISTS = 1.0
_MAX_LEFT_OUT = 1000


class McpTool:
    """A tool of an MCP server, for as long as its definition is the accepted one."""

    def __init__(self, source: "McpSource", spec: ServerToolDefinition, definition: McpToolDefinition) -> None:
        self.spec = spec
        self.definition = definition
        self._source = source

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Prepare nothing: MCP has no such request."""
        return CallPreview()

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Send the call once, with the arguments exactly as they were written."""
        return await self._source.call(self.definition, invocation)


class McpSource:
    """The tools of one server; `name` is `mcp/` and the name it is configured by."""

    def __init__(
        self,
        name: str,
        server: StdioServerConfig | RemoteServerConfig,
        *,
        accepted: AcceptedDefinitionStoreProtocol,
        http: HttpRequestSender | None = None,
        schemas: ToolSchemaValidator | None = None,
        tokens: LoginStoreProtocol | None = None,
        check_url: CheckUrl | None = None,
        prefix: str | None = None,
        foreign_prefixes: Sequence[str] = (),
        trust: Trust = "pinned",
        tags: Sequence[str] = (),
        registered: bool = False,
        timeout: float | None = None,
        connect_seconds: float = 10.0,
        check_seconds: float = 300.0,
        first_retry: float = 0.5,
        last_retry: float = 60.0,
    ) -> None:
        """Open nothing yet; a remote server needs `http`, and `tokens` if it may demand a login.

        `prefix` is put before every tool name, by default the server's name and an underscore. A tool whose public name
        begins with one of `foreign_prefixes` waits for a person. `registered` means that no configuration names the server.
        The list is requested again every `check_seconds`, which shows whether the server still answers.
        """
        if isinstance(server, RemoteServerConfig) and http is None:
            raise ValueError("a remote MCP server needs an HTTP client")
        self.name = f"mcp/{name}"
        self._server_name = name
        self._server = server
        self._accepted = accepted
        self._http = http
        self._check_url = check_url
        self._prefix = f"{name}_" if prefix is None else prefix
        self._foreign_prefixes = tuple(foreign_prefixes)
        self._trust = trust
        self._tags = tuple(tags)
        self._registered = registered
        self._timeout = timeout
        self._connect_seconds = connect_seconds
        self._check_seconds = check_seconds
        self._retries = (first_retry, last_retry)
        self._bearer = (
            BearerTokenRefresher(name, server, http, tokens, check_url)
            if isinstance(server, RemoteServerConfig) and http is not None and tokens is not None
            else None
        )
        self._schemas = schemas or ToolSchemaValidator()
        self._session: ClientSession | None = None
        self._connection_problem: str | None = "is being connected to"
        self._left_out: list[str] = []
        self._definitions: tuple[McpToolDefinition, ...] = ()
        self._tools: tuple[McpTool, ...] = ()
        self._quarantined: tuple[QuarantinedTool, ...] = ()
        self._ambiguous: Mapping[str, str] = {}
        self._changed = asyncio.Event()
        self._applying = asyncio.Lock()  # a list that comes while another is applied must be applied after it
        self._tried = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._closing = False
        self._on_change: OnChange = _ignore_change

    @property
    def tools(self) -> Sequence[McpTool]:
        """Return the accepted tools; none while the server cannot be reached."""
        return self._tools

    @property
    def quarantined(self) -> Sequence[QuarantinedTool]:
        """Return the tools that wait for a person, because their definitions are not the accepted ones."""
        return self._quarantined

    @property
    def problem(self) -> str | None:
        """Return why tools are missing."""
        if self._connection_problem is not None:
            return f"The MCP server {self._server_name} {self._connection_problem}."
        notes = [f"{len(self._left_out)} left out ({'; '.join(self._left_out[:5])})"] if self._left_out else []
        if self._quarantined:
            names = ", ".join(printable(tool.name) for tool in self._quarantined[:5])
            notes.append(f"{len(self._quarantined)} changed or new, waiting to be accepted ({names})")
            notes += [
                f"{printable(tool.name)} would begin with {prefix}, as another server's tools do"
                for tool in self._quarantined[:5]
                if (prefix := self._ambiguous.get(tool.name))
            ]
        return f"Tools of the MCP server {self._server_name}: {'; '.join(notes)}." if notes else None

    @property
    def connecting(self) -> bool:
        """Return whether the first attempt to connect is still under way."""
        return not self._tried.is_set()

    async def open(self, on_change: OnChange) -> None:
        """Start to connect in the background."""
        self._on_change = on_change
        # A server that hangs or needs minutes to start must not delay the start of Toolgate.
        self._connecting = asyncio.get_running_loop().create_task(self._stay_connected(), name=self.name)
        self._connecting.add_done_callback(self._on_stopped)

    async def settled(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._tried.wait()

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Accept the present definition of a quarantined tool; `seen` is the digest that the person has reviewed."""
        async with self._applying:
            public = public_names(self._prefix, [definition.name for definition in self._definitions])
            found = next((tool for tool in self._quarantined if name in (tool.name, public.get(tool.name))), None)
            if found is None:
                raise NotFound(f"The MCP server {self._server_name} has no tool {name!r} that waits to be accepted.")
            if seen is not None and seen != found.digest:
                raise Conflict(f"The tool {name!r} has changed again since it was looked at.")
            tool = next(one for one in self._definitions if one.name == found.name)
            await self._accepted.save(self.name, {tool.name: tool.definition})
            await self._apply(self._definitions)

    def request_refresh(self) -> None:
        """List the tools again soon, if some are quarantined: another process may have accepted them."""
        if self._quarantined:
            self._changed.set()

    async def call(self, tool: McpToolDefinition, invocation: ToolCallInput) -> ToolOutput:
        """Call a tool; ToolCallFailed if that fails."""
        session, server = self._session, f"The MCP server {self._server_name}"
        if session is None:
            raise ToolCallFailed(f"{server} {self._connection_problem or 'is not connected'}; nothing was run.")
        # A run keeps the tool that it was given; the definition may have changed while a person was asked.
        if not any(one.definition.definition == tool.definition for one in self._tools):
            raise ToolCallFailed(f"The tool {tool.name} has changed and waits to be accepted; nothing was run.")
        headers: dict[str, str] = {}
        if session.revision == STATELESS:  # such a call repeats some of its arguments in headers
            for argument in tool.header_arguments:
                value = argument_at(invocation.arguments, argument.path)
                if isinstance(value, str | int | float):
                    headers[parameter_header(argument.header)] = encode_value(header_text(value))
        try:
            result = await session.call_tool(tool.name, invocation.text, invocation.report, headers)
            return decode_result(result) if is_small(result) else await asyncio.to_thread(decode_result, result)
        except RemoteMcpError as refusal:
            raise ToolCallFailed(str(refusal)) from None
        except RecursionError:
            raise ToolCallFailed("The tool gave a result that is nested too deeply to be read.") from None
        except McpError as error:
            if isinstance(error, McpResponseBroken):
                self._changed.set()  # listing the tools shows whether the server still answers
            raise ToolCallFailed(f"{server} {error}; the call may or may not have taken effect.") from None

    async def aclose(self) -> None:
        """Disconnect and end the background task."""
        self._closing = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._bearer is not None:
            await self._bearer.aclose()
        self._on_change = _ignore_change

    async def _stay_connected(self) -> None:
        """Connect, and reconnect after every loss, until cancelled."""
        backoff = Backoff(asyncio.get_running_loop().time, *self._retries)
        while True:
            backoff.start()
            loss = await self._connect()
            if self._closing:  # a task group that fails while it is cancelled raises the failure alone
                return
            if isinstance(loss, TimeoutError):
                handshake, listing = f"{self._connect_seconds:g} s", f"{_LIST_SECONDS:g} s"
                problem = f"did not finish its handshake within {handshake}, or its list within {listing}"
            elif isinstance(loss, McpLoginRequired) and self._bearer is not None:
                failure, remedy = self._bearer.failure, f"run `toolgate mcp login {self._server_name}`"
                problem = f"{loss}: {remedy if failure is None else failure}"
            else:
                problem = printable(str(loss), 500)
            self._connection_problem = problem
            if isinstance(loss, McpSessionExpired) and backoff.stable:
                continue  # the server works: its tools need not disappear during a new handshake
            self._publish(())
            self._tried.set()
            await asyncio.sleep(backoff.seconds())

    def _on_stopped(self, task: asyncio.Task[None]) -> None:
        """Withdraw the tools if the background task crashed: nothing would update them any more."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._connection_problem = f"is given up because of a defect in Toolgate: {type(error).__name__}"
        self._tried.set()
        self._publish(())
        message = f"the source {self.name} stopped"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})

    async def _connect(self) -> Exception:
        """Connect, stay connected until the connection is lost, and return why."""
        transport: McpTransport
        if isinstance(self._server, StdioServerConfig):
            transport, stateless_first = StdioTransport(self._server), False
        else:
            assert self._http is not None
            if self._bearer is not None:
                self._bearer.forget()  # a person may have logged in since the last attempt
            transport = HttpTransport(self._server, self._http, self._bearer, self._check_url)
            stateless_first = not self._server.handshake
        session = ClientSession(transport, self._changed.set)
        loss: Exception = McpSessionExpired("was closed")
        try:
            async with asyncio.timeout(self._connect_seconds):
                await session.open(stateless_first=stateless_first)
            await self._list(session)
            self._session, self._connection_problem = session, None
            self._tried.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(_raise_when_lost(session))
                group.create_task(session.listen())
                group.create_task(self._keep_listed(session))
        except* (McpError, ToolgateError, TimeoutError) as losses:
            # `except*` catches a group even of a single failure; the first one is the cause.
            loss = losses
            while isinstance(loss, ExceptionGroup):
                loss = loss.exceptions[0]
        finally:
            self._session = None
            await _finish(session.aclose())
        return loss

    async def _keep_listed(self, session: ClientSession) -> None:
        """List the tools again after a change, at most once a second, and every `check_seconds`."""
        while True:
            await asyncio.sleep(_BETWEEN_LISTS)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_seconds):
                    await self._changed.wait()
            await self._list(session)

    async def _list(self, session: ClientSession) -> None:
        self._changed.clear()  # before the request: a change while it is answered needs another list
        async with asyncio.timeout(_LIST_SECONDS):
            listing = await session.list_tools()
        # In a thread: a list may hold thousands of schemas, and each is checked.
        definitions, unusable = await asyncio.to_thread(self._parse, listing.definitions)
        async with self._applying:
            self._left_out = [*listing.left_out, *unusable][:_MAX_LEFT_OUT]
            await self._apply(definitions)

    def _parse(self, values: Sequence[Any]) -> tuple[tuple[McpToolDefinition, ...], list[str]]:
        tools: dict[str, McpToolDefinition] = {}
        left_out: list[str] = []
        for value in values:
            try:
                tool = parse_definition(value, self._schemas)
            except UnusableToolError as reason:
                left_out.append(str(reason))
                continue
            if tool.name in tools:
                left_out.append(f"{printable(tool.name)}: it is listed twice")
            else:
                tools[tool.name] = tool
        return tuple(tools.values()), left_out

    async def _apply(self, definitions: tuple[McpToolDefinition, ...]) -> None:
        """Publish the accepted tools and quarantine the others; new accepted ones are stored before they are published."""
        stored = await self._accepted.load(self.name)
        # Names are computed from all definitions, so that accepting one tool does not rename another.
        names = public_names(self._prefix, [definition.name for definition in definitions])
        self._ambiguous = ambiguous_names(names, self._foreign_prefixes)
        # In a thread: thousands of definitions may have to be decoded for a person.
        result = await asyncio.to_thread(review, definitions, stored, self._trust, self._ambiguous)
        if result.to_store or stored is None:
            await self._accepted.save(self.name, result.to_store)
        self._definitions, self._quarantined = definitions, result.quarantined
        present = {tool.definition.name: tool for tool in self._tools}
        tools: list[McpTool] = []
        for tool in result.accepted:
            same = present.get(tool.name)
            # A list is read every few minutes and is mostly the same. To compare specs would be to compare all schemas.
            if (
                same is not None
                and same.spec.name == names[tool.name]
                and same.definition.definition == tool.definition
            ):
                tools.append(same)
                continue
            spec = ServerToolDefinition(
                name=names[tool.name],
                description=tool.description,
                source=self.name,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
                origin=tool.name,
                target=self._server.address,
                registered=self._registered,
                display_name=tool.title,
                icon=tool.icon,
                tags=self._tags,
                annotations=tool.annotations,
                timeout=self._timeout,
            )
            tools.append(McpTool(self, spec, tool))
        self._publish(tools)

    def _publish(self, tools: Sequence[McpTool]) -> None:
        changed = tuple(tools) != self._tools  # clients are notified only of real changes
        self._tools = tuple(tools)
        if changed:
            self._on_change()


async def _raise_when_lost(session: ClientSession) -> None:
    raise await session.wait_lost()


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await the work to its end even when cancelled: closing halfway would leave a process behind."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _ignore_change() -> None:
    """Do nothing: the source is not open."""
