"""The tools at /v1/tools: listed to those who may use them, registered and accepted by those who administer.

There is no path that runs a tool. The headers of a registration are told to nobody.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec

from toolgate.conversation.errors import Conflict, InvalidRequest, NotFound
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.server.app import Call, Endpoint
from toolgate.server.callers.auth import Caller
from toolgate.server.workshop.registration import ANNOTATIONS, read_registration
from toolgate.tools.registry import Registry
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.selection import Rights, permitted
from toolgate.tools.sources.api import ApiSource, Registration
from toolgate.tools.tool import Tool, ToolSource, ToolSpec
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_REMEMBERED = 20_000


class ToolList:
    """The endpoints over one registry."""

    def __init__(
        self,
        registry: Registry,
        registered: ApiSource,
        on_accept: Callable[[], None] = lambda: None,
        schemas: SchemaCheck | None = None,
    ) -> None:
        """`registered` is one of the sources of the registry; `on_accept` is called when a tool was accepted."""
        self._registry = registry
        self._on_accept = on_accept
        self._registered = registered
        self._schemas = schemas or SchemaCheck()
        self._written: dict[str, tuple[ToolSpec, msgspec.Raw]] = {}
        self._every: tuple[tuple[Tool, ...] | None, msgspec.Raw] = (None, msgspec.Raw(b"[]"))

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        words = OPENAI_CHAT.server
        return [
            Endpoint("GET", "/v1/tools", self.list, words, scope="tools"),
            Endpoint("POST", "/v1/tools", self.register, words, scope="admin"),
            Endpoint("POST", "/v1/tools/{}/accept", self.accept, words, scope="admin"),
            Endpoint("GET", "/v1/tools/{}", self.show, words, scope="tools"),
            Endpoint("DELETE", "/v1/tools/{}", self.remove, words, scope="admin"),
        ]

    async def list(self, call: Call) -> None:
        """List the tools that the caller may use; `?tags=a,b` wants any of the tags, `&name=get_*` a fitting name."""
        tags, name = _filters(call.exchange.query)
        rights = _rights(call.caller)
        found = self._registry.find(tags, name)
        if rights:
            found = tuple([tool for tool in found if permitted(rights, tool.spec)])
        listed: dict[str, Any] = {"object": "list", "data": self._write_all(found)}
        # Who may not see all tools shall not learn of them by their troubles either.
        if not rights or "admin" in call.caller.scopes:
            listed |= {"troubles": self._registry.troubles(), "quarantined": self._quarantined()}
        await call.exchange.respond(200, encode(listed))

    async def show(self, call: Call) -> None:
        """Tell about one tool."""
        tool = self._find(call)
        await call.exchange.respond(200, encode({"object": "tool", **_shown(tool.spec)}))

    async def register(self, call: Call) -> None:
        """Register an HTTP callback as a tool, or an MCP server by its URL; it stays after a restart."""
        registration = read_registration(await call.exchange.json())
        self._check(registration)
        await asyncio.to_thread(self._check_schemas, registration)
        source = await self._registered.add(registration)
        body = _shown_source(registration, source) if registration.type == "mcp" else self._shown_http(registration)
        await call.exchange.respond(201, encode(body))

    async def remove(self, call: Call) -> None:
        """Forget a registration and its tools."""
        name = call.arguments[0]
        if name not in self._registered.names and self._registry.get(name) is not None:
            raise Conflict(f"{name!r} was not registered here: it comes from the server's configuration.")
        await self._registered.remove(name)
        await call.exchange.respond(200, encode({"object": "tool", "name": name, "deleted": True}))

    async def accept(self, call: Call) -> None:
        """Use a tool again whose definition has changed; `digest` in the body names the definition that was seen."""
        fields = Fields(await call.exchange.optional_json())
        seen = fields.text("digest")
        fields.no_more()
        await self._registry.accept(call.arguments[0], seen)
        self._on_accept()
        await call.exchange.respond(200, encode({"object": "tool", "name": call.arguments[0], "accepted": True}))

    def _find(self, call: Call) -> Tool:
        name = call.arguments[0]
        tool = self._registry.get(name)
        if tool is None or not permitted(_rights(call.caller), tool.spec):
            raise NotFound(
                f"There is no tool {name[:80]!r}; GET /v1/tools lists those you may use.", code="tool_not_found"
            )
        return tool

    def _check(self, registration: Registration) -> None:
        """Conflict if the name is taken, or begins as another source's names do."""
        if registration.type == "mcp":
            if f"mcp/{registration.name}" in self._registry.sources:
                raise Conflict(f"There is an MCP server {registration.name!r} in the configuration.", param="name")
        elif self._registry.get(registration.name) is not None:
            raise Conflict(f"There is a tool {registration.name!r} already.", param="name")
        elif (owner := self._registry.owner_of_prefix(registration.name, "api")) is not None:
            raise Conflict(f"{registration.name!r} begins as the names of {owner} do; take another.", param="name")

    def _check_schemas(self, registration: Registration) -> None:
        """InvalidRequest if a schema is none."""
        for field, schema in (("inputSchema", registration.input_schema), ("outputSchema", registration.output_schema)):
            if schema is not None and (complaint := self._schemas.complaint(schema)):
                raise InvalidRequest(f"{field} {complaint}.", param=field, code="invalid_tool")

    def _shown_http(self, registration: Registration) -> dict[str, Any]:
        tool = self._registry.get(registration.name)
        return {"object": "tool", **(_shown(tool.spec) if tool else {"name": registration.name})}

    def _quarantined(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"name": one.name, "source": source, "digest": one.digest, "accepted": one.old, "offered": one.new}
            for source, one in self._registry.quarantined()
        ]

    def _write_all(self, tools: tuple[Tool, ...]) -> Sequence[msgspec.Raw] | msgspec.Raw:
        """The tools as JSON; the list of all is the very same tuple until a tool changes, and is written once."""
        if tools is not self._registry.tools():
            return [self._write(tool.spec) for tool in tools]
        if self._every[0] is not tools:
            self._every = (tools, msgspec.Raw(encode([self._write(tool.spec) for tool in tools])))
        return self._every[1]

    def _write(self, spec: ToolSpec) -> msgspec.Raw:
        """The tool as JSON; thousands are listed again and again, so each is written once."""
        known = self._written.get(spec.name)
        if known is None or known[0] is not spec:
            known = self._written[spec.name] = (spec, msgspec.Raw(encode(_shown(spec))))
            if len(self._written) > _REMEMBERED:
                self._written.clear()
        return known[1]


