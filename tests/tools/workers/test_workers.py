"""Worker processes: whatever a tool does there fails only its own call and leaves no process behind."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.child_processes import living_children
from tests.tools.execution.steps import measured_steps
from toolgate.conversation.message import Text
from toolgate.tools.authoring.language_model_types import ToolInvocationToken
from toolgate.tools.authoring.loading import ToolImportTarget
from toolgate.tools.authoring.results import NO_OUTPUT
from toolgate.tools.tool import CallProgressUpdate, ReportProgress, ToolCallFailed, ToolOutput, ignore_progress
from toolgate.tools.workers import frames
from toolgate.tools.workers.pool import ToolWorkerPool
from toolgate.tools.workers.process import WorkerLimits, WorkerOutputTail, environment

"""Seconds that may pass on a busy machine where the promise is one."""

CODE = '''
import asyncio, ctypes, os, re, signal, subprocess, sys, threading, time
from pathlib import Path
from toolgate.lm import CancellationToken, LanguageModelDataPart, Progress, tool

@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b

@tool
def pid() -> int:
    """The worker's number."""
    return os.getpid()

@tool
def see() -> dict[str, str]:
    """The environment."""
    return dict(os.environ)

@tool
def hang(how: str, progress: Progress) -> None:
    """Hang in some way."""
    progress.report("begun", 0, 1)
    if how == "spin":
        while True:
            pass
    if how == "sleep":
        time.sleep(1000)
    if how == "regex":
        re.match("(a+)+$", "a" * 60 + "b")
    if how == "deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1000)

@tool
def crash(how: str) -> object:
    """Crash in some way."""
    if how == "raise":
        raise LookupError("no such city")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    if how == "segv":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        return len(b"x" * (4 << 30))
    if how == "recursion":
        return crash(how)
    if how == "fork":
        if os.fork() == 0:
            return "from the copy"
        time.sleep(0.2)
        return "from the original"

@tool
def give(what: str) -> object:
    """Give something odd."""
    if what == "long":
        return "x" * (64 << 20)
    if what == "escapes":
        return chr(0) * (5 << 20)
    if what == "cycle":
        value = []
        value.append(value)
        return value
    if what == "deep":
        value = []
        for _ in range(100_000):
            value = [value]
        return value
    if what == "picture":
        return LanguageModelDataPart.image(bytes(range(256)), "image/png")
    if what == "noise":
        print("a line to stdout")
        os.write(1, b"raw bytes to 1" + bytes([10]))
        os.system("echo from a program; echo from a program to 2 >&2")
        print("input:", repr(sys.stdin.read()), file=sys.stderr)
        return "quiet"

@tool
def forge(size: int, filler: str = "x", most: int = 1000) -> None:
    """Write into the pipe behind the protocol's back."""
    body = (filler * most).encode()[:min(size, most)]
    for fd in range(3, 64):
        try:
            if os.fstat(fd).st_mode & 0o170000 == 0o010000:
                os.write(fd, size.to_bytes(4, "big") + body)
        except OSError:
            pass
    time.sleep(1000)

@tool
def leave(marks: str, detached: bool) -> None:
    """Start programs, then hang; the programs would live on."""
    code = f"import os, time; open({marks!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(1000)"
    start = f"subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session={detached})"
    inner = f"import subprocess, sys, time; {start}; time.sleep({0 if detached else 1000})"
    subprocess.Popen([sys.executable, "-c", inner], start_new_session=detached)
    time.sleep(1000)

@tool
def polite(token: CancellationToken, progress: Progress) -> str:
    """Wait until cancelled."""
    progress.report("begun")
    token.wait(1000)
    return "stopped"

@tool(worker=True)
async def coroutine(seconds: float, progress: Progress, token: CancellationToken) -> str:
    """Async code in a worker."""
    progress.report("begun")
    await asyncio.sleep(seconds)
    return "slept"

@tool
def flood() -> None:
    """Print without end."""
    while True:
        print("x" * 10_000)

@tool
def chatter(progress: Progress) -> str:
    """Report without end, nearly."""
    for number in range(20_000):
        progress.report("y" * 5000, number, 20_000)
    return "said it all"

KEPT = []

@tool
def keep(progress: Progress) -> str:
    """Keep what reports the progress of this call, as a thread does that goes on after it."""
    KEPT.append(progress)
    progress.report("in time")
    return "kept"

