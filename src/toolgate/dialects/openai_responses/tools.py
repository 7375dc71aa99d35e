"""Decode and encode tools and tool choices: functions, freeform tools, namespaces, hosted tools and MCP servers.

A hosted tool, and any tool of an unknown kind, stays complete in `extra`, for an upstream of this dialect.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef, ToolServer
from toolgate.dialects.openai_responses.shared_codec import NAME, own_extra
from toolgate.wire.fields import Fields

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_NAMESPACE_FIELDS = "namespace"  # the key under which each tool of a namespace keeps the namespace's other fields
_IN_INPUT = "in_input"  # marks a tool that an input item brought: the item is sent back, so the tool is not listed


def read_tools(values: Iterable[Any], path: str) -> list[ToolDef]:
    """Decode a list of tools."""
    return [tool for number, value in enumerate(values) for tool in _read(Fields(value, f"{path}[{number}]"))]


def offered_in_input(tools: Iterable[ToolDef]) -> list[ToolDef]:
    """Mark tools as brought by an input item rather than by the request's own list."""
    return [replace(tool, extra={NAME: {**tool.extra.get(NAME, {}), _IN_INPUT: True}}) for tool in tools]


def _read(fields: Fields) -> list[ToolDef]:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "function":
            if "name" not in fields.rest and type(fields.rest.get("function")) is dict:
                fields = Fields(fields.rest["function"], fields.at("function"))  # the form of Chat Completions
            name, description, schema = _name(fields), fields.text("description"), fields.mapping("parameters")
            strict = fields.flag("strict")
            return [ToolDef(name, description, schema, strict, extra=own_extra(fields.rest))]
        case "custom":
            name, description, format = _name(fields), fields.text("description"), fields.mapping("format")
            return [ToolDef(name, description, kind="freeform", format=format, extra=own_extra(fields.rest))]
        case "namespace":
            space, tools = _name(fields), read_tools(fields.items("tools") or (), fields.at("tools"))
            kept = {_NAMESPACE_FIELDS: fields.rest} if fields.rest else {}
            # Each tool knows its namespace, because other upstreams get the tools in a flat list.
            members = [
                replace(tool, namespace=space, extra=own_extra({**tool.extra.get(NAME, {}), **kept})) for tool in tools
            ]
            # An empty one is kept for its own API.
            return members or [ToolDef("namespace", kind="hosted", extra={NAME: whole})]
        case None:
            raise InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"), code="invalid_tool")
        case kind:
            label = whole.get("server_label")
            return [ToolDef(label if type(label) is str else kind, kind="hosted", extra={NAME: whole})]


def _name(fields: Fields) -> str:
    name = fields.text("name")
    if not name:
        raise InvalidRequest(f"{fields.at('name')} is required.", param=fields.at("name"), code="invalid_tool")
    return name


def write_tools(tools: Iterable[ToolDef], loose: bool, dropped: list[str]) -> list[dict[str, Any]]:
    """Encode a list of tools; with `loose`, unspecified strictness means none, as in every other dialect."""
    written: list[dict[str, Any]] = []
    listed = [tool for tool in tools if not tool.extra or not tool.extra.get(NAME, {}).get(_IN_INPUT)]
    # Only neighbours are grouped, so that the tools keep their order.
    for namespace, members in groupby(listed, lambda tool: tool.namespace):
        group = list(members)
        entries = [entry for tool in group if (entry := _write(tool, loose, dropped))]
        if namespace is None:
            written += entries
        elif entries:
            # The API requires a description, which other dialects do not have for a namespace.
            kept = {"description": namespace, **group[0].extra.get(NAME, {}).get(_NAMESPACE_FIELDS, {})}
            written.append({"type": "namespace", "name": namespace, **kept, "tools": entries})
    return written


def _write(tool: ToolDef, loose: bool, dropped: list[str]) -> dict[str, Any] | None:
    own: dict[str, Any] = {}
    if tool.extra:
        own = {name: value for name, value in tool.extra.get(NAME, {}).items() if name != _NAMESPACE_FIELDS}
    if tool.kind == "hosted":
        if not own:
            dropped.append(f"the hosted tool {tool.name!r} is known to its own API only")
        return own or None
    entry: dict[str, Any] = {"type": "function", "name": tool.name}
    if tool.description is not None:
        entry["description"] = tool.description
    if tool.kind == "freeform":
        return {**entry, "type": "custom", **({"format": tool.format} if tool.format is not None else {}), **own}
    entry["parameters"] = tool.input_schema if tool.input_schema is not None else _EMPTY_SCHEMA
    # Without the field this API means strict, which rejects schemas with optional properties.
    if tool.strict is not None or loose:
        entry["strict"] = tool.strict or False
    return entry | own if own else entry


