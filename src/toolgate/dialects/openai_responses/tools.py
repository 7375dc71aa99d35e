"""Tools and the choice among them, read and written: functions, freeform tools, namespaces of them, hosted tools.

A hosted tool, and any tool of a kind we do not know, stays whole in `extra`: its own upstream understands it.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef, ToolServer
from toolgate.dialects.openai_responses.words import NAME, own_extra
from toolgate.wire.fields import Fields

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_ABOUT = "namespace"  # what else a namespace says of itself, kept with each of its tools
_ELSEWHERE = "in_input"  # the tool was offered by an input item, which says so itself


def read_tools(values: Iterable[Any], path: str) -> list[ToolDef]:
    """The tools of a list."""
    return [tool for number, value in enumerate(values) for tool in _read(Fields(value, f"{path}[{number}]"))]


def offered_in_input(tools: Iterable[ToolDef]) -> list[ToolDef]:
    """The tools marked as brought by an input item rather than by the request's own list."""
    return [replace(tool, extra={NAME: {**tool.extra.get(NAME, {}), _ELSEWHERE: True}}) for tool in tools]


def _read(fields: Fields) -> list[ToolDef]:
    whole = dict(fields.rest)
    match fields.text("type"):
        case "function":
            return [_function(fields)]
        case "custom":
            name, description, format = _named(fields), fields.text("description"), fields.mapping("format")
            return [ToolDef(name, description, kind="freeform", format=format, extra=own_extra(fields.rest))]
        case "namespace":
            return _namespace(fields) or [ToolDef("namespace", kind="hosted", extra={NAME: whole})]
        case None:
            raise InvalidRequest(f"{fields.at('type')} is required.", param=fields.at("type"), code="invalid_tool")
        case kind:
            label = whole.get("server_label")
            return [ToolDef(label if type(label) is str else kind, kind="hosted", extra={NAME: whole})]


def _function(fields: Fields) -> ToolDef:
    if "name" not in fields.rest and type(fields.rest.get("function")) is dict:
        fields = Fields(fields.rest["function"], fields.at("function"))  # the shape that Chat has
    name = _named(fields)
    description, schema, strict = fields.text("description"), fields.mapping("parameters"), fields.flag("strict")
    return ToolDef(name, description, schema, strict, extra=own_extra(fields.rest))


def _named(fields: Fields) -> str:
    name = fields.text("name")
    if not name:
        raise InvalidRequest(f"{fields.at('name')} is required.", param=fields.at("name"), code="invalid_tool")
    return name


def _namespace(fields: Fields) -> list[ToolDef]:
    name = _named(fields)
    tools = read_tools(fields.items("tools") or (), fields.at("tools"))
    about = {_ABOUT: fields.rest} if fields.rest else {}
    return [replace(tool, namespace=name, extra=own_extra({**tool.extra.get(NAME, {}), **about})) for tool in tools]


def write_tools(tools: Iterable[ToolDef], loose: bool, dropped: list[str]) -> list[dict[str, Any]]:
    """The tools as a list; `loose` says that unsaid strictness means none, as it does in every other dialect."""
    written: list[dict[str, Any]] = []
    listed = [tool for tool in tools if not tool.extra or not tool.extra.get(NAME, {}).get(_ELSEWHERE)]
    for namespace, members in groupby(listed, lambda tool: tool.namespace):
        group = list(members)
        entries = [entry for tool in group if (entry := _write(tool, loose, dropped))]
        if namespace is None:
            written += entries
        elif entries:
            about = {"description": namespace, **group[0].extra.get(NAME, {}).get(_ABOUT, {})}
            written.append({"type": "namespace", "name": namespace, **about, "tools": entries})
    return written


def _write(tool: ToolDef, loose: bool, dropped: list[str]) -> dict[str, Any] | None:
    own = _own(tool) if tool.extra else {}
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
    if tool.strict is not None or loose:
        entry["strict"] = tool.strict or False
    return entry | own if own else entry


def _own(tool: ToolDef) -> dict[str, Any]:
    return {name: value for name, value in tool.extra.get(NAME, {}).items() if name != _ABOUT}


