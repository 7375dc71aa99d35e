"""The gateway that conformance is tried on: the four upstream APIs, a model that only writes text, and two server tools."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import msgspec

from tests.clients.scenes import WEATHER_SCHEMA
from tests.stage import UPSTREAMS, Player, Stage, gateway_config, in_a_thread, upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, ModelConfig, TargetConfig
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.http.listener import listening
from toolgate.testing import Entry, FakeSource, FakeTool, ScriptedAnswer
from toolgate.text_tools.syntaxes import syntax
from toolgate.tools.tool import Annotations
from toolgate.upstreams.catalog import ModelCapabilities

TEXT = "text"
"""The upstream whose model calls tools by writing text."""
COLUMNS: dict[str, str] = {
    "openai_chat": "Chat",
    "openai_responses": "Responses",
    "anthropic": "Anthropic",
    "ollama": "Ollama",
    TEXT: "text only",
}
SYNTAX = "invoke"
_TOOLS = {
    "get_weather": ToolDef("get_weather", None, WEATHER_SCHEMA),
    "get_time": ToolDef("get_time", None, {"type": "object"}),
    "write": ToolDef("write", None, {"type": "object"}),
}


def text_model(config: Config) -> Config:
    """Add the model that only writes text, behind the Chat upstream."""
    target = TargetConfig(upstream="openai_chat", model="played")
    capabilities = ModelCapabilities(images=False)
    text = ModelConfig(
        name=TEXT, targets=(target,), retries=0, tools="emulated", syntax=SYNTAX, capabilities=capabilities
    )
    return msgspec.structs.replace(config, models=(*config.models, text))


@asynccontextmanager
async def _opened() -> AsyncIterator[Stage]:
    player = Player()
    source = FakeSource(
        FakeTool("get_time", lambda arguments: "noon"),
        FakeTool("write", lambda arguments: "written", annotations=Annotations()),
    )
    tools = ServerToolSettings(approvals=ApprovalSettings(hold_seconds=30))
    async with listening(Toolgate(upstream_config(), {"played": player})) as upstream_url:
        config = text_model(gateway_config(upstream_url, tools=tools))
        async with listening(gate := Toolgate(config, sources=(source,))) as url:
            yield Stage(url, player, gate)


def conformance_stage() -> AbstractContextManager[Stage]:
    """Gateway and upstream in a thread of their own."""
    return in_a_thread(_opened())


def as_text(entry: Entry) -> Entry:
    """The same entry of a script for a model that writes its calls as text."""
    return _text_of(entry) if callable(entry) else _written(entry)


def _text_of(entry: Callable[[ModelRequest], Any]) -> Callable[[ModelRequest], ScriptedAnswer]:
    return lambda request: _written(entry(request))


def _written(response: ScriptedAnswer) -> ScriptedAnswer:
    if not isinstance(response, ModelResponse):
        return response
    calls = [part for part in response.parts if isinstance(part, ToolCall)]
    if not calls:
        return response
    parts = [part for part in response.parts if not isinstance(part, ToolCall)]
    text = Text("\n" + syntax(SYNTAX).render(calls, _TOOLS))
    return ModelResponse((*parts, text), "stop", response.usage)


assert set(COLUMNS) == {*UPSTREAMS, TEXT}
