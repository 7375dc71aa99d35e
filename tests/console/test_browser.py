"""The browser of these tests notices what goes wrong in a page."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.console.pages import WatchedPages, accessibility_violations, overflows

POLICY = "default-src 'none'; script-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
PAGE = """<!doctype html><html lang="en"><title>A page</title><main><h1>A page</h1>{}</main></html>"""
PAGES = {
    "/sound": PAGE.format("<p>Text"),
    "/inline": PAGE.format("<script>document.title = 'changed'</script>"),
    "/throws": PAGE.format("<script src=/throws.js></script>"),
    "/throws.js": "throw new TypeError('broken')",
    "/markup": PAGE.format("<script src=/markup.js></script>"),
    "/markup.js": "document.querySelector('h1').innerHTML = '<b>bold</b>'",
    "/fetches": PAGE.format("<script src=/missing.js></script>"),
    "/unnamed": PAGE.format("<button></button>"),
    "/wide": PAGE.format("<pre>" + "wide " * 300 + "</pre>"),
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = PAGES.get(self.path)
        self.send_response(404 if text is None else 200)
        self.send_header("content-type", "text/javascript" if self.path.endswith(".js") else "text/html")
        self.send_header("content-security-policy", POLICY)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def problems(visit: WatchedPages, url: str) -> list[str]:
    """What the page reports until it has loaded; none of it is left for the end of the test."""
    visit(url).wait_for_load_state("networkidle")
    found, visit.problems = visit.problems, []
    return found


def test_a_sound_page_has_no_problems(visit: WatchedPages, url: str) -> None:
    page = visit(f"{url}/sound")
    assert (visit.problems, accessibility_violations(page), overflows(page)) == ([], [], 0)


def test_a_script_that_the_policy_forbids_is_a_problem(visit: WatchedPages, url: str) -> None:
    assert any("script-src" in one for one in problems(visit, f"{url}/inline"))


def test_markup_from_text_violates_trusted_types(visit: WatchedPages, url: str) -> None:
    assert any("require-trusted-types-for" in one for one in problems(visit, f"{url}/markup"))


def test_an_exception_is_a_problem(visit: WatchedPages, url: str) -> None:
    assert any("TypeError: broken" in one for one in problems(visit, f"{url}/throws"))


def test_a_failed_request_is_a_problem_unless_it_is_expected(visit: WatchedPages, url: str) -> None:
    assert any("404" in one and "/missing.js" in one for one in problems(visit, f"{url}/fetches"))
    visit(f"{url}/fetches", failures=[404]).wait_for_load_state("networkidle")


def test_axe_finds_a_button_without_a_name(visit: WatchedPages, url: str) -> None:
    (found,) = accessibility_violations(visit(f"{url}/unnamed"))
    assert found.startswith("button-name")


def test_a_page_that_is_wider_than_a_phone_overflows(visit: WatchedPages, url: str) -> None:
    assert overflows(visit(f"{url}/wide", width=360)) > 0
