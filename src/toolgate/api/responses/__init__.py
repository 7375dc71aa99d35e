"""What the Responses API remembers: responses, conversations, and answers that are still being made."""

from toolgate.api.responses.background_run import BackgroundResponseOptions, BackgroundServices
from toolgate.api.responses.conversations_and_background import ConversationsAndBackground
from toolgate.api.responses.endpoints import ResponseEndpoints
from toolgate.api.responses.websocket import ResponseWebSockets

__all__ = [
    "BackgroundResponseOptions",
    "BackgroundServices",
    "ConversationsAndBackground",
    "ResponseEndpoints",
    "ResponseWebSockets",
]
