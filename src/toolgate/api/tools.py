"""Serve the tools at /v1/tools: callers list those they may use; the scope `admin` registers, accepts and removes them.

No endpoint runs a tool. The headers of a registration are never returned.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec

from toolgate.api.registered_source_request import ANNOTATIONS, decode_registration
from toolgate.auth.authenticator import Caller
from toolgate.conversation.errors import Conflict, InvalidRequest, NotFound
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.selection import MAX_PATTERN, ToolRights, permitted
from toolgate.tools.sources.registered import RegisteredToolSource, ToolRegistration
from toolgate.tools.tool import ServerToolDefinition, Tool
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_CACHED = 20_000  # encoded tools; with more than that, all are dropped and encoded again


class ToolEndpoints:
    """The endpoints over one registry."""

    def __init__(
        self,
        registry: ToolRegistry,
        registered: RegisteredToolSource,
        on_accept: Callable[[], None] = lambda: None,
        schemas: ToolSchemaValidator | None = None,
    ) -> None:
        """`registered` is one of the sources of the registry; `on_accept` is called after a tool was accepted."""
        self._registry = registry
        self._on_accept = on_accept
        self._registered = registered
        self._schemas = schemas or ToolSchemaValidator()
        self._encoded: dict[str, tuple[ServerToolDefinition, msgspec.Raw]] = {}
        self._all_encoded: tuple[tuple[Tool, ...] | None, msgspec.Raw] = (None, msgspec.Raw(b"[]"))

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/tools", self.list, errors, scope="tools"),
            HttpRoute("POST", "/v1/tools", self.register, errors, scope="admin"),
            HttpRoute("POST", "/v1/tools/{}/accept", self.accept, errors, scope="admin"),
            HttpRoute("GET", "/v1/tools/{}", self.show, errors, scope="tools"),
            HttpRoute("DELETE", "/v1/tools/{}", self.remove, errors, scope="admin"),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List the tools that the caller may use; `?tags=a,b` selects any of the tags, `&name=get_*` matching names."""
        query, rights = parse_qs(call.exchange.query), _rights(call.caller)
        tags = [tag for value in query.get("tags", ()) for tag in value.split(",") if tag]
        name = next(iter(query.get("name", ())), None)
        if name is not None and len(name) > MAX_PATTERN:
            raise InvalidRequest(f"name may have at most {MAX_PATTERN} characters.", param="name")
        found = self._registry.find(tags, name)
        if rights:
            found = tuple([tool for tool in found if permitted(rights, tool.spec)])
        data: Sequence[msgspec.Raw] | msgspec.Raw
        # The list of all tools is the same tuple until a tool changes, so that it is encoded once.
        if found is not self._registry.tools():
            data = [self._encode(tool.spec) for tool in found]
        elif found is self._all_encoded[0]:
            data = self._all_encoded[1]
        else:
            data = msgspec.Raw(encode([self._encode(tool.spec) for tool in found]))
            self._all_encoded = (found, data)
        body: dict[str, Any] = {"object": "list", "data": data}
        # A caller that may not see all tools must not learn of them by their problems either.
        if not rights or "admin" in call.caller.scopes:
            quarantined = [
                {"name": one.name, "source": source, "digest": one.digest, "accepted": one.old, "offered": one.new}
                for source, one in self._registry.quarantined()
            ]
            body |= {
                "sources": self._registry.sources,
                "troubles": self._registry.problems(),
                "quarantined": quarantined,
            }
        await call.exchange.respond(200, encode(body))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return one tool."""
        name = call.arguments[0]
        tool = self._registry.get(name)
        # The same error for a tool that the caller may not use: its name must not be found out by trying.
        if tool is None or not permitted(_rights(call.caller), tool.spec):
            raise NotFound(
                f"There is no tool {name[:80]!r}; GET /v1/tools lists those that this key may use.",
                code="tool_not_found",
            )
        await call.exchange.respond(200, encode({"object": "tool", **_tool_object(tool.spec)}))

    async def register(self, call: AdmittedHttpRequest) -> None:
        """Register an HTTP callback as a tool, or an MCP server by its URL; it stays after a restart."""
        registration = decode_registration(await call.exchange.json())
        if registration.type == "mcp":
            if f"mcp/{registration.name}" in self._registry.sources:
                raise Conflict(f"There is an MCP server {registration.name!r} in the configuration.", param="name")
        elif self._registry.get(registration.name) is not None:
            raise Conflict(f"There is a tool {registration.name!r} already.", param="name")
        # Tools of an MCP server have its name as a prefix: one that it offers later must not be shadowed by this one.
        elif (owner := self._registry.owner_of_prefix(registration.name, "api")) is not None:
            raise Conflict(f"{registration.name!r} begins as the names of {owner} do; take another.", param="name")
        await asyncio.to_thread(self._check_schemas, registration)
        source = await self._registered.add(registration)
        tool = self._registry.get(registration.name)
        body: dict[str, Any] = {"object": "tool", **(_tool_object(tool.spec) if tool else {"name": registration.name})}
        if registration.type == "mcp":
            body = {
                "object": "tool_source",
                "name": registration.name,
                "source": source.name,
                "tools": [tool.spec.name for tool in source.tools],  # often none yet: it is still connecting
                "trouble": source.problem,
            }
        await call.exchange.respond(201, encode(body))

    async def remove(self, call: AdmittedHttpRequest) -> None:
        """Delete a registration and its tools."""
        name = call.arguments[0]
        # A name that is neither registered nor a tool is left to `remove`, which answers 404.
        if name not in self._registered.names and self._registry.get(name) is not None:
            raise Conflict(f"{name!r} was not registered here: it comes from the server's configuration.")
        await self._registered.remove(name)
        await call.exchange.respond(200, encode({"object": "tool", "name": name, "deleted": True}))

    async def accept(self, call: AdmittedHttpRequest) -> None:
        """Accept the changed definition of a tool; `digest` in the body names the definition that was reviewed."""
        fields = Fields(await call.exchange.optional_json())
        digest = fields.text("digest")
        fields.refuse_unknown()
        await self._registry.accept(call.arguments[0], digest)
        self._on_accept()
        await call.exchange.respond(200, encode({"object": "tool", "name": call.arguments[0], "accepted": True}))

    def _check_schemas(self, registration: ToolRegistration) -> None:
        """Raise InvalidRequest if a schema is not valid."""
        for field, schema in (("inputSchema", registration.input_schema), ("outputSchema", registration.output_schema)):
            if schema is not None and (problem := self._schemas.problem(schema)):
                raise InvalidRequest(f"{field} {problem}.", param=field, code="invalid_tool")

    def _encode(self, spec: ServerToolDefinition) -> msgspec.Raw:
        """Encode a tool, once: thousands may be listed again and again."""
        known = self._encoded.get(spec.name)
        if known is None or known[0] is not spec:
            known = self._encoded[spec.name] = (spec, msgspec.Raw(encode(_tool_object(spec))))
            if len(self._encoded) > _CACHED:
                self._encoded.clear()
        return known[1]


def _rights(caller: Caller) -> list[ToolRights]:
    return [ToolRights(caller.allow_tools, caller.block_tools)] if caller.allow_tools or caller.block_tools else []


def _tool_object(spec: ServerToolDefinition) -> dict[str, Any]:
    """Return a tool in the form of VS Code's `lm.tools`, with further fields."""
    fields: dict[str, Any] = {
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
    return {name: value for name, value in fields.items() if value is not None}
