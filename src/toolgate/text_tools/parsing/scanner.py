"""Scan plain text and reasoning for the marks of calls and reasoning, and let their readers read what follows.

A `ScannerContext` is where the scanner is: in text or inside reasoning. In both it tracks where lines begin, and code spans
and fences, in which no mark counts. Knows no syntax beyond the markers it is given.
"""

import re
from functools import lru_cache

from toolgate.text_tools.parsing.call_marker_search import CallMarkerSearch
from toolgate.text_tools.parsing.input_buffer import InputBuffer, Parse, TextSink, word_set
from toolgate.text_tools.parsing.parser_state import CallStartFound, ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Read, Syntax

# The marks around reasoning that count in every syntax, at the start of a message.
REASONING_MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)

_SPACES = re.compile(r"[ \t]*")
# Characters of reasoning to hold back behind a call that may be a draft; no model drafts more than this.
_LONGEST_DRAFT = 1 << 18


def _read_nothing(_: ParserState, __: str) -> Parse[None]:
    """Stand for the reader of reasoning, which the scanner reads by itself."""
    yield from ()


@lru_cache(256)
def _markers(syntax: Syntax, names: tuple[str, ...], answer: str | None, close: str) -> CallMarkerSearch:
    """Return the markers that count in text or, given its closing mark, in reasoning; cached: it takes milliseconds."""
    calls = syntax.markers(names)
    if close:  # without code spans, inside which reasoning may be closed
        return CallMarkerSearch([*calls, CallMarker(_read_nothing, close)], spans=False)
    opening_marks = [opening for opening, _ in (*syntax.reasoning_marks, *REASONING_MARKS)]
    markers = [CallMarker(_read_nothing, opening, at="start") for opening in opening_marks]
    if answer:
        markers.append(CallMarker(lambda state, matched: state.read_plain_text(f"</{matched[1:]}"), f"<{answer}>"))
    return CallMarkerSearch([*calls, *markers])


class ScannerContext:
    """The markers that count here, where the text goes, and, inside reasoning, the mark that closes it."""

    def __init__(self, markers: CallMarkerSearch, out: TextSink, close: str = "") -> None:
        self.markers = markers
        self.out = out
        self.close = close
        marks = (close,) if close else ()
        self.span_stops = word_set("`", "\n", *marks)
        self.fence_stops = {mark: word_set(mark, *marks) for mark in "`~"}


