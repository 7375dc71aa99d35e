"""Lay out a Markdown table in columns that fit a terminal."""

import re
from typing import NamedTuple

from toolgate.cli.chat.inline_markdown import scan_inline
from toolgate.cli.chat.terminal_text import columns, wrap

_RULE = re.compile(r":?-+:?")
# A bar that is not escaped.
_BAR = re.compile(r"(?<!\\)\|")
_BREAK = re.compile(r"<br */?>", re.IGNORECASE)
_BETWEEN = " │ "


class LaidOutTable(NamedTuple):
    """A table as lines: those of the column heads, and those below them."""

    head: list[str]
    body: list[str]


def lay_out_table(lines: list[str], width: int) -> LaidOutTable | None:
    """Lay out the rows of a table in columns; None if the lines are no table, or have more columns than fit."""
    # The second line has the dashes below the heads: |:---|---:|. Its colons say how a column is aligned.
    marks = [cell.strip() for cell in _split(lines[1])] if len(lines) > 1 else []
    if not marks or not all(_RULE.fullmatch(mark) for mark in marks):
        return None
    rows = []
    for line in (lines[0], *lines[2:]):
        cells = [_BREAK.sub("\n", cell.replace("\\|", "|").strip()) for cell in _split(line)]
        # Marks of emphasis and code would take columns, and a cell that is broken into lines could not be styled.
        rows.append(["".join([span.text for span in scan_inline(cell, final=True)[0]]) for cell in cells])
    count = max([len(row) for row in rows])
    room = width - len(_BETWEEN) * (count - 1)
    if room < 3 * count:
        return None
    # Models forget cells at the ends of rows.
    rows = [[*row, *[""] * (count - len(row))] for row in rows]
    marks = [*marks, *["-"] * (count - len(marks))]
    wanted = [max([columns(line) for row in rows for line in row[index].split("\n")]) for index in range(count)]
    # The widest columns are narrowed until all fit.
    limit = max(wanted)
    while sum([min(one, limit) for one in wanted]) > room:
        limit -= 1
    widths = [max(1, min(one, limit)) for one in wanted]
    head, *body = [_lines(row, widths, marks) for row in rows]
    rule = "─┼─".join(["─" * one for one in widths])
    return LaidOutTable(head, [rule, *[line for row in body for line in row]])


def _lines(row: list[str], widths: list[int], marks: list[str]) -> list[str]:
    wrapped = [
        [line for part in cell.split("\n") for line in wrap(part, width) or [""]]
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for number in range(max([len(cell) for cell in wrapped])):
        padded = []
        for cell, width, mark in zip(wrapped, widths, marks, strict=False):
            text = cell[number] if number < len(cell) else ""
            blanks = max(0, width - columns(text))
            # `--:` aligns to the right, `:-:` to the middle, all else to the left.
            left = (blanks // 2 if mark.startswith(":") else blanks) if mark.endswith(":") else 0
            padded.append(" " * left + text + " " * (blanks - left))
        lines.append(_BETWEEN.join(padded).rstrip())
    return lines


def _split(line: str) -> list[str]:
    return _BAR.split(line.strip().removeprefix("|").removesuffix("|"))
