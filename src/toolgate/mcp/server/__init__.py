"""Toolgate as an MCP server: the registry's tools, over streamable HTTP and stdio, with and without handshake.

http.py stdio.py                     the transports: bytes in, bytes out
methods.py                           the methods: a request in, its response out; no bytes and no sockets
request_meta.py header_check.py      what a stateless request must carry in `_meta` and in its HTTP headers
tool_list.py results.py progress.py  tools, outputs and progress, encoded for a revision
tool_update_listeners.py             subscriptions to changes of the tools
client_state.py sessions.py          a client, what it waits for, and its session
outbox.py                            messages that wait to be sent to a client
tool_catalog_protocol.py             the port to the registry
http_errors.py                       errors of requests that are no JSON-RPC messages
"""
