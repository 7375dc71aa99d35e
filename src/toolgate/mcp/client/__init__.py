"""MCP servers as sources of tools: the client's side of the protocol.

source.py                 McpSource: one configured server; connects, reconnects and offers its tools
  accepted_definitions.py which definitions a person has accepted
  definitions.py tool_names.py   a definition, parsed and checked, and its public name
  results.py              the result of a call, decoded
  session.py              ClientSession: handshake or discovery, the list of tools, calls
    http.py response_messages.py HttpTransport: streamable HTTP, over any HTTP client
    stdio.py              StdioTransport: a child process and its pipes
  backoff.py              the waits between two attempts

We implement the protocol ourselves instead of using the official SDK. A gateway needs what the SDK does not promise: a
child's whole process group is ended, lines and floods are limited, a call is never sent twice, every address is checked
before it is opened. The SDK also takes a second and 55 MB to import; the idle server is to fit into 80.
"""

from toolgate.mcp.client.accepted_definitions import AcceptedDefinitionStoreProtocol, QuarantinedTool, Trust
from toolgate.mcp.client.source import McpSource
from toolgate.mcp.protocol.server_config import OAuthConfig, RemoteServerConfig, StdioServerConfig
from toolgate.mcp.protocol.transport import CheckUrl, HttpRequestSender, McpHttpResponse

__all__ = [
    "AcceptedDefinitionStoreProtocol",
    "CheckUrl",
    "HttpRequestSender",
    "McpHttpResponse",
    "McpSource",
    "OAuthConfig",
    "QuarantinedTool",
    "RemoteServerConfig",
    "StdioServerConfig",
    "Trust",
]
