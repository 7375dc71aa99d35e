"""A model that does as the last message says, which is a plan in JSON; it remembers nothing, so it can be asked again.

    {"id": "p1", "rounds": [["unsafe"], ["idempotent", "read"]]}

is two rounds of calls and then words about what came of them.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.stage import upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Message, Part, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.http.listener import listening
from toolgate.testing import ScriptedModel, ScriptedModelStream

USAGE = Usage(input=1000, output=1000)
PRICE = 1.0
"""Of a million tokens."""
COST = PRICE * (USAGE.input + USAGE.output) / 1_000_000
"""Of an answer."""


class Planner:
    """The model; `answered` counts how often it was asked about each plan."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self._calls = 0

    def answers(self, name: str) -> int:
        """How often it was asked about plans whose ids begin so."""
        return sum(count for plan, count in self.answered.items() if plan.startswith(name))

    async def ask(self, request: ModelRequest) -> ScriptedModelStream:
        """The next round of the plan, or its end."""
        last = max(number for number, message in enumerate(request.messages) if message.role == "user")
        plan = json.loads(plain_text(request.messages[last].parts))
        since = request.messages[last + 1 :]
        done = sum(any(isinstance(part, ToolCall) for part in message.parts) for message in since)
        rounds: list[list[str]] = plan.get("rounds", [])
        self.answered[plan["id"]] += 1
        if done < len(rounds):
            parts = [Text(f"This is round {done}."), *self._made(plan["id"], done, rounds[done])]
            return await _answer(request, parts, "tool_calls")
        return await _answer(request, [Text(_words(plan, request.messages, since))], "stop")

    def _made(self, plan: str, number: int, names: Sequence[str]) -> list[Part]:
        calls: list[Part] = []
        for at, name in enumerate(names):
            self._calls += 1
            effect = {"effect": f"{plan}/{number}/{at}"}
            calls.append(ToolCall(f"call_{self._calls:024d}", name, json.dumps(effect)))
        return calls


async def _answer(request: ModelRequest, parts: Sequence[Part], reason: FinishReason) -> ScriptedModelStream:
    """Word by word and slowly, so that there is a middle to be cut off in."""
    response = ModelResponse(tuple(parts), reason, USAGE)
    return await ScriptedModel([response], pace=lambda: asyncio.sleep(0.003)).ask(request)


def _words(plan: dict[str, Any], messages: Sequence[Message], since: Sequence[Message]) -> str:
    """What the model has seen: how many users spoke, and how each call ended."""
    users = sum(message.role == "user" for message in messages)
    results = [part for message in since for part in message.parts if isinstance(part, ToolResult)]
    return f"{plan['id']} users={users} results={','.join([_ending(one) for one in results])}"


def _ending(result: ToolResult) -> str:
    text = plain_text(result.content)
    for ending in ("did ", "outcome is unknown", "no tool", "not allowed"):
        if ending in text:
            return ending.strip().replace(" ", "-")
    return "odd:" + text[:60].replace(" ", "-")


@asynccontextmanager
async def planning() -> AsyncIterator[tuple[Planner, str]]:
    """The model behind a server of its own, and that server's URL; it survives all others."""
    planner = Planner()
    async with listening(Toolgate(upstream_config(), {"played": planner})) as url:
        yield planner, url
