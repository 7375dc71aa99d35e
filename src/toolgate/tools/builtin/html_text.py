"""Convert HTML to text that a model reads well: headings, links, lists, tables and code stay recognisable.

Pages are not trusted, so this has a tokenizer of its own that takes linear time: every search that fails ends the page
or changes the way of searching. The standard parser can take quadratic time. Fetches nothing.
"""

import re
from collections.abc import Iterator
from html import unescape
from itertools import islice
from typing import Literal
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

# The possessive quantifiers, such as `*+`, never give back what they have matched: a page that is made to fail at the last
# character costs one pass and not one for each place.
_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]*+)")
# To the `>` that ends a tag, past those in quoted attributes: `<a title="a > b">`.
_QUOTED_END = re.compile(r"""[^>"']*+(?>(?:(?:"[^"]*+"|'[^']*+')[^>"']*+)*)>""")
_ATTRIBUTE = re.compile(r"""([^\s=/>"']++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"']++)))?""")
_SPACES = re.compile(r"[ \t\r\n\f\u00a0]+")
_OPENING = re.compile(r"<(?=[A-Za-z/!?])")

# Elements whose content is skipped or read as it is, up to their end tag: a `<` in a script opens no tag.
_RAW = frozenset({"script", "style", "noscript", "template", "iframe", "textarea", "title", "svg", "math", "object"})
_RAW_END = {tag: re.compile(rf"</{tag}[\s/>]", re.IGNORECASE) for tag in _RAW}
_OVERLAP = 16  # longer than any of these
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "dialog"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html"),
        *("legend", "main", "nav", "ol", "option", "p", "section", "summary", "table", "tbody", "tfoot", "thead"),
        *("tr", "ul"),
    }
)
# Blocks with an empty line before and after them.
_APART = frozenset({"p", "table", "ul", "ol", "dl", "blockquote", "figure", "section", "article", "pre"})
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_MAX_LINK = 2000
_MAX_TOKENS = 250_000
# Characters that are searched in one call, during which no other thread runs; a tag may not be longer.
_SLICE = 64 * 1024


class HtmlToken(Struct, frozen=True):
    """A piece of a page: text, or a tag with the text of its attributes, or an element that is not markup inside."""

    kind: Literal["text", "start", "end", "raw"]
    text: str
    rest: str = ""


def tokens(page: str) -> Iterator[HtmlToken]:
    """Split a page into tokens, without comments and declarations."""
    place, respects_quotes = 0, True
    while (opening := _found(_OPENING, page, place)) is not None:
        start = opening.start()
        yield from _texts(page, place, start)
        name = _NAME.match(page, start)
        if name is None:  # a comment, a declaration or a stray end tag such as `</>`
            ending = "-->" if page.startswith("<!--", start) else ">"
            end = page.find(ending, start + 4 if ending == "-->" else start)
            place = len(page) if end < 0 else end + len(ending)
            continue
        end = _tag_end(page, name.end(), respects_quotes)
        if end < 0 and respects_quotes:  # a quote is never closed: from here on quotes are ignored
            respects_quotes = False
            end = _tag_end(page, name.end(), respects_quotes)
        if end < 0:
            return
        tag, rest, place = name[1].lower(), page[name.end() : end - 1], end
        if page[start + 1] == "/":
            yield HtmlToken("end", tag)
        elif tag in _RAW and not rest.endswith("/"):
            inside, place = _raw(page, tag, end)
            yield HtmlToken("raw", tag, inside)
        else:
            yield HtmlToken("start", tag, rest)
    yield from _texts(page, place, len(page))


