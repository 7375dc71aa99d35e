"""Run a child process with pipes on the event loop: start it, watch it, and kill it with all its descendants.

Every descriptor has exactly one owner, a `FileIO` that closes it once. The event loop only reports when a descriptor is
ready and never owns one: uvloop closes the number of a pipe that it was given twice, and in between another thread or
connection may have got that number. Nothing here waits between opening a descriptor and owning it, nor while closing, so
that no cancellation can come in between.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from io import FileIO
from itertools import islice

from toolgate.processes.tree import kill_tree, kill_tree_in_steps

_CHUNK = 64 * 1024  # what a pipe of Linux holds
_MAX_CHUNKS_LEFT = 32  # more than a pipe can hold
_POLL_SECONDS = 0.02
# Of killing a process and its descendants, in one iteration of the loop: a few milliseconds.
_KILL_STEPS = 20
# A killed process that waits for a disk or a network file system may need a while to die.
_KILLED_SECONDS = 5.0


class PipeReadTransport(asyncio.ReadTransport):
    """Passes the data of a pipe to a protocol, until the pipe ends or is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: FileIO, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._file = file
        self._protocol = protocol
        self._reading = self._finishing = False
        protocol.connection_made(self)
        self.resume_reading()

    def is_closing(self) -> bool:
        """Return whether the pipe has ended or was closed."""
        return self._file.closed

    def is_reading(self) -> bool:
        """Return whether it waits for data."""
        return self._reading

    def pause_reading(self) -> None:
        """Stop reading; once the pipe is full, its writer has to wait."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._file.fileno())

    def resume_reading(self) -> None:
        """Read again after `pause_reading`; does nothing once the pipe is closed."""
        if not self._reading and not self._finishing and not self._file.closed:
            self._reading = True
            self._loop.add_reader(self._file.fileno(), self._read)

    def close(self) -> None:
        """Close the pipe; the protocol is notified in the next iteration of the loop."""
        if not self._file.closed:
            self.pause_reading()
            self._file.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def finish(self, chunks: int = _MAX_CHUNKS_LEFT) -> None:
        """Read what the pipe holds and close it, although other processes may keep its other end open."""
        self._finishing = True
        self.pause_reading()
        if self._file.closed:
            return
        if chunks and self._read():
            self._loop.call_soon(self.finish, chunks - 1)
        else:
            self.close()

    def _read(self) -> bool:
        """Read one chunk, pass it to the protocol and return whether there was one."""
        try:
            data = self._file.read(_CHUNK)
        except OSError:
            data = b""
        if data:
            self._protocol.data_received(data)
        elif data is not None:  # None: the pipe is empty, b"": all its writers are gone
            self.close()
        return bool(data)


class PipeWriteTransport:
    """Writes to a pipe without blocking: what does not fit is buffered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, file: FileIO) -> None:
        self._loop = loop
        self._file = file
        self._buffer = bytearray()
        self._waiting = self._closing = False

    @property
    def buffered(self) -> int:
        """Bytes that the pipe has not taken yet."""
        return len(self._buffer)

    def write(self, data: bytes) -> None:
        """Write the data or buffer it; it is dropped if the pipe is closed at either end."""
        if self._closing:
            return
        self._buffer += data
        if not self._waiting:
            self._flush()

    def close(self) -> None:
        """Close the pipe once the buffer is written."""
        self._closing = True
        if not self._buffer:
            self.abort()

    def abort(self) -> None:
        """Close the pipe at once."""
        self._closing = True
        self._buffer.clear()
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._file.fileno())
        self._file.close()

    def _flush(self) -> None:
        try:
            written = self._file.write(self._buffer) or 0  # None where the pipe is full
        except OSError:  # its reader is gone
            self.abort()
            return
        del self._buffer[:written]
        if self._buffer and not self._waiting:
            self._waiting = True
            self._loop.add_writer(self._file.fileno(), self._flush)
        elif self._waiting and not self._buffer:
            self._waiting = False
            self._loop.remove_writer(self._file.fileno())
        if self._closing and not self._buffer:
            self.abort()


