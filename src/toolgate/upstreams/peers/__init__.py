"""Stateful chat peers: platforms that keep the conversation themselves and are sent one message at a time.

PeerModel (model.py)              a stateless history in, an answer out: finds the conversation it continues and what is new
  history_turns.py                a history as turns of two speakers, their digest and their transcript
ReconnectingPeer (reconnect.py)   the way to one peer: opened when needed, opened again after a loss
  PeerConnection (connection.py)  one connection with many exchanges on it, and its heartbeat
    PeerExchange (exchange.py)    one question and its answer
  frames.py                       the frames of a connection, as JSON
  websocket.py                    the one file that knows the WebSocket library
"""

from toolgate.upstreams.peers.model import PeerConversations, PeerModel
from toolgate.upstreams.peers.reconnect import PeerLimits, ReconnectingPeer

__all__ = ["PeerConversations", "PeerLimits", "PeerModel", "ReconnectingPeer"]
