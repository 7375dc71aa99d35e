"""Send requests over HTTP/1.1 and read the responses. Knows sockets, time and size; knows no dialect and no model.

UpstreamHttpClient (client.py)             finds the pool of a URL, sends, retries once on a stale connection
  address.py, request_writer.py   a parsed URL, and the bytes of a request
  ConnectionPool (pool.py)        the connections to one origin, and the queue for them
    dial.py, tunnel.py            name lookup, TCP, proxy and TLS
    UpstreamHttpConnection (connection.py) one socket
      ResponseReader              one response as it arrives (response_reader.py)
  UpstreamResponse (response.py)  what the caller reads, decompressed (inflate.py) and within the limits (limits.py)
"""

from toolgate.upstreams.transport.client import UpstreamHttpClient
from toolgate.upstreams.transport.limits import ResponseSizeLimits, UpstreamTimeouts
from toolgate.upstreams.transport.response import UpstreamResponse

__all__ = ["ResponseSizeLimits", "UpstreamHttpClient", "UpstreamResponse", "UpstreamTimeouts"]
