"""The README works when pasted: its requests and programs run against a server started as it says."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stage import MEMORY, QUIET, served
from toolgate.config import Config
from toolgate.config.settings import Server
from toolgate.server.build import Toolgate
from toolgate.tools.sources.python import PythonSource

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "server-tools.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in BLOCK.finditer(page.read_text())]


CURLS = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (kind, text) in enumerate(blocks(page))
    if not kind and text.startswith("curl ")
]
PROGRAMS = [
    pytest.param(text, following, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, ((kind, text), (_, following)) in enumerate(zip(blocks(page), blocks(page)[1:], strict=False))
    if kind == "python" and "localhost:8080" in text
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(Toolgate(Config(server=Server(port=0), storage=MEMORY, log=QUIET))) as url:
        yield url


@pytest.mark.parametrize("command", CURLS)
def test_a_request_is_answered(url: str, command: str) -> None:
    words = shlex.split(command.replace("localhost:8080", url.removeprefix("http://")).replace("\\\n", " "))
    answer = subprocess.run([*words, "--fail-with-body"], capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stdout
    assert "failed" not in answer.stdout


async def test_the_tool_shown_can_be_loaded(tmp_path: Path) -> None:
    program = next(text for kind, text in blocks(PAGES[0]) if kind == "python" and "@tool" in text)
    (tmp_path / "stock.py").write_text(program)
    source = PythonSource(["."], tmp_path)
    await source.open(lambda: None)
    try:
        assert (source.trouble, [tool.spec.name for tool in source.tools]) == (None, ["in_stock"])
    finally:
        await source.aclose()


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_a_program_prints_what_is_shown(url: str, program: str, output: str) -> None:
    text = program.replace("http://localhost:8080", url)
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr
