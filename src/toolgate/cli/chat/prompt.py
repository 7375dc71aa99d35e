"""Read what a person types: with editing, history and completion on a terminal, and messages of several lines."""

import os
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from toolgate.cli.chat.style import TerminalStyle

try:
    import readline
except ImportError:  # a Python that was built without it
    readline = None  # type: ignore[assignment]

# The place of the local modes in the attributes of a terminal: tcgetattr returns them as a list.
_LOCAL_MODES = 3

BLOCK = '"""'
# Returns completions for a word, given the whole line before its end.
Completer = Callable[[str, str], Iterable[str]]


class ApprovalPrompter(Protocol):
    """Asks a person a question while an answer is made."""

    def ask(self, question: str, prefill: str = "") -> str:
        """Return the line that the person typed; the prefilled text can be edited."""
        ...


class ReadlinePrompter:
    """Reads lines from the terminal of this process, with the standard library's line editing."""

    def __init__(self, style: TerminalStyle, history: Sequence[str] = ()) -> None:
        self._style = style
        self._complete: Completer = lambda _line, _word: ()
        self._found: list[str] = []
        if readline is None:
            return
        # `remember` adds whole messages; the lines of a message, and answers to questions, are not added.
        readline.set_auto_history(False)
        # By default `/`, `#`, `-` and `:` end a word, and all of them occur in commands, tools, models and paths.
        readline.set_completer_delims(" \t\n")
        readline.set_completer(self._completion)
        # The readline of macOS is libedit, which has a syntax of its own.
        if "libedit" in (readline.__doc__ or ""):
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("tab: complete")
            # A dumb terminal would print the escapes that turn it on.
            readline.parse_and_bind(f"set enable-bracketed-paste {'on' if style.movable else 'off'}")
            for end in ("m", "j"):  # Alt-Enter inserts a line feed
                readline.parse_and_bind(rf'"\e\C-{end}": "\C-v\C-j"')
        for text in history:
            readline.add_history(text)

    def complete_with(self, complete: Completer) -> None:
        """Complete messages in this way from now on."""
        self._complete = complete

    def read_message(self) -> str:
        """Read a message: one line, lines that end with a backslash, or lines between two times three quotes."""
        line = self._input("> ")
        if line.lstrip().startswith(BLOCK):
            lines = [line.lstrip().removeprefix(BLOCK)]
            # A text behind the opening quotes may be closed on the same line.
            while not lines[-1].rstrip().endswith(BLOCK):
                lines.append(self._input(". "))
            lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
            return "\n".join(lines).strip("\n")
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._input(". "))
        return "\n".join(lines)

    def remember(self, text: str) -> None:
        """Add a message to the history of this chat."""
        if readline is not None:
            readline.add_history(text)

    def typed(self) -> str:
        """Return what stood on the line when it was interrupted."""
        return readline.get_line_buffer() if readline is not None else ""

    def ask(self, question: str, prefill: str = "") -> str:
        """Ask a question; its answer is not part of the history, and Tab completes nothing."""
        if readline is None:
            with echo(sys.stdin, True):
                return self._input(question)
        readline.set_completer(lambda _text, _state: None)
        # The hook runs when the prompt is printed, and writes the prefilled text as if it were typed.
        readline.set_startup_hook(lambda: readline.insert_text(prefill))
        try:
            with echo(sys.stdin, True):
                return self._input(question)
        except (KeyboardInterrupt, EOFError):
            sys.stdout.write("\n")  # what follows must not overwrite the question
            raise
        finally:
            readline.set_startup_hook(None)
            readline.set_completer(self._completion)

    def _input(self, prompt: str) -> str:
        if self._style.colored and readline is not None:
            # \x01 and \x02 tell readline that what is between them takes no columns.
            prompt = f"\x01\x1b[1;36m\x02{prompt}\x01\x1b[0m\x02"
        return input(prompt)

    def _completion(self, text: str, state: int) -> str | None:
        """Return one completion after the other, as readline asks for them."""
        if state == 0:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            self._found = list(self._complete(line, text))
        return self._found[state] if state < len(self._found) else None


class ControllingTerminalPrompter:
    """Asks on the controlling terminal, for a command whose input or output is a pipe."""

    def __init__(self, keyboard: TextIO, screen: TextIO) -> None:
        self._keyboard = keyboard
        self._screen = screen

    def ask(self, question: str, prefill: str = "") -> str:
        """Ask a question; an empty line means the prefilled text."""
        self._screen.write(f"{question}[{prefill}] " if prefill else question)
        self._screen.flush()
        line = self._keyboard.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n") or prefill


@contextmanager
def echo(stream: TextIO, shown: bool) -> Iterator[None]:
    """Let the terminal show the keys that are pressed, or not, for a while; without a terminal nothing changes."""
    try:
        before = termios.tcgetattr(stream)
    except (termios.error, OSError, ValueError):
        yield
        return
    changed = [*before]
    changed[_LOCAL_MODES] = before[_LOCAL_MODES] | termios.ECHO if shown else before[_LOCAL_MODES] & ~termios.ECHO
    termios.tcsetattr(stream, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSANOW, before)


def open_terminal() -> ControllingTerminalPrompter | None:
    """Open the controlling terminal to ask on, if a person sees standard error."""
    if not sys.stderr.isatty():
        return None
    try:
        return ControllingTerminalPrompter(open("/dev/tty", encoding="utf-8"), sys.stderr)
    except OSError:
        return None


def edit_text(text: str, suffix: str) -> str | None:
    """Open a text in the person's editor and return the edited one; None if the editor failed."""
    import shlex
    import subprocess
    import tempfile

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"toolgate{suffix}")
        path.write_text(text, "utf-8")
        try:
            with echo(sys.stdin, True):
                done = subprocess.run([*shlex.split(editor), str(path)], check=False)  # noqa: S603 - the person's own
        except (OSError, ValueError):  # ValueError: a quote in EDITOR that is never closed
            return None
        return None if done.returncode else path.read_text("utf-8", "replace")
