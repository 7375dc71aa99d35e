"""`toolgate requests` against a server (spec: E2, E8)."""

import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from openai import NotFoundError, OpenAI
from typer.testing import CliRunner, Result

from tests.cli.pseudo_terminal import on_terminal
from tests.stage import MEMORY, QUIET, served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.cli.commands import app
from toolgate.config import BUILTIN, Config, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.config.settings import ServerSettings


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that has recorded an answer, one with a tool, and a refusal, in this order."""
    with served(Toolgate(Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET))) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        client.responses.create(model="echo", input="Hello")
        tools = {"tool_execution": "auto", "use_server_tools": ["clock"]}
        client.responses.create(model="echo", input="call clock {}", extra_body=tools)
        with pytest.raises(NotFoundError):
            client.responses.create(model="nothing", input="Hello")
        deadline = time.monotonic() + 60
        while len(run(url).stdout.splitlines()) < 3:  # records are written behind the answers
            assert time.monotonic() < deadline
        yield url


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["requests", *arguments], env={"TOOLGATE_URL": url, "COLUMNS": "200"})


def test_a_program_gets_a_line_of_fields_for_each_request_newest_first(url: str) -> None:
    lines = [line.split("\t") for line in run(url).stdout.splitlines()]
    assert [line[4] for line in lines] == ["404", "200", "200"]
    assert lines[0][13] == "model_not_found"
    assert lines[1][3] == "echo"
    assert lines[1][12] == "clock"
    assert {len(line) for line in lines} == {16}
    assert all(datetime.fromisoformat(line[0]).tzinfo for line in lines)


def test_filters_narrow_the_list(url: str) -> None:
    assert len(run(url, "--status", "4xx").stdout.splitlines()) == 1
    assert len(run(url, "--model", "echo", "--since", "1h").stdout.splitlines()) == 2
    assert run(url, "--until", "2020-01-31").stdout == ""
    assert len(run(url, "--limit", "1").stdout.splitlines()) == 1
    wrong = run(url, "--since", "yesterday")
    assert (wrong.exit_code, "is no time" in wrong.stderr) == (1, True)


def test_one_is_shown_by_the_beginning_of_its_id(url: str) -> None:
    id = run(url, "--status", "error").stdout.split("\t")[1]
    shown = run(url, "show", id[:8]).stdout
    assert f"id: {id}\n" in shown
    assert "code: model_not_found\n" in shown
    assert json.loads(run(url, "show", id, "--json").stdout)["id"] == id
    assert [json.loads(line)["status"] for line in run(url, "--json").stdout.splitlines()] == [404, 200, 200]
    missing = run(url, "show", "nothing-like-it")
    assert missing.exit_code == 1
    assert missing.stderr


def test_a_terminal_of_80_columns_shows_a_table_with_ids_that_can_be_used(url: str) -> None:
    with on_terminal("requests", env={"TOOLGATE_URL": url}) as program:
        assert program.wait() == 0
    id = run(url, "--status", "error").stdout.split("\t")[1]
    assert f" {id[:8]} " in program.screen.text
    assert "model_not_found" in program.screen.text
    assert max([len(line) for line in program.screen.lines]) <= 80


def test_a_request_that_a_fallback_answered_is_marked() -> None:
    config = Config(
        server=ServerSettings(port=0),
        upstreams={"dead": UpstreamConfig(name="dead", dialect="openai_chat", base_url="http://127.0.0.1:9")},
        models=(
            ModelConfig(name="main", targets=(TargetConfig(upstream="dead", model="any"),), fallbacks=("echo",)),
            ModelConfig(name="echo", targets=(TargetConfig(upstream=BUILTIN, model="echo"),)),
        ),
        storage=MEMORY,
        log=QUIET,
    )
    with served(Toolgate(config)) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        for model in ("main", "echo"):
            client.responses.create(model=model, input="Hello")
        deadline = time.monotonic() + 60
        while len(lines := run(url).stdout.splitlines()) < 2:  # records are written behind the answers
            assert time.monotonic() < deadline
        with on_terminal("requests", env={"TOOLGATE_URL": url}) as program:
            assert program.wait() == 0
        [plain, fallback] = [json.loads(line) for line in run(url, "--json").stdout.splitlines()]
    warnings = [line.split("\t")[15] for line in lines]
    assert warnings[0] == ""
    assert "echo answered" in warnings[1]
    shown = {model: line for line in program.screen.lines for model in ("main", "echo") if f" {model} " in line}
    assert (" 200! " in shown["main"], " 200 " in shown["echo"]) == (True, True)
    assert (plain["status"], plain["warnings"]) == (200, [])
    assert (fallback["status"], fallback["warnings"]) == (200, [warnings[1]])
