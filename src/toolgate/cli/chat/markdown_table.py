"""Lay out a Markdown table in columns that fit a terminal."""

import re
from typing import NamedTuple

from toolgate.cli.chat.inline_markdown import scan_inline
from toolgate.cli.chat.terminal_text import columns, wrap

_RULE = re.compile(r":?-+:?")
_BAR = re.compile(r"(?<!\\)\|")
_BREAK = re.compile(r"<br */?>", re.IGNORECASE)
_BETWEEN = " │ "


class LaidOutTable(NamedTuple):
    """A table as lines: those of the column heads, and those below them."""

    head: list[str]
    body: list[str]


def lay_out_table(lines: list[str], width: int) -> LaidOutTable | None:
    """Lay out the rows of a table in columns; None if the lines are no table, or have more columns than fit."""
    if len(lines) < 2 or not _is_rule(lines[1]):
        return None
    rows = [_cells(line) for number, line in enumerate(lines) if number != 1]
    count = max([len(row) for row in rows])
    room = width - len(_BETWEEN) * (count - 1)
    if room < 3 * count:
        return None
    rows = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = _fit([max([_cell_columns(row[index]) for row in rows]) for index in range(count)], room)
    marks = [cell.strip() for cell in _split(lines[1])]
    marks = [*marks, *["-"] * (count - len(marks))]
    head, *body = [_lines(row, widths, marks) for row in rows]
    rule = "─┼─".join(["─" * one for one in widths])
    return LaidOutTable(head, [rule, *[line for row in body for line in row]])


def _fit(widths: list[int], room: int) -> list[int]:
    """Narrow the widest columns until all fit."""
    limit = max(widths)
    while sum([min(one, limit) for one in widths]) > room:
        limit -= 1
    return [max(1, min(one, limit)) for one in widths]


def _lines(row: list[str], widths: list[int], marks: list[str]) -> list[str]:
    wrapped = [
        [line for part in cell.split("\n") for line in wrap(part, width) or [""]]
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for number in range(max([len(cell) for cell in wrapped])):
        texts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        padded = [_pad(text, width, mark) for text, width, mark in zip(texts, widths, marks, strict=False)]
        lines.append(_BETWEEN.join(padded).rstrip())
    return lines


def _pad(text: str, width: int, mark: str) -> str:
    """Fill a cell with blanks on the side that the mark below the column's head says, such as `--:`."""
    blanks = max(0, width - columns(text))
    if not mark.endswith(":"):
        return text + " " * blanks
    left = blanks // 2 if mark.startswith(":") else blanks
    return " " * left + text + " " * (blanks - left)


def _cell_columns(cell: str) -> int:
    return max([columns(line) for line in cell.split("\n")])


def _is_rule(line: str) -> bool:
    """Return whether the line is the one of dashes below the heads of a table."""
    return all(_RULE.fullmatch(cell.strip()) for cell in _split(line))


def _split(line: str) -> list[str]:
    return _BAR.split(line.strip().removeprefix("|").removesuffix("|"))


def _cells(line: str) -> list[str]:
    """Split a row into cells, without the marks of emphasis and code; `<br>` begins a new line of a cell."""
    cells = [_BREAK.sub("\n", cell.replace("\\|", "|").strip()) for cell in _split(line)]
    return ["".join([span.text for span in scan_inline(cell, final=True)[0]]) for cell in cells]
