"""`toolgate doctor`: how everything is that a server needs, and what to do (spec: E2)."""

import http.server
import json
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.cli.pseudo_terminal import on_terminal
from toolgate import __version__
from toolgate.cli.commands import app


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLGATE_KEY", raising=False)
    return tmp_path


class Answers(http.server.BaseHTTPRequestHandler):
    """Plays an upstream with two models, a healthy server and its status."""

    version = "9.9.9"

    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "a"}, {"id": "b"}]},
            "/healthz": {"status": "ok"},
            "/v1/status": {
                "version": self.version,
                "models": 1,
                "local_model": {"state": "downloading", "message": "42 % of \x1b[2Jit"},
            },
        }
        body = json.dumps(answers.get(self.path, {})).encode()
        self.send_response(200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def run(*arguments: str, url: str | None = "http://127.0.0.1:9", **env: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], env={"TOOLGATE_URL": url, **env})


def findings(result: Result) -> dict[str, list[tuple[str, str, str]]]:
    """The level, text and advice of each finding, by subject."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in result.stdout.splitlines():
        level, subject, text, advice = line.split("\t")
        found.setdefault(subject, []).append((level, text, advice))
    return found


def test_a_healthy_installation_has_no_problem(empty_folder: Path, unused_port: int) -> None:
    (empty_folder / "toolgate.yaml").write_text(
        f"server: {{port: {unused_port}}}\nkeys: [{{name: me, key: a-key-of-mine, scopes: [chat, tools, admin]}}]\n"
    )
    result = run(url=None)
    assert result.exit_code == 0, result.output
    found = findings(result)
    assert {level for lines in found.values() for level, _, _ in lines} == {"ok"}
    assert found["version"][0][1].startswith(f"toolgate {__version__}, Python 3")
    assert found["config"][0][1] == "toolgate.yaml: 1 model, by default echo"
    assert found["port"][0][1] == f"127.0.0.1 port {unused_port} is free"
    place = f"sqlite:///{Path.cwd()}/toolgate.db"
    assert found["database"][0][1] == f"{place}: there is no file yet; a server creates it"
    assert "GB free" in found["disk"][0][1]
    assert found["keys"][0][1] == "me (chat, tools, admin)"
    assert found["tools"][0][1] == "builtin: 3 tools"
    assert f"none answers at http://127.0.0.1:{unused_port};" in found["server"][0][1]
    assert list(empty_folder.iterdir()) == [empty_folder / "toolgate.yaml"]


def test_the_server_that_is_asked_is_that_of_the_configuration_unless_another_is_named(empty_folder: Path) -> None:
    with answering() as port:
        (empty_folder / "other.yaml").write_text(f"server: {{port: {port}}}\n")
        found = findings(run("--offline", "--config", "other.yaml", url=None))
        named = findings(run("--offline", "--config", "other.yaml", url="http://127.0.0.1:9"))
    assert found["port"] == named["port"] == [("ok", f"a server answers on 127.0.0.1 port {port}", "")]
    assert found["server"][0][:2] == ("ok", f"http://127.0.0.1:{port}: version 9.9.9, 1 model")
    dead = ("warning", "none answers at http://127.0.0.1:9", "Start it, or correct --url or TOOLGATE_URL.")
    assert named["server"] == [dead]


def test_every_problem_is_found_with_what_to_do_and_no_secret(empty_folder: Path, closed_port: int) -> None:
    (empty_folder / "my_tools").mkdir()
    (empty_folder / "my_tools" / "broken.py").write_text("import no_such_module\n")
    with answering() as port:
        (empty_folder / "toolgate.yaml").write_text(
            f"""
server: {{port: {port}}}
keys: [{{name: a, key: canary-canary-1, budget: {{amount: 3}}}}, {{name: b, key: canary-canary-2}}]
upstreams:
  good: {{dialect: openai_chat, base_url: "http://127.0.0.1:{port}"}}
  gone: {{dialect: ollama, base_url: "http://127.0.0.1:{closed_port}", api_key: canary-canary-3}}
models: [{{name: m, upstream: good}}]
redis: redis://:canary@127.0.0.1:{closed_port}/0
storage: postgresql://me:canary@127.0.0.1:{closed_port}/x
tools:
  python: [my_tools]
  mcp: {{bad: {{command: [no-such-command]}}}}