def _texts(page: str, start: int, end: int) -> Iterator[HtmlToken]:
    """Yield the text between two positions in slices that end between words if possible."""
    while end - start > _SLICE:
        cut = page.rfind(" ", start + _SLICE // 2, start + _SLICE) + 1 or start + _SLICE
        yield HtmlToken("text", page[start:cut])
        start = cut
    if start < end:
        yield HtmlToken("text", page[start:end])


def _found(pattern: re.Pattern[str], page: str, start: int) -> re.Match[str] | None:
    """Find the next match of a short pattern, slice by slice."""
    while start < len(page):
        found = pattern.search(page, start, start + _SLICE)
        if found is not None:
            return found
        start += _SLICE - _OVERLAP
    return None


def _tag_end(page: str, start: int, respects_quotes: bool) -> int:
    if not respects_quotes:
        return page.find(">", start) + 1 or -1
    end = _QUOTED_END.match(page, start, start + _SLICE)
    return -1 if end is None else end.end()


def _raw(page: str, tag: str, start: int) -> tuple[str, int]:
    """Return the content of an element without markup inside, and the position after it."""
    end = _found(_RAW_END[tag], page, start)
    if end is None:
        return "", len(page)
    after = page.find(">", end.start())
    return page[start : end.start()], len(page) if after < 0 else after + 1


def attributes(text: str) -> dict[str, str]:
    """Parse the attributes of a tag; of two with the same name the first counts."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text[:20_000]):
        found.setdefault(match[1].lower(), plain(match[2] or match[3] or match[4] or ""))
    return found


def plain(text: str) -> str:
    """Decode the entities in a text."""
    try:
        return unescape(text) if "&" in text else text
    except ValueError:  # a numbered one with more digits than Python reads
        return text


class _TextWriter:
    """Writes tokens as text."""

    def __init__(self, base: str) -> None:
        self.title = ""
        self._base = base
        self._out: list[str] = []
        self._fresh = True  # a space would be superfluous here
        self._breaks = 2  # line breaks that the text ends with
        self._preformatted = 0
        self._lists: list[int | None] = []  # the open lists: the number of the last item, None without numbers
        self._link: tuple[str, int] | None = None  # the open link: its href, and where its text begins in `_out`
        self._cells = 0  # of the open table row
        self._marked = False  # behind the mark of a heading or item, before its text

    def write(self, token: HtmlToken) -> None:
        """Write a token."""
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
        """Return the text so far."""
        lines: list[str] = []
        for line in "".join(self._out).split("\n"):
            stripped = line.rstrip()
            if stripped or not lines or lines[-1]:  # one blank line is enough
                lines.append(stripped)
        return "\n".join(lines).strip()

    def _raw(self, token: HtmlToken) -> None:
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
        """Begin a line, after an empty one if `apart`; but never between the mark of an item and its text."""
        breaks = 2 if apart else 1
        if self._breaks < breaks and not self._marked:
            self._out.append("\n" * (breaks - self._breaks))
            self._breaks = breaks
        self._fresh = True

    def _start(self, tag: str, rest: str) -> None:
        if tag in _HEADINGS:
            self._line(apart=True)
            self._mark(f"{_HEADINGS[tag]} ")
        elif tag == "a":
            self._end_link()
            self._link = (attributes(rest).get("href", ""), len(self._out))
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
        elif tag == "li":
            self._marked = False
            self._line()
            mark = "-"
            if self._lists and (count := self._lists[-1]) is not None:
                self._lists[-1] = count + 1
                mark = f"{count + 1}."
            self._mark(f"{'  ' * min(len(self._lists) - 1, 8)}{mark} ")
        elif tag in _BLOCKS:
            if tag in ("ul", "ol"):
                self._lists.append(0 if tag == "ol" else None)
            self._cells = 0
            self._line(apart=tag in _APART and len(self._lists) < 2)
            self._write("---\n" if tag == "hr" else "")

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
        (href, start), self._link = self._link, None
        text = "".join(self._out[start:]).strip()
        try:
            address = urljoin(self._base, href.strip())
            scheme = urlsplit(address).scheme
        except ValueError:
            return
        # Only the text stays of links inside the page and of those that a model cannot fetch, such as `javascript:`.
        if not text or href.startswith("#") or scheme not in ("http", "https", "mailto") or len(address) > _MAX_LINK:
            return
        if "\n" in text:  # a link around whole blocks: the address follows them
            self._write(f" ({address})")
        else:
            self._out[start:] = [f"[{text}]({address})"]
            self._fresh = False


def readable(page: str, base: str) -> str:
    """Convert a page to text, its title first; links are relative to `base`."""
    writer = _TextWriter(base)
    pieces = tokens(page)
    for token in islice(pieces, _MAX_TOKENS):
        writer.write(token)
    text = writer.text()
    if next(pieces, None) is not None:
        text += f"\n\n[the page has more than {_MAX_TOKENS} tags; the rest is left out]"
    return f"# {writer.title}\n\n{text}" if writer.title and not text.startswith(f"# {writer.title}") else text
