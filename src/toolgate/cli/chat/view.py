"""Show an answer while it arrives: text, reasoning, tool calls with their results and times.

On a terminal all of it is shown; in a pipe the answer alone goes to standard output, and the rest to standard error if
that is a terminal.
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

from toolgate.cli.chat.markdown import MarkdownRenderer
from toolgate.cli.chat.response_events import (
    AnswerEvent,
    CliAnswerEnded,
    CliAnswerStarted,
    CliApprovalAsked,
    CliNotice,
    CliReasoningDelta,
    CliTextDelta,
    CliToolEnded,
    CliToolStarted,
)
from toolgate.cli.chat.status_line import StatusLine
from toolgate.cli.chat.style import PLAIN, TerminalStyle, style_of, terminal_width
from toolgate.cli.chat.terminal_text import TerminalTextFilter, columns, visible, wrap

MAX_ARGUMENT_LINES = 4
MAX_RESULT_LINES = 8
# Columns that a text needs to be readable beside its name.
_MIN_BESIDE = 20
_WAITING = "waiting for the model, Ctrl-C stops"


class CliToolCall(NamedTuple):
    """A finished call, for `/show` and `/save`."""

    name: str
    arguments: str
    result: str
    failed: bool


class AnswerView:
    """Shows the answers of a chat: their text on one stream, everything else on another.

    In a chat both are the terminal. A single question keeps standard output for the answer alone.
    """

    def __init__(
        self,
        answers: TextIO,
        notes: TextIO,
        *,
        single: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.style = style_of(notes)
        # The calls of the last answer.
        self.calls: list[CliToolCall] = []
        self._answers = answers
        self._notes = notes
        self._single = single
        self._notes_on_terminal = notes.isatty()
        # Behind a pipe another program, such as a pager, may draw on the same terminal.
        self._status = StatusLine(notes, self.style if answers.isatty() else PLAIN)
        self._clock = clock
        self._text: _RenderedText | _RawText | None = None
        # Whether the answer has shown anything, from which the next text is set apart by a blank line.
        self._has_output = False
        # When the question was sent, and when the person was last asked for an approval.
        self._started = self._paused = 0.0
        # New arguments of calls that a person edited, by the name and the model's arguments.
        self._edited: dict[tuple[str, str], str] = {}
        # Arguments and start of running calls, by id.
        self._running: dict[str, tuple[str, float]] = {}
        # The call that the last line is about.
        self._last_call = ""
        self._model = ""

    def begin(self) -> None:
        """A question was sent."""
        self.calls = []
        self._has_output = False
        self._started = self._clock()
        if not self._single:
            self._note("\n")
        self._status.show(_WAITING)

    def go_on(self) -> None:
        """The same answer goes on after an approval; the person's time is not the answer's."""
        self._started += self._clock() - self._paused
        self._status.show(_WAITING)

    def show(self, event: AnswerEvent) -> None:
        """Show the next event of the answer."""
        match event:
            case CliAnswerStarted(model=model):
                self._model = model
            case CliTextDelta(text=text, item=item):
                self._write_text(text, item, ())
            case CliReasoningDelta(text=text, item=item):
                if not self._single:
                    self._write_text(text, item, ("dim", "italic"))
            case CliToolStarted():
                self._tool_started(event)
            case CliToolEnded():
                self._tool_ended(event)
            case CliNotice(text=text):
                self.line(text, "warning")
            case CliApprovalAsked() | CliAnswerEnded():
                # The question is shown by the dialog, the end by `end`.
                self.pause()
                self._paused = self._clock()

    def edited(self, name: str, before: str, after: str) -> None:
        """A call will run with other arguments than the model's, which are the only ones that events have."""
        self._edited[name, compact(before)] = after

    def end(self, ended: CliAnswerEnded | None) -> None:
        """The answer is over; say what it took, and what went wrong."""
        self.pause()
        if ended is None:
            self.line("Stopped.", "warning")
        elif ended.problem:
            self.line(ended.problem, "bad" if ended.failed else "warning")
        if self._single:
            return
        if ended is not None and ended.failed:
            self.line("/retry asks again.", "dim")
        if ended is not None and not ended.failed:
            took = f"{self._clock() - self._started:.1f} s"
            tokens = f"{ended.input_tokens} tokens in, {ended.output_tokens} out, " if ended.output_tokens else ""
            self.line(f"{self._model}: {tokens}{took}" if self._model else took, "dim")
        self._note("\n")

    def pause(self) -> None:
        """End the open text, so that other lines can be written."""
        self._status.hide()
        if self._text is not None:
            self._answer(self._text.close() + "\n")
            self._text = None

    def line(self, text: str, *styles: str) -> None:
        """Write a message of our own; texts of others in it are made safe."""
        self.pause()
        for paragraph in text.splitlines() or [""]:
            # The indentation is repeated on every line into which the paragraph is wrapped.
            shown = visible(paragraph).lstrip(" ")
            indent = " " * (len(paragraph) - len(paragraph.lstrip(" ")))
            width = terminal_width() - len(indent)
            for line in (wrap(shown, max(10, width)) if self._notes_on_terminal else [shown]) or [""]:
                self._note(indent + self.style.paint(line, *styles) + "\n")

    def term(self, name: str, width: int, text: str) -> None:
        """Write a name and what it means beside it, or below it where the terminal is narrow."""
        beside = terminal_width() - width - 2
        if beside < _MIN_BESIDE:
            self.line(f"{name}\n  {text}")
            return
        for number, line in enumerate(wrap(visible(text), beside)):
            self._note(f"{(name if number == 0 else ''):{width}}  {line}\n")

    def question(self, text: str) -> None:
        """Write a question to the person, apart from the text before it."""
        self.pause()
        self._note("\n")
        self.line(f"{self.style.symbols['ask']} {text}", "bold")

    def _write_text(self, text: str, item: str, styles: tuple[str, ...]) -> None:
        self._status.hide()
        if self._text is not None and self._text.item != item:
            self.pause()
        if self._text is None:
            if self._has_output:
                self._answer("\n")
            rendered = self._answers.isatty()
            self._text = _RenderedText(item, self.style, styles) if rendered else _RawText(item)
            self._has_output = True
        self._answer(self._text.feed(text))

    def _tool_started(self, event: CliToolStarted) -> None:
        after_text = self._text is not None
        self.pause()
        if after_text and not self._single:
            self._note("\n")
        edited = self._edited.pop((event.name, compact(event.arguments)), None)
        arguments = event.arguments if edited is None else edited
        self._running[event.id] = (arguments, self._clock())
        self._last_call = event.id
        mark = self.style.paint(self.style.symbols["call"], "tool")
        name = self.style.paint(visible(event.name), "bold")
        lines = _block(compact(arguments) + (" (edited)" if edited else ""), MAX_ARGUMENT_LINES, len(event.name) + 3)
        self._detail(f"{mark} {name} {self.style.paint(lines[0], 'dim')}")
        for line in lines[1:]:
            self._detail(f"  {self.style.paint(line, 'dim')}")
        self._status.show(f"running {visible(event.name)}, Ctrl-C stops")

    def _tool_ended(self, event: CliToolEnded) -> None:
        self.pause()
        arguments, started = self._running.pop(event.id, ("", self._clock()))
        self.calls.append(CliToolCall(event.name, arguments, event.result, event.failed))
        took = self._clock() - started
        # Calls may run at the same time: a result names its call if it does not stand right below it.
        which = f"{event.name}: " if event.id != self._last_call else ""
        self._last_call = ""
        lines = _block(which + (event.result or "(no output)"), MAX_RESULT_LINES, 4)
        time_taken = f"{took:.1f} s" if took >= 1 else f"{took * 1000:.0f} ms"
        suffix = f"(failed after {time_taken})" if event.failed else f"({time_taken})"
        # Four columns of indentation, and a blank before the suffix.
        fits = columns(lines[-1]) + len(suffix) + 5 <= terminal_width()
        lines[-1:] = [f"{lines[-1]} {suffix}"] if fits else [lines[-1], suffix]
        mark = self.style.paint(self.style.symbols["result"], "bad" if event.failed else "good")
        self._detail(f"  {mark} {self.style.paint(lines[0], 'dim')}")
        for line in lines[1:]:
            self._detail(f"    {self.style.paint(line, 'dim')}")
        self._status.show(_WAITING)

    def _detail(self, line: str) -> None:
        """Write a line that only a person needs."""
        self._has_output = self._has_output or not self._single
        if self._notes_on_terminal:
            self._note(line + "\n")

    def _answer(self, text: str) -> None:
        if text:
            self._answers.write(text)
            self._answers.flush()

    def _note(self, text: str) -> None:
        self._notes.write(text)
        self._notes.flush()