class Scanner:
    """Reads the text of one answer from start to end."""

    def __init__(self, state: ParserState, syntax: Syntax, calls_end_thinking: bool) -> None:
        self._state = state
        self._buffer: InputBuffer = state.buffer
        self._syntax = syntax
        self._names = tuple(state.tools) if syntax.by_name else ()
        self._closing_marks = dict((*syntax.reasoning_marks, *REASONING_MARKS))
        self._calls_end_thinking = calls_end_thinking
        self._plain = self._context = ScannerContext(_markers(syntax, self._names, state.answer, ""), state.text)
        self._at_line_start = True

    def run(self, thinking: bool) -> Parse[None]:
        """Read all text; with `thinking`, it starts inside reasoning."""
        if thinking:
            yield from self._read_reasoning(next(iter(self._closing_marks)))
            self._buffer.held = None
        while not self._buffer.exhausted:
            yield from self._scan()

    def _scan(self) -> Parse[None]:
        """Emit text up to the next mark, and read what that mark begins."""
        buffer, markers = self._buffer, self._context.markers
        if self._at_line_start and (yield from self._scan_line_start()):
            return
        found = markers.search(buffer.text, buffer.at)
        # `<|start|>` is a mark by itself, and stands in the middle of `<|eom|><|start|>assistant`: more text decides.
        if found and not buffer.ended and not markers.is_certain(found, buffer.at):
            found = None
        end = found.start() if found else len(buffer.text)
        if not found and not buffer.ended:
            end = markers.partial_at(buffer.text, buffer.at)
        if end > buffer.at:
            self._emit(buffer.take(end - buffer.at))
        if not found:
            if not buffer.ended:
                yield
        elif marker := markers.found_marker(found):
            yield from self._read_marked(marker, found[0])
        elif found[0] == "`":
            yield from self._read_code("`")
        else:  # a whole code span, or a line break before what may be a mark that counts at the start of a line
            self._emit(buffer.take(len(found[0])))

    def _scan_line_start(self) -> Parse[bool]:
        """Read what a mark at the start of a line begins; return whether there was one, or the text has ended."""
        buffer = self._buffer
        self._context.out((yield from buffer.read_blanks()))
        while not buffer.exhausted:
            at_start = self._context is self._plain and self._state.at_start
            if not buffer.ended and self._context.markers.may_begin_line(buffer.text, buffer.at, at_start):
                yield
            elif found := self._context.markers.at_line(buffer.text, buffer.at, at_start):
                yield from self._read_marked(*found)
                return True
            elif (yield from buffer.starts_with("~~~")):
                yield from self._read_code("~")
                return True
            else:
                # Backticks are found by `_scan`, which must still know that they stand at the start of a line.
                self._at_line_start = buffer.text.startswith("`", buffer.at)
                return False
        return True

    def _emit(self, text: str) -> None:
        self._context.out(text)
        tail = text[text.rfind("\n") + 1 :]
        self._at_line_start = (self._at_line_start or len(tail) < len(text)) and not tail.strip(" \t\r")

    def _read_marked(self, marker: CallMarker, matched: str) -> Parse[None]:
        """Let the marker's reader read; what it leaves held was plain text."""
        buffer, context = self._buffer, self._context
        before = buffer.consumed
        buffer.held = []
        buffer.take(len(matched))
        if context.close and matched == context.close:
            self._state.drop_markup()
            self._context = self._plain
        elif context.close:
            yield from self._read_draft(marker.read, matched)
        elif marker.read is _read_nothing:
            self._state.drop_markup()
            buffer.held = None
            yield from self._read_reasoning(matched)
        else:
            yield from marker.read(self._state, matched)
        text, buffer.held = "".join(buffer.held or ()), None
        if buffer.consumed == before:  # a marker that only looks ahead, whose reader found no call
            text = buffer.take(1)
        if not text:  # all of it was markup, behind which another mark may follow without a line break
            self._at_line_start = True
            return
        self._emit(text)
        # A reader took a fence for the beginning of a call, and it was code: what follows is inside the fence.
        if text.startswith("```") and text.count("```") == 1:
            yield from self._read_code_rest("`", 3, fence=True)

    def _read_code(self, mark: str) -> Parse[None]:
        """Emit a code span or fence unchanged, up to the backticks or tildes that close it."""
        fence = self._at_line_start
        count = yield from self._count_marks(mark)
        yield from self._read_code_rest(mark, count, fence and count >= 3)

    def _read_code_rest(self, mark: str, count: int, fence: bool) -> Parse[None]:
        stops = self._context.fence_stops[mark] if count >= 3 else self._context.span_stops
        while (yield from self._buffer.copy_until(stops, self._emit)) == mark:
            at_line_start = self._at_line_start
            closing = yield from self._count_marks(mark)
            if not fence:
                if closing == count:
                    return
            elif closing >= count and at_line_start:
                # A fence with text behind it opens another one and never closes.
                self._emit((yield from self._buffer.read_chars(_SPACES)))
                if (yield from self._buffer.peek()) in ("", "\r", "\n"):
                    return

    def _count_marks(self, mark: str) -> Parse[int]:
        """Emit backticks or tildes and count them."""
        count = 0
        while (yield from self._buffer.peek()) == mark:
            self._emit(self._buffer.take(1))
            count += 1
        return count

    def _read_reasoning(self, opening: str) -> Parse[None]:
        """Emit reasoning up to its closing mark, or up to a call that turns out to be no draft."""
        close, trimmed = self._closing_marks[opening], _TrimmedSink(self._state.reasoning)
        markers = _markers(self._syntax, self._names, None, close)
        self._context = context = ScannerContext(markers, trimmed.feed, close)
        self._at_line_start = True
        while self._context is context and not self._buffer.exhausted:
            yield from self._scan()
        self._context = self._plain
        self._buffer.held = []

    def _read_draft(self, read: Read, matched: str) -> Parse[None]:
        """Find out whether a call begins here, inside reasoning, and whether the reasoning is closed behind it."""
        # The reader runs until it would begin a call. A call is emitted as it comes and cannot be taken back, so it
        # must not begin before it is known to be no draft.
        self._state.probing = True
        try:
            yield from read(self._state, matched)
            return
        except CallStartFound:
            pass
        finally:
            self._state.probing = False
        buffer, context = self._buffer, self._context
        draft = _Draft(context.out, buffer.held or [])
        buffer.held = None
        closed = False
        if not self._calls_end_thinking:
            closed = bool((yield from buffer.copy_until(word_set(context.close), draft.feed)))
        if closed or draft.is_reasoning:
            draft.release()
        else:  # the text ended, or calls end reasoning: the call is read again, as one
            buffer.push_back("".join(draft.pieces))
            self._context = self._plain
        buffer.held = []


class _Draft:
    """Holds back what follows a call inside reasoning; beyond a limit it is reasoning."""

    def __init__(self, out: TextSink, pieces: list[str]) -> None:
        self.is_reasoning = False
        self.pieces = pieces
        self._out = out
        self._size = 0

    def feed(self, piece: str) -> None:
        if self.is_reasoning:
            self._out(piece)
            return
        self.pieces.append(piece)
        self._size += len(piece)
        if self._size > _LONGEST_DRAFT:
            self.release()

    def release(self) -> None:
        """Emit what was held back as reasoning."""
        for piece in self.pieces:
            self._out(piece)
        self.pieces.clear()
        self.is_reasoning = True


class _TrimmedSink:
    """Passes text on without the blanks at its start and end."""

    def __init__(self, out: TextSink) -> None:
        self._out = out
        self._blanks: list[str] = []
        self._has_text = False

    def feed(self, piece: str) -> None:
        kept = piece.rstrip()
        blanks = piece[len(kept) :]
        if kept:
            self._out("".join([*self._blanks, kept]) if self._has_text else kept.lstrip())
            self._has_text = True
            self._blanks.clear()
        self._blanks.append(blanks)
