"""The requests that are sent, in the two client dialects measured; knows no peer and no socket."""

import json
from typing import Any, Literal, NamedTuple

from bench.answers import script

Wire = Literal["chat", "messages"]
PATHS: dict[Wire, str] = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
TERMINATORS: dict[Wire, str] = {"chat": "data: [DONE]", "messages": "message_stop"}

GROWING_CHUNKS = (10, 100, 1000, 10_000)
GROWING_HISTORY = (1, 10, 100, 1000, 10_000)

# Gateways with a model table list these, once over a Chat upstream and once over an Anthropic one.
MODELS = (
    "mock",
    "mock-tools",
    "mock-tools-chunks-1000",
    "mock-slow",
    "mock-chunks-100-every-5",
    *(f"mock-chunks-{count}" for count in GROWING_CHUNKS),
)


class Route(NamedTuple):
    """Which wire format the client speaks, and which the upstream."""

    client: Wire
    upstream: Wire

    def __str__(self) -> str:
        names = {"chat": "Chat", "messages": "Anthropic"}
        return f"{names[self.client]} → {names[self.upstream]}"


CHAT = Route("chat", "chat")
MESSAGES_OVER_CHAT = Route("messages", "chat")
CHAT_OVER_MESSAGES = Route("chat", "messages")


class Shape(NamedTuple):
    """One kind of request: what it carries and which scripted model answers it."""

    model: str
    stream: bool = False
    tools: bool = False
    history: int = 1

    @property
    def words(self) -> int:
        """How many words a right answer holds; streamed, each is a chunk."""
        return script(self.model).words

    def body(self, wire: Wire, model: str) -> str:
        """The request in a client's dialect, under the name the peer knows the model by."""
        request: dict[str, Any] = {"model": model, "max_tokens": 1000, "messages": _history(self.history)}
        if self.stream:
            request["stream"] = True
        if self.tools:
            request["tools"] = [_TOOL_SHAPES[wire](tool) for tool in _TOOLS]
        return json.dumps(request)


def _history(length: int) -> list[dict[str, str]]:
    """Alternating turns of some two hundred characters each, the user's last."""
    text = "The ferry to the island leaves at nine and comes back at six, unless the wind is over seven Beaufort. " * 2
    roles = ("user", "assistant")
    return [{"role": roles[(length - 1 - at) % 2], "content": f"{at}: {text}"} for at in range(length)]


_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What to write down."},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Words to find it by."},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["text"],
}
_TOOLS = tuple(
    {"name": name, "description": f"Does `{name}` for the person asking, and says what came of it.", "schema": _SCHEMA}
    for name in ("write_note", *(f"tool_{number}" for number in range(1, 10)))
)


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool["schema"]}
    return {"type": "function", "function": function}


def _messages_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["schema"]}


_TOOL_SHAPES = {"chat": _chat_tool, "messages": _messages_tool}
