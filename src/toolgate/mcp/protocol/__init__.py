"""What the client and the server of MCP share.

jsonrpc.py       messages, encoded and decoded for both sides
headers.py       the HTTP headers, and which arguments they repeat
revisions.py     the supported revisions and how they differ
transport.py     the port that a client's session sends through, and its errors
line_reader.py   lines of a byte stream, within limits
server_config.py where an MCP server is, as it is configured
"""
