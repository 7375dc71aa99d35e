"""The thread pool of the process: no caller gets all threads."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.stage import MEMORY, QUIET
from tests.tools.execution.toolwork import soon
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, ServerSettings, ServerToolSettings
from toolgate.http.listener import serve
from toolgate.scheduling import CALLER, FairThreads
from toolgate.tools.builtin import calculator

PATIENCE = 60


def submit_as(threads: FairThreads, caller: str, work: Any, *args: Any) -> Any:
    token = CALLER.set(caller)
    try:
        return threads.submit(work, *args)
    finally:
        CALLER.reset(token)


def test_work_beyond_a_callers_share_waits_and_runs_in_order() -> None:
    go, began, done = threading.Event(), threading.Semaphore(0), list[int]()

    def work(number: int) -> int:
        began.release()
        go.wait(PATIENCE)
        done.append(number)
        return number

    with FairThreads(threads=4, share=2) as threads:
        flood = [submit_as(threads, "flood", work, number) for number in range(20)]
        assert began.acquire(timeout=PATIENCE)
        assert began.acquire(timeout=PATIENCE)
        assert submit_as(threads, "other", lambda: "done").result(PATIENCE) == "done"
        assert not began.acquire(blocking=False)
        assert flood[10].cancel()
        with pytest.raises(ZeroDivisionError):
            submit_as(threads, "", lambda: 1 // 0).result(PATIENCE)
        go.set()
    assert sorted(done) == [number for number in range(20) if number != 10]  # shutting down waits for all of them
    assert [future.result() for future in flood if not future.cancelled()] == sorted(done)
    assert submit_or_refused(threads) == "refused"


def submit_or_refused(threads: FairThreads) -> str:
    try:
        submit_as(threads, "late", int)
    except RuntimeError:
        return "refused"
    return "taken"


async def test_slow_tools_of_one_caller_leave_threads_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    go, began = threading.Event(), threading.Semaphore(0)
    evaluate = calculator.evaluate

    def slowly(expression: str) -> Any:
        if expression == "1 + 1":
            began.release()
            go.wait(PATIENCE)
        return evaluate(expression)

    monkeypatch.setattr(calculator, "evaluate", slowly)
    keys = tuple(KeySettings(name=name, key=Secret(f"{name}-key"), scopes=("tools",)) for name in ("flood", "other"))
    tools = ServerToolSettings(approvals=ApprovalSettings(default="allow"))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    gate = Toolgate(Config(server=ServerSettings(port=0), keys=keys, tools=tools, storage=MEMORY, log=QUIET))
    serving = asyncio.ensure_future(serve(gate, port=0, drain_seconds=0.0, on_ready=ready.set_result))
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(base_url=await ready, timeout=PATIENCE) as client:

        async def calculate(caller: str, expression: str) -> Mapping[str, Any]:
            params = {"name": "calculator", "arguments": {"expression": expression}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            response = await client.post("/mcp", json=message, headers={"authorization": f"Bearer {caller}-key"})
            return dict(response.json()["result"])

        flood = [asyncio.ensure_future(calculate("flood", "1 + 1")) for _ in range(40)]
        try:
            await soon(lambda: began.acquire(blocking=False))
            async with asyncio.timeout(30):
                assert (await calculate("other", "6 * 7"))["structuredContent"]["result"] == "42"
        finally:
            go.set()
        assert {(await one)["structuredContent"]["result"] for one in flood} == {"2"}
    serving.cancel()
    await asyncio.wait([serving])
