"""What the Responses API remembers: responses, conversations, and answers that are still being made."""

from toolgate.server.responses.background import Terms
from toolgate.server.responses.endpoints import Responses
from toolgate.server.responses.sockets import Sockets
from toolgate.server.responses.state import State

__all__ = ["Responses", "Sockets", "State", "Terms"]
