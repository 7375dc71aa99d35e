"""Find keywords, strings, numbers and comments in code that is still being written: text in, styled spans out.

It knows three families of languages by how their comments begin, which is enough to read code by. A token is shown as
soon as it is complete; strings and comments are shown while they are written.
"""

import re
from typing import NamedTuple

from toolgate.cli.chat.line_writer import StyledSpan

# Characters after which a word can be no keyword and is shown as it is.
MAX_WORD = 64


class LanguageFamily(NamedTuple):
    """Languages whose comments and strings look alike."""

    # As code blocks name them, with blanks between.
    names: str
    comment: str
    # What begins a comment of several lines; empty if there are none.
    block: str
    # What begins and ends a string, longer ones first.
    quotes: tuple[str, ...]
    keywords: str
    # Whether keywords may be written in capitals.
    any_case: bool = False


_FAMILIES = (
    LanguageFamily(
        "python py python3 sh bash zsh shell ruby rb yaml yml toml perl r elixir julia make makefile",
        "#",
        "",
        ('"""', "'''", '"', "'"),
        (
            "and as assert async await break case class continue def del do done elif else end esac except export fi "
            "finally for from function global if import in is lambda local match module nonlocal not or pass raise "
            "require return self then true false True False None null try unless until while with yield"
        ),
    ),
    LanguageFamily(
        (
            "c h cpp c++ cc java js javascript jsx ts typescript tsx go golang rust rs swift kotlin kt scala php cs csharp "
            "dart json jsonc css"
        ),
        "//",
        "/*",
        ('"', "'", "`"),
        (
            "abstract as async await bool break case catch chan char class const continue default defer delete do double "
            "else enum export extends extern false final finally float fn for foreach from func function go if impl "
            "implements import in instanceof int interface let long loop map match mod mut namespace new nil null "
            "override package private protected pub public range return select self short static string struct super "
            "switch this throw throws trait true try type typeof undefined unsigned use using val var virtual void "
            "where while yield"
        ),
    ),
    LanguageFamily(
        "sql postgresql postgres mysql sqlite lua haskell hs",
        "--",
        "",
        ('"', "'"),
        (
            "add alter and as asc between by case create data delete desc distinct do drop else elseif end exists false "
            "for from full function group having if in index inner insert into is join key left let like limit local "
            "module nil not null on or order outer primary repeat return right select set table then true type union "
            "unique until update using values view when where while with"
        ),
        any_case=True,
    ),
)
_WORD = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d[\w.]*")
_SPACE = re.compile(r"\s+")


class CodeHighlighter:
    """Styles the code of one block; `feed` takes pieces of a line, and `end_line` what is left of it."""

    def __init__(self, family: LanguageFamily) -> None:
        self._family = family
        self._keywords = frozenset(family.keywords.split())
        self._openers = (*family.quotes, family.comment, *([family.block] if family.block else ()))
        # The beginning of a token whose end has not come.
        self._held = ""
        # What ends the open string or comment; empty for a comment that the line ends.
        self._closing: str | None = None
        self._style = ""
        # The character before the next token.
        self._before = " "

    def feed(self, text: str) -> list[StyledSpan]:
        """Return what can be shown of the line so far."""
        return self._scan(text, final=False)

    def end_line(self) -> list[StyledSpan]:
        """Return the rest of the line."""
        spans = self._scan("", final=True)
        if self._closing in ("", '"', "'"):  # no string between these goes on in the next line
            self._closing = None
        self._before = " "
        return spans

    def _scan(self, text: str, *, final: bool) -> list[StyledSpan]:
        text, self._held = self._held + text, ""
        spans: list[StyledSpan] = []
        place = 0
        while place < len(text):
            end, style = (
                self._inside(text, place, final) if self._closing is not None else self._token(text, place, final)
            )
            if end == place:
                break
            spans.append(StyledSpan(text[place:end], (style,) if style else ()))
            self._before, place = text[end - 1], end
        self._held = text[place:]
        return spans

    def _inside(self, text: str, place: int, final: bool) -> tuple[int, str]:
        """Go on with an open string or comment, to its end if it is there."""
        closing, style = self._closing, self._style
        if not closing:
            return len(text), style
        escapes = style == "string"
        while place < len(text):
            if escapes and text[place] == "\\":
                # The escaped character is still to come; it may be the quote.
                if place + 1 == len(text) and not final:
                    return place, style
                place += 2
            elif text.startswith(closing, place):
                self._closing = None
                return place + len(closing), style
            # What is here may be the first half of the closing mark.
            elif not final and len(text) - place < len(closing) and closing.startswith(text[place:]):
                return place, style
            else:
                place += 1
        # A backslash at the very end has moved the place beyond it.
        return min(place, len(text)), style

    def _token(self, text: str, place: int, final: bool) -> tuple[int, str]:
        """Return the end and the style of the token that begins here; its own place if more text is needed."""
        for pattern in (_WORD, _NUMBER):
            if found := pattern.match(text, place):
                if found.end() == len(text) and not final and found.end() - place <= MAX_WORD:
                    return place, ""
                if pattern is _NUMBER:
                    return found.end(), "number"
                word = found[0].lower() if self._family.any_case else found[0]
                return found.end(), "keyword" if word in self._keywords else ""
        if found := _SPACE.match(text, place):
            return found.end(), ""
        # Three is the length of the longest opener. One that is shorter may become a longer one: a quote, three quotes.
        rest = text[place : place + 3]
        if not final and len(rest) < 3 and any(one.startswith(rest) and one != rest for one in self._openers):
            return place, ""
        opener = next((one for one in self._openers if rest.startswith(one)), None)
        if opener is None:
            return place + 1, ""
        end = place + len(opener)
        if opener == self._family.comment:
            # Neither `#` within a word, as in `${#list}`, nor `//` in an address begins a comment.
            if (opener == "#" and not self._before.isspace()) or self._before == ":":
                return end, ""
            self._closing, self._style = "", "comment"
        elif opener == self._family.block:
            self._closing, self._style = "*/", "comment"
        else:
            self._closing, self._style = opener, "string"
        return end, self._style


def code_highlighter(language: str) -> CodeHighlighter | None:
    """Return a highlighter for the language that a code block names; None if it is not known."""
    name = language.strip().partition(" ")[0].lower()
    family = next((one for one in _FAMILIES if name in one.names.split()), None)
    if family and name in ("rust", "rs"):
        family = family._replace(quotes=('"',))  # a single quote begins a lifetime, too
    return CodeHighlighter(family) if family else None
