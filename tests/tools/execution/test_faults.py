"""What tools, their servers and their callers do wrong, through the whole server on real sockets.

Whatever happens, `at_work` sees to it that the server lives, answers, and is left with nothing that it did not begin with.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.api.http_client import CLIENTS
from tests.mcp.client.sources import mock, noted, source_of
from tests.stage import on_stage
from tests.tools.execution.toolwork import (
    CANARY,
    TRUSTING,
    Oracle,
    at_work,
    call,
    calls,
    emitted,
    image,
    output,
    quiet,
    results,
    soon,
    tool,
)
from toolgate.config import Secret
from toolgate.config.settings import (
    ApprovalSettings,
    McpServerSettings,
    OpenApiSettings,
    RunLimitSettings,
    ServerToolSettings,
    ToolWorkerSettings,
)
from toolgate.conversation.message import Media, Text, ToolResult
from toolgate.testing import FakeTool
from toolgate.tools.tool import CallProgressUpdate, ToolCallInput, ToolOutput

DIALECTS = pytest.mark.parametrize("client", CLIENTS)
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def tools(**changes: Any) -> ServerToolSettings:
    return ServerToolSettings(approvals=TRUSTING.approvals, **changes)


# T1, T2: tools that hang and crash


NASTY = """
import ctypes, os, sys, time
from toolgate.lm import tool

@tool()
def spin() -> str:
    "Never ends."
    while True:
        pass

@tool()
def sleep() -> str:
    "Never ends either."
    time.sleep(600)

@tool()
def leave() -> str:
    "Leaves."
    sys.exit(3)

@tool()
def fault() -> str:
    "Falls."
    return ctypes.string_at(0).decode()

@tool()
def vanish() -> str:
    "Is gone."
    os._exit(1)

@tool()
def hoard() -> str:
    "Takes all memory."
    return str(len(bytearray(1 << 40)))

@tool()
def deep() -> str:
    "Falls into itself."
    return deep()

@tool()
def good() -> str:
    "Works."
    return "well"