@tool
def use_kept() -> str:
    """Report the progress of a call that has ended."""
    KEPT.pop().report("too late")
    return "used"
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ToolImportTarget:
    file = tmp_path_factory.mktemp("tools") / "odd.py"
    file.write_text(CODE)
    return ToolImportTarget("odd.py", path=str(file))


class Workers:
    """A pool and the file of odd tools."""

    def __init__(self, place: ToolImportTarget, limits: WorkerLimits | None = None) -> None:
        self.pool = ToolWorkerPool(limits)
        self.place = place

    async def call(
        self, tool: str, report_progress: ReportProgress = ignore_progress, /, **arguments: Any
    ) -> ToolOutput:
        answer = await self.pool.request(
            frames.ToolWorkerInvokeFrame(self.place, tool, arguments, ToolInvocationToken()), report_progress
        )
        match answer:
            case frames.ToolWorkerResultFrame():
                return frames.decode_output(answer)
            case frames.ToolWorkerErrorFrame(message):
                raise ToolCallFailed(message)
        raise AssertionError(answer)

    async def begin(self, tool: str, /, **arguments: Any) -> "asyncio.Task[ToolOutput]":
        """A call that has reported that it began."""
        begun = asyncio.Event()
        call = asyncio.create_task(self.call(tool, lambda _: begun.set(), **arguments))
        await begun.wait()
        return call


@pytest.fixture
async def workers(place: ToolImportTarget) -> AsyncIterator[Workers]:
    workers = Workers(place)
    yield workers
    await workers.pool.aclose()
    assert living_children() == []


async def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of: other processes and the log."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the system has no event for it
            await asyncio.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pids: list[int]) -> None:
    await until(lambda: not any(map(lives, pids)))


async def test_a_call_is_answered_by_a_process_that_is_kept(workers: Workers) -> None:
    first = (await workers.call("pid")).structured
    assert await workers.call("add", a=1, b=2) == ToolOutput((Text("3"),), structured=3)
    assert (await workers.call("pid")).structured == first != os.getpid()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "LookupError: no such city"),
        ("exit", "The tool called exit with status 3."),
        ("_exit", "The tool ended its process with status 4."),
        ("segv", "The tool's process was ended by SIGSEGV."),
        ("kill", "The tool's process was ended by SIGKILL. Perhaps the system ran out of memory."),
        ("memory", "MemoryError: the tool needed more memory than it may have."),
        ("recursion", "RecursionError: maximum recursion depth exceeded"),
    ],
)
async def test_a_crash_fails_only_its_own_call(workers: Workers, how: str, message: str) -> None:
    """fault: T2"""
    sibling = await workers.begin("polite")
    with pytest.raises(ToolCallFailed) as failure:
        await workers.call("crash", how=how)
    assert str(failure.value).startswith(message)
    assert not sibling.done()
    assert (await workers.call("add", a=1)).structured == 2
    sibling.cancel()


async def test_a_forked_copy_of_a_worker_cannot_answer_for_it(workers: Workers) -> None:
    assert (await workers.call("crash", how="fork")).content == (Text("from the original"),)
    assert (await workers.call("add", a=1)).structured == 2


@pytest.mark.parametrize("how", ["spin", "sleep", "regex", "deaf"])
async def test_a_call_that_hangs_is_killed_when_it_is_cancelled(workers: Workers, how: str) -> None:
    """fault: T1"""
    call = await workers.begin("hang", how=how)
    pids = [child.pid for child in living_children()]
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gone(pids)
    assert (await workers.call("add", a=1)).structured == 2


async def test_a_call_has_so_much_processor_time_and_no_more(place: ToolImportTarget) -> None:
    """fault: T1, where nobody is left to cancel it"""
    workers = Workers(place, WorkerLimits(cpu=0))
    with pytest.raises(ToolCallFailed, match=r"SIGXCPU\. It used more processor time"):
        await workers.call("hang", how="regex")
    await workers.pool.aclose()


async def test_a_tool_that_heeds_its_token_keeps_its_worker(workers: Workers) -> None:
    for tool, arguments in (("polite", {}), ("coroutine", {"seconds": 1000})):
        number = (await workers.call("pid")).structured
        call = await workers.begin(tool, **arguments)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.gather(*workers.pool._endings)
        assert (await workers.call("pid")).structured == number