def echo_tools(tools: Iterable[ToolDef]) -> list[dict[str, Any]]:
    """The tools as a response repeats them, every field present."""
    entries = write_tools(tools, loose=False, dropped=[])
    for entry in entries:
        if entry["type"] == "function":
            entry.setdefault("description", None)
            entry.setdefault("strict", None)
    return entries


def read_choice(value: Any, parallel: bool | None) -> ToolChoice | None:
    """The choice; one that forces a hosted tool means nothing to other dialects, so it reads as a free one."""
    match value:
        case None:
            return None if parallel is None else ToolChoice(parallel=parallel)
        case "auto" | "none" | "required":
            return ToolChoice(value, parallel=parallel)
        case {"type": "allowed_tools", "allowed_tools": dict(allowed)} | ({"type": "allowed_tools"} as allowed):
            return _allowed(Fields(allowed, "tool_choice"), parallel)
        case {"type": str()}:
            name = _chosen(value)
            return ToolChoice("required", (name,), parallel) if name else ToolChoice(parallel=parallel)
        case _:
            raise InvalidRequest(
                "tool_choice must be none, auto, required, a tool by name or allowed_tools.", param="tool_choice"
            )


def _chosen(value: Any) -> str | None:
    match value:
        case {"type": "function" | "custom", "name": str(name)}:
            return name
        case {"type": "function", "function": {"name": str(name)}} | {"type": "custom", "custom": {"name": str(name)}}:
            return name
        case _:
            return None


def _allowed(fields: Fields, parallel: bool | None) -> ToolChoice:
    mode = fields.one_of("mode", "auto", "required", "none") or "auto"
    names = [name for value in fields.items("tools") or () if (name := _chosen(value))]
    if mode == "none":
        return ToolChoice("none", parallel=parallel)
    return ToolChoice("required" if mode == "required" else "auto", tuple(names), parallel)


def write_choice(choice: ToolChoice, tools: Iterable[ToolDef]) -> str | dict[str, Any]:
    """The choice in the flat form of this dialect."""
    freeform = {tool.name for tool in tools if tool.kind == "freeform"}
    named = [{"type": "custom" if name in freeform else "function", "name": name} for name in choice.names]
    match choice:
        case ToolChoice("required", (_,)):
            return named[0]
        case ToolChoice(mode, names) if names and mode != "none":
            return {"type": "allowed_tools", "mode": mode, "tools": named}
        case ToolChoice(mode):
            return mode


def take_servers(
    request: ModelRequest, is_known: Callable[[ToolServer], bool]
) -> tuple[ModelRequest, tuple[ToolServer, ...]]:
    """The MCP servers among the tools that are known here, and the request without them."""
    found = {number: _tool_server(tool) for number, tool in enumerate(request.tools) if _is_mcp(tool)}
    taken = {number: server for number, server in found.items() if is_known(server)}
    if not taken:
        return request, ()
    tools = tuple([tool for number, tool in enumerate(request.tools) if number not in taken])
    return replace(request, tools=tools), tuple(taken.values())


def _is_mcp(tool: ToolDef) -> bool:
    return tool.kind == "hosted" and tool.extra.get(NAME, {}).get("type") == "mcp"


def _tool_server(tool: ToolDef) -> ToolServer:
    """As the API has it, a person is asked about every call unless the client says otherwise."""
    own = tool.extra.get(NAME, {})
    asking, unasked = _asking(own.get("require_approval"))
    url = own.get("server_url")
    return ToolServer(tool.name, url if type(url) is str else None, _names(own.get("allowed_tools")), asking, unasked)


def _asking(said: Any) -> tuple[frozenset[str] | None, frozenset[str]]:
    match said:
        case "never":
            return frozenset(), frozenset()
        case {"always": always}:
            return frozenset(_names(always) or ()), frozenset()
        case {"never": never}:
            return None, frozenset(_names(never) or ())
        case _:
            return None, frozenset()


def _names(value: Any) -> tuple[str, ...] | None:
    """Names in either form that the API has; None if there is no such list."""
    match value:
        case list(names) | {"tool_names": list(names)}:
            return tuple([name for name in names if type(name) is str])
        case _:
            return None
