"""Plain text and reasoning, scanned for what opens something else.

A `Scene` is where the scanner is: in text or inside reasoning. Both know code spans and fences, within which nothing opens,
and where lines begin. Knows no syntax beyond the openers it is given.
"""

import re
from functools import lru_cache

from toolgate.text.bodies.plain import between
from toolgate.text.openers import Openers
from toolgate.text.reading import Found, Reading
from toolgate.text.source import Out, Source, Steps, words
from toolgate.text.syntax import Opener, Read, Syntax

THINKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""The marks around reasoning that are looked for in every syntax, where a message begins."""

_SPACES = re.compile(r"[ \t]*")
_MOST_DRAFTED = 1 << 18
"""Characters of reasoning to hold back behind a call that may be a draft; no model drafts more than this."""


@lru_cache(256)
def _openers(syntax: Syntax, names: tuple[str, ...], answer: str | None, close: str) -> Openers:
    """What may open in text or, given what closes it, inside reasoning; prepared once, for it takes milliseconds."""
    calls = syntax.openers(names)
    if close:
        return Openers([*calls, Opener(_end_reasoning, close)], spans=False)  # reasoning may be closed inside a span
    marks = [Opener(_think, opening, at="start") for opening, _ in (*syntax.thinks, *THINKS)]
    if answer:
        marks.append(Opener(_answer, f"<{answer}>"))
    return Openers([*calls, *marks])


def _think(reading: Reading, opened: str) -> Steps[None]:
    reading.drop()
    reading.source.held = None
    yield from reading.reason(opened)


def _end_reasoning(reading: Reading, _: str) -> Steps[None]:
    reading.drop()
    yield from reading.reason("")


def _answer(reading: Reading, opened: str) -> Steps[None]:
    yield from between(reading, f"</{opened[1:]}")


class Scene:
    """What may open here, where the text goes, and, inside reasoning, the mark that closes it."""

    def __init__(self, openers: Openers, out: Out, close: str = "") -> None:
        self.openers = openers
        self.out = out
        self.close = close
        marks = (close,) if close else ()
        self.span_stops = words("`", "\n", *marks)
        self.fence_stops = {mark: words(mark, *marks) for mark in "`~"}


class Scanner:
    """Reads an answer from end to end."""

    def __init__(self, reading: Reading, syntax: Syntax, calls_end_thinking: bool) -> None:
        self._reading = reading
        self._source: Source = reading.source
        self._syntax = syntax
        self._names = tuple(reading.tools) if syntax.by_name else ()
        self._closes = dict((*syntax.thinks, *THINKS))
        self._calls_end_thinking = calls_end_thinking
        self._plain = self._scene = Scene(_openers(syntax, self._names, reading.answer, ""), reading.text)
        self._line_start = True
        reading.reason = self._reason

    def run(self, thinking: bool) -> Steps[None]:
        """Reads all; with `thinking`, the text begins inside reasoning."""
        if thinking:
            yield from self._reason(next(iter(self._closes)))
            self._source.held = None
        while not self._source.over:
            yield from self._next()

    def _next(self) -> Steps[None]:
        """Reads up to the next opener, and what that opens."""
        source, openers = self._source, self._scene.openers
        if self._line_start and (yield from self._line()):
            return
        found = openers.search(source.text, source.at)
        if found and not source.ended and not openers.certain(found, source.at):
            found = None
        end = found.start() if found else len(source.text) if source.ended else openers.doubtful(source.text, source.at)
        if end > source.at:
            self._say(source.take(end - source.at))
        if not found:
            if not source.ended:
                yield
        elif opener := openers.opened(found):
            yield from self._open(opener, found[0])
        elif found[0] == "`":
            yield from self._code("`")
        else:
            self._say(source.take(len(found[0])))

    def _line(self) -> Steps[bool]:
        """At the beginning of a line: what may open only there; whether something did, or all is read."""
        source = self._source
        self._scene.out((yield from source.blanks()))
        while not source.over:
            fresh = self._scene is self._plain and self._reading.fresh
            if not source.ended and self._scene.openers.undecided_line(source.text, source.at, fresh):
                yield
            elif opened := self._scene.openers.at_line(source.text, source.at, fresh):
                yield from self._open(*opened)
                return True
            elif (yield from source.sees("~~~")):
                yield from self._code("~")
                return True
            else:
                self._line_start = source.text.startswith("`", source.at)  # a fence is known by where it begins
                return False
        return True

    def _say(self, text: str) -> None:
        """More text or reasoning."""
        self._scene.out(text)
        tail = text[text.rfind("\n") + 1 :]
        self._line_start = (self._line_start or len(tail) < len(text)) and not tail.strip(" \t\r")

    def _open(self, opener: Opener, opened: str) -> Steps[None]:
        """Lets the opener's reader read; what it leaves held was text."""
        source = self._source
        before = source.taken
        source.held = []
        source.take(len(opened))
        if self._scene.close and opened != self._scene.close:
            yield from self._draft(opener.read, opened)
        else:
            yield from opener.read(self._reading, opened)
        text, source.held = "".join(source.held or ()), None
        if source.taken == before:
            text = source.take(1)
        if not text:
            self._line_start = True
            return
        self._say(text)
        if text.startswith("```") and text.count("```") == 1:
            yield from self._inside_code("`", 3, fence=True)

    def _code(self, mark: str) -> Steps[None]:
        """A code span or fence: text to the letter, up to the backticks or tildes that close it."""
        fence = self._line_start
        count = yield from self._marks(mark)
        yield from self._inside_code(mark, count, fence and count >= 3)

    def _inside_code(self, mark: str, count: int, fence: bool) -> Steps[None]:
        stops = self._scene.fence_stops[mark] if count >= 3 else self._scene.span_stops
        while (yield from self._source.until(stops, self._say)) == mark:
            at_line = self._line_start
            closing = yield from self._marks(mark)
            if closing == count if not fence else closing >= count and at_line and (yield from self._ends_line()):
                return

    def _ends_line(self) -> Steps[bool]:
        """Reads blanks; whether the line ends behind them. A fence with words behind it opens and never closes."""
        self._say((yield from self._source.run(_SPACES)))
        return (yield from self._source.peek()) in ("", "\r", "\n")

    def _marks(self, mark: str) -> Steps[int]:
        """Reads backticks or tildes and counts them."""
        count = 0
        while (yield from self._source.peek()) == mark:
            self._say(self._source.take(1))
            count += 1
        return count

    def _reason(self, opened: str) -> Steps[None]:
        """Reads reasoning to the mark that closes it, or to a call that turns out to be no draft; or ends it there."""
        if not opened:
            self._scene = self._plain
            return
        close, trimmed = self._closes[opened], _Trimmed(self._reading.reasoning)
        openers = _openers(self._syntax, self._names, None, close)
        self._scene = scene = Scene(openers, trimmed.feed, close)
        self._line_start = True
        while self._scene is scene and not self._source.over:
            yield from self._next()
        self._scene = self._plain
        self._source.held = []

    def _draft(self, read: Read, opened: str) -> Steps[None]:
        """Inside reasoning: if a call begins here, finds out whether reasoning is closed behind it."""
        self._reading.searching = True
        try:
            yield from read(self._reading, opened)
        except Found:
            yield from self._settle_draft()
        finally:
            self._reading.searching = False

    def _settle_draft(self) -> Steps[None]:
        source, scene = self._source, self._scene
        draft = _Draft(scene.out, source.held or [])
        source.held = None
        closed = False
        if not self._calls_end_thinking:
            closed = bool((yield from source.until(words(scene.close), draft.feed)))
        if closed or draft.given_up:
            draft.give_up()
        else:
            source.push_back("".join(draft.pieces))
            self._scene = self._plain
        source.held = []


class _Draft:
    """What is held back behind a call inside reasoning, until it is too much."""

    def __init__(self, out: Out, pieces: list[str]) -> None:
        self.given_up = False
        self.pieces = pieces
        self._out = out
        self._size = 0

    def feed(self, piece: str) -> None:
        """More of it."""
        if self.given_up:
            self._out(piece)
            return
        self.pieces.append(piece)
        self._size += len(piece)
        if self._size > _MOST_DRAFTED:
            self.give_up()

    def give_up(self) -> None:
        """It was reasoning."""
        for piece in self.pieces:
            self._out(piece)
        self.pieces.clear()
        self.given_up = True


class _Trimmed:
    """Hands text on without the blanks at its ends."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._blanks: list[str] = []
        self._begun = False

    def feed(self, piece: str) -> None:
        """More text."""
        kept = piece.rstrip()
        blanks = piece[len(kept) :]
        if kept:
            self._out("".join([*self._blanks, kept]) if self._begun else kept.lstrip())
            self._begun = True
            self._blanks.clear()
        self._blanks.append(blanks)
