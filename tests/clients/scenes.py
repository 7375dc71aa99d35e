"""What the scripted model does in the scenes that every client plays: talk, call, call twice at once, answer."""

from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Reasoning, Text, ToolCall, ToolResult, plain_text
from toolgate.testing import ScriptedModel

ID1, ID2 = "call_" + "a" * 24, "call_" + "b" * 24
HELLO = ModelResponse((Text("Hello from the model."),), "stop", Usage(12, 5, cache_read=4))
THOUGHT = ModelResponse((Reasoning("Let me think."), Text("Done.")), "stop", Usage(12, 9, reasoning=4))
LOOK_UP = ModelResponse(
    (Text("Let me look."), ToolCall(ID1, "get_weather", '{"city":"Paris"}')), "tool_calls", Usage(20, 8)
)
LOOK_UP_TWICE = ModelResponse(
    (ToolCall(ID1, "get_weather", '{"city":"Paris"}'), ToolCall(ID2, "get_weather", '{"city":"Rome"}')),
    "tool_calls",
    Usage(20, 16),
)
SUNNY = ModelResponse((Text("It is sunny."),), "stop", Usage(40, 4))
JSON_ANSWER = ModelResponse((Text('{"name":"Ada","age":36}'),), "stop", Usage(12, 9))
CUT_OFF = ModelResponse((Text("It was a dark and"),), "length", Usage(12, 5))

WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where"}},
    "required": ["city"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """The tool that clients run in these scenes."""
    return f"22 degrees in {city}"


def results_received(model: ScriptedModel) -> list[tuple[str, str]]:
    """Tool name and text of every result in the last request that the model got."""
    parts = [part for message in model.requests[-1].messages for part in message.parts]
    return [(part.name or "", plain_text(part.content)) for part in parts if isinstance(part, ToolResult)]


def calls_received(model: ScriptedModel) -> list[tuple[str, str]]:
    """Name and arguments of every call in the history of the last request that the model got."""
    parts = [part for message in model.requests[-1].messages for part in message.parts]
    return [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)]
