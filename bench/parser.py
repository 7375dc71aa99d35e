"""How fast text is read for tool calls: `python -m bench.parser`; knows the parser alone, no server and no peers.

Each line of the table is one kind of text, read in pieces of a model's size and in pieces of 4 KB, and twice as much of
it to see that the time doubles, too.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.syntaxes import syntax

TOOL = ToolDef(
    "write_file",
    None,
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "rows": {"type": "array"}},
    },
)
PROSE = "The quick brown fox jumps over the lazy dog, and nobody minds; that is all there is to it.\n"
MARKUP = 'Use <b>bold</b>, `code` and [links](x) where x < y, e.g. {"a": 1}.\n<ul>\n<li>One</li>\n</ul>\n'
CODE = 'def add(a: int, b: int) -> int:\n    """Adds < two > numbers & more."""\n    return a + b\n\n'
ROWS = [{"id": number, "name": f"row {number}", "ok": True, "ratio": 0.25} for number in range(20)]


class Case(NamedTuple):
    """A kind of text, in a syntax, and the speed that is wanted."""

    name: str
    syntax: str
    text: Callable[[int], str]
    wanted: float


def _call(name: str, arguments: Callable[[int], Mapping[str, object]]) -> Callable[[int], str]:
    def text(size: int) -> str:
        written = json.dumps(arguments(size))
        return syntax(name).render([ToolCall("call_000000000000000000000000", TOOL.name, written)], {TOOL.name: TOOL})

    return text


def _code(size: int) -> Mapping[str, object]:
    return {"path": "a.py", "content": CODE * (size // len(CODE))}


def _rows(size: int) -> Mapping[str, object]:
    return {"rows": ROWS * (size // 1100)}


CASES = (
    Case("prose, invoke", "invoke", lambda size: PROSE * (size // len(PROSE)), 20),
    Case("prose, auto", "auto", lambda size: PROSE * (size // len(PROSE)), 20),
    Case("markup, invoke", "invoke", lambda size: MARKUP * (size // len(MARKUP)), 5),
    Case("markup, auto", "auto", lambda size: MARKUP * (size // len(MARKUP)), 5),
    Case("code in a call, invoke", "invoke", _call("invoke", _code), 5),
    Case("code in a call, hermes", "hermes", _call("hermes", _code), 5),
    Case("code in a call, qwen3_coder", "qwen3_coder", _call("qwen3_coder", _code), 5),
    Case("code in a call, pythonic", "pythonic", _call("pythonic", _code), 5),
    Case("rows in a call, invoke", "invoke", _call("invoke", _rows), 5),
    Case("rows in a call, hermes", "hermes", _call("hermes", _rows), 5),
)
SIZE = 2_000_000


def seconds(case: Case, text: str, piece: int) -> float:
    """CPU seconds to read the text in pieces of this size, the best of three."""
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    return min([_once(case, pieces) for _ in range(3)])


def _once(case: Case, pieces: list[str]) -> float:
    parser = TextParser(syntax(case.syntax), [TOOL])
    began = time.process_time()
    for piece in pieces:
        parser.feed(piece)
    parser.end()
    return time.process_time() - began


def main() -> int:
    """Prints the table; 1 if a speed is missed or time grows faster than the text."""
    table = Table("text", "4 KB pieces, MB/s", "wanted", "4-character pieces, µs each", "twice the text, times")
    missed = False
    for case in CASES:
        text, twice = case.text(SIZE), case.text(2 * SIZE)
        took = seconds(case, text, 4096)
        growth = seconds(case, twice, 4096) / took
        small = text[: SIZE // 10]
        each = seconds(case, small, 4) / (len(small) / 4) * 1e6
        speed = len(text.encode()) / took / 1e6
        missed = missed or speed < case.wanted or growth > 3
        table.add_row(case.name, f"{speed:.0f}", f"{case.wanted:.0f}", f"{each:.1f}", f"{growth:.1f}")
    Console().print(table)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
