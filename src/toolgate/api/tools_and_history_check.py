"""Check what every dialect's requests must satisfy: valid tools, not too many, and a history that fits together."""

import asyncio
import re
from collections import OrderedDict

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import match_results
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.conversation.tool_definition_cache import cached_by_tools
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.upstreams.router import ModelRoute
from toolgate.wire.jsontext import encode

MAX_MESSAGES = 10_000
MAX_NAME = 128
_CACHED, _CACHED_BYTES = 64, 64 * 1024  # lists of definitions that were valid, and the size of one: 4 MiB altogether
_MAX_ON_LOOP = 16 * 1024  # bytes of definitions; larger ones are checked in a thread
_NAME = re.compile(rf"[^\s\x00-\x1f\x7f]{{1,{MAX_NAME}}}")  # dots and slashes are for the upstream to rename


class ToolsAndHistoryValidator:
    """Refuses requests that no upstream should get, and completes their histories."""

    def __init__(self) -> None:
        self._schemas = ToolSchemaValidator()
        # Clients send the same definitions with every request: those that were found valid are checked once.
        self._valid: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, request: ModelRequest, route: ModelRoute, ours: frozenset[str] | None = None) -> ModelRequest:
        """Return the request, ready for this route's model; `ours` are the server's tools, if they take part."""
        if request.tools:
            await self._check_tools(request.tools, route)
        return self.check_history(request, route, ours)

    def check_history(
        self, request: ModelRequest, route: ModelRoute, ours: frozenset[str] | None = None
    ) -> ModelRequest:
        """Do the same for a request whose tools, if it has any, are checked already."""
        if len(request.messages) > MAX_MESSAGES:
            raise InvalidRequest(f"messages may hold at most {MAX_MESSAGES} messages.", param="messages")
        if request.tool_choice is not None:
            offered = {tool.name for tool in request.tools} | (ours or frozenset())
            for name in request.tool_choice.names:
                if name not in offered:
                    raise InvalidRequest(f"tool_choice names {name!r}, which is not in tools.", param="tool_choice")
        request = match_results(request, route.strict, route.lenient, ours is not None)
        return route.with_defaults(request)

    async def _check_tools(self, tools: tuple[ToolDef, ...], route: ModelRoute) -> None:
        if len(tools) > route.max_tools:
            raise InvalidRequest(
                f"tools may hold at most {route.max_tools} tools for {route.name!r}, not {len(tools)}.",
                param="tools",
                code="too_many_tools",
            )
        definitions = _definitions(tools)
        if definitions in self._valid:
            return
        if len(definitions) <= _MAX_ON_LOOP:
            self._check_each(tools)
        else:
            await asyncio.to_thread(self._check_each, tools)
        if len(definitions) <= _CACHED_BYTES:
            self._valid[definitions] = None
        if len(self._valid) > _CACHED:
            self._valid.popitem(last=False)

    def _check_each(self, tools: tuple[ToolDef, ...]) -> None:
        seen: set[tuple[str | None, str]] = set()
        for number, tool in enumerate(tools):
            if tool.kind == "hosted":  # a tool of the provider, such as web search, has neither name nor schema
                continue
            if not _NAME.fullmatch(tool.name):
                raise _bad_tool(number, f"the name must be 1 to {MAX_NAME} characters without blanks")
            if (tool.namespace, tool.name) in seen:
                raise _bad_tool(number, f"the name {tool.name!r} is used twice")
            seen.add((tool.namespace, tool.name))
            if tool.input_schema and (problem := self._schemas.problem(tool.input_schema)):
                raise _bad_tool(number, f"the schema of {tool.name!r} {problem}")


@cached_by_tools
def _definitions(tools: tuple[ToolDef, ...]) -> bytes:
    """Encode what is checked of the tools."""
    return encode([(tool.kind, tool.namespace, tool.name, tool.input_schema) for tool in tools])


def _bad_tool(number: int, problem: str) -> InvalidRequest:
    return InvalidRequest(f"tools[{number}]: {problem}.", param=f"tools[{number}]", code="invalid_tool")
