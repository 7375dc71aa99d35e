"""The requests that are sent, in the two client dialects measured; knows no peer and no socket."""

import json
from typing import Any, Literal, NamedTuple

from bench.answers import CLOCK, rounds, script, text

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
# Those that call the gateway's own tools, over a Chat upstream.
CALLING_MODELS = ("mock-rounds-4", "mock-rounds-1-chunks-10", "mock-rounds-1-chunks-10-waiting")


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
    """One kind of request: what it carries and which scripted model answers it.

    `server_tools` are names and patterns of tools that the server is to offer and to run. `ran` is how many rounds of the
    clock the client has run by itself, `own` how many tools are the client's. Another `number` is another request.
    """

    model: str
    stream: bool = False
    tools: bool = False
    history: int = 1
    server_tools: tuple[str, ...] = ()
    ran: int | None = None
    own: int = 0
    number: int = 0

    @property
    def words(self) -> int:
        """How many words a right answer holds; streamed, each is a chunk."""
        return script(self.model).words * (rounds(self.model) + 1 if self.server_tools else 1)

    def body(self, wire: Wire, model: str) -> str:
        """The request in a client's dialect, under the name the peer knows the model by."""
        request: dict[str, Any] = {"model": model, "max_tokens": 1000, "messages": _history(self.history, self.number)}
        if self.stream:
            request["stream"] = True
        if self.tools:
            request["tools"] = [_TOOL_SHAPES[wire](tool) for tool in _TOOLS]
        if self.own:
            request["tools"] = [_TOOL_SHAPES[wire]({**_TOOLS[0], "name": f"own_{at}"}) for at in range(self.own)]
        if self.server_tools:
            request |= {"tool_execution": "auto", "use_server_tools": self.server_tools}
        if self.ran is not None:
            request["tools"] = [_TOOL_SHAPES[wire](_CLOCK)]
            request["messages"] += [message for at in range(self.ran) for message in _ROUNDS[wire](self.model, at)]
        return json.dumps(request)


def _history(length: int, first: int = 0) -> list[dict[str, Any]]:
    """Alternating turns of some two hundred characters each, the user's last."""
    output = (
        "The ferry to the island leaves at nine and comes back at six, unless the wind is over seven Beaufort. " * 2
    )
    roles = ("user", "assistant")
    return [{"role": roles[(length - 1 - at) % 2], "content": f"{first + at}: {output}"} for at in range(length)]


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


_CLOCK = {
    "name": CLOCK,
    "description": "Tells the current date, time, weekday and UTC offset in a time zone. Use it, do not guess.",
    "schema": {
        "type": "object",
        "properties": {"timezone": {"type": "string", "description": "IANA name or an offset.", "maxLength": 64}},
        "additionalProperties": False,
    },
}


def _chat_round(model: str, at: int) -> list[dict[str, Any]]:
    """One call of the clock and its result, as a client that runs it sends them back."""
    output = script(model, results=at)
    assert output.call is not None
    function = {"name": CLOCK, "arguments": output.call.arguments}
    call = {"id": f"call_{at}", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call["id"], "content": _time(at)}
    return [{"role": "assistant", "content": text(output), "tool_calls": [call]}, result]


def _messages_round(model: str, at: int) -> list[dict[str, Any]]:
    output = script(model, results=at)
    assert output.call is not None
    call = {"type": "tool_use", "id": f"call_{at}", "name": CLOCK, "input": json.loads(output.call.arguments)}
    sent = {"type": "text", "text": text(output)}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": _time(at)}
    return [{"role": "assistant", "content": [sent, call]}, {"role": "user", "content": [result]}]


def _time(at: int) -> str:
    return f"Monday, 16 November 2026, 10:00:00 in UTC+{at + 1} (UTC+0{at + 1}:00)\nISO 8601: 2026-11-16T10:00:00"


_ROUNDS = {"chat": _chat_round, "messages": _messages_round}
