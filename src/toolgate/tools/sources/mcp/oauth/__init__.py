"""Tokens for MCP servers that want one: OAuth 2.1 with PKCE, or client credentials for machines.

addresses.py   which addresses may be asked or shown to a person at all
fetch.py       small JSON over HTTP, every address checked first
discovery.py   from a server's refusal to its authorization server
grants.py      tokens: asked for, renewed, and looked at before they are used
registration.py  who we are to an authorization server
login.py       a person grants access in a browser
redirect.py    the browser comes back to us
tokens.py      what is kept between two starts
bearer.py      the token to send with the next request
"""
