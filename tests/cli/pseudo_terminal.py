"""Run the program on a real pseudo-terminal, type to it, and read its screen.

The screen knows the control sequences that our output and the line editing of the standard library use. Any other is an
error, so that every test also shows that no sequence of a model or a tool reaches the terminal.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unicodedata import combining, east_asian_width

PATIENCE = 60.0
"""Seconds after which a test gives up; a screen is read as soon as it changes."""

_INTERRUPT_AGAIN = 5.0
_LAUNCH = (
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "  # tests in the background inherit that it is ignored
    "from toolgate.cli import main; main()"
)
_SEQUENCE = re.compile(r"\x1b\[([?>]?)([0-9;]*)([A-Za-z@])|\x1b([=>78])")
_CUT = re.compile(r"\x1b(\[[?>]?[0-9;]*)?")
_IGNORED = set("mhl")
"""Colours and modes."""


class Screen:
    """What a terminal shows of the text that is written to it; lines that scroll off the top are kept."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""
        self.styles: set[str] = set()

    @property
    def text(self) -> str:
        """All lines, without blanks at their ends."""
        return "\n".join([("".join(line)).rstrip() for line in self._lines])

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    def write(self, text: str) -> None:
        """Show a text; a control sequence at its end may be cut."""
        text, self._rest = self._rest + text, ""
        place = 0
        while place < len(text):
            char = text[place]
            if char == "\x1b":
                found = _SEQUENCE.match(text, place)
                if found is None:
                    if (again := text.find("\x1b", place + 1)) > 0 and _CUT.fullmatch(text, place, again):
                        place = again  # a signal cut the write: the next sequence cancels this one
                        continue
                    if len(text) - place > 16:
                        raise AssertionError(f"an unknown control sequence: {text[place : place + 30]!r}")
                    self._rest = text[place:]
                    return
                self._control(found)
                place = found.end()
                continue
            self._put(char)
            place += 1

    def _put(self, char: str) -> None:
        match char:
            case "\r":
                self._column = 0
            case "\n":
                self._move(self._row + 1)
            case "\b":
                self._column = max(0, self._column - 1)
            case "\a":
                return
            case _ if combining(char) or char in "\u200d\ufe0f":
                return
            case _:
                assert char.isprintable(), f"a control character reached the terminal: {char!r}"
                if self._column >= self._width:
                    self._move(self._row + 1)
                    self._column = 0
                line = self._lines[self._row]
                line += [" "] * (self._column + 1 - len(line))
                line[self._column] = char
                self._column += 1
                if east_asian_width(char) in "WF":
                    line[self._column : self._column + 1] = [""]
                    self._column += 1

    def _move(self, row: int) -> None:
        self._row = max(0, row)
        while len(self._lines) <= self._row:
            self._lines.append([])

    def _control(self, found: re.Match[str]) -> None:
        number = int(found[2]) if found[2] and found[2].isdigit() else 0
        line = self._lines[self._row]
        match found[3]:
            case None:
                return
            case "m":
                self.styles.add(found[2])
            case kind if kind in _IGNORED:
                return
            case "K" if number == 0:
                del line[self._column :]
            case "J" if number == 0:
                del line[self._column :]
                del self._lines[self._row + 1 :]
            case "C":
                self._column += number or 1
            case "D":
                self._column = max(0, self._column - (number or 1))
            case "A":
                self._move(self._row - (number or 1))
            case "B":
                self._move(self._row + (number or 1))
            case "P":
                del line[self._column : self._column + (number or 1)]
            case "@":
                line[self._column : self._column] = [" "] * (number or 1)
            case _:
                raise AssertionError(f"an unknown control sequence: {found[0]!r}")


class TerminalProgram:
    """The program on its terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", leader: int, width: int) -> None:
        self.screen = Screen(width)
        self.raw = b""
        self._process = process
        self._leader = leader
        self._decoded = 0
        self._open = True

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._leader, text.encode())

    def enter(self, line: str) -> None:
        """Type a line when the line editing is ready for it."""
        self.type(line + "\r")

    def expect(self, text: str, times: int = 1) -> str:
        """Wait until the screen shows a text, so many times, and return the screen."""
        deadline = time.monotonic() + PATIENCE
        while self.screen.text.count(text) < times:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} was never shown {times} times:\n{self.screen.text}")
        return self.screen.text

    def expect_prompt(self, times: int) -> str:
        """Wait until a prompt was shown so many times and waits for a line."""
        deadline = time.monotonic() + PATIENCE
        while not (self.screen.lines[-1].startswith(">") and self.prompts >= times):
            if not self._read(deadline):
                raise AssertionError(f"there was no prompt number {times}:\n{self.screen.text}")
        return self.screen.text

    def interrupt(self, done: Callable[[], bool]) -> None:
        """Press Ctrl-C until it has an effect: line editing misses one that comes in the moment before it waits."""
        deadline = time.monotonic() + PATIENCE
        while not done() and time.monotonic() < deadline:
            self.type("\x03")
            soon = time.monotonic() + _INTERRUPT_AGAIN
            while not done() and time.monotonic() < soon and not self.ended:
                self._read(soon)
        assert done(), f"Ctrl-C had no effect:\n{self.screen.text}"

    @property
    def ended(self) -> bool:
        """Whether the program has closed the terminal."""
        return not self._open

    @property
    def prompts(self) -> int:
        return sum([line == ">" or line.startswith("> ") for line in self.screen.lines])

    def wait(self) -> int:
        """Wait for the end of the program and return its status."""
        deadline = time.monotonic() + PATIENCE
        while self._open:
            if not self._read(deadline) and self._open:
                raise AssertionError(f"the program did not end:\n{self.screen.text}")
        return self._process.wait(PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def echoes(self) -> bool:
        """Whether the terminal shows the keys that are pressed."""
        return bool(termios.tcgetattr(self._leader)[3] & termios.ECHO)

    def _read(self, deadline: float) -> bool:
        """Read what is there, or wait for it; return whether something came."""
        if not self._open:
            return False
        ready, _, _ = select.select([self._leader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            self.raw += os.read(self._leader, 65536)
        except OSError:  # the other end is closed
            self._open = False
            return False
        whole = self.raw[self._decoded :]
        text = whole.decode("utf-8", "ignore") if _is_whole(whole) else ""
        if text:
            self._decoded = len(self.raw)
            self.screen.write(text)
        return True


def _is_whole(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True


@contextmanager
def on_terminal(
    *arguments: str, env: Mapping[str, str], width: int = 80, stdin: bytes | None = None
) -> Iterator[TerminalProgram]:
    """Start the program on a terminal of its own; with `stdin`, only its input is a pipe."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    launch = _LAUNCH if stdin is None else _LAUNCH.replace("ioctl(0", "ioctl(2")
    process = subprocess.Popen(
        [sys.executable, "-c", launch, *arguments],
        stdin=follower if stdin is None else subprocess.PIPE,
        stdout=follower,
        stderr=follower,
        env={**kept, "TERM": "xterm", "LANG": "C.UTF-8", "INPUTRC": "/dev/null", **env},
        start_new_session=True,
    )
    os.close(follower)
    try:
        if stdin is not None:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
        yield TerminalProgram(process, leader, width)
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(leader)
