"""`toolgate tools` (spec: E2)."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner, Result

from tests.stage import in_a_thread
from tests.tools.execution.toolserver import tool_server, tool_server_in_a_thread
from toolgate.cli.tools import app


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tool_server_in_a_thread() as url:
        yield url


def run(url: str, *arguments: str, key: str = "root-key") -> Result:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200", "TOOLGATE_URL": url, "TOOLGATE_KEY": key})


def test_tools_are_listed_with_their_source_and_tags(url: str) -> None:
    result = run(url)
    assert result.exit_code == 0
    for word in ("get_time", "python", "web, slow", "Does put_page.", "mcp/docs"):
        assert word in result.stdout
    assert "secret" not in result.stdout


def test_the_list_is_filtered_by_name_and_tags(url: str) -> None:
    result = run(url, "--name", "get_*", "--tags", "web,none")
    assert "get_page" in result.stdout
    assert "get_time" not in result.stdout
    assert "put_page" not in result.stdout


def test_json_is_the_servers_own_answer(url: str) -> None:
    result = run(url, "--json", "--name", "get_time")
    assert [tool["name"] for tool in json.loads(result.stdout)["data"]] == ["get_time"]


def test_one_tool_is_shown_with_its_schema(url: str) -> None:
    result = run(url, "show", "get_time")
    assert result.exit_code == 0
    assert "name: get_time" in result.stdout
    assert '"additionalProperties": false' in result.stdout
    assert json.loads(run(url, "show", "get_time", "--json").stdout)["referenceName"] == "clock"


def test_a_tool_that_waits_is_accepted_once(url: str) -> None:
    assert run(url, "accept", "docs_odd", "--digest", "d0").exit_code == 1
    accepted = run(url, "accept", "docs_odd", "--digest", "d1")
    assert (accepted.exit_code, accepted.stdout) == (0, "docs_odd is accepted.\n")
    again = run(url, "accept", "docs_odd")
    assert again.exit_code == 1
    assert "no tool 'docs_odd' that waits" in again.stderr


@pytest.mark.parametrize("arguments", [["show", "nobody"], ["show", "../secret"], ["show", "secret"]])
def test_a_tool_that_is_not_there_is_an_error_in_the_servers_words(url: str, arguments: list[str]) -> None:
    result = run(url, *arguments)
    assert result.exit_code == 1
    assert "There is no tool" in result.stderr


@asynccontextmanager
async def server_with_a_broken_source() -> AsyncIterator[str]:
    async with tool_server() as server:
        server.configured.bring(problem="a.py: no\x1b[2J tools\nb.py: no file")
        yield server.url


def test_each_problem_of_a_source_is_a_line_of_its_own() -> None:
    with in_a_thread(server_with_a_broken_source()) as url:
        assert run(url).stderr == "python: a.py: no\ufffd[2J tools\npython: b.py: no file\n"


def test_a_refused_key_is_reported(url: str) -> None:
    assert run(url, key="talker-key").exit_code == 1
    assert "lacks the scope tools" in run(url, key="talker-key").stderr
