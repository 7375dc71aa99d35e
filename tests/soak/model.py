"""The upstream of a soak: a model that does what the last user message says, in all four dialects.

`call NAME {"a": 1}` is answered by that call, once; anything else is answered by words, slowly enough to be left.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.stage import upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.http.listener import listening
from toolgate.testing import ScriptedModel, ScriptedModelStream

WORDS = "These are the words of the model, one after the other. " * 4


class Obedient:
    """The model."""

    async def ask(self, request: ModelRequest) -> ScriptedModelStream:
        """Do what the last message says."""
        last = max(number for number, message in enumerate(request.messages) if message.role == "user")
        order = plain_text(request.messages[last].parts)
        since = [part for message in request.messages[last:] for part in message.parts]
        parts: list[Part] = [Text(WORDS)]
        if order.startswith("call ") and not any(isinstance(part, ToolResult) for part in since):
            _, name, arguments = order.split(" ", 2)
            parts = [ToolCall(f"call_soak{id(request):020d}"[:40], name, arguments)]
        reason: FinishReason = "tool_calls" if isinstance(parts[0], ToolCall) else "stop"
        response = ModelResponse(tuple(parts), reason, Usage(10, 10))
        return await ScriptedModel([response], pace=lambda: asyncio.sleep(0.001)).ask(request)


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """The URL of the upstream, for as long as the block lasts."""
    async with listening(Toolgate(upstream_config(), {"played": Obedient()})) as url:
        yield url
