"""The command line: what it says, and how it ends (E2)."""

import http.server
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from toolgate import __version__
from toolgate.cli import watch as watching
from toolgate.cli.commands import app
from toolgate.cli.ports import complaint
from toolgate.cli.watch import watch

PROGRAM = [sys.executable, "-c", "from toolgate.cli import main; main()"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLGATE_KEY", raising=False)
    return tmp_path


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **env})


class Upstream(http.server.BaseHTTPRequestHandler):
    """Lists two models to whoever has the right key, and sends everybody at /moved elsewhere."""

    seen: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        key = self.headers.get("authorization")
        self.seen.append((self.path, key))
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/v1/models")  # type: ignore[attr-defined]
            self.end_headers()
            return
        good = key == "Bearer good-key"
        body = json.dumps(
            {"object": "list", "data": [{"id": "a", "owned_by": "[b]me[/b]"}, {"id": "b"}]} if good else {}
        )
        self.send_response(200 if good else 401)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    Upstream.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_the_version_is_printed() -> None:
    assert run("version").output == f"toolgate {__version__}\n"


def test_help_names_every_command() -> None:
    output = run("--help").output
    for command in ("serve", "check", "models", "config", "version"):
        assert command in output


def test_the_example_is_printed_and_can_be_used(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text(run("config").stdout)
    result = run("check", TOOLGATE_KEY="a", TEAM_KEY="b", OPENAI_API_KEY="c", ANTHROPIC_API_KEY="d")
    assert result.exit_code == 0, result.output


class TestCheck:
    def test_without_a_file_the_built_in_configuration_is_meant(self) -> None:
        result = run("check")
        assert result.exit_code == 0
        assert "The built-in configuration is fine." in result.stderr
        assert "builtin: echo" in result.stdout

    def test_a_file_in_the_folder_is_found_and_named(self, empty_folder: Path) -> None:
        (empty_folder / "toolgate.yaml").write_text(
            "upstreams: {box: {provider: ollama}}\nmodels: [{name: m, upstream: box}]"
        )
        result = run("check")
        assert "toolgate.yaml is fine." in result.stderr
        assert "http://127.0.0.1:11434" in result.stdout

    @pytest.mark.parametrize("command", ["check", "doctor", "serve"])
    def test_problems_are_listed_without_a_traceback(self, empty_folder: Path, command: str) -> None:
        path = empty_folder / "bad.yaml"
        path.write_text("server: {prot: 1}\nkeys: [{name: a, key: '${NO_SUCH_VARIABLE}'}]")
        result = run(command, "--config", str(path))
        assert result.exit_code == 2
        assert result.stderr == (
            f"{path} cannot be used:\n"
            "  - server.prot: is not a setting; did you mean port?\n"
            "  - keys[0].key: the environment variable NO_SUCH_VARIABLE is not set\n"
        )

    def test_a_file_that_is_not_there_is_a_problem_and_no_default(self) -> None:
        result = run("check", "--config", "nowhere.yaml")
        assert result.exit_code == 2
        assert "cannot read the file" in result.stderr

    def test_no_secret_is_shown(self, empty_folder: Path) -> None:
        (empty_folder / "toolgate.yaml").write_text(
            "keys: [{name: a, key: canary-canary-canary}]\n"
            "upstreams: {x: {dialect: openai_chat, base_url: 'http://127.0.0.1:1', api_key: 'canary-canary-1234'}}"
        )
        result = run("check", "--probe")
        assert "canary" not in result.output
        assert "…1234" in result.output

    def test_upstreams_are_asked_when_wanted(self, empty_folder: Path, upstream: str, closed_port: int) -> None:
        (empty_folder / "toolgate.yaml").write_text(
            "upstreams:\n"
            f"  good: {{dialect: openai_chat, base_url: '{upstream}', api_key: good-key}}\n"
            f"  wrong: {{dialect: openai_chat, base_url: '{upstream}', api_key: wrong-key}}\n"
            f"  moved: {{dialect: openai_chat, base_url: '{upstream}/moved/v1', api_key: good-key}}\n"
            f"  gone: {{dialect: ollama, base_url: 'http://127.0.0.1:{closed_port}'}}\n"
        )
        result = run("check", "--probe")
        assert result.exit_code == 1
        rows = {line.split("│")[1].strip(): line for line in result.stdout.splitlines() if line.count("│") == 6}
        assert "ok: 2 models" in rows["good"]
        assert "FAILED: the key was refused (401)" in rows["wrong"]
        assert "FAILED: status 302" in rows["moved"]
        assert "FAILED: no answer" in rows["gone"]
        assert Upstream.seen.count(("/v1/models", "Bearer good-key")) == 1  # the redirect was not followed


class TestModels:
    def test_the_models_of_a_server_are_listed(self, upstream: str) -> None:
        result = run("models", "--url", upstream + "/", "--key", "good-key")
        assert result.exit_code == 0
        assert "│ a    │ [b]me[/b] │" in result.stdout

    def test_the_key_may_come_from_the_environment(self, upstream: str) -> None:
        assert run("models", "--url", upstream, TOOLGATE_KEY="good-key").exit_code == 0

    def test_a_refusal_is_told_in_a_sentence(self, upstream: str, closed_port: int) -> None:
        result = run("models", "--url", upstream)
        assert (result.exit_code, result.stderr) == (1, f"{upstream}: the key was refused (401)\n")
        result = run("models", "--url", f"http://127.0.0.1:{closed_port}")
        assert result.exit_code == 1
        assert "no answer" in result.stderr
        assert "must start with http" in run("models", "--url", "file:///etc/passwd").stderr


class TestServe:
    def test_an_address_that_others_reach_demands_a_key(self) -> None:
        result = run("serve", "--host", "0.0.0.0")
        assert result.exit_code == 2
        assert "a key is needed" in result.stderr

    def test_a_port_in_use_is_named(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run("serve", "--port", str(port))
        assert result.exit_code == 1
        assert result.stderr == (
            f"Port {port} on 127.0.0.1 is already in use; choose another with --port, or stop what uses it.\n"
        )

    def test_an_address_of_another_machine_is_named(self) -> None:
        assert complaint("192.0.2.1", 0) == "192.0.2.1 is not an address of this machine; choose another with --host."
        assert complaint("127.0.0.1", 0) is None

    @pytest.mark.parametrize(("workers", "status"), [("1", 1), ("2", 3)])
    def test_tables_of_a_newer_version_are_told_without_a_story(
        self, empty_folder: Path, closed_port: int, workers: str, status: int
    ) -> None:
        assert run("db", "migrate").exit_code == 0
        with closing(sqlite3.connect("toolgate.db")) as database, database:
            database.execute("INSERT INTO schema_versions VALUES (9999, 'future', 1.0)")
        command = [*PROGRAM, "serve", "--port", str(closed_port), "--workers", workers]
        done = subprocess.run(command, capture_output=True, cwd=empty_folder, text=True, timeout=60)
        assert done.returncode == status
        assert "was used by a newer version" in done.stderr
        assert "Traceback" not in done.stderr

    def test_it_serves_reloads_and_stops(self, empty_folder: Path, closed_port: int) -> None:
        config = empty_folder / "toolgate.yaml"
        config.write_text("keys: [{name: a, key: first-key}]\nlog: {format: json}")
        command = [*PROGRAM, "serve", "--port", str(closed_port), "--reload"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=empty_folder, text=True) as server:
            try:
                assert server.stderr is not None
                assert server.stderr.readline() == "Using toolgate.yaml\n"
                _read_until(server.stderr, "serves")
                assert _models(closed_port, "first-key") == ["echo"]
                config.write_text("keys: [{name: b, key: second-key}]\nlog: {format: json}")
                _read_until(server.stderr, '"reloaded"')
                assert _models(closed_port, "second-key") == ["echo"]
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=20)
        assert server.returncode == 0


def _read_until(stream: Any, text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"{text} was never said")


def _models(port: int, key: str) -> list[str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"x-api-key": key})
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return [model["id"] for model in json.load(response)["data"]]
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


