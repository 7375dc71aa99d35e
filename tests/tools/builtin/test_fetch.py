"""Reading the web: what becomes of pages, of what is no page, and of pages made to hurt (spec: R2; fault: S1, T3)."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.tools.invoke import invocation_of, run, run_text
from tests.upstreams.transport.faulty import Faulty, answering, whole
from toolgate.tools.builtin.fetch import FetchTool
from toolgate.tools.builtin.html_text import readable, tokens
from toolgate.tools.egress import EgressRefused, EgressRequest, EgressResponse
from toolgate.tools.egress.pinned_transport import guarded_http
from toolgate.tools.tool import ToolCallFailed

PAGE = """<!doctype html><html><head><title>Cats &amp; dogs</title><style>p { color: red }</style></head><body>
<nav><ul><li><a href=/home>Home</a></li><li><a href='https://other.example/y?z=1&amp;q=2'>An <b>other</b></a></li></ul></nav>
<h1>Cats</h1><p>Hello   <em>world</em>,<br>next <code>a&lt;b</code></p>
<pre><code>def f():
    return 1 &lt; 2</code></pre>
<ol><li><p>one</p><ul><li>inner</li></ul></li><li>two</li></ol>
<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>
<script>steal("cookies")</script><!-- hidden --><img alt="A cat" src=cat.png><a href="javascript:x()">click</a> 1 < 2
</body></html>"""
TEXT = """# Cats & dogs

- [Home](http://base.example/home)
- [An other](https://other.example/y?z=1&q=2)

# Cats

Hello world,
next `a<b`

```
def f():
    return 1 < 2
```

1. one
  - inner
2. two

a | b
1 | 2

[image: A cat]click 1 < 2"""


class Web:
    """The network, played by one answer; keeps what it was asked."""

    def __init__(self, body: bytes, content_type: str = "text/html", status: int = 200, **more: Any) -> None:
        self.answer = EgressResponse("http://base.example/page", status, {"content-type": content_type}, body, **more)
        self.asked: list[EgressRequest] = []

    async def send(self, request: EgressRequest) -> EgressResponse:
        self.asked.append(request)
        return self.answer


async def fetched(body: bytes, content_type: str = "text/html", **arguments: Any) -> str:
    return await run_text(FetchTool(Web(body, content_type)), url="http://base.example/page", **arguments)


def test_a_page_becomes_text_that_keeps_its_structure() -> None:
    assert readable(PAGE, "http://base.example/page") == TEXT


async def test_fetch_goes_through_the_guard_and_follows_to_the_page() -> None:
    """fault: S1"""
    moved = whole(b"", "location: /there", status="301 Moved")
    async with Faulty(answering(moved, whole(b"<p>there", "content-type: text/html"))) as server:
        assert await run_text(FetchTool(guarded_http(["127.0.0.1"])), url=server.url) == "there"
        with pytest.raises(EgressRefused):
            await run(FetchTool(guarded_http()), url=server.url)
    assert [request.target for request in server.requests] == ["/v1/chat", "/there"]
    assert "cookie" not in server.requests[1].headers


async def test_a_request_is_charged_to_its_session() -> None:
    web = Web(b"x", "text/plain")
    await run(FetchTool(web), url="http://base.example/")
    assert web.asked[0].account == "caller/session"


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/plain", b"plain <b>", "plain <b>"),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/problem+json; charset=utf-8", b"{}", "{}"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("", b"no type at all", "no type at all"),
        ("text/plain; charset=iso-8859-1", "Käse €".encode("cp1252"), "Käse €"),
        ("text/plain; charset=shift_jis", "猫".encode("shift_jis"), "猫"),
        ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"),
        ("text/plain", "marked".encode("utf-16"), "marked"),
        ("text/plain", b"bad \xff utf-8", "bad \ufffd utf-8"),
        ("text/html", '<meta charset="windows-1251"><p>Кот'.encode("cp1251"), "Кот"),
        ("text/html", b"", "http://base.example/page has no text."),
    ],
)
async def test_text_is_read_in_its_own_charset(content_type: str, body: bytes, text: str) -> None:
    assert await fetched(body, content_type) == text


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("application/pdf", b"%PDF"), ("image/png", b"x"), ("application/octet-stream", b"x"), ("text/plain", b"a\0b")],
)
async def test_what_is_no_text_is_refused_by_its_type(content_type: str, body: bytes) -> None:
    """fault: T3"""
    with pytest.raises(ToolCallFailed, match="cannot be read as text"):
        await fetched(body, content_type)


async def test_long_text_comes_in_portions_with_the_next_offset() -> None:
    body = b"0123456789" * 3
    first = await fetched(body, "text/plain", max_length=12)
    assert first == "012345678901\n\n[18 more characters: call fetch again with start_index=12]"
    assert await fetched(body, "text/plain", max_length=18, start_index=12) == "234567890123456789"
    with pytest.raises(ToolCallFailed, match="has 30 characters"):
        await fetched(body, "text/plain", start_index=30)


async def test_a_page_that_was_cut_has_a_note() -> None:
    web = Web(b"the beginning", "text/plain", truncated=True)
    assert (await run_text(FetchTool(web), url="http://x.example/")).endswith(
        "[the page is larger than 4 MiB; the rest is left out]"
    )


async def test_a_failed_page_is_an_error_with_its_status() -> None:
    output = await run(FetchTool(Web(b"<p>Gone</p>", status=404)), url="http://base.example/page")
    assert output.is_error
    assert output.content[0].text == "HTTP 404 from http://base.example/page\nGone"  # type: ignore[union-attr]


async def test_the_preparation_names_the_url_of_the_request() -> None:
    tool = FetchTool(Web(b""))
    assert (await tool.prepare(invocation_of(tool, url="https://a.example/b"))).message == "Fetch https://a.example/b"


HOSTILE: Mapping[str, str] = {
    "open tags": "<" * 500_000,
    "declarations": "<!" * 500_000,
    "comments": "<!--" * 250_000,
    "open quotes": '<a "' * 200_000,
    "mixed quotes": "<a b='\" c=\"'>" * 50_000,
    "a long name": "<a " + "a" * 500_000 + ">",
    "many names": "<a " + "a " * 250_000 + ">",
    "scripts": "<script>" * 100_000,
    "half-closed scripts": "<script></script x" * 50_000,
    "entities": "&" * 500_000,
    "a huge entity": "&#" + "9" * 500_000,
    "deep lists": "<ul><li>" * 50_000,
    "open links": "<a href=x>y" * 50_000,
    "links around blocks": "<a href=x><p>y" * 50_000,
    "spaces": "<p" + " " * 500_000,
    "closings": "</" * 500_000,
}


@pytest.mark.parametrize("page", HOSTILE.values(), ids=list(HOSTILE))
def test_no_page_takes_long(page: str) -> None:
    """fault: J3. Twenty times what an honest page of the size takes, and far from what a quadratic reader would."""
    began = time.thread_time()
    readable(page, "http://base.example/")
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("letter", ["<", "< ", "&", "a b", "a"])
def test_a_page_without_tags_is_few_pieces_of_bounded_size(letter: str) -> None:
    page = letter * (2_000_000 // len(letter))
    pieces = list(tokens(page))
    assert len(pieces) < 100
    assert max(len(piece.text) for piece in pieces) <= 64 * 1024
    assert "".join(piece.text for piece in pieces) == page


def test_a_page_of_very_many_tags_is_read_as_far_as_is_worth_it() -> None:
    text = readable("<b>x</b>" * 100_000, "http://base.example/")
    assert text.startswith("xxxx")
    assert text.endswith("[the page has more than 250000 tags; the rest is left out]")