"""


async def test_a_python_tool_that_hangs_or_crashes_fails_alone(tmp_path: Path) -> None:
    """fault: T1, T2; field: E16"""
    (tmp_path / "nasty.py").write_text(NASTY)
    names = ("spin", "sleep", "leave", "fault", "vanish", "hoard", "good")
    setup = tools(
        python=(str(tmp_path),), workers=ToolWorkerSettings(count=4), limits=RunLimitSettings(call_seconds=2.0)
    )
    async with at_work(tools=setup) as work:
        await soon(lambda: _is_listed(work, "good"))
        script = work.play([call(name, "{}") for name in names], "Done.")
        answered_meanwhile = 0
        asking = asyncio.ensure_future(work.ask())
        while not asking.done():
            assert (await work.get("/healthz")).status == 200
            answered_meanwhile += 1
            await asyncio.sleep(0.05)
        assert output("openai_chat", await asking) == "Done."
        gave = dict(zip(names, results(script.requests[1]), strict=True))
        assert gave["good"] == "well"
        assert all("did not answer within 2 seconds" in gave[name] for name in ("spin", "sleep"))
        assert gave["leave"] == "The tool called exit with status 3."
        assert gave["fault"] == "The tool's process was ended by SIGSEGV."
        assert gave["vanish"] == "The tool ended its process with status 1."
        assert gave["hoard"].startswith("MemoryError")
        assert answered_meanwhile > 5
        script = work.play([call("good", "{}")], "Still.")
        assert output("openai_chat", await work.ask()) == "Still."
        assert results(script.requests[1]) == ["well"]


async def _is_listed(work: Any, name: str) -> bool:
    return name in [one["name"] for one in (await work.get("/v1/tools")).json["data"]]


def _raise(error: BaseException) -> Any:
    def give(arguments: Mapping[str, Any]) -> str:
        raise error

    return give


@DIALECTS
async def test_whatever_a_tool_raises_is_its_own_failure_and_harms_no_sibling(client: str) -> None:
    """fault: T2; field: E16"""
    errors: list[BaseException] = [
        ValueError("bad"),
        asyncio.CancelledError(),
        TimeoutError("late"),
        ExceptionGroup("many", [ValueError("one")]),
        RecursionError(),
        StopAsyncIteration(),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ]
    bad = [FakeTool(f"bad_{number}", _raise(error)) for number, error in enumerate(errors)]
    async with at_work(*bad, FakeTool("good", lambda arguments: "well")) as work:
        script = work.play([*[call(one.spec.name, "{}") for one in bad], call("good", "{}")], "Done.")
        assert output(client, await work.ask(client)) == "Done."
        *failures, good = results(script.requests[1])
        assert good == "well"
        assert [failure.startswith(f"bad_{number} ") for number, failure in enumerate(failures)] == [True] * len(errors)


# T3: output


OUTPUTS: Mapping[str, Any] = {
    "ten megabytes": lambda _: "x" * 10_000_000,
    "as many pieces": lambda _: ToolOutput(tuple([Text("x")] * 100_000)),
    "data alone": lambda _: ToolOutput((), structured={"a": "x" * 10_000_000}),
    "no number": lambda _: ToolOutput((), structured={"a": float("nan"), "b": float("inf")}),
    "half a character": lambda _: "\ud800 \x00 \u202e",
    "a large picture": lambda _: ToolOutput((image("A" * 20_000_000),)),
    "a picture": lambda _: ToolOutput((image(),)),
    "bytes": lambda _: ToolOutput((Media("file", "application/octet-stream", "AAEC"),)),
    "an object": lambda _: ToolOutput((), structured=object()),
    "nothing": lambda _: ToolOutput(()),
    "no words": lambda _: "",
}


@DIALECTS
@pytest.mark.parametrize("result", OUTPUTS)
async def test_whatever_a_tool_gives_the_model_gets_something_of_bounded_size(client: str, result: str) -> None:
    """fault: T3; field: E29"""
    async with at_work(FakeTool("odd", OUTPUTS[result])) as work:
        script = work.play([call("odd", "{}")], "Done.")
        response = await work.ask(client)
        assert output(client, response) == "Done."
        assert len(response.body) < 1_000_000
        assert len(emitted(script)) < 1_000_000
        assert any(isinstance(part, ToolResult) for message in script.requests[1].messages for part in message.parts)


# T4, O1: secrets


@DIALECTS
@STREAMS
async def test_no_secret_of_ours_is_reported_to_anybody(
    client: str, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """fault: T4, O1; field: E35"""

    def leak(arguments: Mapping[str, Any]) -> str:
        local = CANARY  # noqa: F841  # a stack with locals
        raise RuntimeError(f"postgresql://me:{CANARY}@db/x refused Authorization: Bearer {CANARY}")

    def show(arguments: Mapping[str, Any]) -> ToolOutput:
        return ToolOutput((Text(f"{CANARY} stands in the middle"),), structured={"key": CANARY}, meta={"key": CANARY})

    setup = tools(
        mcp={
            "away": McpServerSettings(
                url="http://127.0.0.1:9/mcp", headers={"authorization": Secret(f"Bearer {CANARY}")}
            )
        },
        http={"shop": OpenApiSettings(openapi="nowhere.json", headers={"x-key": Secret(CANARY)})},
    )
    async with at_work(FakeTool("leak", leak), FakeTool("show", show), tools=setup, log=quiet("debug")) as work:
        script = work.play([call("leak", "{}"), call("show", "{}")], "Done.")
        response = await work.ask(client, stream=stream, tool_status="events")
        listed = await work.get("/v1/tools")
        metrics = await work.get("/metrics")
        assert b"Done." in response.body
        assert len(results(script.requests[1])) == 2
        written = capfd.readouterr()
    places = [
        emitted(script),
        response.body.decode(),
        listed.body.decode(),
        metrics.body.decode(),
        written.out,
        written.err,
    ]
    assert [CANARY in place for place in places] == [False] * len(places)


# T5: too much


@DIALECTS
async def test_two_hundred_calls_in_one_turn_end_in_an_answer_and_never_run_all_at_once(client: str) -> None:
    """fault: T5; field: E9"""
    running, most = 0, 0

    async def slow(arguments: Mapping[str, Any]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return str(arguments["n"])

    async with at_work(FakeTool("slow", slow), tools=tools(limits=RunLimitSettings(calls=500, parallel=8))) as work:
        many = [call("slow", json.dumps({"n": number}), number) for number in range(200)]
        script = work.play(many, "Done.")
        assert output(client, await work.ask(client)) == "Done."
        assert results(script.requests[1]) == [str(number) for number in range(200)]
        assert most == 8


@DIALECTS
async def test_more_calls_than_a_run_may_make_are_not_run_and_the_model_answers(client: str) -> None:
    """fault: T5; field: E26"""
    quick = FakeTool("quick", lambda arguments: "quick")
    async with at_work(quick) as work:
        script = work.play([call("quick", json.dumps({"n": number}), number) for number in range(200)], "Enough.")
        assert output(client, await work.ask(client)) == "Enough."
        assert quick.calls == []
        assert "the limit of 128 tool calls is reached" in results(script.requests[1])[0]


@DIALECTS
async def test_a_model_that_turns_in_circles_is_stopped(client: str) -> None:
    """spec: X8; fault: T5; field: E25"""
    quick = FakeTool("quick", lambda arguments: "the same")
    async with at_work(quick, tools=tools(limits=RunLimitSettings(rounds=50))) as work:

        def again(request: Any) -> Any:
            choice = request.tool_choice
            return "I give up." if choice and choice.mode == "none" else [call("quick", "{}", len(results(request)))]

        script = work.play(*[again] * 60)
        assert output(client, await work.ask(client)).endswith("I give up.")
        assert len(quick.calls) == 3
        assert len(script.requests) == 5


@DIALECTS
async def test_a_model_that_never_stops_is_stopped_by_the_rounds(client: str) -> None:
    """spec: X2; field: E26"""
    quick = FakeTool("quick", lambda arguments: "more")
    async with at_work(quick) as work:

        def again(request: Any) -> Any:
            number = len(results(request))
            return [call("quick", json.dumps({"n": number}), number)]  # even when it must not

        script = work.play(*[again] * 60)
        response = await work.ask(client)
        assert output(client, response) == (
            "No answer: the limit of 10 tool rounds is reached, "
            "and the model went on calling tools when it was asked to answer without them."
        )
        assert (len(quick.calls), len(script.requests)) == (10, 13)


class Chatty(FakeTool):
    """Tells of its progress more often than anybody can hear."""

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        for number in range(50_000):
            invocation.report(CallProgressUpdate(f"{CANARY} {number}"))
        return await super().invoke(invocation)


async def test_a_flood_of_progress_is_thinned_out_and_holds_no_secret() -> None:
    """fault: T4, T5"""
    setup = tools(http={"shop": OpenApiSettings(openapi="nowhere.json", headers={"x-key": Secret(CANARY)})})
    async with at_work(Chatty("chatty", lambda arguments: "well"), tools=setup) as work:
        script = work.play([call("chatty", "{}")], "Done.")
        response = await work.ask(stream=True, tool_status="events")
        assert results(script.requests[1]) == ["well"]
        assert 0 < response.body.count(b"tool_progress") <= 200
        assert CANARY.encode() not in response.body


# T6: MCP servers


async def test_an_mcp_server_that_dies_in_the_middle_of_a_call_is_not_asked_again(tmp_path: Path) -> None:
    """fault: T6"""
    source = source_of(mock("dies", tmp_path))
    async with at_work(sources=[source]) as work:
        await soon(lambda: _is_listed(work, "box_echo"))
        script = work.play([call("box_echo", '{"a":1}')], "It died.")
        assert output("openai_chat", await work.ask()) == "It died."
        assert "box" in results(script.requests[1])[0]
        assert noted(tmp_path, "calls") == ['{"a": 1}']


# C1: clients that leave


async def _for_ever(arguments: Mapping[str, Any]) -> str:
    await asyncio.Event().wait()
    return ""


@DIALECTS
@STREAMS
@pytest.mark.parametrize("farewell", ["reset", "polite"])
async def test_a_client_that_leaves_cancels_the_running_tool(
    tmp_path: Path, client: str, stream: bool, farewell: str
) -> None:
    """fault: C1; field: E27"""
    oracle = Oracle(tmp_path / "runs", give=_for_ever, timeout=3600.0)
    async with at_work(oracle) as work:
        work.play([call()])
        async with work.asking(client, stream=stream) as caller:
            await asyncio.wait_for(oracle.began.wait(), 30)
            caller.abort() if farewell == "reset" else caller.writer.close()
            await soon(lambda: oracle.cancelled == 1)


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
@STREAMS
async def test_a_client_that_leaves_while_a_person_thinks_leaves_the_question_and_nothing_else(
    tmp_path: Path, client: str, stream: bool
) -> None:
    """fault: C1; A3"""
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings(approvals=ApprovalSettings(hold_seconds=60))) as work:
        work.play([call()], "Done.")
        async with work.asking(client, stream=stream) as caller:
            id = (await work.waiting())["id"]
            caller.abort()
        await work.rest()
        assert (await work.decide(id)).status == 200
        assert oracle.runs == []
        response = await work.ask(client, stream=stream)
        assert b"Done." in response.body
        assert len(oracle.runs) == 1


@DIALECTS
async def test_a_client_that_leaves_before_the_first_event_leaves_nothing_running(tmp_path: Path, client: str) -> None:
    """fault: C1; field: G1"""
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle) as work:
        gone = asyncio.Event()

        async def slowly(request: Any) -> Any:
            await gone.wait()
            return [call()]

        script = work.play(slowly)
        async with work.asking(client) as caller:
            await soon(lambda: len(script.requests) == 1)
            caller.abort()
        await work.rest()
        gone.set()
        assert (len(script.requests), oracle.runs) == (1, [])


# X9: turned off


@DIALECTS
async def test_without_tools_nothing_of_them_is_there(tmp_path: Path, client: str) -> None:
    """spec: X9"""
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings(enabled=False)) as work:
        script = work.play([call()])
        response = await work.ask(client, tools=[tool(client, "write")])
        assert calls(client, response) == ["write"]
        assert "server tools are turned off here" in response.headers["x-toolgate-warning"]
        assert [one.name for one in script.requests[0].tools] == ["write"]
        for path in ("/v1/tools", "/v1/approvals", "/mcp"):
            assert (await work.get(path)).status == 404, path
        assert oracle.runs == []


# Reload


def reloaded(work: Any, path: Path, **approvals: Any) -> None:
    """Have the server read a configuration that differs from its own in what it says of approvals."""
    upstream = work.gate.config.upstreams["openai_chat"].base_url
    config = {
        "server": {"port": 0},
        "upstreams": {"openai_chat": {"dialect": "openai_chat", "base_url": upstream}},
        "models": [{"name": "openai_chat", "upstream": "openai_chat", "model": "played", "retries": 0}],
        "tools": {"approvals": approvals},
        "storage": "sqlite://",
        "log": {"level": "error"},
    }
    path.write_text(json.dumps(config))
    work.gate.reload(path)


async def test_a_run_goes_on_while_the_configuration_is_read_again_and_the_new_policy_holds_at_once(
    tmp_path: Path,
) -> None:
    """spec: E3; fault: M7"""
    gate = asyncio.Event()

    async def give(arguments: Mapping[str, Any]) -> str:
        await gate.wait()
        return "written"

    oracle = Oracle(tmp_path / "runs", give=give)
    async with at_work(oracle) as work:
        script = work.play([call(number=1)], [call(number=2, arguments='{"text":"more"}')], "Done.")
        asking = asyncio.ensure_future(work.ask())
        await asyncio.wait_for(oracle.began.wait(), 30)
        reloaded(work, tmp_path / "new.yaml", default="deny")
        gate.set()
        assert output("openai_chat", await asking) == "Done."
        first, second = results(script.requests[2])
        assert (first, len(oracle.runs)) == ("written", 1)
        assert "was not allowed" in second


async def test_a_question_that_was_put_under_another_policy_is_out_of_scope(tmp_path: Path) -> None:
    """fault: A1"""
    oracle = Oracle(tmp_path / "runs")
    async with at_work(oracle, tools=ServerToolSettings(approvals=ApprovalSettings(hold_seconds=5))) as work:
        work.play([call()], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        id = (await work.waiting())["id"]
        reloaded(work, tmp_path / "new.yaml", default="ask", open_world="deny", hold_seconds=0.1)
        late = await work.decide(id)
        assert (late.status, late.json["error"]["code"]) == (409, "out_of_scope")
        assert (await asking).status == 200
        assert oracle.runs == []


# S2: where tools may go


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://2130706433:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0x7f.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:{port}/",
        "http://good@127.0.0.1:{port}/",
    ],
)
async def test_no_model_gets_a_tool_to_open_what_is_inside(url: str) -> None:
    """fault: S2, S3, S5"""
    with service() as inside:
        async with at_work() as work:
            script = work.play([call("fetch", json.dumps({"url": url.format(port=inside.server_port)}))], "No.")
            assert output("openai_chat", await work.ask()) == "No."
            assert "secret" not in results(script.requests[1])[0]
            assert inside.seen == []


# Tools of every kind in one conversation


class Service(ThreadingHTTPServer):
    """A small service that notes what it is asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers every GET with JSON."""

    server: Service

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        body = json.dumps({"price": 42, "secret": "inside"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def service() -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


SHOP: Mapping[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/price": {
            "get": {
                "operationId": "get_price",
                "summary": "The price of a thing.",
                "parameters": [{"name": "thing", "in": "query", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"description": "It."}},
            }
        }
    },
}
ADDER = '''
from toolgate.lm import tool

@tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b
'''


@STREAMS
def test_python_files_an_mcp_server_and_a_service_serve_one_conversation(tmp_path: Path, stream: bool) -> None:
    """spec: R2, X2, X3"""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "adder.py").write_text(ADDER)
    (tmp_path / "shop.json").write_text(json.dumps(SHOP))
    with service() as shop:
        setup = tools(
            python=(str(tmp_path / "tools"),),
            mcp={"time": McpServerSettings(command=(sys.executable, "-m", "mcp_server_time"), timeout=30.0)},
            http={
                "shop": OpenApiSettings(
                    openapi=str(tmp_path / "shop.json"), base_url=f"http://127.0.0.1:{shop.server_port}"
                )
            },
            reach=("127.0.0.1",),
        )
        with on_stage(tools=setup) as stage, OpenAI(base_url=f"{stage.url}/v1", api_key="x", max_retries=0) as client:
            for _ in range(300):
                listed = client.get("/tools", cast_to=object)
                names = {one["name"] for one in listed["data"]}  # type: ignore[index]
                if {"add", "time_get_current_time", "shop_get_price"} <= names:
                    break
                time.sleep(0.05)
            script = stage.play(
                [call("add", '{"a":2,"b":3}')],
                [call("time_get_current_time", '{"timezone":"Europe/Berlin"}')],
                [call("shop_get_price", '{"thing":"tea"}'), call("add", '{"a":"2"}', 2), call("ask_user", "{}")],
                "All done.",
            )
            own: Any = [{"type": "function", "function": {"name": "ask_user", "parameters": {"type": "object"}}}]
            said_before: Any = [{"role": "user", "content": "Do it all."}]
            wants: Any = {
                "model": "openai_chat",
                "tools": own,
                "extra_body": {"tool_execution": "auto", "use_server_tools": True},
            }

            def turn() -> Any:
                if not stream:
                    return client.chat.completions.create(messages=said_before, **wants).choices[0].message
                with client.chat.completions.stream(messages=said_before, **wants) as emitted:
                    return emitted.get_final_completion().choices[0].message

            message = turn()
            assert [one.function.name for one in message.tool_calls] == ["ask_user"]
            said_before += [message.model_dump(exclude_none=True)]
            said_before += [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "fine"}]
            assert turn().content == "All done."
            added, clock, price, refused, answer = results(script.requests[3])
            assert (added, answer) == ("5", "fine")
            assert "Europe/Berlin" in clock
            assert '"price"' in price
            assert "nothing was run" in refused
            assert shop.seen == ["/price?thing=tea"]
