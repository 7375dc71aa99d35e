"""Tools over a peer that only writes text: calls that are written anew on their way back are recognised (spec: T8, U3)."""

import json
from typing import Any

import pytest

from tests.upstreams.stateful_chat.peer_server import answering, emitted
from toolgate.conversation.events import PartEnd
from toolgate.conversation.message import Message, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.text_tools.emulation.model import EmulatedModel

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = ToolDef("get_weather", "The weather.", SCHEMA)
CALLS = {
    "invoke": 'Let me see.\n\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>',
    "hermes": 'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
}


class Weatherman:
    """A peer that writes a call to its first message and an answer to the second; keeps what it was told."""

    def __init__(self, call: str) -> None:
        self.received: list[tuple[str, str]] = []
        self._call = call
        self._created = 0

    async def __call__(self, connection: Any) -> None:
        async for text in connection:
            match json.loads(text):
                case {"type": "hello"}:
                    await connection.send('{"type":"welcome","protocol":1}')
                case {"type": "create_conversation", "id": id}:
                    self._created += 1
                    created = {"type": "conversation_created", "id": id, "conversation": f"c{self._created}"}
                    await connection.send(json.dumps(created))
                case {"type": "send_message", "id": id, "conversation": conversation, "text": output}:
                    self.received.append((conversation, output))
                    answer = self._call if len(self.received) % 2 else "It rains."
                    for letter in answer:
                        await connection.send(json.dumps({"type": "delta", "id": id, "text": letter}))
                    await connection.send(json.dumps({"type": "done", "id": id}))


async def parts(model: EmulatedModel, *messages: Message) -> tuple[Part, ...]:
    answer = await model.ask(ModelRequest("bot", messages, tools=(WEATHER,), stream=True))
    return tuple([event.part for event in await emitted(answer) if isinstance(event, PartEnd)])


@pytest.mark.parametrize("syntax", CALLS)
async def test_a_round_of_tools_stays_in_one_conversation(syntax: str) -> None:
    man = Weatherman(CALLS[syntax])
    async with answering(man) as peer:
        model = EmulatedModel(peer, syntax=syntax, stops=False)
        asked = (Message("system", (Text("Be brief."),)), Message("user", (Text("Weather in Paris?"),)))
        first = await parts(model, *asked)
        [call] = [part for part in first if isinstance(part, ToolCall)]
        replayed = ToolCall(call.id, call.name, json.dumps(json.loads(call.arguments)))
        turn = Message("assistant", tuple([replayed if part is call else part for part in first]))
        result = Message("tool", (ToolResult(call.id, (Text("rain"),)),))
        last = await parts(model, *asked, turn, result)
        assert last == (Text("It rains."),)
        await parts(model, *asked, turn, result, Message("assistant", last), Message("user", (Text("And Rome?"),)))
    assert [conversation for conversation, _ in man.received] == ["c1", "c1", "c1"]
    assert "Be brief." not in man.received[1][1]
    assert "rain" in man.received[1][1]
