"""Child processes end with their output and descendants, and closing one never blocks."""

import asyncio
import os
import signal
import subprocess
import time

import psutil
import pytest

from tests.child_processes import living_children
from tests.upstreams.transport.faulty import on_both_loops
from toolgate.processes.child import ChildProcess


class Output(asyncio.Protocol):
    """Collects what a process writes; `begun` is set when something came, and `ended` at the end."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@on_both_loops
async def test_output_ends_with_its_process_even_if_another_holds_the_pipe() -> None:
    output, errors = Output(), Output()
    # It has a session of its own before the shell exits, so that it is not killed with the group of that.
    script = "setsid sh -c 'echo $$ >&2; exec sleep 600' & sleep 0.2; head -c 60000 /dev/zero; exit 4"
    process = ChildProcess(["sh", "-c", script], stdout=output, stderr=errors)
    assert await process.wait() == 4
    await output.ended.wait()
    await errors.ended.wait()
    assert output.data == bytes(60_000)
    os.kill(int(errors.data), signal.SIGKILL)  # it lives and holds the pipe


@on_both_loops
async def test_writing_to_a_process_that_does_not_read_does_not_block() -> None:
    process = ChildProcess(["sleep", "600"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(bytes(1_000_000))
    assert 0 < process.stdin.buffered < 1_000_000
    process.stdin.close()
    process.close()
    process.close()
    assert await process.wait() == -9
    assert living_children() == []


@on_both_loops
async def test_written_data_arrives_whole_and_in_order() -> None:
    output, sent = Output(), os.urandom(1_000_000)
    process = ChildProcess(["cat"], stdin=subprocess.PIPE, stdout=output)
    assert process.stdin is not None
    for start in range(0, len(sent), 100_000):
        process.stdin.write(sent[start : start + 100_000])
    process.stdin.close()
    assert await process.wait() == 0
    await output.ended.wait()
    assert output.data == sent


@on_both_loops
async def test_a_missing_program_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/no/such/program"], stdin=subprocess.PIPE, stdout=Output(), stderr=Output())
    assert os.listdir("/proc/self/fd") == before


@on_both_loops
async def test_thousands_of_descendants_are_killed_while_the_loop_serves_others() -> None:
    errors = Output()
    script = "for i in $(seq 1000); do sleep 600 & done; setsid sh -c 'echo $$ >&2; exec sleep 600' & wait"
    process = ChildProcess(["sh", "-c", script], stderr=errors)
    await errors.begun.wait()
    outside = psutil.Process(int(errors.data))  # it has left the group
    started, longest = time.thread_time(), 0.0
    process.close()
    while process.returncode is None:
        longest = max(longest, time.thread_time() - started)
        await asyncio.sleep(0)
        started = time.thread_time()
    assert process.returncode == -9
    assert longest < 0.05
    _, alive = await asyncio.to_thread(psutil.wait_procs, [outside], 60)
    assert not alive