class ChildProcess:
    """A process that leads a session of its own. When it exits, its group is killed and its output ends.

    Its owner must call `close`, at any time; calling it twice is harmless.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: asyncio.Protocol | int | None = None,
        stderr: asyncio.Protocol | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the process; OSError or ValueError if that is impossible. Numbers and None are those of `subprocess`.

        `subprocess.PIPE` as `stdin` opens the writer `stdin`; a protocol receives what the process writes to that stream.
        """
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._pidfd: FileIO | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._killing: Iterator[None] | None = None
        self._readers: list[PipeReadTransport] = []
        self.stdin: PipeWriteTransport | None = None
        # `theirs` closes the child's ends in any case, `ours` our ends if anything fails before `pop_all`.
        with ExitStack() as ours, ExitStack() as theirs:
            outputs: list[tuple[FileIO, asyncio.Protocol]] = []

            def output(stream: asyncio.Protocol | int | None) -> int | None:
                if not isinstance(stream, asyncio.Protocol):
                    return stream
                end, descriptor = _pipe(ours, theirs, writes=False)
                outputs.append((end, stream))
                return descriptor

            if stdin == subprocess.PIPE:
                end, stdin = _pipe(ours, theirs, writes=True)
                self.stdin = PipeWriteTransport(self._loop, end)
            self._process = subprocess.Popen(  # noqa: S603  # the caller decides what is run
                command,
                stdin=stdin,
                stdout=output(stdout),
                stderr=output(stderr),
                env=env,
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,  # its group is signalled as a whole, and a terminal's Ctrl-C does not reach it
            )
            ours.callback(self._abandon)
            self._readers = [PipeReadTransport(self._loop, end, protocol) for end, protocol in outputs]
            self._watch()
            ours.pop_all()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group and its session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative if a signal ended it; None until then."""
        return self._exited.result() if self._exited.done() else None

    async def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its exit, at most so long, and return its `returncode`. Cancelling this leaves the process alone."""
        await asyncio.wait({self._exited}, timeout=seconds)
        return self.returncode

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its group, unless it has exited."""
        if not self._exited.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the process and all its descendants; its output ends. With many, the loop serves others in between."""
        if not self._exited.done() and self._killing is None:
            self._killing = kill_tree_in_steps(self.pid)
            self._kill_some()

    def close(self) -> None:
        """Kill the process and its descendants and close the pipes, at once; it is reaped as soon as it is dead."""
        self.kill()
        for reader in self._readers:
            reader.close()
        if self.stdin is not None:
            self.stdin.abort()

    async def aclose(self) -> None:
        """Close it and wait until it has exited."""
        self.close()
        await self.wait(_KILLED_SECONDS)

    def _kill_some(self) -> None:
        if self._killing is not None and len(list(islice(self._killing, _KILL_STEPS))) == _KILL_STEPS:
            self._loop.call_soon(self._kill_some)
        else:
            self._killing = None

    def _watch(self) -> None:
        """Have `_check_exit` called when the process exits."""
        try:
            self._pidfd = FileIO(os.pidfd_open(self.pid))
        except (AttributeError, OSError):  # not on Linux, or there are no descriptors left
            self._timer = self._loop.call_later(_POLL_SECONDS, self._check_exit)
        else:
            self._loop.add_reader(self._pidfd.fileno(), self._check_exit)

    def _check_exit(self) -> None:
        """If the process has exited, kill its descendants, reap it and read its output to the end."""
        # While it is being killed, it is not reaped: another process could get its id.
        if self._killing is not None or not self._has_exited():
            if self._pidfd is None:
                self._timer = self._loop.call_later(_POLL_SECONDS, self._check_exit)
            return
        self._unwatch()
        kill_tree(self.pid)  # before it is reaped: afterwards its id, and that of its group, may be another's
        self._exited.set_result(self._process.wait())
        for reader in self._readers:  # a descendant that escaped may hold the pipe open for ever
            reader.finish()
        if self.stdin is not None:
            self.stdin.abort()

    def _has_exited(self) -> bool:
        """Return whether it has exited, without reaping it where possible: no other process gets its id before."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # something else has reaped it
            return True

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd.fileno())
            self._pidfd.close()
        if self._timer is not None:
            self._timer.cancel()

    def _abandon(self) -> None:
        """Undo a start that failed."""
        kill_tree(self.pid)
        self._process.wait()
        self._unwatch()


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`, or its number: most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _pipe(ours: ExitStack, theirs: ExitStack, *, writes: bool) -> tuple[FileIO, int]:
    """Open a pipe and return our end, which does not block, and the child's end; each is closed by its stack."""
    reading, writing = os.pipe()
    own, given = (writing, reading) if writes else (reading, writing)
    theirs.callback(os.close, given)
    file = ours.enter_context(FileIO(own, "w" if writes else "r"))
    os.set_blocking(own, False)
    return file, given