@pytest.mark.parametrize("detached", [False, True], ids=["in its group", "in sessions of their own"])
async def test_programs_that_a_tool_started_end_with_it(workers: Workers, tmp_path: Path, detached: bool) -> None:
    """fault: T5"""
    call = asyncio.create_task(workers.call("leave", marks=str(tmp_path), detached=detached))
    await until(lambda: os.listdir(tmp_path))
    pids = [int(mark) for mark in os.listdir(tmp_path)]
    assert all(map(lives, pids))
    call.cancel()
    await gone(pids)


async def test_closing_ends_running_calls_and_waiting_ones(place: ToolImportTarget) -> None:
    workers = Workers(place, WorkerLimits(workers=1))
    running = await workers.begin("hang", how="spin")
    waiting = asyncio.create_task(workers.call("add", a=1))
    await asyncio.sleep(0)
    await workers.pool.aclose()
    for call in (running, waiting):
        with pytest.raises(ToolCallFailed):
            await call
    assert living_children() == []


SERVER = """
import asyncio, sys
from toolgate.tools.authoring.loading import ToolImportTarget
from toolgate.tools.authoring.language_model_types import ToolInvocationToken
from toolgate.tools.workers import frames
from toolgate.tools.workers.pool import ToolWorkerPool

async def main():
    place = ToolImportTarget("odd.py", path=sys.argv[1])
    call = frames.ToolWorkerInvokeFrame(place, "leave", {"marks": sys.argv[2], "detached": True}, ToolInvocationToken())
    await ToolWorkerPool().request(call)

asyncio.run(main())
"""


async def test_no_process_outlives_a_server_that_is_killed(place: ToolImportTarget, tmp_path: Path) -> None:
    """fault: T5"""
    server = psutil.Popen([sys.executable, "-c", SERVER, str(place.path), str(tmp_path)])
    try:
        await until(lambda: os.listdir(tmp_path))
        pids = [*map(int, os.listdir(tmp_path)), *[child.pid for child in server.children(recursive=True)]]
    finally:
        server.kill()
        server.wait()
    await gone(pids)


async def test_no_more_processes_run_than_allowed_and_all_calls_are_answered(place: ToolImportTarget) -> None:
    workers = Workers(place, WorkerLimits(workers=2))
    calls = [asyncio.create_task(workers.call("coroutine", seconds=0.02)) for _ in range(8)]
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, len(living_children()))
        await asyncio.sleep(0.005)
    assert [(await call).content for call in calls] == [(Text("slept"),)] * 8
    assert most == 2
    await workers.pool.aclose()


async def test_an_idle_worker_ends_and_the_next_call_starts_another(place: ToolImportTarget) -> None:
    workers = Workers(place, WorkerLimits(idle=0.05))
    first = (await workers.call("pid")).structured
    await gone([first])
    assert (await workers.call("pid")).structured != first
    await workers.pool.aclose()


async def test_a_worker_that_died_while_idle_harms_no_call(workers: Workers) -> None:
    number = (await workers.call("pid")).structured
    os.kill(number, 9)
    await gone([number])
    await until(lambda: not any(worker.is_alive for worker in workers.pool._idle))
    assert (await workers.call("add", a=1)).structured == 2


async def test_a_tool_sees_little_of_the_environment(place: ToolImportTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "secret")
    monkeypatch.setenv("ALLOWED", "yes")
    workers = Workers(place, WorkerLimits(environment=("ALLOWED", "ABSENT")))
    seen = (await workers.call("see")).structured
    assert seen["ALLOWED"] == "yes"
    assert set(seen) <= {"PATH", "HOME", "LANG", "TZ", "LC_CTYPE", "ALLOWED"}
    assert "secret" not in str(environment(os.environ, ()))
    await workers.pool.aclose()


async def test_long_output_is_cut_and_odd_output_fails_with_a_message(workers: Workers) -> None:
    """fault: T3"""
    (long,) = (await workers.call("give", what="long")).content
    assert isinstance(long, Text)
    assert long.text.endswith("x\n[cut here: the tool returned 67,108,864 characters]")
    assert len(long.text) < 5 << 20
    for what in ("cycle", "deep"):
        with pytest.raises(ToolCallFailed, match="nested too deeply"):
            await workers.call("give", what=what)
    with pytest.raises(ToolCallFailed, match="too much output"):
        await workers.call("give", what="escapes")
    (picture,) = (await workers.call("give", what="picture")).content
    assert not isinstance(picture, Text)
    assert (picture.kind, picture.mime) == ("image", "image/png")


async def test_a_response_of_very_many_values_is_not_decoded(workers: Workers) -> None:
    with pytest.raises(ToolCallFailed, match="more than 150,000 values"):
        await workers.call("forge", size=1_000_000, filler="[],", most=1_000_000)
    assert (await workers.call("add", a=1)).structured == 2


