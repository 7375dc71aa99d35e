"""Stateful chat peers: platforms that keep the conversation themselves and are sent one message at a time.

PeerModel (model.py)   a stateless history in, an answer out: which conversation it continues, and what is new in it
  turns.py             a history as turns of two speakers, their digest and their transcript
Peer (peer.py)         the way to one peer: opened when needed, opened again after a loss
  Line (line.py)       one connection with many exchanges on it, and its heartbeat
    Exchange           one question under way (exchange.py)
  frames.py            what is said on a line, as JSON
  websocket.py         the one file that knows the WebSocket library
"""

from toolgate.upstreams.peers.model import Conversations, PeerModel
from toolgate.upstreams.peers.peer import Limits, Peer

__all__ = ["Conversations", "Limits", "Peer", "PeerModel"]
