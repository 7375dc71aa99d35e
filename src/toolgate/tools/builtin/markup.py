"""HTML as text that a model reads well: headings, links, lists, tables and code stay recognisable. Fetches nothing.

The tokens are found by hand because pages come from strangers: every search that fails ends the page or changes the way of
searching, so that the time taken grows with the length of the page and no faster. The standard parser's does not.
"""

import re
from collections.abc import Iterator
from html import unescape
from typing import Literal
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]*+)")
_QUOTED_END = re.compile(r"""[^>"']*+(?>(?:(?:"[^"]*+"|'[^']*+')[^>"']*+)*)>""")
_ATTRIBUTE = re.compile(r"""([^\s=/>"']++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"']++)))?""")
_SPACES = re.compile(r"[ \t\r\n\f\u00a0]+")
_BLANK_LINES = re.compile(r"\n{3,}")

_RAW = frozenset({"script", "style", "noscript", "template", "iframe", "textarea", "title", "svg", "math", "object"})
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "dialog"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html"),
        *("legend", "main", "nav", "ol", "option", "p", "section", "summary", "table", "tbody", "tfoot", "thead"),
        *("tr", "ul"),
    }
)
_APART = frozenset({"p", "table", "ul", "ol", "dl", "blockquote", "figure", "section", "article", "pre"})
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_MAX_LINK = 2000


class Token(Struct, frozen=True):
    """A piece of a page: text, or a tag with the text of its attributes, or an element that is not markup inside."""

    kind: Literal["text", "start", "end", "raw"]
    text: str
    rest: str = ""


def tokens(page: str) -> Iterator[Token]:
    """The page in pieces; comments and declarations are left out."""
    place, respects_quotes = 0, True
    while (start := page.find("<", place)) >= 0:
        if start > place:
            yield Token("text", page[place:start])
        name = _NAME.match(page, start)
        if name is None:
            place = _after_other(page, start)
            if place == start + 1:
                yield Token("text", "<")
            continue
        end = _tag_end(page, name.end(), respects_quotes)
        if end < 0 and respects_quotes:  # a quote that nobody closes: from here on quotes mean nothing
            respects_quotes = False
            end = _tag_end(page, name.end(), respects_quotes)
        if end < 0:
            return
        tag, rest, place = name[1].lower(), page[name.end() : end - 1], end
        if page[start + 1] == "/":
            yield Token("end", tag)
        elif tag in _RAW and not rest.endswith("/"):
            inside, place = _raw(page, tag, end)
            yield Token("raw", tag, inside)
        else:
            yield Token("start", tag, rest)
    if place < len(page):
        yield Token("text", page[place:])


def _after_other(page: str, start: int) -> int:
    """Where to go on after a `<` that begins no tag."""
    if page.startswith("<!--", start):
        end = page.find("-->", start + 4)
        return len(page) if end < 0 else end + 3
    if page.startswith(("<!", "<?", "</"), start):
        end = page.find(">", start)
        return len(page) if end < 0 else end + 1
    return start + 1


def _tag_end(page: str, start: int, respects_quotes: bool) -> int:
    if not respects_quotes:
        return page.find(">", start) + 1 or -1
    end = _QUOTED_END.match(page, start)
    return -1 if end is None else end.end()


def _raw(page: str, tag: str, start: int) -> tuple[str, int]:
    """What is inside an element that is not markup inside, and where the page goes on."""
    end = re.compile(rf"</{tag}[\s/>]", re.IGNORECASE).search(page, start)
    if end is None:
        return "", len(page)
    after = page.find(">", end.start())
    return page[start : end.start()], len(page) if after < 0 else after + 1


