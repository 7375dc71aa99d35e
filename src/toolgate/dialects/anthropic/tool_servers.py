"""Decode the MCP servers that a request names: `mcp_servers`, and the `mcp_toolset` tools that select their tools."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

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
    found: list[tuple[Any, ToolServer]] = []
    for entry in listed:
        match entry:
            case {"name": str(label)}:
                url = entry.get("url")
                allowed = _allowed(entry, label, request.tools)
                server = ToolServer(label, url if type(url) is str else None, allowed)
                if is_known(server):
                    found.append((entry, server))
    if not found:
        return request, ()
    # Servers that are not known here stay in the request: an Anthropic upstream may reach them itself.
    left = [entry for entry in listed if entry not in [taken for taken, _ in found]]
    labels = {server.label for _, server in found}
    tools = tuple([tool for tool in request.tools if _toolset(tool) not in labels])
    rest = {**own, "mcp_servers": left} if left else {name: own[name] for name in own if name != "mcp_servers"}
    return replace(request, tools=tools, extra={**request.extra, NAME: rest}), tuple([server for _, server in found])


def _allowed(entry: Mapping[str, Any], label: str, tools: tuple[ToolDef, ...]) -> tuple[str, ...] | None:
    """Return the enabled tools, in the older form or the newer one; None if all are."""
    match entry.get("tool_configuration"):
        case {"enabled": False}:
            return ()
        case {"allowed_tools": list(names)}:
            return tuple([name for name in names if type(name) is str])
    toolset = next((tool.extra[NAME] for tool in tools if _toolset(tool) == label), {})
    match toolset:
        case {"default_config": {"enabled": False}}:
            configs = toolset.get("configs")
            each = configs.items() if type(configs) is dict else ()
            return tuple([name for name, config in each if type(config) is dict and config.get("enabled", True)])
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