def echo_tools(tools: Iterable[ToolDef]) -> list[dict[str, Any]]:
    """Encode the tools as a response repeats them, with all fields."""
    entries = write_tools(tools, loose=False, dropped=[])
    for entry in entries:
        if entry["type"] == "function":
            entry.setdefault("description", None)
            entry.setdefault("strict", None)
    return entries


def read_choice(value: Any, parallel: bool | None) -> ToolChoice | None:
    """Decode the choice; one that forces a hosted tool is decoded as `auto`, because other dialects do not know the tool."""
    match value:
        case None:
            return None if parallel is None else ToolChoice(parallel=parallel)
        case "auto" | "none" | "required":
            return ToolChoice(value, parallel=parallel)
        # Nested as in the Chat API, or flat as in this one.
        case {"type": "allowed_tools", "allowed_tools": dict(allowed)} | ({"type": "allowed_tools"} as allowed):
            fields = Fields(allowed, "tool_choice")
            mode = fields.one_of("mode", "auto", "required", "none") or "auto"
            names = [name for value in fields.items("tools") or () if (name := _chosen_name(value))]
            if mode == "none":
                return ToolChoice("none", parallel=parallel)
            return ToolChoice("required" if mode == "required" else "auto", tuple(names), parallel)
        case {"type": str()}:
            name = _chosen_name(value)
            return ToolChoice("required", (name,), parallel) if name else ToolChoice(parallel=parallel)
        case _:
            raise InvalidRequest(
                "tool_choice must be none, auto, required, a tool by name or allowed_tools.", param="tool_choice"
            )


def _chosen_name(value: Any) -> str | None:
    match value:
        case {"type": "function" | "custom", "name": str(name)}:
            return name
        case {"type": "function", "function": {"name": str(name)}} | {"type": "custom", "custom": {"name": str(name)}}:
            return name
        case _:
            return None


def write_choice(choice: ToolChoice, tools: Iterable[ToolDef]) -> str | dict[str, Any]:
    """Encode the choice in the flat form of this dialect."""
    freeform = {tool.name for tool in tools if tool.kind == "freeform"}
    named = [{"type": "custom" if name in freeform else "function", "name": name} for name in choice.names]
    match choice:
        case ToolChoice("required", (_,)):
            return named[0]
        case ToolChoice(mode, names) if names and mode != "none":
            return {"type": "allowed_tools", "mode": mode, "tools": named}
        case ToolChoice(mode):
            return mode


def extract_servers(
    request: ModelRequest, is_known: Callable[[ToolServer], bool]
) -> tuple[ModelRequest, tuple[ToolServer, ...]]:
    """Split the request into one without the MCP servers that are known here, and those servers."""
    servers: dict[str, ToolServer] = {}
    taken: set[int] = set()
    for number, tool in enumerate(request.tools):
        if tool.kind != "hosted" or tool.extra.get(NAME, {}).get("type") != "mcp":
            continue
        own = tool.extra[NAME]
        server = ToolServer(tool.name, url if type(url := own.get("server_url")) is str else None)
        if not is_known(server):
            continue
        if server.label in servers:
            raise InvalidRequest(
                f"tools[{number}].server_label names {server.label[:80]!r} again.",
                param=f"tools[{number}].server_label",
            )
        servers[server.label] = _with_choices(server, own)
        taken.add(number)
    if not servers:
        return request, ()
    tools = tuple([tool for number, tool in enumerate(request.tools) if number not in taken])
    return replace(request, tools=tools), tuple(servers.values())


def _with_choices(server: ToolServer, own: Mapping[str, Any]) -> ToolServer:
    """Add which tools of the server the request takes, and which of them need approval."""
    required: frozenset[str] | None = None  # the API's default: every call needs approval
    exempt: frozenset[str] = frozenset()
    match own.get("require_approval"):
        case "never":
            required = frozenset()
        case {"always": always}:
            required = _names(always) or frozenset()
        case {"never": never}:
            exempt = _names(never) or frozenset()
    allowed = _names(own.get("allowed_tools"))
    return replace(server, allowed=allowed, approval_required=required, approval_exempt=exempt)


def _names(value: Any) -> frozenset[str] | None:
    """Decode a list of tool names in either form of the API; None if there is no list."""
    match value:
        case list(names) | {"tool_names": list(names)}:
            return frozenset([name for name in names if type(name) is str])
        case _:
            return None