class _RenderedText:
    """Makes the text of one message safe and renders its Markdown."""

    def __init__(self, item: str, style: TerminalStyle, styles: tuple[str, ...]) -> None:
        self.item = item
        self._filter = TerminalTextFilter()
        self._markdown = MarkdownRenderer(style, terminal_width, styles)

    def feed(self, text: str) -> str:
        return self._markdown.feed(self._filter.feed(text))

    def close(self) -> str:
        return self._markdown.feed(self._filter.close()) + self._markdown.close()


class _RawText:
    """Passes the text of one message on as it is, without control characters."""

    def __init__(self, item: str) -> None:
        self.item = item
        self._filter = TerminalTextFilter(terminal=False)

    def feed(self, text: str) -> str:
        return self._filter.feed(text)

    def close(self) -> str:
        return self._filter.close()


def compact(arguments: str) -> str:
    """Write the arguments of a call on one line, in the order of their names and without escapes of letters."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, sort_keys=True)
    except ValueError:
        return arguments


def _block(text: str, most: int, indent: int) -> list[str]:
    """Wrap a text into a few lines; of a longer one the last line says how much is missing."""
    width = max(10, terminal_width() - indent)
    lines: list[str] = []
    # Only the beginning is wrapped, which is slow: a result may have megabytes.
    for line in visible(text[: most * width * 4].replace("\r\n", "\n").expandtabs(4)).strip("\n").split("\n"):
        lines += wrap(line, width) or [""]
        if len(lines) > most:
            break
    if len(lines) > most or len(text) > most * width * 4:
        left = max(0, len(text) - sum([len(line) for line in lines[:most]]))
        return [*lines[:most], f"… ({left} more characters: /show)"]
    return lines
