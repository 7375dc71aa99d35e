"""Calls of server tools are recorded, from a model's run and from MCP alike (spec: D1)."""

import asyncio
from typing import Any

from typer.testing import CliRunner

from tests.api.records.record_server import RecordServer, record_server
from tests.clients.scenes import HELLO
from toolgate.cli.commands import app
from toolgate.config.settings import ApprovalRuleSettings, ApprovalSettings, RecordSettings, ServerToolSettings
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import ToolCall
from toolgate.testing import FakeSource, FakeTool
from toolgate.tools.tool import ToolCallFailed, ToolOutput

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def raising(arguments: Any) -> ToolOutput:
    raise ToolCallFailed("It did not work.")


async def hanging(arguments: Any) -> str:
    await asyncio.Event().wait()
    return ""


SOURCE = FakeSource(
    FakeTool("add", lambda arguments: str(arguments["a"] + 1), input_schema=SCHEMA),
    FakeTool("fail", raising),
    FakeTool("hang", hanging, timeout=0.05),
    FakeTool("forbidden", lambda arguments: "never"),
)
TOOLS = ServerToolSettings(
    approvals=ApprovalSettings(rules=(ApprovalRuleSettings(stance="deny", tools=("forbidden",)),))
)


def call(name: str, arguments: str = '{"a": 41}') -> ModelResponse:
    return ModelResponse((ToolCall(f"call_{name:a<24}", name, arguments),), "tool_calls", Usage(1, 1))


def run_tools(kept: RecordServer, *calls: ModelResponse, who: str = "ann") -> None:
    kept.play(*calls, HELLO)
    body: dict[str, Any] = {"model": "openai_chat", "messages": [{"role": "user", "content": "Go."}]}
    body |= {"tool_execution": "auto", "use_server_tools": True}
    status, answer = kept.ask("/v1/chat/completions", who=who, method="POST", body=body)
    assert status == 200, answer


def test_every_call_of_a_tool_is_recorded_with_its_outcome() -> None:
    with record_server(SOURCE, tools=TOOLS) as kept:
        run_tools(kept, call("add"), call("add", '{"a": "x"}'), call("fail"), call("hang"), call("forbidden"))
        rows, [messages] = kept.listed("/v1/tool_invocations"), kept.chats()
    assert [(row["tool"], row["outcome"]) for row in reversed(rows)] == [
        ("add", "ok"),
        ("add", "refused"),
        ("fail", "error"),
        ("hang", "timeout"),
        ("forbidden", "denied"),
    ]
    assert all(row["owner"] == "ann" and row["source"] == "python" for row in rows)
    [message, *_] = messages
    assert {row["run"] for row in rows} == {message["request_id"]}
    assert rows[1]["latency_ms"] > 40
    assert all(row["arguments"] is None for row in rows)
    assert rows[-1]["digest"] != rows[-2]["digest"]


def test_arguments_are_stored_if_that_is_configured() -> None:
    with record_server(SOURCE, tools=TOOLS, records=RecordSettings(arguments=True)) as kept:
        run_tools(kept, call("add"))
        assert [row["arguments"] for row in kept.listed("/v1/tool_invocations")] == ['{"a": 41}']


def test_a_call_over_mcp_is_recorded_too() -> None:
    with record_server(SOURCE, tools=TOOLS) as kept:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
        assert kept.ask("/mcp", who="eve", method="POST", body=body)[0] == 200
        [row] = kept.listed("/v1/tool_invocations", who="eve")
    assert (row["tool"], row["outcome"], row["owner"]) == ("add", "ok", "eve")


def test_a_key_sees_its_own_calls_and_an_admin_all() -> None:
    with record_server(SOURCE, tools=TOOLS) as kept:
        run_tools(kept, call("add"))
        run_tools(kept, call("fail"), who="bob")
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations?owner=bob")] == ["add"]
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations", who="eve")] == ["fail", "add"]
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations?owner=bob", who="eve")] == ["fail"]
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations?outcome=ok", who="eve")] == ["add"]
        bobs = kept.listed("/v1/tool_invocations", who="bob")[0]["id"]
        assert kept.ask(f"/v1/tool_invocations?after={bobs}")[0] == 400


def test_the_command_shows_the_last_runs() -> None:
    with record_server(SOURCE, tools=TOOLS) as kept:
        run_tools(kept, call("add"), call("fail"))
        env = {"COLUMNS": "200", "TOOLGATE_URL": kept.url, "TOOLGATE_KEY": "eve-key"}
        shown = CliRunner().invoke(app, ["tools", "log"], env=env)
        assert shown.exit_code == 0, shown.output
        rows = [line.split("\t") for line in shown.stdout.splitlines()]
        assert [row[1:5] for row in rows] == [["ann", "fail", "python", "error"], ["ann", "add", "python", "ok"]]
        assert all(row[0].endswith("Z") and float(row[5]) > 0 for row in rows)  # a time in UTC, and milliseconds
        output = CliRunner().invoke(app, ["tools", "log", "--tool", "fail", "--json"], env=env).stdout
        assert '"outcome": "error"' in output
        assert '"outcome": "ok"' not in output
