"""Decode the MCP servers that a request names: `mcp_servers`, and the `mcp_toolset` tools that select their tools."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ModelRequest, ToolDef, ToolServer
from toolgate.dialects.anthropic.shared_codec import NAME

# The beginning of the beta header's value, such as "mcp-client-2025-11-20"; the date differs from SDK to SDK.
_BETA = "mcp-client-"


def reads_server_tools(request: ModelRequest) -> bool:
    """Return whether the client knows `mcp_tool_use` and `mcp_tool_result`, which are blocks of the beta API.

    The SDK's plain `messages.create` decodes them as text blocks without a text, which breaks clients.
    """
    if "mcp_servers" in request.extra.get(NAME, {}) or _BETA in request.headers.get("anthropic-beta", ""):
        return True
    parts = [part for message in request.messages if message.role == "assistant" for part in message.parts]
    return any(isinstance(part, ToolCall) and part.executor == "gateway" for part in parts)  # the client sent them back


def extract_servers(
    request: ModelRequest, is_known: Callable[[ToolServer], bool]
) -> tuple[ModelRequest, tuple[ToolServer, ...]]:
    """Split the request into one without the MCP servers that are known here, and those servers."""
    own = request.extra.get(NAME, {})
    listed = own.get("mcp_servers")
    if type(listed) is not list or not listed:
        return request, ()
    toolsets: dict[str, Mapping[str, Any]] = {}
    for tool in request.tools:
        if (name := _toolset(tool)) is not None:
            toolsets.setdefault(name, tool.extra[NAME])
    servers: dict[str, ToolServer] = {}
    left: list[Any] = []  # servers that are not known here stay: an Anthropic upstream may reach them itself
    for number, entry in enumerate(listed):
        server = _server(entry)
        if server is None or not is_known(server):
            left.append(entry)
        elif server.label in servers:
            at = f"mcp_servers.{number}.name"
            raise InvalidRequest(f"{at} names {server.label[:80]!r} again.", param=at)
        else:
            servers[server.label] = replace(server, allowed=_allowed(entry, toolsets.get(server.label, {})))
    if not servers:
        return request, ()
    tools = tuple([tool for tool in request.tools if _toolset(tool) not in servers])
    rest = {**own, "mcp_servers": left} if left else {name: own[name] for name in own if name != "mcp_servers"}
    return replace(request, tools=tools, extra={**request.extra, NAME: rest}), tuple(servers.values())


def _server(entry: Any) -> ToolServer | None:
    match entry:
        case {"name": str(label), "url": str(url)}:
            return ToolServer(label, url)
        case {"name": str(label)}:
            return ToolServer(label)
        case _:
            return None


def _allowed(entry: Mapping[str, Any], toolset: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the enabled tools, in the older form or the newer one; None if all are."""
    match entry.get("tool_configuration"):
        case {"enabled": False}:
            return frozenset()
        case {"allowed_tools": list(names)}:
            return frozenset([name for name in names if type(name) is str])
    match toolset:
        case {"default_config": {"enabled": False}}:
            configs = toolset.get("configs")
            each = configs.items() if type(configs) is dict else ()
            return frozenset([name for name, config in each if type(config) is dict and config.get("enabled", True)])
        case _:
            return None


def _toolset(tool: ToolDef) -> str | None:
    """Return the server whose tools this entry stands for."""
    if tool.kind != "hosted":
        return None
    match tool.extra.get(NAME, {}):
        case {"type": "mcp_toolset", "mcp_server_name": str(label)}:
            return label
        case _:
            return None
