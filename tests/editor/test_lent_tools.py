"""The editor's tools: listed by the gateway, run for models of every API, confirmed by the person."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, body
from tests.editor.gateways import Gateway, get
from tests.editor.window import Window, wait_until
from toolgate.conversation.message import ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest

MODEL = "openai_chat"


def listed(gateway: Gateway, query: str = "") -> dict[str, Any]:
    """The gateway's tools by name."""
    return {tool["name"]: tool for tool in get(f"{gateway.url}/v1/tools{query}")["data"]}


@pytest.fixture(autouse=True)
def lent(window: Window, gateway: Gateway) -> None:
    """The probe's tools are lent."""
    wait_until(lambda: "probe_echo" in listed(gateway), window.page)


class Caller:
    """Plays a model that calls one tool and then repeats its result."""

    def __init__(self, tool: str, **arguments: Any) -> None:
        self._call = ToolCall("call_" + "a" * 24, tool, json.dumps(arguments))

    def __call__(self, request: ModelRequest) -> Any:
        results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
        return f"It said: {plain_text(results[-1].content)}" if results else [self._call]


def run(gateway: Gateway, tool: str, client: str = "openai_chat", stream: bool = False, **arguments: Any) -> str:
    """Let a model of the gateway call a tool of the editor, and return the answer."""
    gateway.stage.play(*[Caller(tool, **arguments)] * 6)
    asked = body(client, MODEL, stream, tool_execution="auto", use_vscode_tools=True)
    response = httpx.post(gateway.url + PATHS[client], json=asked, timeout=90)
    assert response.status_code == 200, response.text
    return response.text


def test_tools_are_listed_with_schema_and_tags(gateway: Gateway) -> None:
    tools = listed(gateway)
    assert tools["probe_echo"]["tags"] == ["probe", "harmless"]
    assert tools["probe_echo"]["inputSchema"]["required"] == ["text"]
    assert "copilot_readFile" in tools
    assert not [name for name in tools if name.startswith("mcp_toolgate") or name == "run_in_terminal"]


def test_tools_are_found_by_tag_and_name(gateway: Gateway) -> None:
    assert set(listed(gateway, "?tags=harmless")) == {"probe_echo"}
    assert set(listed(gateway, "?name=probe_f*")) == {"probe_fail"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_model_of_the_gateway_uses_a_tool_of_the_editor(
    window: Window, gateway: Gateway, client: str, stream: bool
) -> None:
    answer = run(gateway, "probe_echo", client, stream, text="harbour")
    assert window.calls == [{"name": "probe_echo", "input": {"text": "harbour"}}]
    assert "harbour" in answer


def test_a_lent_model_uses_a_lent_tool(window: Window, gateway: Gateway) -> None:
    call = {"call": "probe_echo", "id": "c1", "input": {"text": "both"}}
    window.play([{"text": "I look."}, call], [{"echo": True}])
    asked = body("openai_chat", "vscode/scripted/mini", False, tool_execution="auto", use_vscode_tools=["probe_echo"])
    response = httpx.post(gateway.url + PATHS["openai_chat"], json=asked, timeout=90)
    assert "echo: both" in response.json()["choices"][0]["message"]["content"]


def test_invalid_arguments_never_reach_the_editor(window: Window, gateway: Gateway) -> None:
    answer = run(gateway, "probe_echo", text=5)
    assert "text" in answer
    assert window.calls == []


def test_rendered_results_are_text(gateway: Gateway, window: Window) -> None:
    folder = window.run("return vscode.workspace.workspaceFolders[0].uri.fsPath")
    assert "notes.txt" in run(gateway, "copilot_listDirectory", path=folder)


def test_a_tool_that_fails_is_told_to_the_model(gateway: Gateway) -> None:
    assert "the probe fails" in run(gateway, "probe_fail")


def test_a_tool_that_was_never_registered_ends(gateway: Gateway) -> None:
    assert "It said:" in run(gateway, "probe_absent")


def start(pool: ThreadPoolExecutor, gateway: Gateway) -> "Future[str]":
    """Call the tool that asks the person, in a thread, while this one serves the window."""
    return pool.submit(run, gateway, "probe_confirm", text="yes")


def test_a_confirmation_that_is_accepted_runs_the_tool(window: Window, gateway: Gateway) -> None:
    with ThreadPoolExecutor() as pool:
        running = start(pool, gateway)
        window.dialog().get_by_text("May the probe say yes?").wait_for()
        window.press("Yes")
        wait_until(running.done, window.page)
        assert "confirmed: yes" in running.result()


def test_a_confirmation_that_is_cancelled_does_not(window: Window, gateway: Gateway) -> None:
    with ThreadPoolExecutor() as pool:
        running = start(pool, gateway)
        window.dialog().get_by_text("May the probe say yes?").wait_for()
        window.press("Cancel")
        wait_until(running.done, window.page)
        assert "It said:" in running.result()
    assert window.calls == []


def test_a_confirmation_that_is_left_open_ends_with_the_client(window: Window, gateway: Gateway) -> None:
    gateway.stage.play(*[Caller("probe_confirm", text="yes")] * 6)
    asked = body("openai_chat", MODEL, True, tool_execution="auto", use_vscode_tools=True)
    with httpx.stream("POST", gateway.url + PATHS["openai_chat"], json=asked, timeout=90):
        window.dialog().get_by_text("May the probe say yes?").wait_for()
    window.press("Cancel")  # the editor leaves the dialog open, though the call has ended
    wait_until(lambda: all(one["invocations"] == 0 for one in get(f"{gateway.url}/v1/bridge")["data"]), window.page)
    assert window.calls == []


def test_an_approval_of_the_gateway_is_answered_in_the_editor(window: Window, gateway: Gateway) -> None:
    with ThreadPoolExecutor() as pool:
        gateway.stage.play(*[Caller("erase", path="a.txt")] * 6)
        asked = body("openai_chat", MODEL, False, tool_execution="auto", use_server_tools=["erase"])
        running = pool.submit(httpx.post, gateway.url + PATHS["openai_chat"], json=asked, timeout=90)
        toast = window.toast("erase")
        toast.get_by_text('"path":"a.txt"').wait_for()
        toast.get_by_role("button", name="Approve").click()
        wait_until(running.done, window.page)
        assert "erased a.txt" in running.result().text
    assert len(gateway.erase.calls) == 1


def test_an_approval_is_denied_in_the_view(window: Window, gateway: Gateway) -> None:
    before = len(gateway.erase.calls)
    window.command("toolgate.approvals.focus")
    with ThreadPoolExecutor() as pool:
        gateway.stage.play(*[Caller("erase", path="b.txt")] * 6)
        asked = body("openai_chat", MODEL, False, tool_execution="auto", use_server_tools=["erase"])
        running = pool.submit(httpx.post, gateway.url + PATHS["openai_chat"], json=asked, timeout=90)
        row = window.page.get_by_role("treeitem").filter(has_text="b.txt")
        row.hover()
        row.get_by_role("button", name="Deny").click()
        wait_until(running.done, window.page)
        assert "It said:" in running.result().text
    assert len(gateway.erase.calls) == before
