"""How the console is served: who may load it, what its page may do, and that its files are those of its sources."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.node import npm_ci, run_node
from tests.stage import MEMORY, QUIET, served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, KeySettings, Secret
from toolgate.config.settings import ServerSettings
from toolgate.console import CONTENT_TYPES

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "toolgate" / "console" / "static"
LARGEST = 80 * 1024
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    """A server that asks for keys."""
    keys = (KeySettings(name="me", key=Secret("tg-" + "a" * 43)),)
    config = Config(server=ServerSettings(port=0), keys=keys, storage=MEMORY, log=QUIET)
    with served(Toolgate(config)) as url, httpx.Client(base_url=url) as client:
        yield client


def test_the_page_needs_no_key_and_its_data_does(server: httpx.Client) -> None:
    """spec: E4"""
    assert server.get("/console/").status_code == 200
    assert server.get("/v1/models").status_code == 401


def test_a_browser_at_the_root_is_sent_to_the_console_and_a_program_is_not(server: httpx.Client) -> None:
    page = server.get("/", headers=BROWSER)
    assert (page.status_code, page.headers["location"], page.headers["vary"]) == (302, "console/", "accept")
    assert server.get("/", headers=BROWSER, follow_redirects=True).url.path == "/console/"
    assert server.get("/console", follow_redirects=True).url.path == "/console/"
    assert server.get("/").json()["name"] == "toolgate"
    assert server.head("/").status_code == 200


def test_the_page_may_load_its_own_files_and_nothing_else(server: httpx.Client) -> None:
    headers = server.get("/console/").headers
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_files_are_cached_for_ever_under_the_address_that_the_page_names(server: httpx.Client) -> None:
    page = server.get("/console/")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'"(app\.(?:js|css)\?v=\w+)"', page.text)
    assert len(named) == 2
    for address in named:
        assert "immutable" in server.get(f"/console/{address}").headers["cache-control"]
        assert server.get(f"/console/{address}0").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    ("accepted", "compressed"), [("gzip, br", True), ("br;q=1, *", True), ("", False), ("gzip;q=0", False)]
)
def test_files_are_compressed_for_those_who_accept_it(server: httpx.Client, accepted: str, compressed: bool) -> None:
    response = server.get("/console/app.js", headers={"accept-encoding": accepted})
    assert ("content-encoding" in response.headers) == compressed
    assert response.content == (STATIC / "app.js").read_bytes()
    assert response.headers["vary"] == "accept-encoding"


def test_other_files_do_not_exist(server: httpx.Client) -> None:
    for path in ("/console/package.json", "/console/../__init__.py", "/console/%2e%2e/__init__.py", "/console/app.js/"):
        assert server.get(path).status_code == 404


def test_a_foreign_host_gets_no_page_from_a_server_without_keys() -> None:
    with served(Toolgate(Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET))) as url:
        assert httpx.get(f"{url}/console/").status_code == 200
        assert httpx.get(f"{url}/console/", headers={"host": "evil.example"}).status_code == 421


def test_the_bundle_is_small() -> None:
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes())) for name in CONTENT_TYPES}
    assert sum(sizes.values()) <= LARGEST, sizes


def test_the_files_are_what_the_sources_build(tmp_path: Path) -> None:
    """Run `make console` if this fails."""
    npm_ci(ROOT / "console")
    run_node("build.js", str(tmp_path), cwd=ROOT / "console")
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in STATIC.iterdir()}


def test_no_source_turns_text_into_markup() -> None:
    sources = list((ROOT / "console" / "src").rglob("*.js"))
    assert len(sources) > 10
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc")
    assert [str(path) for path in sources if unsafe.search(path.read_text("utf-8"))] == []