class TestWatch:
    def test_a_change_of_the_file_is_a_hangup(self, empty_folder: Path) -> None:
        path = empty_folder / "toolgate.yaml"
        path.write_text("a")
        heard = threading.Event()
        before = signal.signal(signal.SIGHUP, lambda *_: heard.set())
        try:
            enough = watch(path, every=0.01)
            path.write_text("changed")
            assert heard.wait(10)
            enough.set()
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_file_that_is_being_written_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A look sees an empty file, a growing one, and then twice the same: only then it is read."""
        stamps = iter([(2, 0, 1), (2, 0, 1), (3, 40, 1), (4, 80, 1), (5, 99, 1), (5, 99, 1), (5, 99, 1)])
        looks, read = [], []
        monkeypatch.setattr(watching, "_stamp", lambda path: looks.append(1) or next(stamps))
        monkeypatch.setattr(signal, "getsignal", lambda number: print)
        monkeypatch.setattr(os, "kill", lambda pid, number: read.append(len(looks)))
        with pytest.raises(StopIteration):
            watching._look(Path("toolgate.yaml"), 0.0, (1, 50, 1), threading.Event())
        assert read == [6]

    def test_a_server_whose_file_with_keys_is_gone_does_not_start_open(self, empty_folder: Path) -> None:
        (empty_folder / "toolgate.yaml.keys-required").touch()
        result = CliRunner().invoke(app, ["serve"])
        assert result.exit_code == 2
        assert "toolgate.yaml had keys and is gone" in result.stderr


def test_the_command_line_loads_nothing_that_a_command_does_not_need() -> None:
    code = "import sys, toolgate.cli.commands; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["rich", "uvicorn", "aiohttp", "yaml", "msgspec", "prometheus_client", "toolgate.server", "toolgate.config"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout == "[]\n"


def test_a_crash_of_a_command_shows_no_variables() -> None:
    assert app.pretty_exceptions_enable is False


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("tools: {approvals: {auto_approve_urls: ['*.com']}}", "top-level domain"),
        ("tools: {reach: ['http://x']}", "is not a host"),
        ("tools: {builtin: {roots: [nowhere]}}", "is not a folder"),
        ("tools: {builtin: {disabled: [nothing]}}", "no built-in tool"),
        ("text: {templates: nowhere}\nmodels: [{name: m, upstream: builtin, model: echo, tools: emulated}]", "nowhere"),
        ("redis: 'redis://:hunter2/x@there'", "redis: is malformed"),
        ("storage: 'postgresql://me:hunter2/x@there'", "storage: is malformed"),
    ],
)
def test_check_finds_what_would_keep_a_server_from_starting(empty_folder: Path, config: str, complaint: str) -> None:
    (empty_folder / "toolgate.yaml").write_text(f"{config}\n")
    checked, served = run("check"), run("serve", "--port", "0", ENABLE_EMBEDDED_MODEL="no")
    assert (checked.exit_code, served.exit_code) == (2, 2)
    assert complaint in checked.stderr
    assert "hunter2" not in checked.stderr + served.stderr
    assert list(empty_folder.iterdir()) == [empty_folder / "toolgate.yaml"]


@pytest.mark.parametrize("config", ["embedded: {folder: ~nobody.here/x}", "tools: {python: [~nobody.here/x.py]}"])
def test_the_home_of_a_user_that_there_is_not_is_a_folder_like_others(empty_folder: Path, config: str) -> None:
    (empty_folder / "toolgate.yaml").write_text(f"{config}\n")
    assert run("check").exit_code == 0


def test_check_shows_what_each_alias_pattern_catches(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text(
        "models:\n"
        '  - {name: one, upstream: builtin, model: echo, aliases: ["claude-*", "*"]}\n'
        '  - {name: two, upstream: builtin, model: echo, aliases: ["claude-3-*", gpt-4]}\n'
        "default_model: gpt-4\n"
    )
    shown = run("check")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.output.splitlines() if "│" in line]
    assert ["claude-3-*", "two", ""] in rows
    assert ["claude-*", "one", "claude-3-*"] in rows
    assert ["*", "one", "two, gpt-4, claude-3-*"] in rows
    assert "Requests that name no model go to two." in shown.output


def test_a_default_model_that_does_not_exist_is_refused(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text("default_model: eco\n")
    shown = run("check")
    assert shown.exit_code == 2
    assert "default_model: there is no model eco; did you mean echo?" in shown.output
