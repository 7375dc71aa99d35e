"""Stateful chat peers: platforms that keep the conversation themselves and are sent one message at a time.

StatefulChatModel (model.py)            a stateless history in, an answer out: finds what it continues and what is new
  history_turns.py                      a history as turns of two speakers, their digest and their transcript
ReconnectingStatefulChat (reconnect.py) the way to one peer: opened when needed, opened again after a loss
  StatefulChatConnection (connection.py) one connection with many exchanges on it, and its heartbeat
    StatefulChatExchange (exchange.py)  one question and its answer
  frames.py                             the frames of a connection, as JSON
  websocket.py                          the one file that knows the WebSocket library
"""

from toolgate.upstreams.stateful_chat.model import StatefulChatConversationStoreProtocol, StatefulChatModel
from toolgate.upstreams.stateful_chat.reconnect import ReconnectingStatefulChat, StatefulChatLimits

__all__ = [
    "ReconnectingStatefulChat",
    "StatefulChatConversationStoreProtocol",
    "StatefulChatLimits",
    "StatefulChatModel",
]
