"""What every request must satisfy whatever its dialect: sane numbers of sane tools, and a history that fits together."""

import asyncio
import re
from collections import OrderedDict

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import settle
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef
from toolgate.tools.schema import SchemaCheck
from toolgate.upstreams.router import Route
from toolgate.wire.jsontext import encode

MAX_MESSAGES = 10_000
MAX_NAME = 128
_REMEMBERED, _REMEMBERED_BYTES = 64, 64 * 1024
_AT_ONCE = 16 * 1024  # bytes of definitions that are checked without leaving the loop
_NAME = re.compile(rf"[^\s\x00-\x1f\x7f]{{1,{MAX_NAME}}}")


class RequestCheck:
    """Refuses what no upstream should be asked, and completes what can be."""

    def __init__(self) -> None:
        self._schemas = SchemaCheck()
        self._good: OrderedDict[bytes, None] = (
            OrderedDict()
        )  # what tools say of themselves: clients always send the same

    async def check(self, request: ModelRequest, route: Route, ours: frozenset[str] | None = None) -> ModelRequest:
        """The request, ready to be asked of this route's model; `ours` are the server's tools, if it has any part in it."""
        if len(request.messages) > MAX_MESSAGES:
            raise InvalidRequest(f"messages may hold at most {MAX_MESSAGES} messages.", param="messages")
        if request.tools:
            await self._check_tools(request.tools, route)
        if request.tool_choice is not None:
            self._check_choice(request.tool_choice, request.tools, ours or frozenset())
        request = settle(request, strict=route.strict, lenient=route.lenient, resumable=ours is not None)
        return route.with_defaults(request)

    async def _check_tools(self, tools: tuple[ToolDef, ...], route: Route) -> None:
        if len(tools) > route.max_tools:
            raise InvalidRequest(
                f"tools may hold at most {route.max_tools} tools for {route.name!r}, not {len(tools)}.",
                param="tools",
                code="too_many_tools",
            )
        said = encode([(tool.kind, tool.namespace, tool.name, tool.input_schema) for tool in tools])
        if said not in self._good:
            if len(said) <= _AT_ONCE:
                self._check_each(tools)
            else:
                await asyncio.to_thread(self._check_each, tools)
            if len(said) <= _REMEMBERED_BYTES:
                self._good[said] = None
            if len(self._good) > _REMEMBERED:
                self._good.popitem(last=False)

    def _check_each(self, tools: tuple[ToolDef, ...]) -> None:
        seen: set[tuple[str | None, str]] = set()
        for number, tool in enumerate(tools):
            if tool.kind == "hosted":
                continue
            if not _NAME.fullmatch(tool.name):
                raise _bad_tool(number, f"the name must be 1 to {MAX_NAME} characters without blanks")
            if (tool.namespace, tool.name) in seen:
                raise _bad_tool(number, f"the name {tool.name!r} is used twice")
            seen.add((tool.namespace, tool.name))
            if tool.input_schema and (complaint := self._schemas.complaint(tool.input_schema)):
                raise _bad_tool(number, f"the schema of {tool.name!r} {complaint}")

    def _check_choice(self, choice: ToolChoice, tools: tuple[ToolDef, ...], ours: frozenset[str]) -> None:
        offered = {tool.name for tool in tools} | ours
        for name in choice.names:
            if name not in offered:
                raise InvalidRequest(f"tool_choice names {name!r}, which is not in tools.", param="tool_choice")


def _bad_tool(number: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"tools[{number}]: {what}.", param=f"tools[{number}]", code="invalid_tool")
