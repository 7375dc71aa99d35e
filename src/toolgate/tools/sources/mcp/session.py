"""A conversation with one MCP server over a line: the handshake, the list of tools, calls of them.

Both eras of the protocol are spoken. Up to 2025-11-25 a handshake opens a session; since 2026-07-28 every request says who
asks and in which revision, and there is no session. Knows neither how messages travel nor what a tool is to us.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import msgspec

from toolgate import __version__
from toolgate.tools.sources.mcp.backoff import Backoff
from toolgate.tools.sources.mcp.line import Broken, Line, Lost, Refused
from toolgate.tools.sources.mcp.messages import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Failure,
    Notice,
    Request,
    Success,
)
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.tools.tool import Progress, Tell
from toolgate.wire.jsontext import encode

LATEST_WITH_HANDSHAKE = "2025-11-25"
WITH_HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", LATEST_WITH_HANDSHAKE)
STATELESS = "2026-07-28"
MOST_TOOLS = 10_000
LONGEST_LIST = 8 * 1024 * 1024
LONGEST_DEFINITION = 512 * 1024
_MOST_PAGES = 1000
_LONGEST_CURSOR = 4096
_MOST_REPLIES = 16
_PROBE_SECONDS = 3.0
_WHO = {"name": "toolgate", "title": "Toolgate", "version": __version__}
_META = "io.modelcontextprotocol/"


class Listing(NamedTuple):
    """What a server lists, and what was left out of it, in words."""

    definitions: list[Any]
    left_out: list[str]


class Session:
    """One conversation; `version` is the revision that both agreed on."""

    def __init__(self, line: Line, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever the server says that its tools are others now."""
        self.version = ""
        self._announces_changes = False
        self._line = line
        self._on_change = on_change
        self._ids = count(1)
        self._tells: dict[int, Tell] = {}
        self._replies: set[asyncio.Task[None]] = set()

    async def open(self, *, stateless_first: bool) -> None:
        """Agree on a revision, or raise Trouble.

        A process is first asked in the old way, which nearly every one understands; an address in the new way,
        which costs a request where it is not understood and a session where it is.
        """
        await self._line.open(self._heard)
        if stateless_first:
            await self._open_stateless_first()
        else:
            await self._open_with_handshake_first()

    async def tools(self) -> Listing:
        """All the definitions, page by page to the end; a server that goes round in circles or on and on is stopped."""
        found: list[Any] = []
        left_out: list[str] = []
        cursors: set[str] = set()
        cursor: str | None = None
        size = 0
        while len(cursors) < _MOST_PAGES and len(found) < MOST_TOOLS:
            result = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
            page, cursor = result.get("tools"), result.get("nextCursor")
            kept, wrong, more = await asyncio.to_thread(_fitting, page if type(page) is list else [])
            found += kept
            left_out += wrong
            size += more
            if type(cursor) is not str or cursor in cursors:
                break
            if size > LONGEST_LIST or len(cursor) > _LONGEST_CURSOR:
                left_out.append(
                    f"whatever follows the first {size // 1024} KiB: a list may have {LONGEST_LIST // 1024} KiB"
                )
                break
            cursors.add(cursor)
        return Listing(found[:MOST_TOOLS], left_out)

    async def call(self, name: str, arguments: str, tell: Tell, headers: Mapping[str, str]) -> Mapping[str, Any]:
        """Run a tool with exactly these arguments; it is sent once, whatever happens."""
        id = next(self._ids)
        self._tells[id] = tell
        exact = msgspec.Raw(arguments.encode("utf-8", "replace") or b"{}")
        try:
            return await self._ask(
                "tools/call", {"name": name, "arguments": exact, "_meta": {"progressToken": id}}, id, headers
            )
        finally:
            del self._tells[id]

    async def attend(self) -> None:
        """Hear of changes until cancelled; in the new era that takes a request which lasts as long as we listen."""
        if self.version != STATELESS:  # there, many announce changes who never said that they would
            await self._line.attend()
        if not self._announces_changes:
            await asyncio.Future()
        backoff = Backoff(asyncio.get_running_loop().time, first=1.0)
        while True:
            backoff.start()
            try:
                await self._ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            except Broken:
                pass
            except Refused:
                await asyncio.Future()
            await asyncio.sleep(backoff.seconds())
            self._on_change()  # whatever happened between two subscriptions was not announced

    async def lost(self) -> Lost:
        """Wait until the connection is gone."""
        return await asyncio.shield(self._line.lost)

    async def aclose(self) -> None:
        """End the conversation."""
        for reply in self._replies:
            reply.cancel()
        await self._line.aclose()

    async def _open_stateless_first(self) -> None:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self._discover()
            return
        except (TimeoutError, Broken):
            pass  # it does not understand
        except Refused as refusal:
            offered = _supported(refusal)
            if offered is not None and not set(offered) & set(WITH_HANDSHAKE):
                raise Lost(f"speaks only {', '.join(offered)} of the protocol") from None
        await self._shake_hands()

    async def _open_with_handshake_first(self) -> None:
        try:
            await self._shake_hands()
            return
        except Refused as refusal:
            offered = _supported(refusal)
            if offered is None and refusal.code not in (METHOD_NOT_FOUND, UNSUPPORTED_VERSION):
                raise
        await self._discover()

    async def _discover(self) -> None:
        self._line.agree(STATELESS)
        self.version = STATELESS
        result = await self._ask("server/discover", {})
        versions = result.get("supportedVersions")
        if type(versions) is not list or STATELESS not in versions:
            raise Refused("does not speak 2026-07-28", UNSUPPORTED_VERSION)
        self._note(result)

    async def _shake_hands(self) -> None:
        self._line.agree(None)
        self.version = ""
        params = {"protocolVersion": LATEST_WITH_HANDSHAKE, "capabilities": {}, "clientInfo": _WHO}
        result = await self._ask("initialize", params)
        version = result.get("protocolVersion")
        if version not in WITH_HANDSHAKE:
            raise Lost(f"speaks {str(version)[:40]!r} of the protocol, which we do not")
        self.version = version
        self._line.agree(version)
        self._note(result)
        await self._line.say(Notice("notifications/initialized").encode())

    def _note(self, result: Mapping[str, Any]) -> None:
        capabilities = result.get("capabilities")
        tools = capabilities.get("tools") if type(capabilities) is dict else None
        if tools is None:
            raise Lost("offers no tools")
        self._announces_changes = type(tools) is dict and tools.get("listChanged") is True

    async def _ask(
        self, method: str, params: dict[str, Any], id: int | None = None, headers: Mapping[str, str] = {}
    ) -> Mapping[str, Any]:
        if self.version == STATELESS:
            params["_meta"] = _envelope() | params.get("_meta", {})
        return await self._line.ask(Request(next(self._ids) if id is None else id, method, params), headers)

    def _heard(self, message: Request | Notice) -> None:
        match message:
            case Request(id, "ping"):
                self._reply(Success(id, {}).encode())
            case Request(id, method):
                # Sampling, elicitation and roots were never offered, so for us they do not exist.
                self._reply(Failure(id, METHOD_NOT_FOUND, f"{method[:80]} is not offered by this client").encode())
            case Notice("notifications/tools/list_changed"):
                self._on_change()
            case Notice("notifications/progress"):
                self._tell(message)
            case _:
                pass  # log lines, and changes of what we did not ask about

    def _reply(self, message: bytes) -> None:
        if len(self._replies) >= _MOST_REPLIES:
            return
        reply = asyncio.get_running_loop().create_task(self._line.say(message))
        self._replies.add(reply)
        reply.add_done_callback(self._replies.discard)

    def _tell(self, notice: Notice) -> None:
        token = notice.field("progressToken")
        if type(token) is str and token.isascii() and token.isdigit():
            token = int(token[:18])  # some servers make every token a string
        tell = self._tells.get(token) if type(token) is int else None
        if tell is not None:
            words = notice.field("message")
            tell(
                Progress(
                    words[:1000] if type(words) is str else None,
                    _number(notice.field("progress")),
                    _number(notice.field("total")),
                )
            )


def _fitting(page: list[Any]) -> tuple[list[Any], list[str], int]:
    """The definitions of a page that are not too large, what is said of the others, and the bytes of all."""
    kept: list[Any] = []
    wrong: list[str] = []
    whole = 0
    for value in page:
        try:
            size = len(encode(value))
        except RecursionError:  # deeper than any schema may be
            size = LONGEST_DEFINITION + 1
        whole += size
        if size <= LONGEST_DEFINITION:
            kept.append(value)
        else:
            name = value.get("name") if type(value) is dict else None
            wrong.append(
                f"{printable(str(name)[:256], 40)}: its definition is larger than {LONGEST_DEFINITION // 1024} KiB"
            )
    return kept, wrong, whole


def _envelope() -> dict[str, Any]:
    return {f"{_META}protocolVersion": STATELESS, f"{_META}clientInfo": _WHO, f"{_META}clientCapabilities": {}}


def _supported(refusal: Refused) -> list[str] | None:
    """The revisions that a refusal names, if it is about revisions."""
    if refusal.code != UNSUPPORTED_VERSION or type(refusal.details) is not dict:
        return None
    offered = refusal.details.get("supported")
    return [str(version)[:40] for version in offered[:20]] if type(offered) is list else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None