"""
        )
        result = run(url=f"http://127.0.0.1:{port}")
    assert result.exit_code == 1
    assert "canary" not in result.output
    assert "\x1b" not in result.output
    found = findings(result)
    problems = {subject: [text for level, text, _ in lines if level == "problem"] for subject, lines in found.items()}
    assert [subject for subject, texts in problems.items() if texts] == ["database", "redis", "upstream", "tools"]
    assert f"gone (http://127.0.0.1:{closed_port}): no answer" in problems["upstream"][0]
    assert found["upstream"][0][1].startswith(f"good (http://127.0.0.1:{port}/v1): 2 models, ")
    assert "no_such_module" in problems["tools"][0]
    assert "bad could not be started" in problems["tools"][1]
    assert [advice for level, _, advice in found["tools"] if level == "problem"] == [
        "Correct my_tools/broken.py (docs/tools.md).",
        "Correct `tools.mcp.bad` (docs/mcp.md).",
    ]
    assert found["port"] == [("ok", f"a server answers on 127.0.0.1 port {port}", "")]
    warnings = [(subject, text) for subject, lines in found.items() for level, text, _ in lines if level == "warning"]
    assert [subject for subject, _ in warnings] == ["config", "keys", "keys", "server", "server"]
    assert "no model has a price" in warnings[0][1]
    assert f"the server is version 9.9.9, this program is {__version__}" in warnings[3][1]
    assert "downloading, 42 %" in warnings[4][1]
    assert all(advice for lines in found.values() for level, _, advice in lines if level != "ok")


def test_mistakes_of_the_configuration_are_problems_and_what_does_not_need_it_is_still_checked(
    empty_folder: Path,
) -> None:
    (empty_folder / "toolgate.yaml").write_text("server: {prot: 1}\ntools: {reach: ['http://x']}\n")
    result = run()
    assert result.exit_code == 1
    found = findings(result)
    assert ("problem", "server.prot: is not a setting; did you mean port?") in [line[:2] for line in found["config"]]
    assert any(text.startswith("tools.reach[0]:") for _, text, _ in found["config"])
    assert set(found) == {"version", "config", "server"}


def test_a_port_that_another_program_has_and_tables_of_a_newer_version_are_problems(empty_folder: Path) -> None:
    assert CliRunner().invoke(app, ["db", "migrate"]).exit_code == 0
    with closing(sqlite3.connect("toolgate.db")) as database, database:
        database.execute("INSERT INTO schema_versions VALUES (9999, 'future', 1.0)")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (empty_folder / "toolgate.yaml").write_text(f"server: {{port: {port}}}\n")
        hanging_up = threading.Thread(target=lambda: taken.accept()[0].close())
        hanging_up.start()
        found = findings(run("--offline"))
        hanging_up.join(60)
    assert found["port"][0][0] == "problem"
    assert "already in use" in found["port"][0][1]
    assert "was used by a newer version" in found["database"][0][1]
    assert "tools" not in found


def test_missing_weights_are_named_with_the_command_that_fetches_them(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text("embedded: {folder: ./weights}\n")
    found = findings(run("--offline", ENABLE_EMBEDDED_MODEL="true"))
    level, text, advice = found["local model"][0]
    assert (level, "are not here yet" in text, "toolgate models pull" in advice) == ("warning", True, True)
    (empty_folder / "toolgate.yaml").write_text("embedded: {model: ./mine.gguf}\n")
    found = findings(run("--offline", ENABLE_EMBEDDED_MODEL="true"))
    assert found["local model"][0][0] == "problem"


def test_a_terminal_shows_lines_of_its_width_with_the_advice_below(empty_folder: Path, unused_port: int) -> None:
    (empty_folder / "toolgate.yaml").write_text(f"server: {{port: {unused_port}}}\nembedded: {{folder: ./weights}}\n")
    env = {"TOOLGATE_URL": "http://127.0.0.1:9", "ENABLE_EMBEDDED_MODEL": "true"}
    with on_terminal("doctor", "--offline", env=env, width=60) as program:
        assert program.wait() == 0
    lines = program.screen.lines
    assert f"ok       port        127.0.0.1 port {unused_port} is free" in lines
    assert any(line.startswith("warning  local model the weights") for line in lines)
    assert any(line.startswith(" " * 21 + "→ A server downloads them") for line in lines)
    assert max([len(line) for line in lines]) <= 60
    assert program.screen.styles >= {"32", "33"}
