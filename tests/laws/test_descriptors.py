"""The descriptor law: wherever a cancellation strikes, each descriptor is closed once and no child process is left.

Each case starts a child process through one of the components that do, cancels a step of it at one of its awaits or at a
random time, closes the component and compares descriptors and children with those before. Meanwhile every number that is
closed is taken again at once, so that a second close of it shows. `TOOLGATE_LAW_CASES=all` runs 10,000 cases.
"""

import asyncio
import gc
import os
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import uvloop

from tests.child_processes import has_child
from tests.laws.leaving_clients import stress
from toolgate.mcp.client.stdio import StdioTransport
from toolgate.mcp.protocol.jsonrpc import RpcRequest
from toolgate.mcp.protocol.server_config import StdioServerConfig
from toolgate.mcp.protocol.transport import McpError
from toolgate.tools.authoring.loading import ToolImportTarget
from toolgate.tools.builtin.command import CommandTool
from toolgate.tools.builtin.granted_folders import GrantedFolders
from toolgate.tools.tool import ToolCallFailed, ToolCallInput
from toolgate.tools.workers import frames
from toolgate.tools.workers.pool import ToolWorkerPool
from toolgate.tools.workers.process import WorkerLimits
from toolgate.upstreams.local import engine_process
from toolgate.upstreams.local import frames as engine_frames
from toolgate.upstreams.local.engine_process import EngineFault, EngineProcess
from toolgate.upstreams.transport.address import UpstreamOrigin
from toolgate.upstreams.transport.dial import dial
from toolgate.workers.process import ServerWorkerProcess, WorkerStart

CASES = 10_000 if os.environ.get("TOOLGATE_LAW_CASES") == "all" else 320
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
SECONDS = 60.0
"""How long a case may wait for what must happen; only a failure waits so long."""

# Whatever it is started as, it does one of these.
BEHAVIOURS = {
    "echo": "exec cat",
    "answer": 'printf \'\\000\\000\\000\\037\'; echo \'{"type":"ready","seconds":0.25}\'; exec cat >&2',
    "answer in lines": 'read line; echo \'{"jsonrpc":"2.0","id":1,"result":{}}\'; exec cat >&2',
    "exit": "exit 3",
    "deaf": "trap '' TERM INT HUP; exec sleep 600",
    "close output": "exec >&- 2>&-; exec sleep 600",
    "leave a grandchild": "sleep 600 & exit 0",
    "leave a daemon": "setsid sleep 1 & exit 0",
    "flood": "head -c 200000 /dev/zero; exec sleep 600",
}


class Descriptors:
    """Takes every number that becomes free, and knows whether one of its own was closed by somebody else."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[int, int]] = {}
        self.violations: list[str] = []

    def take(self) -> None:
        """Take the lowest number that is free."""
        reading, writing = os.pipe()
        os.close(writing)
        if reading in self._taken:
            self.violations.append(f"{reading} was closed by another")
        self._taken[reading] = identity(reading)

    def give_back(self) -> None:
        """Close them all, each still being what it was."""
        for number, was in self._taken.items():
            if identity(number) != was:
                self.violations.append(f"{number} was closed by another")
            else:
                os.close(number)
        self._taken.clear()

    async def keep_taking(self) -> None:
        """In every round of the loop, as long as there are few."""
        try:
            while True:
                if len(self._taken) < 200:
                    self.take()
                await asyncio.sleep(0)
        finally:
            self.give_back()


def identity(number: int) -> tuple[int, int]:
    try:
        found = os.fstat(number)
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def connections() -> dict[int, tuple[int, int]]:
    """The open sockets that do not listen: those of a server of the session, whose clients may leave at any time."""
    gc.collect()  # what earlier tests left behind is closed now and not amid a case
    return {number: what for number, what in opened().items() if is_connection(number)}


def is_connection(number: int) -> bool:
    if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
        return False
    with socket.socket(fileno=os.dup(number)) as found:
        return not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def opened(others: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> dict[int, tuple[int, int]]:
    """Every open descriptor and what it is, but for these of others."""
    found = {number: identity(number) for number in map(int, os.listdir("/proc/self/fd"))}
    return {number: what for number, what in found.items() if what not in ((0, 0), others.get(number))}


class Cancelling:
    """Runs a coroutine and cancels its task at the await of this number: as it begins to wait, or as it is woken."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, woken: bool) -> None:
        self._work = work
        self._at = at
        self._woken = woken

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        waits = 0
        inner = self._work.__await__()
        step: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                future = step()
            except StopIteration as stop:
                return stop.value
            waits += 1
            if waits == self._at and self._woken and future is not None:
                future.add_done_callback(lambda _: task.cancel())
            elif waits == self._at:
                task.cancel()
            try:
                yield future
            except BaseException as error:  # noqa: BLE001  # it is passed on
                step = partial(inner.throw, error)
            else:
                step = partial(next, inner)


