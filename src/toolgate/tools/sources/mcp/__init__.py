"""MCP servers as sources of tools: the client's side of the protocol.

McpSource (source.py)       one configured server: connects, connects again, offers its tools
  pinning.py                which definitions a person has accepted
  offers.py, naming.py      a definition read and found usable, and the name it goes by here
  results.py                what a call gave back
  Session (session.py)      handshake in either era of the protocol, list, calls
    messages.py             JSON-RPC to bytes and back
    Line (line.py)          how messages travel
      process.py, pieces.py a child process, its pipes cut into lines
      remote.py, answers.py streamable HTTP, over whatever HTTP client it is given
  oauth/                    tokens for remote servers: discovery, login, refresh

The protocol is spoken here and not by the official SDK. A gateway needs what the SDK does not promise: a child's whole
process group ended, lines and floods bounded, a call that is never sent twice, every address checked before it is asked.
The SDK also costs a second and 55 MB to import; the idle server is to fit into 80.
"""

from toolgate.tools.sources.mcp.line import CheckUrl, Http, HttpAnswer
from toolgate.tools.sources.mcp.pinning import Pins, Quarantined, Trust
from toolgate.tools.sources.mcp.servers import OAuth, Remote, Stdio
from toolgate.tools.sources.mcp.source import McpSource

__all__ = [
    "CheckUrl",
    "Http",
    "HttpAnswer",
    "McpSource",
    "OAuth",
    "Pins",
    "Quarantined",
    "Remote",
    "Stdio",
    "Trust",
]
