"""What the Responses API remembers: responses, conversations, and answers that are still being made."""

from toolgate.api.responses.background_run import BackgroundOptions, BackgroundServices
from toolgate.api.responses.endpoints import ResponseEndpoints
from toolgate.api.responses.state import ResponsesState
from toolgate.api.responses.websocket import ResponseWebSockets

__all__ = ["BackgroundOptions", "BackgroundServices", "ResponseEndpoints", "ResponseWebSockets", "ResponsesState"]