class Case:
    """One cancellation, at a place drawn by chance."""

    def __init__(self, chance: random.Random, script: Path) -> None:
        self._chance = chance
        self.command = [str(script)]
        self.behaviour = chance.choice(list(BEHAVIOURS))
        self.history: list[str] = []
        script.write_text(f"#!/bin/sh\n{BEHAVIOURS[self.behaviour]}\n")
        script.chmod(0o700)

    async def cancelled(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a step of the component, cancelled somewhere; how it fails beside that is not of interest here."""
        how = self._chance.choice(["begins to wait", "is woken", "after a time"])
        at = self._chance.randint(1, 12)
        self.history.append(f"{getattr(work, '__qualname__', work)} when it {how}, {at}")
        stepped = how != "after a time"
        step: Awaitable[Any] = Cancelling(work, at, how == "is woken") if stepped else work
        task = asyncio.ensure_future(_awaited(step))
        timer = asyncio.get_running_loop().call_later(
            self._chance.uniform(0, 0.01 if not stepped else 0.05), task.cancel
        )
        done, _ = await asyncio.wait({task}, timeout=SECONDS)
        timer.cancel()
        assert done, "it waits for ever"
        work.close()  # unless it was cancelled before it began, it has ended
        error = None if task.cancelled() else task.exception()
        expected = (ToolCallFailed, EngineFault, McpError, OSError)
        assert error is None or isinstance(error, expected), repr(error)


async def _awaited(step: Awaitable[Any]) -> Any:
    return await step


async def python_tool(case: Case) -> None:
    pool = ToolWorkerPool(WorkerLimits(workers=2, grace=0.01))
    question = frames.ToolWorkerDescribeRequestFrame(ToolImportTarget("none", path="/none"))
    await asyncio.gather(*[case.cancelled(pool.request(question)) for _ in range(2)])
    await case.cancelled(pool.aclose())
    await pool.aclose()


async def command_tool(case: Case) -> None:
    tool = CommandTool(GrantedFolders([Path(case.command[0]).parent]))
    await case.cancelled(tool.invoke(ToolCallInput("1", {"command": case.command}, "{}")))


async def mcp_server(case: Case) -> None:
    transport = StdioTransport(StdioServerConfig(tuple(case.command)), grace=0.01)
    await transport.open(lambda message: None)
    await case.cancelled(transport.request(RpcRequest(1, "tools/list", {})))
    await case.cancelled(transport.aclose())
    await transport.aclose()


async def engine(case: Case) -> None:
    started: list[EngineProcess] = []

    async def start() -> None:
        started.append(await EngineProcess.start(engine_frames.EngineLoadFrame("/none", 1, 1, 1)))

    await case.cancelled(start())
    for one in started:
        await case.cancelled(one.aclose())
        await one.aclose()


async def worker_of_the_supervisor(case: Case) -> None:
    started: list[ServerWorkerProcess] = []

    async def start() -> None:
        started.append(await ServerWorkerProcess.start(WorkerStart(0, None, "127.0.0.1", 0, 1, (), lifeline=0)))

    await case.cancelled(start())
    for one in started:
        await case.cancelled(one.wait_ready(0.01))
        one.kill()
        await case.cancelled(one.wait_ended())
        await one.wait_ended()


class Socket(asyncio.Protocol):
    """A connection of which only the socket is of interest."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)


async def outbound_socket(case: Case) -> None:
    made: list[Socket] = []

    async def connect(port: int) -> None:
        addresses = ["127.0.0.1"] if case.behaviour in ("echo", "exit") else ["127.0.0.1", "127.0.0.2", "::1"]
        origin = UpstreamOrigin("http", "127.0.0.1", port)
        connection = await dial(origin, None, None, 10.0, Socket, addresses)  # type: ignore[arg-type]
        made.append(cast(Socket, connection))

    with socket.create_server(("127.0.0.1", 0)) as listening:  # which nobody accepts from
        await case.cancelled(connect(listening.getsockname()[1]))
        for one in made:
            one.transport.abort()


COMPONENTS = (python_tool, command_tool, mcp_server, engine, worker_of_the_supervisor, outbound_socket)


async def run_cases(
    component: Callable[[Case], Awaitable[None]], script: Path, cases: int, others: Mapping[int, tuple[int, int]]
) -> None:
    """So many cases, each of which must leave things as they were; connections of others may be closed by their owners."""
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context)))
    ours, other = socket.socketpair()  # libuv opens a descriptor of its own with the first stream, and keeps it
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    transport.abort()
    other.close()
    await component(Case(random.Random(0), script))  # what else is opened once and kept is open from now on
    while has_child():  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    for _ in range(20):  # rounds in which the loop closes the rest
        await asyncio.sleep(0)
    for number in range(cases):
        case = Case(random.Random(number), script)
        before, descriptors = opened(others), Descriptors()
        taking = asyncio.create_task(descriptors.keep_taking())
        await component(case)
        taking.cancel()
        await asyncio.wait({taking})
        where = f"{component.__name__} {number}: {case.behaviour}, {case.history}"
        assert not descriptors.violations, f"{where}: {descriptors.violations}"
        deadline = time.monotonic() + SECONDS
        while (opened(others) != before or has_child()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        left = {number: os.readlink(f"/proc/self/fd/{number}") for number in opened(others) if number not in before}
        assert not left, f"{where}: {left}"
        assert not has_child(), where
        assert opened(others) == before, where
        assert not failures, f"{where}: {failures}"


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.__name__)
def test_a_cancellation_anywhere_leaves_no_descriptor_and_no_child(
    component: Callable[[Case], Awaitable[None]], loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program"
    monkeypatch.setattr(sys, "executable", str(script))  # it is what workers and engines are started with
    monkeypatch.setattr(engine_process, "_END_SECONDS", 0.01)
    share = CASES // len(COMPONENTS)
    cases = share * 3 // 4 if loop == "uvloop" else share // 4
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run_cases(component, script, cases, connections()))


@pytest.mark.parametrize("end", range(2))
def test_a_descriptor_of_another_test_that_a_case_closes_is_found(
    end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, calls = os.pipe(), count()  # the first call is not a case yet

    async def careless(case: Case) -> None:
        if next(calls):
            os.close(pipe[end])

    monkeypatch.setattr(f"{__name__}.SECONDS", 0.1)
    with asyncio.Runner() as runner, pytest.raises(AssertionError, match="careless 0"):
        runner.run(run_cases(careless, tmp_path / "program", 1, connections()))
    os.close(pipe[1 - end])


def test_clients_that_leave_while_tools_start_leak_no_descriptor(tmp_path: Path) -> None:
    """`python -m tests.laws.leaving_clients` does the same for longer."""
    counted = stress(tmp_path, 120)
    assert (counted.status, counted.failed, counted.bad_descriptors, counted.tracebacks) == (0, 0, 0, 0)
    assert counted.descriptors[1] <= counted.descriptors[0]
    assert counted.children[1] <= counted.children[0]
