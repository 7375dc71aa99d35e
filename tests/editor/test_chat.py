"""The editor's own chat in agent mode with Toolgate's models, over each kind of upstream, and with Toolgate's tools."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.editor.editor import Editor
from tests.editor.gateways import Gateway, get
from tests.editor.window import Window, wait_until
from tests.stage import UPSTREAMS
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest

_OPEN = """
state.chat = undefined
const modelSelector = { vendor: 'toolgate', id: argument[1] }
const options = { query: argument[0], mode: 'agent', modelSelector, blockOnResponse: true }
vscode.commands.executeCommand('workbench.action.chat.open', options).then(
  (result) => { state.chat = { result: JSON.parse(JSON.stringify(result ?? null)) } },
  (error) => { state.chat = { error: String(error) } },
)
"""
REQUESTS = 40


class Agent:
    """Plays a model for the agent: calls one tool, then says what came back. Titles and summaries get no tools."""

    def __init__(self, tool: str, **arguments: Any) -> None:
        self._call = ToolCall("call_" + "a" * 24, tool, json.dumps(arguments))
        self.offered: list[str] = []

    def __call__(self, request: ModelRequest) -> Any:
        if not request.tools:
            return "A title"
        self.offered = [tool.name for tool in request.tools]
        results = [part for part in request.messages[-1].parts if isinstance(part, ToolResult)]
        if results:
            return f"It is done: {plain_text(results[0].content)[:40]}"
        return [Text("I do it."), self._call]


class TextAgent:
    """Plays a model that only writes text: writes one call, then says what came back."""

    def __init__(self, file: Path, content: str) -> None:
        self._made = re.compile(rf"Tool Call: create_file\(.*{re.escape(str(file))}")  # not those of earlier turns
        parameters = {"filePath": str(file), "content": content}
        written = [f'<parameter name="{name}">{value}</parameter>' for name, value in parameters.items()]
        self._call = "\n".join(["I do it.", '<invoke name="create_file">', *written, "</invoke>"])

    def __call__(self, request: ModelRequest) -> str:
        assert not request.tools
        texts = [part.text for message in request.messages for part in message.parts if isinstance(part, Text)]
        return self.answer("\n".join(texts))

    def answer(self, text: str) -> str:
        """Answer a text that holds the tools or their results."""
        if self._made.search(text):
            return "It is done: as text."
        return self._call if "create_file" in text else "A title"


def chat(window: Window, query: str, model: str) -> Any:
    """Ask in the editor's chat and return the result of the turn."""
    window.run(_OPEN, [query, model])
    wait_until(lambda: window.run("return state.chat !== undefined"), window.page)
    outcome = window.run("return state.chat")
    assert "error" not in outcome, outcome
    return outcome["result"]


@pytest.fixture
def project(editor: Editor) -> Path:
    """The folder that the window shows."""
    return editor.home / "project"


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_the_agent_edits_a_file_with_a_model_of_each_kind_of_upstream(
    window: Window, gateway: Gateway, project: Path, upstream: str
) -> None:
    file = project / f"{upstream}.txt"
    agent = Agent("create_file", filePath=str(file), content=f"made over {upstream}\n")
    gateway.stage.play(*[agent] * REQUESTS)
    result = chat(window, f"Create {file.name}", upstream)
    wait_until(lambda: file.exists() and file.read_text() == f"made over {upstream}\n", window.page)
    rounds = result["metadata"]["toolCallRounds"]
    assert [call["name"] for each in rounds for call in each["toolCalls"]] == ["create_file"]
    assert rounds[-1]["response"].startswith("It is done:")
    assert not any("probe" in name and name.startswith("mcp_") for name in agent.offered), agent.offered


@pytest.mark.parametrize("model", ["text-only", "peer"])
def test_the_agent_edits_a_file_with_a_model_that_only_writes_text(
    window: Window, gateway: Gateway, project: Path, model: str
) -> None:
    file = project / f"{model}.txt"
    agent = TextAgent(file, f"made over {model}")
    gateway.stage.play(*[agent] * REQUESTS)
    gateway.peer.answer = agent.answer
    result = chat(window, f"Create {file.name}", model)
    wait_until(lambda: file.exists() and file.read_text().strip() == f"made over {model}", window.page)
    rounds = result["metadata"]["toolCallRounds"]
    assert [call["name"] for each in rounds for call in each["toolCalls"]] == ["create_file"]
    assert rounds[-1]["response"] == "It is done: as text."


def test_the_agent_uses_the_gateways_own_tools(window: Window, gateway: Gateway) -> None:
    agent = Agent("mcp_toolgate_add", a=20, b=22)
    gateway.stage.play(*[agent] * REQUESTS)
    rounds = chat(window, "Add 20 and 22", "openai_chat")["metadata"]["toolCallRounds"]
    assert "mcp_toolgate_erase" in agent.offered
    assert rounds[-1]["response"] == "It is done: 42"


def test_neither_side_gets_its_own_tools_back(window: Window, gateway: Gateway) -> None:
    window.until("return vscode.lm.tools.some(({ name }) => name.startsWith('mcp_toolgate_'))")
    returned = [
        tool["name"] for tool in get(f"{gateway.url}/v1/tools?limit=100")["data"] if "mcp_toolgate" in tool["name"]
    ]
    assert returned == []
    names = window.run(
        "return vscode.lm.tools.map(({ name }) => name).filter((name) => name.startsWith('mcp_toolgate_'))"
    )
    assert not [name for name in names if "probe" in name or "copilot" in name], names


def test_an_upstream_that_fails_is_shown_by_its_message_without_a_stack(window: Window, gateway: Gateway) -> None:
    gateway.stage.play(*[UpstreamUnavailable("The machine is on fire.")] * REQUESTS)
    details = chat(window, "Hello", "openai_chat")["errorDetails"]["message"]
    assert "on fire" in details, details
    assert " at " not in details, details