def _rights(caller: Caller) -> list[Rights]:
    return [Rights(caller.allow_tools, caller.block_tools)] if caller.allow_tools or caller.block_tools else []


def _filters(query: str) -> tuple[list[str], str | None]:
    """The tags and the pattern of names that a query asks for."""
    asked = parse_qs(query, max_num_fields=20)
    tags = [tag for value in asked.get("tags", ()) for tag in value.split(",") if tag]
    return tags, next(iter(asked.get("name", ())), None)


def _shown(spec: ToolSpec) -> dict[str, Any]:
    """A tool in the words of the editor's `lm.tools`, with what else we know of it."""
    said: dict[str, Any] = {
        "name": spec.name,
        "description": spec.description,
        "inputSchema": spec.input_schema,
        "tags": spec.tags,
        "source": spec.source,
        "displayName": spec.display_name,
        "referenceName": spec.reference_name,
        "userDescription": spec.user_description,
        "icon": spec.icon,
        "outputSchema": spec.output_schema,
        "when": spec.when,
        "annotations": {name: getattr(spec.annotations, own) for name, own in ANNOTATIONS.items()},
    }
    return {name: value for name, value in said.items() if value is not None}


def _shown_source(registration: Registration, source: ToolSource) -> dict[str, Any]:
    """What is known of an MCP server that was registered this moment: often it is still being connected to."""
    names = [tool.spec.name for tool in source.tools]
    return {
        "object": "tool_source",
        "name": registration.name,
        "source": source.name,
        "tools": names,
        "trouble": source.trouble,
    }
