"""Markdown on a terminal, rendered while it is written (spec: E2)."""

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.growth import is_linear
from toolgate.cli.chat.markdown import MarkdownRenderer
from toolgate.cli.chat.style import UNICODE_SYMBOLS, TerminalStyle
from toolgate.cli.chat.terminal_text import TerminalTextFilter, clip, columns, visible, without_controls, wrap

COLORED = TerminalStyle(True, True, UNICODE_SYMBOLS)
PLAIN = TerminalStyle(False, False, UNICODE_SYMBOLS)


def render(*pieces: str, width: int = 80, style: TerminalStyle = COLORED) -> str:
    renderer = MarkdownRenderer(style, lambda: width)
    return "".join([renderer.feed(piece) for piece in pieces]) + renderer.close()


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("**bold** and *it* and `a*b*c`", "bold and it and a*b*c"),
        ("***both*** ~~gone~~ __strong__ _em_", "both gone strong em"),
        ("2 * 3 * 4, a*b, snake_case_name, **open", "2 * 3 * 4, a*b, snake_case_name, **open"),
        (r"\*plain\* \d", r"*plain* \d"),
        ("[here](http://a/b_(c)) ![pic](http://i)", "here (http://a/b_(c)) pic (http://i)"),
        ("[http://a](http://a) [not a link] x[0]", "http://a [not a link] x[0]"),
        ("``a ` b``, `` `x` ``, `open", "a ` b, `x`, `open"),
        ("# One\n## Two\n#three", "One\nTwo\n#three"),
        ("- a\n  * b\n+ c\n- [ ] d\n- [x] e", "• a\n  • b\n• c\n☐ d\n☑ e"),
        ("1. a\n10) b\n2024 was\n-5 is\n--- a", "1. a\n10) b\n2024 was\n-5 is\n--- a"),
        ("> a\n> > b", "│ a\n│ │ b"),
        ("a\n\n\n\nb\n\n", "a\n\nb"),
        ("a\nb", "a\nb"),
        ("```py\n**x** | y\n\n  z\n```\nend", "```py\n**x** | y\n\n  z\n```\nend"),
        ("~~~\n```\n~~~", "~~~\n```\n~~~"),
        ("|a|b|\n|-|-|\n|`1`|2|\nend", "a │ b\n──┼──\n1 │ 2\nend"),
        ("| no table\nend", "| no table\nend"),
        ("***", "─" * 40),
    ],
)
def test_marks_become_styles_and_nothing_else_is_lost(source: str, shown: str) -> None:
    assert unstyled(render(source)) == shown
    assert unstyled(render(*source)) == shown


def test_styles_are_those_of_the_marks() -> None:
    assert render("**b**") == "\x1b[1mb\x1b[0m"
    assert render("`c`") == "\x1b[36mc\x1b[0m"
    assert render("## *t*") == "\x1b[1;35;3mt\x1b[0m"


def test_a_terminal_without_colours_keeps_the_marks_of_emphasis() -> None:
    assert render("# a **b** `c`\n- d", style=PLAIN) == "# a **b** `c`\n• d"


def test_lines_are_wrapped_between_words_and_continued_under_their_text() -> None:
    assert unstyled(render("- one two three four", width=12)) == "• one two\n  three four"
    assert unstyled(render("> aaaa bbbb cccc", width=12)) == "│ aaaa bbbb\n│ cccc"
    assert unstyled(render("中文中文 中文中文", width=10)) == "中文中文\n中文中文"
    assert unstyled(render("x http://a.very.long/address y", width=12)) == "x\nhttp://a.very.long/address y"


def test_a_table_that_is_too_wide_is_wrapped_within_its_cells() -> None:
    table = "| name | text |\n|---|---|\n| a | one two three |\n"
    assert unstyled(render(table, width=16)).split("\n") == [
        "name │ text",
        "─────┼──────────",
        "a    │ one two",
        "     │ three",
    ]


def test_columns_of_a_table_are_aligned_as_it_says_and_a_cell_may_have_several_lines() -> None:
    table = "| a | price | mid |\n|:--|--:|:-:|\n| one<br>two | 9.50 | x |\n"
    assert unstyled(render(table)).split("\n") == [
        "a   │ price │ mid",
        "────┼───────┼────",
        "one │  9.50 │  x",
        "two │       │",
    ]
    assert "\x1b[1ma   │ price │ mid\x1b[0m" in render(table)


def test_words_are_shown_as_soon_as_they_are_complete() -> None:
    renderer = MarkdownRenderer(COLORED, lambda: 80)
    assert renderer.feed("Hello wor") == "Hello"
    assert renderer.feed("ld, **bo") == " world,"
    assert renderer.feed("ld** a") == " \x1b[1mbold\x1b[0m"
    assert unstyled(renderer.feed("\n- it")) == " a\n• "


