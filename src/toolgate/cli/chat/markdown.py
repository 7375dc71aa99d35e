"""Render Markdown for a terminal while it is still being written: text in, styled and wrapped text out, no I/O.

A word is shown as soon as it is complete. Held back are only the beginning of a line until its kind is known, a table
until it ends, and text behind an opening mark such as `**` until its closing mark comes; if none comes soon, the mark was
meant literally. Single line ends are kept, as models mean them. The text must be safe for a terminal already.
"""

import re
from collections.abc import Callable

from toolgate.cli.chat.code_highlight import CodeHighlighter, code_highlighter
from toolgate.cli.chat.inline_markdown import scan_inline
from toolgate.cli.chat.line_writer import LineWriter, StyledSpan
from toolgate.cli.chat.markdown_table import lay_out_table
from toolgate.cli.chat.style import TerminalStyle
from toolgate.cli.chat.terminal_text import columns

# What is held back is shown as plain text beyond these, so that no answer can be held back whole.
MAX_HELD_LINE = 4000
MAX_TABLE_LINES = 200

_QUOTES = re.compile(r"(?:> ?){0,6}")
_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)")
_RULE = re.compile(r"(?:(?:-[ ]*){3,}|(?:\*[ ]*){3,}|(?:_[ ]*){3,})")
# Beginnings that the next character decides: `-` may become an item or a rule, `#` a heading, `1` an item, "``" a fence.
_MAYBE_RULE = re.compile(r"(?:[- ]*|[* ]*|[_ ]*)")
_MAYBE_MARK = re.compile(r"#{0,6}|[-*+] ?|[-*+] \[[ xX]?\]?|\d{1,9}[.)]?|`{1,2}|~{1,2}")
_HEADING = re.compile(r"(#{1,6})\s+")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])\s+(?:\[([ xX])\]\s)?")


