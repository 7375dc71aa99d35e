"""The README works when pasted: its requests and programs run against a server started as it says.

What it shows of the model in the box is tried in tests/real_model.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme import README, ROOT, Shown, blocks, commands, programs
from tests.stage import MEMORY, QUIET, served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config
from toolgate.config.settings import ServerSettings, ServerToolSettings
from toolgate.tools.sources.python import PythonSource

DOCS = ROOT / "docs"
PAGES = [README, DOCS / "server-tools.md", DOCS / "responses.md", DOCS / "durability.md", DOCS / "records.md"]
CURLS = [one for one in commands(PAGES) if not one.asks_local]
PROGRAMS = [one for one in programs([*PAGES, DOCS / "mcp-server.md"]) if not one.asks_local]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(Toolgate(Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET))) as url:
        yield url


@pytest.mark.parametrize("command", CURLS, ids=lambda one: one.name)
def test_a_request_is_answered(url: str, command: Shown) -> None:
    asked = [*command.words(url), "--fail-with-body"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stdout
    assert "failed" not in answer.stdout


async def test_the_tool_shown_can_be_loaded(tmp_path: Path) -> None:
    program = next(text for kind, text in blocks(README) if kind == "python" and "@tool" in text)
    (tmp_path / "stock.py").write_text(program)
    source = PythonSource(["."], tmp_path)
    await source.open(lambda: None)
    try:
        assert (source.problem, [tool.spec.name for tool in source.tools]) == (None, ["in_stock"])
    finally:
        await source.aclose()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_a_program_prints_what_is_shown(url: str, program: Shown) -> None:
    asked = [sys.executable, "-c", program.at(url)]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, program.output), ran.stderr


def test_the_first_tool_of_the_guide_answers_at_once(tmp_path: Path) -> None:
    guide = DOCS / "tools.md"
    (tmp_path / "shop.py").write_text(next(text for kind, text in blocks(guide) if kind == "python"))
    [command] = commands([guide])
    tools = ServerToolSettings(python=(str(tmp_path),))
    config = Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET, tools=tools)
    with served(Toolgate(config)) as url:
        answer = subprocess.run(command.words(url), capture_output=True, text=True, timeout=60, check=True)
    assert "price returned: 0.8" in answer.stdout
