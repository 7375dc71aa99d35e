"""Get tokens for MCP servers that demand one: OAuth 2.1 with PKCE for people, client credentials for machines.

addresses.py     which URLs may be opened or shown to a person at all
fetch.py         small JSON over HTTP, every URL checked first
discovery.py     from a server's 401 to its authorization server
registration.py  our client id at an authorization server
grants.py        requests for tokens, and checks of what comes back
login.py         a person grants access in a browser
redirect.py      the loopback page to which the browser returns
login_storage.py logins, stored between two starts
bearer.py        the token for the next request, renewed in time
"""
