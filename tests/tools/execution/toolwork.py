"""A gateway with server tools on real sockets, in the loop of the test: what hostile tests need to see is all in reach.

`at_work` looks after itself: when the test is done the server must still answer, its tasks must be those it began with, and
after it was closed no file may be left open and no child alive.
"""

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.api.http_client import PATHS, HttpConnection, HttpResponse, ask, body
from tests.child_processes import living_children
from tests.stage import Player, gateway_config, upstream_config
from toolgate.api.responses.conversation_locks import ProcessConversationLocks
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config.settings import ApprovalSettings, LogSettings, ServerToolSettings
from toolgate.conversation.message import Media, Message, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.http.connection_task import ConnectionTask
from toolgate.http.listener import listening
from toolgate.mcp.client import source as mcp_source
from toolgate.mcp.client.session import ClientSession
from toolgate.mcp.client.stdio import StdioTransport
from toolgate.testing import Entry, FakeTool, ScriptedModel
from toolgate.tools.tool import Annotations, CallPreview, ServerToolDefinition, ToolCallInput, ToolOutput, ToolSource

AUTO: Mapping[str, Any] = {"tool_execution": "auto", "use_server_tools": True}
HARMFUL = Annotations()
TRUSTING = ServerToolSettings(approvals=ApprovalSettings(default="allow", open_world="allow"))
"""Nobody is asked, so that what stops a tool is not a question."""

TEXT: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
CANARY = "xyzzy0canary0123456789"


class Oracle:
    """A tool with an effect that cannot be taken back: it writes the id of each call to a file before anything else.

    `give` is what it says afterwards, perhaps only after a while.
    """

    def __init__(
        self,
        path: Path,
        name: str = "write",
        give: Callable[[Mapping[str, Any]], Awaitable[str]] | None = None,
        **spec: Any,
    ) -> None:
        emitted: dict[str, Any] = {"description": f"The tool {name}.", "source": "python", "input_schema": TEXT}
        self.spec = ServerToolDefinition(name=name, **{**emitted, "annotations": HARMFUL, **spec})
        self.began = asyncio.Event()
        self.cancelled = 0
        self._path = path
        self.give = give

    @property
    def runs(self) -> list[str]:
        """The ids of the calls that had an effect."""
        return self._path.read_text().split() if self._path.exists() else []

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        return CallPreview()

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        with self._path.open("a") as file:
            file.write(f"{invocation.call_id}\n")
            file.flush()
            os.fsync(file.fileno())
        self.began.set()
        try:
            output = await self.give(invocation.arguments) if self.give else "written"
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ToolOutput((Text(output),))


class Source:
    """A source of these tools."""

    def __init__(self, *tools: Oracle | FakeTool, name: str = "python") -> None:
        self.name = name
        self.tools = tools
        self.problem: str | None = None

    async def open(self, on_change: Callable[[], None]) -> None:
        """Nothing is to be opened."""

    async def aclose(self) -> None:
        """Nothing was opened."""


class Work:
    """The gateway at `url`, its script, and clients of all dialects."""

    def __init__(self, url: str, player: Player, gate: Toolgate) -> None:
        self.url = url
        self.gate = gate
        self._player = player
        self._tasks = asyncio.all_tasks()

    async def rest(self) -> None:
        """Wait until the server does nothing any more."""
        try:
            await soon(lambda: not busy(self._tasks))
        except AssertionError:
            raise AssertionError(f"tasks are left over: {busy(self._tasks)}") from None

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted

    async def ask(
        self,
        client: str = "openai_chat",
        text: str = "Go.",
        *,
        stream: bool = False,
        key: str = "",
        model: str = "openai_chat",
        **more: Any,
    ) -> HttpResponse:
        """One request that wants all server tools run."""
        payload = body(client, model, stream, text, **{**AUTO, **more})
        return await ask(self.url, PATHS[client], payload, *_key(key), *_beta(client))

    @asynccontextmanager
    async def asking(
        self, client: str, text: str = "Go.", *, stream: bool = True, key: str = "", **more: Any
    ) -> AsyncIterator[HttpConnection]:
        """A request whose answer has not been read; the caller may hang up."""
        async with HttpConnection(self.url) as caller:
            payload = body(client, "openai_chat", stream, text, **{**AUTO, **more})
            await caller.post(PATHS[client], payload, *_key(key), *_beta(client))
            yield caller

    async def get(self, path: str, key: str = "") -> HttpResponse:
        """What stands at a path."""
        return await self._send("GET", path, b"", key)

    async def post(self, path: str, payload: Any, key: str = "") -> HttpResponse:
        """What a path makes of JSON."""
        return await self._send("POST", path, msgspec.json.encode(payload), key)

    async def _send(self, method: str, path: str, data: bytes, key: str) -> HttpResponse:
        host = self.url.removeprefix("http://")
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *_key(key)]
        lines += ["content-type: application/json", f"content-length: {len(data)}"]
        async with HttpConnection(self.url) as caller:
            caller.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            return await caller.response()

    async def waiting(self, key: str = "") -> dict[str, Any]:
        """The next question to a person, as soon as there is one."""
        found = await soon(lambda: self._pending(key))
        return dict(found[0])

    async def _pending(self, key: str) -> list[dict[str, Any]]:
        return list((await self.get("/v1/approvals?state=pending", key)).json["data"])

    async def decide(self, id: str, decision: str = "approve", key: str = "", **more: Any) -> HttpResponse:
        """Answer a question."""
        return await self.post(f"/v1/approvals/{id}", {"decision": decision, **more}, key)


