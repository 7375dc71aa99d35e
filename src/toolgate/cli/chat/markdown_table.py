"""Lay out a Markdown table in columns that fit a terminal."""

import re

from toolgate.cli.chat.inline_markdown import scan_inline
from toolgate.cli.chat.terminal_text import columns, wrap

_RULE = re.compile(r":?-+:?")
_BAR = re.compile(r"(?<!\\)\|")
_BETWEEN = " │ "


def lay_out_table(lines: list[str], width: int) -> list[str] | None:
    """Lay out the rows of a table in columns; None if the lines are no table, or have more columns than fit."""
    if len(lines) < 2 or not _is_rule(lines[1]):
        return None
    rows = [_cells(line) for number, line in enumerate(lines) if number != 1]
    count = max([len(row) for row in rows])
    room = width - len(_BETWEEN) * (count - 1)
    if room < 3 * count:
        return None
    rows = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = _fit([max([columns(row[index]) for row in rows]) for index in range(count)], room)
    laid = []
    for number, row in enumerate(rows):
        laid += _lines(row, widths)
        if number == 0:
            laid.append("─┼─".join(["─" * one for one in widths]))
    return laid


def _fit(widths: list[int], room: int) -> list[int]:
    """Narrow the widest columns until all fit."""
    limit = max(widths)
    while sum([min(one, limit) for one in widths]) > room:
        limit -= 1
    return [max(1, min(one, limit)) for one in widths]


def _lines(row: list[str], widths: list[int]) -> list[str]:
    wrapped = [wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max([len(cell) for cell in wrapped])):
        texts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        padded = [text + " " * (width - columns(text)) for text, width in zip(texts, widths, strict=True)]
        lines.append(_BETWEEN.join(padded).rstrip())
    return lines


def _is_rule(line: str) -> bool:
    """Return whether the line is the one of dashes below the heads of a table."""
    cells = line.strip().removeprefix("|").removesuffix("|").split("|")
    return all(_RULE.fullmatch(cell.strip()) for cell in cells)


def _cells(line: str) -> list[str]:
    """Split a row into cells, without the marks of emphasis and code."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    cells = [cell.replace("\\|", "|").strip() for cell in _BAR.split(inner)]
    return ["".join([span.text for span in scan_inline(cell, final=True)[0]]) for cell in cells]
