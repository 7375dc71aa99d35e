"""Starts and ends the processes of a measurement, and talks to the load generator; knows no dialect and no peer."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.load import Job, Outcome
from bench.measure import resident_bytes, tree

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".bench"


class Failed(RuntimeError):
    """A process did not do what was asked of it; the message says which and where its log is."""


def free_port() -> int:
    """A TCP port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def launched(
    name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The process from its first moment, its output in a log; its whole tree is ended at the close."""
    with _log(name).open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=out)
    try:
        yield process
    finally:
        end(process)


@contextmanager
def running(
    name: str, command: Sequence[str], port: int, *, env: Mapping[str, str] | None = None, patience: float = 90
) -> Iterator[subprocess.Popen[bytes]]:
    """The process from the moment its port accepts connections."""
    with launched(name, command, env=env) as process:
        _await_port(process, name, port, time.monotonic() + patience)
        yield process


def _log(name: str) -> Path:
    return WORK / f"{name}.log"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children, gently at first."""
    if process.poll() is None:
        family = tree(process.pid)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in family[1:]:
            if child.is_running():
                child.kill()


def _await_port(process: subprocess.Popen[bytes], name: str, port: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failed(f"{name} ended with {process.returncode}; see {_log(name).relative_to(ROOT)}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise Failed(f"{name} did not open its port; see {_log(name).relative_to(ROOT)}")


def load(job: Job) -> Outcome:
    """Runs the job in a load generator of its own; one that fails is reported, and its outcome is `lost`."""
    with _generator() as generator:
        out, _ = generator.communicate(msgspec.json.encode(job) + b"\n")
    return _outcome(job, generator, out)


def hold(job: Job, pid: int) -> tuple[int, Outcome]:
    """Opens the job's streams, reads the resident bytes of `pid`'s tree while all are open, and closes them."""
    with _generator() as generator:
        assert generator.stdin is not None
        assert generator.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its outcome says
            generator.stdin.write(msgspec.json.encode(job) + b"\n")
            generator.stdin.flush()
        generator.stdout.readline()
        resident = resident_bytes(pid)
        out, _ = generator.communicate()
    return resident, _outcome(job, generator, out)


def _outcome(job: Job, generator: subprocess.Popen[bytes], out: bytes) -> Outcome:
    if not generator.returncode:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(out, type=Outcome)
    reason = f"the load generator ended with {generator.returncode} and no outcome"
    sent = f"{job.requests} × {job.method} {job.path} on port {job.port}, {job.connections} connections"
    print(f"not measured: {sent}: {reason}", file=sys.stderr)
    return Outcome(0, {}, 0.0, [], lost=reason)


def _generator() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.load"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