class MarkdownRenderer:
    """Renders one message; `feed` and `close` return what can be shown now."""

    def __init__(self, style: TerminalStyle, width: Callable[[], int], base: tuple[str, ...] = ()) -> None:
        self._style = style
        # Styles of all text, such as those of reasoning.
        self._all = base
        self._width = width
        self._lines = LineWriter(style, width)
        # The beginning of a line whose kind is not known yet.
        self._held = ""
        # Text behind a mark that is not closed yet.
        self._inline = ""
        self._in_line = False
        self._base: tuple[str, ...] = ()
        self._fence = ""
        # Styles the code of the open block, if its language is known.
        self._code: CodeHighlighter | None = None
        self._table: list[str] = []

    def feed(self, text: str) -> str:
        """Take the next piece of the message."""
        *complete, last = text.expandtabs(4).split("\n")
        for line in complete:
            self._continue_line(line)
            self._end_line()
        if last:
            self._continue_line(last)
        return self._lines.take()

    def close(self) -> str:
        """End the message."""
        if self._held or self._inline or self._in_line:
            self._end_line()
        self._end_table()
        self._lines.flush()
        return self._lines.take()

    def _continue_line(self, text: str) -> None:
        if self._in_line:
            self._continue_text(text)
            return
        self._held += text
        if self._fence:
            if not _may_close(self._held.lstrip(), self._fence):
                self._start_code()
            return
        body = self._held.lstrip(" ")
        quotes = _QUOTES.match(body)
        body = body[quotes.end() if quotes else 0 :].lstrip(" ")
        # Rows of tables and fences wait for the end of their line, marks for the character behind them.
        whole_line = not body or body.startswith(("|", "```", "~~~"))
        undecided = whole_line or _MAYBE_MARK.fullmatch(body) or _MAYBE_RULE.fullmatch(body)
        if not undecided or len(self._held) > MAX_HELD_LINE:
            self._start_line()

    def _start_code(self) -> None:
        self._lines.start(wrap=False)
        self._in_line = True
        held, self._held = self._held, ""
        self._continue_text(held)

    def _continue_text(self, text: str) -> None:
        if self._fence:
            self._write_code(self._code.feed(text) if self._code else [StyledSpan(text, ("code",))])
        # Without styles only the marks show emphasis, so they stay.
        elif not self._style.colored:
            self._lines.write(StyledSpan(text, self._all))
        else:
            self._inline += text
            self._scan(final=False)

    def _write_code(self, spans: list[StyledSpan]) -> None:
        for span in spans:
            self._lines.write(StyledSpan(span.text, (*self._all, *span.styles)))

    def _scan(self, *, final: bool) -> None:
        spans, self._inline = scan_inline(self._inline, final=final)
        for span in spans:
            self._lines.write(StyledSpan(span.text, (*self._all, *self._base, *span.styles)))

    def _end_line(self) -> None:
        if self._in_line:
            if self._inline:
                self._scan(final=True)
            if self._fence and self._code:
                self._write_code(self._code.end_line())
            self._in_line, self._base = False, ()
            self._lines.end()
            return
        held, self._held = self._held, ""
        if not self._fence:
            self._whole_line(held)
            return
        stripped = held.strip()
        # A fence is closed by one that is at least as long, so that a block of Markdown can hold shorter ones.
        if stripped and _may_close(stripped, self._fence) and len(stripped) >= len(self._fence):
            self._fence = ""
            self._lines.line([StyledSpan(held, ("dim",))], wrap=False)
        else:
            self._start_code()
            self._continue_text(held)
            self._end_line()

    def _whole_line(self, line: str) -> None:
        """Show a line that ended before its kind was known: blank, a rule, a fence, a row of a table, a lone mark."""
        quote = _QUOTES.match(line.lstrip())
        body = line.lstrip()[quote.end() if quote else 0 :]
        if body.startswith("|") and len(self._table) < MAX_TABLE_LINES:
            self._table.append(line)
            return
        self._end_table()
        if not line.strip():
            self._lines.blank()
        elif fence := _FENCE.fullmatch(body.rstrip()):
            self._fence = fence[1]
            # Behind the fence stands the language: ```python
            self._code = code_highlighter(fence[2]) if self._style.colored else None
            self._lines.line([StyledSpan(line, ("dim",))], wrap=False)
        elif _RULE.fullmatch(body):
            self._lines.line([StyledSpan(self._style.symbols["rule"] * min(self._width(), 40), ("dim",))])
        else:
            self._held = line
            self._start_line()
            self._end_line()

    def _start_line(self) -> None:
        """Show the mark at the beginning of a line, and go on with its text."""
        self._end_table()
        held, self._held = self._held, ""
        body = held.lstrip(" ")
        # Deeply nested lists would leave no room for their text.
        prefix = " " * min(len(held) - len(body), self._width() // 3)
        quotes = _QUOTES.match(body)
        depth = quotes[0].count(">") if quotes else 0
        body = body[quotes.end() if quotes else 0 :]
        prefix += f"{self._style.symbols['quote']} " * depth
        hanging, self._base = prefix, ("dim",) if depth else ()
        # Without styles only its mark shows a heading, so it stays.
        if self._style.colored and (heading := _HEADING.match(body)):
            self._base = ("heading", "underline") if len(heading[1]) == 1 else ("heading",)
            body = body[heading.end() :]
        elif item := _ITEM.match(body):
            mark = item[1] if item[1][0].isdigit() else self._style.symbols["bullet"]
            if item[2]:
                mark = self._style.symbols["open" if item[2] == " " else "done"]
            hanging, prefix, body = prefix + " " * (columns(mark) + 1), f"{prefix}{mark} ", body[item.end() :]
        self._lines.start(prefix, hanging)
        self._in_line = True
        self._continue_text(body)

    def _end_table(self) -> None:
        if not self._table:
            return
        rows, self._table = self._table, []
        # Lines that are no table after all, or one that does not fit, are shown as they were written.
        table = lay_out_table(rows, self._width())
        for line in table.head if table else ():
            self._lines.line([StyledSpan(line, ("bold",))], wrap=False)
        for line in table.body if table else rows:
            self._lines.line([StyledSpan(line, ())], wrap=False)


def _may_close(stripped: str, fence: str) -> bool:
    # Nothing but the character of the fence, and blanks: an empty line may still become one.
    return not stripped.strip(fence[0] + " ")