async def test_what_a_tool_prints_goes_to_the_log_and_never_into_its_answer(workers: Workers) -> None:
    assert (await workers.call("give", what="noise")).content == (Text("quiet"),)
    await until(lambda: "input: ''" in workers.pool.log.text)
    for line in ("a line to stdout", "raw bytes to 1", "from a program", "from a program to 2"):
        assert line in workers.pool.log.text


@pytest.mark.parametrize(("size", "message"), [(40, "malformed response"), (1 << 31, "more than 8,388,608 bytes")])
async def test_a_worker_that_breaks_the_protocol_is_ended(workers: Workers, size: int, message: str) -> None:
    with pytest.raises(ToolCallFailed, match=message):
        await workers.call("forge", size=size)
    assert (await workers.call("add", a=1)).structured == 2


async def test_a_result_that_is_nested_too_deeply_breaks_the_protocol(workers: Workers) -> None:
    body = '{"type":"result","content":[],"structured":' + "[" * 600 + "]" * 600 + "}"
    with pytest.raises(ToolCallFailed, match="malformed response"):
        await workers.call("forge", size=len(body), filler=body, most=len(body))


async def test_progress_crosses_the_border_but_a_flood_of_it_does_not(workers: Workers) -> None:
    reports: list[CallProgressUpdate] = []
    output = await workers.call("chatter", reports.append)
    assert output.content == (Text("said it all"),)
    assert reports[0] == CallProgressUpdate("y" * 1000, 0, 20_000)
    assert 10 < len(reports) < 1000


async def test_progress_of_a_call_that_has_ended_does_not_become_that_of_the_next(workers: Workers) -> None:
    """The next call of the process may be another caller's."""
    reports: list[tuple[str, str | None]] = []
    await workers.call("keep", lambda update: reports.append(("first", update.message)))
    await workers.call("use_kept", lambda update: reports.append(("second", update.message)))
    assert reports == [("first", "in time")]


async def test_the_loop_stays_quick_whatever_tools_do(workers: Workers) -> None:
    """fault: T1"""
    calls = [asyncio.create_task(workers.call("flood")), await workers.begin("hang", how="spin")]
    calls += [asyncio.create_task(workers.call("give", what="long"))]
    with measured_steps() as steps:
        for _ in range(100):
            await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert steps.longest < 0.1, steps.what
    assert len(workers.pool.log.text) <= 64 * 1024


def test_a_log_forgets_the_oldest() -> None:
    log = WorkerOutputTail(10)
    for number in range(1000):
        log.add(b"%d " % number)
    assert log.text.endswith("998 999 ")
    assert len(log.text) <= 10
    log.add(b"x" * 1000)
    assert log.text == "x" * 10


@pytest.mark.parametrize(
    "message",
    [
        frames.ToolWorkerLimitsFrame(1, 2, 3),
        frames.ToolWorkerCancelFrame(),
        frames.ToolWorkerInvokeFrame(
            ToolImportTarget("a", path="/a"), "t", {"x": [1, 2.5, None, "é"]}, ToolInvocationToken("c", "k")
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_question_survives_its_journey(message: Any) -> None:
    frame = frames.encode(message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frames.decode_request(frame[4:]) == message


@pytest.mark.parametrize("body", [b"", b"{}", b'{"type":"gave"}', b'{"type":"eval","code":"1"}', b"\xff"])
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.decode_response(body)


async def test_a_tool_without_output_returns_a_note(workers: Workers) -> None:
    assert (await workers.call("crash", how="")).content == (Text(NO_OUTPUT),)


class Watch:
    """Keeps what became of the time."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stop(self) -> None:
        self.said.append("stop")

    def start(self) -> None:
        self.said.append("start")


async def test_a_call_that_finds_all_workers_busy_fails_in_time(place: ToolImportTarget) -> None:
    """fault: L2"""
    workers, watch = Workers(place, WorkerLimits(workers=1, queue_seconds=0.05)), Watch()
    first = await workers.begin("hang", how="sleep")
    with pytest.raises(ToolCallFailed, match="busy; nothing was run"):
        await workers.pool.request(frames.ToolWorkerInvokeFrame(place, "pid", {}, ToolInvocationToken()), clock=watch)
    assert watch.said == ["stop"]
    await workers.pool.aclose()
    await asyncio.wait({first})
