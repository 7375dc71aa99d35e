"""What became of server tools is noted, from a model's loop and from MCP alike (D1)."""

import asyncio
from typing import Any

from typer.testing import CliRunner

from tests.clients.scenes import HELLO
from tests.server.records.keeping import Keeping, keeping
from toolgate.cli.commands import app
from toolgate.config.settings import ApprovalRule, Approvals, Records, Tools
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import ToolCall
from toolgate.testing import FakeSource, FakeTool
from toolgate.tools.tool import Output, ToolFailure

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def raising(arguments: Any) -> Output:
    raise ToolFailure("It did not work.")


async def hanging(arguments: Any) -> str:
    await asyncio.Event().wait()
    return ""


SOURCE = FakeSource(
    FakeTool("add", lambda arguments: str(arguments["a"] + 1), input_schema=SCHEMA),
    FakeTool("fail", raising),
    FakeTool("hang", hanging, timeout=0.05),
    FakeTool("forbidden", lambda arguments: "never"),
)
TOOLS = Tools(approvals=Approvals(rules=(ApprovalRule(stance="deny", tools=("forbidden",)),)))


def call(name: str, arguments: str = '{"a": 41}') -> ModelResponse:
    return ModelResponse((ToolCall(f"call_{name:a<24}", name, arguments),), "tool_calls", Usage(1, 1))


def run_tools(kept: Keeping, *calls: ModelResponse, who: str = "ann") -> None:
    kept.play(*calls, HELLO)
    body = {"model": "openai_chat", "messages": [{"role": "user", "content": "Go."}], "tool_execution": "auto"}
    body["use_server_tools"] = True
    status, answer = kept.ask("/v1/chat/completions", who=who, method="POST", body=body)
    assert status == 200, answer


def test_every_run_of_a_tool_is_noted_with_its_outcome() -> None:
    with keeping(SOURCE, tools=TOOLS) as kept:
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


def test_arguments_are_kept_where_the_configuration_says_so() -> None:
    with keeping(SOURCE, tools=TOOLS, records=Records(arguments=True)) as kept:
        run_tools(kept, call("add"))
        assert [row["arguments"] for row in kept.listed("/v1/tool_invocations")] == ['{"a": 41}']


def test_a_call_over_mcp_is_noted_too() -> None:
    with keeping(SOURCE, tools=TOOLS) as kept:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1}}}
        assert kept.ask("/mcp", who="eve", method="POST", body=body)[0] == 200
        [row] = kept.listed("/v1/tool_invocations", who="eve")
    assert (row["tool"], row["outcome"], row["owner"]) == ("add", "ok", "eve")


def test_everybody_sees_their_own_and_an_admin_all() -> None:
    with keeping(SOURCE, tools=TOOLS) as kept:
        run_tools(kept, call("add"))
        run_tools(kept, call("fail"), who="bob")
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations?owner=bob")] == ["add"]
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations", who="eve")] == ["fail", "add"]
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations?owner=bob", who="eve")] == ["fail"]
        assert [row["tool"] for row in kept.listed("/v1/tool_invocations?outcome=ok", who="eve")] == ["add"]
        bobs = kept.listed("/v1/tool_invocations", who="bob")[0]["id"]
        assert kept.ask(f"/v1/tool_invocations?after={bobs}")[0] == 400


def test_the_command_shows_the_last_runs() -> None:
    with keeping(SOURCE, tools=TOOLS) as kept:
        run_tools(kept, call("add"), call("fail"))
        env = {"COLUMNS": "200", "TOOLGATE_URL": kept.url, "TOOLGATE_KEY": "eve-key"}
        shown = CliRunner().invoke(app, ["tools", "log"], env=env)
        assert shown.exit_code == 0, shown.output
        for word in ("ann", "add", "python", "ok", "error", "ms"):
            assert word in shown.stdout
        told = CliRunner().invoke(app, ["tools", "log", "--tool", "fail", "--json"], env=env).stdout
        assert '"outcome": "error"' in told
        assert '"outcome": "ok"' not in told