def _beta(client: str) -> tuple[str, ...]:
    """What an Anthropic client says that can read the server's own calls."""
    return ("anthropic-beta: mcp-client-2025-11-20",) if client == "anthropic" else ()


def _key(key: str) -> tuple[str, ...]:
    return (f"authorization: Bearer {key}",) if key else ()


@asynccontextmanager
async def at_work(
    *tools: Oracle | FakeTool,
    sources: Iterable[ToolSource] = (),
    of_models: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Work]:
    """Serve the tools; `changes` are made to the configuration of the gateway, `of_models` to each model's."""
    files = _open_files()
    player = Player()
    brought = [Source(*tools), *sources] if tools else list(sources)
    async with listening(Toolgate(upstream_config(), {"played": player})) as upstream_url:
        config = replace(gateway_config(upstream_url), **{"tools": TRUSTING, **changes})
        config = replace(config, models=tuple([replace(model, **(of_models or {})) for model in config.models]))
        async with listening(gate := Toolgate(config, sources=brought)) as url:
            work = Work(url, player, gate)
            yield work
            assert (await work.get("/healthz")).status == 200
            await work.rest()
    await soon(lambda: _open_files() <= files, "files are left open")
    assert living_children() == []


def busy(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """The tasks that were not there before; those that wait for the next request or tend a kept process do not count."""
    found = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    return [task for task in found if not _is_idle(task.get_coro())]


# Named by the functions themselves, so that a renamed one is a type error here and not an endless wait.
_BACKGROUND = {
    function.__code__
    for function in (
        mcp_source._raise_when_lost,
        mcp_source.McpSource._keep_listed,
        StdioTransport._watch,
        ClientSession.listen,
        ProcessConversationLocks._renew,
    )
}


def _is_idle(coroutine: Any) -> bool:
    if coroutine.cr_code is ConnectionTask._serve.__code__:
        return not inspect.iscoroutine(coroutine.cr_await)
    return coroutine.cr_code in _BACKGROUND


async def soon(happens: Callable[[], Any], otherwise: str = "it did not happen", seconds: float = 60.0) -> Any:
    """What `happens` gives, once it gives anything true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        given = happens()
        given = await given if asyncio.iscoroutine(given) else given
        if given:
            return given
        await asyncio.sleep(0.01)
    raise AssertionError(otherwise)


def call(name: str = "write", arguments: str = '{"text":"hi"}', number: int = 1, **fields: Any) -> ToolCall:
    """A call of the model."""
    return ToolCall(f"call_{name[:8]:_<8}{number:016d}", name, arguments, **fields)


def results(request: ModelRequest) -> list[str]:
    """What tools gave, as the model heard it; where a dialect cannot mark a failure, the words say it."""
    parts = [part for message in request.messages for part in message.parts]
    return [plain_text(part.content).removeprefix("Error: ") for part in parts if isinstance(part, ToolResult)]


def output(client: str, received: HttpResponse) -> str:
    """The text of a whole answer."""
    assert received.status == 200, received.body
    match client:
        case "openai_responses":
            items = [item for item in received.json["output"] if item["type"] == "message"]
            return "".join([part["text"] for item in items for part in item["content"]])
        case "anthropic":
            return "".join([block["text"] for block in received.json["content"] if block["type"] == "text"])
        case "ollama":
            return str(received.json["message"]["content"])
        case _:
            return str(received.json["choices"][0]["message"]["content"])


def calls(client: str, received: HttpResponse) -> list[str]:
    """The names of the calls that a whole answer returns to the client."""
    assert received.status == 200, received.body
    match client:
        case "openai_responses":
            kinds = ("function_call", "custom_tool_call")
            return [item["name"] for item in received.json["output"] if item["type"] in kinds]
        case "anthropic":
            return [block["name"] for block in received.json["content"] if block["type"] == "tool_use"]
        case "ollama":
            message = received.json["message"]
        case _:
            message = received.json["choices"][0]["message"]
    return [one["function"]["name"] for one in message.get("tool_calls") or ()]


def tool(client: str, name: str, schema: Any = None, description: str | None = None, **more: Any) -> dict[str, Any]:
    """A client's own tool in its dialect."""
    about = {} if description is None else {"description": description}
    match client:
        case "openai_responses":
            return {"type": "function", "name": name, "parameters": schema or TEXT, "strict": False, **about, **more}
        case "anthropic":
            return {"name": name, "input_schema": schema or TEXT, **about, **more}
        case _:
            return {"type": "function", "function": {"name": name, "parameters": schema or TEXT, **about, **more}}


def error(client: str, received: HttpResponse) -> str:
    """The message of an error in the client's own dialect."""
    match client:
        case "anthropic":
            assert received.json["type"] == "error"
            return str(received.json["error"]["message"])
        case "ollama":
            return str(received.json["error"])
        case _:
            return str(received.json["error"]["message"])


def image(data: str = "aGk=") -> Media:
    """A picture."""
    return Media("image", "image/png", data)


def emitted(script: ScriptedModel) -> str:
    """All that the model was ever told."""
    return msgspec.json.encode([request.messages for request in script.requests]).decode()


def system(text: str) -> Message:
    """A message of the system."""
    return Message("system", (Text(text),))


def quiet(level: Any = "info") -> LogSettings:
    """A log of that level."""
    return LogSettings(level=level, format="json")


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