def attributes(text: str) -> dict[str, str]:
    """The attributes of a tag, the first of each name."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text[:20_000]):
        found.setdefault(match[1].lower(), plain(match[2] or match[3] or match[4] or ""))
    return found


def plain(text: str) -> str:
    """Text with its entities read."""
    try:
        return unescape(text) if "&" in text else text
    except ValueError:  # a numbered one with more digits than Python reads
        return text


class _Page:
    """The text so far, and where in the page we are."""

    def __init__(self, base: str) -> None:
        self.title = ""
        self._base = base
        self._out: list[str] = []
        self._fresh = True  # no blank is wanted here
        self._breaks = 2  # line breaks that the text ends with
        self._preformatted = 0
        self._lists: list[int | None] = []
        self._link: tuple[str, int] | None = None
        self._cells = 0
        self._marked = False  # behind the mark of a heading or item, before its text

    def take(self, token: Token) -> None:
        """Write a token down."""
        match token.kind:
            case "text":
                self._text(plain(token.text))
            case "start":
                self._start(token.text, token.rest)
            case "end":
                self._end(token.text)
            case "raw":
                self._raw(token)

    def text(self) -> str:
        """The page."""
        lines = "\n".join([line.rstrip() for line in "".join(self._out).split("\n")])
        return _BLANK_LINES.sub("\n\n", lines).strip()

    def _raw(self, token: Token) -> None:
        if token.text == "title" and not self.title:
            self.title = _SPACES.sub(" ", plain(token.rest)).strip()
        elif token.text == "textarea":
            self._text(plain(token.rest))

    def _text(self, text: str) -> None:
        if self._preformatted:
            self._write(text)
            return
        text = _SPACES.sub(" ", text)
        self._write(text.lstrip(" ") if self._fresh else text)

    def _write(self, text: str) -> None:
        if text:
            self._out.append(text)
            self._fresh = text[-1] in " \n"
            self._breaks = 1 if text[-1] == "\n" else 0
            self._marked = False

    def _mark(self, mark: str) -> None:
        self._write(mark)
        self._marked = True

    def _line(self, apart: bool = False) -> None:
        """Begin a line, after a blank one if it stands `apart`; a list's mark is followed by its text in any case."""
        wanted = 2 if apart else 1
        if self._breaks < wanted and not self._marked:
            self._out.append("\n" * (wanted - self._breaks))
            self._breaks = wanted
        self._fresh = True

    def _start(self, tag: str, rest: str) -> None:
        if tag in _HEADINGS:
            self._line(apart=True)
            self._mark(f"{_HEADINGS[tag]} ")
        elif tag == "a":
            self._end_link()
            self._link = (self._address(attributes(rest).get("href", "")), len(self._out))
        elif tag == "img":
            alt = attributes(rest).get("alt", "").strip()
            self._write(f"[image: {alt}]" if alt else "")
        elif tag == "pre":
            self._line(apart=True)
            self._write("```\n")
            self._preformatted += 1
        elif tag == "code" and not self._preformatted:
            self._write("`")
        elif tag in ("td", "th"):
            self._write(" | " if self._cells else "")
            self._cells += 1
        else:
            self._block(tag)

    def _block(self, tag: str) -> None:
        if tag in ("ul", "ol"):
            self._lists.append(0 if tag == "ol" else None)
        if tag == "li":
            self._item()
        elif tag in _BLOCKS:
            self._cells = 0
            self._line(apart=tag in _APART and len(self._lists) < 2)
            self._write("---\n" if tag == "hr" else "")

    def _item(self) -> None:
        self._marked = False
        self._line()
        mark = "-"
        if self._lists and (count := self._lists[-1]) is not None:
            self._lists[-1] = count + 1
            mark = f"{count + 1}."
        self._mark(f"{'  ' * min(len(self._lists) - 1, 8)}{mark} ")

    def _end(self, tag: str) -> None:
        if tag == "a":
            self._end_link()
        elif tag == "pre" and self._preformatted:
            self._preformatted -= 1
            self._write("\n```")
            self._line(apart=True)
        elif tag == "code" and not self._preformatted:
            self._write("`")
        elif tag in _HEADINGS or tag in _BLOCKS:
            if tag in ("ul", "ol") and self._lists:
                self._lists.pop()
            self._line(apart=tag in _HEADINGS or (tag in _APART and not self._lists))

    def _end_link(self) -> None:
        if self._link is None:
            return
        (address, start), self._link = self._link, None
        words = "".join(self._out[start:]).strip()
        if address and words:
            if "\n" in words:  # around whole blocks: the address goes behind them
                self._write(f" ({address})")
            else:
                self._out[start:] = [f"[{words}]({address})"]
                self._fresh = False

    def _address(self, href: str) -> str:
        try:
            address = urljoin(self._base, href.strip())
            scheme = urlsplit(address).scheme
        except ValueError:
            return ""
        good = scheme in ("http", "https", "mailto") and len(address) <= _MAX_LINK and not href.startswith("#")
        return address if good else ""


def readable(page: str, base: str) -> str:
    """The page as text, its title first; links are relative to `base`."""
    whole = _Page(base)
    for token in tokens(page):
        whole.take(token)
    text = whole.text()
    return f"# {whole.title}\n\n{text}" if whole.title and not text.startswith(f"# {whole.title}") else text