@pytest.mark.parametrize(
    ("language", "line", "styled"),
    [
        (
            "python",
            'def f(x): return \'a#b\' + "\\""  # why',
            {"35": ["def", "return"], "32": ["'a#b'", '"\\""'], "2;3": ["# why"]},
        ),
        ("py", "x = url#1 if n >= 10", {"35": ["if"], "33": ["1", "10"]}),
        ("ts", "const a = `b` // http://c /* d", {"35": ["const"], "32": ["`b`"], "2;3": ["// http://c /* d"]}),
        ("go", 'x := a/b /* c */ + "d"', {"2;3": ["/* c */"], "32": ['"d"']}),
        ("sql", "SELECT a FROM b -- all", {"35": ["SELECT", "FROM"], "2;3": ["-- all"]}),
        ("rs", "fn f<'a>(x: &'a str)", {"35": ["fn"]}),
        ("brainfuck", "+ if 1", {"36": ["+ if 1"]}),
        ("sh", "if [ $# -gt 0 ]; then # some", {"35": ["if", "then"], "33": ["0"], "2;3": ["# some"]}),
    ],
)
def test_code_is_coloured_in_the_languages_that_it_knows(
    language: str, line: str, styled: dict[str, list[str]]
) -> None:
    shown = render(f"```{language}\n{line}\n```").split("\n")[1]
    assert unstyled(shown) == line
    found: dict[str, str] = {}
    for code, text in re.findall(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0m", shown):
        found[code] = found.get(code, "") + text
    assert found == {code: "".join(texts) for code, texts in styled.items()}


def test_a_string_or_comment_of_several_lines_goes_on_and_a_quote_that_is_never_closed_ends_with_its_line() -> None:
    lines = render('```python\n"""a\nif b"""\nx = "c\nif\n```').split("\n")
    assert lines[2] == '\x1b[32mif b"""\x1b[0m'
    assert lines[4] == "\x1b[35mif\x1b[0m"


CODE = st.text(st.sampled_from(list("if \"'#/*-\\1a\n")), max_size=40)


@given(CODE, st.sampled_from(["py", "js", "sql"]), st.lists(st.integers(0, 50), max_size=6))
def test_where_code_is_cut_changes_neither_its_letters_nor_their_colours(code: str, name: str, cuts: list[int]) -> None:
    source = f"```{name}\n{code}"
    places = sorted({0, len(source), *[min(cut, len(source)) for cut in cuts]})
    cut = render(*[source[a:b] for a, b in pairwise(places)])
    assert letters(cut) == letters(render(source))


def letters(text: str) -> list[tuple[str, str]]:
    """Each character with the style in which it is shown."""
    style, found = "", []
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        if part.startswith("\x1b["):
            style = part[2:-1].removeprefix("0")
        else:
            found += [(char, style) for char in part]
    return found


ALPHABET = st.text(st.sampled_from(list("ab *_`~[]()!|>#-+1.\\\n")), max_size=60)


@given(ALPHABET, st.lists(st.integers(0, 60), max_size=6))
def test_where_a_text_is_cut_changes_nothing(source: str, cuts: list[int]) -> None:
    places = sorted({0, len(source), *[min(cut, len(source)) for cut in cuts]})
    pieces = [source[a:b] for a, b in pairwise(places)]
    assert unstyled(render(*pieces)) == unstyled(render(source))


@given(ALPHABET)
def test_no_letter_is_lost(source: str) -> None:
    shown = unstyled(render(source))
    assert [char for char in shown if char in "ab"] == [char for char in source if char in "ab"]


@pytest.mark.parametrize("piece", ["*a", "[", "`", "x", "| a ", "**a** ", "> ", "\n| a |", "_a_*"])
def test_the_cost_of_a_hostile_text_grows_with_its_length_alone(piece: str) -> None:
    def cost(times: int) -> float:
        renderer = MarkdownRenderer(COLORED, lambda: 80)
        started = time.thread_time()
        for _ in range(times):
            renderer.feed(piece * 10)
        renderer.close()
        return time.thread_time() - started

    assert is_linear(cost, 1000)  # beyond the limit up to which an unfinished line is held back


def test_control_and_direction_characters_are_shown_not_sent() -> None:
    assert visible("a\x1b[2Jb\x07\x7f\x9b") == "a␛[2Jb␇␡<U+009B>"
    assert (
        visible("\u202eevil\u2066\ufeff\U000e0041\u2028\ud800")
        == "<U+202E>evil<U+2066><U+FEFF><U+E0041><U+2028><U+D800>"
    )
    assert visible("tab\tline\n é 中 👩‍💻 \u00a0 \U0001fae8") == "tab\tline\n é 中 👩‍💻 \u00a0 \U0001fae8"
    assert without_controls("\x1b]0;x\x07 \u200fright \u202e") == "␛]0;x␇ \u200fright \u202e"


def test_line_ends_of_other_systems_are_line_ends_also_in_two_pieces() -> None:
    text = TerminalTextFilter()
    assert text.feed("a\r") + text.feed("\nb\r\nc\r") + text.feed("d\r") + text.close() == "a\nb\nc␍d␍"


def test_columns_are_counted_as_a_terminal_shows_them() -> None:
    assert (columns("abc"), columns("中文"), columns("e\u0301"), columns("a\u200d")) == (3, 4, 1, 1)
    assert clip("abcdef", 4) == "abc…"
    assert clip("中文中", 4) == "中…"
    assert wrap("a bb cccccc", 4) == ["a bb", "cccc", "cc"]
    assert wrap("", 4) == []
