"""Find emphasis, code and links in a line of Markdown that is still being written.

Text behind an opening mark waits until its closing mark comes; if none comes soon, the mark was meant literally.
"""

import re

from toolgate.cli.chat.line_writer import StyledSpan

# Characters behind an opening mark in which its closing mark is looked for: a lone mark must not hold back the answer.
MAX_SPAN = 400

_PLAIN = re.compile(r"[^*_`~\[\\!]+")
# [text](target "title") or ![text](target); the target may be in <> and hold one level of parentheses, as the addresses
# of Wikipedia do.
_LINK = re.compile(r"!?\[([^\[\]]{0,400})\]\(<?([^()\s<>]*(?:\([^()\s<>]*\)[^()\s<>]*)*)>?(?:\s+[\"'][^\"']*[\"'])?\)")
# Finds the mark that closes one: not behind a space, and not part of a longer run of the same character. A closing `_`
# must end a word, so that snake_case stays as it is.
_CLOSING = {
    **{mark: re.compile(rf"(?<![\s*])\*{{{len(mark)}}}(?!\*)") for mark in ("*", "**", "***")},
    **{mark: re.compile(rf"(?<![\s_]){mark}(?!\w)") for mark in ("_", "__", "___")},
    "~~": re.compile(r"(?<![\s~])~~(?!~)"),
}

_EMPHASIS: dict[int, tuple[str, ...]] = {1: ("italic",), 2: ("bold",), 3: ("bold", "italic")}


def scan_inline(text: str, *, final: bool) -> tuple[list[StyledSpan], str]:
    """Return the spans of a text, and the rest behind a mark that may still be closed; there is none if it is final."""
    spans: list[StyledSpan] = []
    place = 0
    while place < len(text) and (found := _next_span(text, place, final)) is not None:
        spans += found[0]
        place = found[1]
    return spans, text[place:]


def _next_span(text: str, place: int, final: bool) -> tuple[list[StyledSpan], int] | None:
    """Return the spans that begin here and the place behind them; None if more text is needed."""
    if plain := _PLAIN.match(text, place):
        return [StyledSpan(plain[0], ())], plain.end()
    char, complete = text[place], final or len(text) - place > MAX_SPAN
    match char:
        case "\\":
            if place + 1 == len(text):
                return ([StyledSpan(char, ())], place + 1) if final else None
            escaped = text[place + 1]
            return [StyledSpan(escaped if escaped in "\\`*_~[]()#+-.!|>{}" else char + escaped, ())], place + 2
        case "`":
            return _code_span(text, place, complete)
        case "[" | "!":
            return _link_span(text, place, complete)
        case _:
            return _emphasis_span(text, place, complete)


def _run(text: str, place: int) -> int:
    end = place
    while end < len(text) and text[end] == text[place]:
        end += 1
    return end


def _code_span(text: str, place: int, complete: bool) -> tuple[list[StyledSpan], int] | None:
    start = _run(text, place)
    closing = re.compile(rf"(?<!`)`{{{start - place}}}(?!`)").search(text, start, place + MAX_SPAN + start - place)
    # At the very end of the text the next character may make the run of marks longer.
    if closing and (complete or closing.end() < len(text)):
        code = text[start : closing.start()]
        # One blank on each side belongs to the marks: `` `a` `` is code that holds backticks.
        stripped = code[1:-1] if len(code) > 2 and code[0] == code[-1] == " " else code
        return [StyledSpan(stripped, ("code",))], closing.end()
    return ([StyledSpan(text[place:start], ())], start) if complete else None


def _link_span(text: str, place: int, complete: bool) -> tuple[list[StyledSpan], int] | None:
    if text[place] == "!" and text[place + 1 : place + 2] != "[":
        return ([StyledSpan("!", ())], place + 1) if complete or place + 1 < len(text) else None
    if link := _LINK.match(text, place):
        # The target is always shown: a text may name another address than the one that it leads to.
        shown, target = link[1] or "image", link[2]
        if shown == target:
            return [StyledSpan(target, ("underline",))], link.end()
        return [StyledSpan(shown, ("underline",)), StyledSpan(f" ({target})", ("dim",))], link.end()
    closed = text.find("]", place)
    if not complete and (closed < 0 or text[closed + 1 : closed + 2] in ("", "(")):
        return None
    return [StyledSpan(text[place : place + 1], ())], place + 1


def _emphasis_span(text: str, place: int, complete: bool) -> tuple[list[StyledSpan], int] | None:
    start = _run(text, place)
    mark = text[place:start]
    if start == len(text) and not complete:
        return None
    opens = (
        mark in _CLOSING
        and not text[start : start + 1].isspace()
        and not (mark[0] == "_" and place and text[place - 1].isalnum())
    )
    if not opens or start == len(text):
        return [StyledSpan(mark, ())], start
    closing = _CLOSING[mark].search(text, start + 1, start + MAX_SPAN)
    if closing and (complete or closing.end() < len(text)):
        styles = ("strike",) if mark[0] == "~" else _EMPHASIS[len(mark)]
        inner, _ = scan_inline(text[start : closing.start()], final=True)
        return [StyledSpan(span.text, (*styles, *span.styles)) for span in inner], closing.end()
    return ([StyledSpan(mark, ())], start) if complete else None
