"""Toolgate as an MCP server: the tools of the registry, over streamable HTTP and over stdio, in both eras of the protocol.

door.py                                    what is asked of the registry
jsonrpc.py revisions.py envelope.py mirrors.py   what a message is, by the rules of its revision
listing.py results.py telling.py           tools, their outputs and their progress in the protocol's words
service.py peer.py changes.py              the methods: a request in, a response out, no bytes and no sockets
http.py sessions.py outbox.py words.py     streamable HTTP
stdio.py                                   lines on stdin and stdout
"""
