"""Output of models that only write text: beginnings of calls without end, marks of every syntax, quotes, escapes."""

from tests.laws.answers import streamed, whole
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text

PIECES = {
    "angle": "<",
    "invoke": '<invoke name="look">',
    "call": "<tool_call>",
    "half": '<tool_call>{"name": "look", "arguments": {',
    "fences": "```json\n",
    "brackets": "[look(",
    "quotes": '"\\',
    "braces": "{",
    "thinking": "<think>",
    "python": "look(at='",
    "function": "<function=look><parameter=at>",
    "markers": "<|tool_call|>[TOOL_CALLS][ARGS]",
    "blank": " \n",
    "calls": '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>\n',
}
VARIANTS = tuple(f"{kind}-{model}" for kind in PIECES for model in ("text", "promoted"))
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}


async def play(gateway: Gateway, variant: str) -> None:
    kind, model = variant.split("-")
    piece = PIECES[kind]
    text = piece * (size(150_000, 1_000_000) // len(piece))
    gateway.play(whole("openai_chat", Text(text)))
    await gateway.ask("openai_chat", model, tools=[TOOL])
    gateway.play(streamed("openai_chat", Text(piece), times=size(4_000, 30_000)))
    await gateway.ask("openai_chat", model, stream=True, tools=[TOOL])
