"""Bytes to an upstream and back over HTTP/1.1. Knows sockets, time and size; knows no dialect and no model.

Transport (client.py)     routes a URL to its pool, sends, retries once on a stale connection
  address.py, request.py  a URL taken apart once, and the bytes of a request
  Pool (pool.py)          the connections to one origin: who may use one, who waits
    dial.py, tunnel.py    name, TCP, proxy and TLS
    Connection            one socket (connection.py)
      Incoming            one answer as it arrives (incoming.py)
  Reply (reply.py)        what the caller reads, decompressed (inflate.py) and within the caps (limits.py)
"""

from toolgate.upstreams.transport.client import Transport
from toolgate.upstreams.transport.limits import Caps, Timeouts
from toolgate.upstreams.transport.reply import Reply

__all__ = ["Caps", "Reply", "Timeouts", "Transport"]
