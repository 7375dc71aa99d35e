"""The command line: what it says, and how it ends (spec: E2)."""

import asyncio
import http.server
import json
import os
import re
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
from websockets.asyncio.server import serve

from toolgate import __version__
from toolgate.app import startup_helpers
from toolgate.cli import config_watch as watching
from toolgate.cli.commands import app
from toolgate.cli.config_watch import watch_config
from toolgate.cli.export import RECORD_NAMES
from toolgate.cli.port_check import port_problem
from toolgate.cli.server_url import DEFAULT_URL, configured_url
from toolgate.config import load
from toolgate.storage.exports import KINDS

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


def test_the_version_is_printed() -> None:
    assert run("version").output == f"toolgate {__version__}\n"


def test_help_names_every_command() -> None:
    output = run("--help").output
    for command in ("serve", "check", "doctor", "models", "config", "version"):
        assert command in output


def help_pages() -> dict[str, str]:
    """The help of every command, with those of groups, by its words."""
    pages: dict[str, str] = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        words = waiting.pop()
        pages[" ".join(words)] = page = run(*words, "--help").stdout
        for panel in page.split("╭─ ")[1:]:
            if not panel.startswith(("Options", "Arguments")):
                names = [line[2:].split(" ")[0] for line in panel.splitlines()[1:] if line.startswith("│ ")]
                waiting += [(*words, name) for name in names if name]
    return pages


def test_help_shows_a_type_only_for_options_that_take_a_value() -> None:
    pages = help_pages()
    assert {"", "requests show", "keys revoke", "mcp login", "forget"} <= set(pages)
    assert [command for command, page in pages.items() if "<bool>" in page or "--help" not in page] == []
    assert re.search(r"--yes +Do not ask", pages["forget"])
    assert re.search(r"--since +<str> +Only", pages["export"])


def test_the_example_is_printed_and_can_be_used(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text(run("config").stdout)
    result = run("check")
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

    @pytest.mark.parametrize("command", ["check", "serve"])
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
        rows = {line.split("\t")[0]: line for line in result.stdout.splitlines() if line.count("\t") == 4}
        assert "ok: 2 models" in rows["good"]
        assert "FAILED: the key was refused (401)" in rows["wrong"]
        assert "FAILED: status 302" in rows["moved"]
        assert "FAILED: no answer" in rows["gone"]
        assert Upstream.seen.count(("/v1/models", "Bearer good-key")) == 1  # the redirect was not followed
        assert "toolgate.yaml is fine, but 3 of 4 upstreams failed: wrong, moved, gone.\n" in result.stderr

    async def test_a_stateful_chat_is_connected_to(self, empty_folder: Path, closed_port: int) -> None:
        """It has no list of models; the probe looked for one and ended with a traceback."""

        async def hang(connection: Any) -> None:
            await connection.wait_closed()

        async with serve(hang, "127.0.0.1", 0) as peer:
            port = peer.sockets[0].getsockname()[1]
            (empty_folder / "toolgate.yaml").write_text(
                "upstreams:\n"
                f"  good: {{dialect: peer, base_url: 'ws://127.0.0.1:{port}', api_key: good-key}}\n"
                f"  gone: {{dialect: peer, base_url: 'ws://127.0.0.1:{closed_port}'}}\n"
            )
            result = await asyncio.to_thread(run, "check", "--probe")
        rows = {line.split("\t")[0]: line for line in result.stdout.splitlines() if line.count("\t") == 4}
        assert "ok: connected" in rows["good"]
        assert "FAILED: " in rows["gone"]


class TestModels:
    @pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "127.0.0.1:8080"])
    def test_what_is_no_url_is_refused_with_a_sentence(self, url: str) -> None:
        result = run("models", "--url", url)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"{url} is no URL: ")

    def test_an_answer_that_breaks_off_is_no_answer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")

            thread = threading.Thread(target=answer)
            thread.start()
            result = run("models", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
            thread.join()
        assert result.exit_code == 1
        assert "no answer (IncompleteRead" in result.stderr

    def test_the_models_of_a_server_are_listed(self, upstream: str) -> None:
        result = run("models", "--url", upstream + "/", "--key", "good-key")
        assert result.exit_code == 0
        assert "a\t[b]me[/b]\n" in result.stdout

    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
    def test_the_server_of_the_configuration_in_the_folder_is_asked(
        self, empty_folder: Path, upstream: str, closed_port: int, host: str
    ) -> None:
        (empty_folder / "toolgate.yaml").write_text(
            f"server: {{host: {host}, port: '${{PORT}}', origins: ['*']}}\nkeys: [{{name: me, key: '${{NOT_SET}}'}}]\n"
        )
        env = {"PORT": upstream.rpartition(":")[2], "TOOLGATE_KEY": "good-key"}
        assert "a\t[b]me[/b]\n" in run("models", **env).stdout
        other = f"http://127.0.0.1:{closed_port}"
        assert f"{other}: no answer" in run("models", TOOLGATE_URL=other, **env).stderr
        assert f"{other}: no answer" in run("models", "--url", other, **env).stderr

    @pytest.mark.parametrize(
        "config",
        [
            "server: {host: 192.0.2.1, port: 9}",
            "server: {host: an.example, port: 9}",
            "server: {port: 0}",
            "server: [",
            "4",
        ],
    )
    def test_a_configuration_sends_no_key_to_another_machine_and_its_mistakes_are_not_ours(
        self, empty_folder: Path, config: str
    ) -> None:
        (empty_folder / "toolgate.yaml").write_text(config)
        assert configured_url(empty_folder / "toolgate.yaml") == DEFAULT_URL

    def test_the_key_may_come_from_the_environment(self, upstream: str) -> None:
        assert run("models", "--url", upstream, TOOLGATE_KEY="good-key").exit_code == 0

    def test_a_refusal_is_reported_in_a_sentence(self, upstream: str, closed_port: int) -> None:
        result = run("models", "--url", upstream)
        assert (result.exit_code, result.stderr) == (1, f"{upstream}: the key was refused (401)\n")
        result = run("models", "--url", f"http://127.0.0.1:{closed_port}")
        assert result.exit_code == 1
        assert "no answer" in result.stderr
        assert "--url or TOOLGATE_URL" in result.stderr
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
            f"Port {port} on 127.0.0.1 is already in use; choose another with --port "
            '(`make run ARGS="--port 9000"`), or stop what uses it.\n'
        )

    def test_an_address_of_another_machine_is_named(self) -> None:
        assert (
            port_problem("192.0.2.1", 0) == "192.0.2.1 is not an address of this machine; choose another with --host."
        )
        assert port_problem("127.0.0.1", 0) is None

    @pytest.mark.parametrize(("workers", "status"), [("1", 1), ("2", 3)])
    def test_tables_of_a_newer_version_are_reported_without_a_story(
        self, empty_folder: Path, unused_port: int, workers: str, status: int
    ) -> None:
        assert run("db", "migrate").exit_code == 0
        with closing(sqlite3.connect("toolgate.db")) as database, database:
            database.execute("INSERT INTO schema_versions VALUES (9999, 'future', 1.0)")
        command = [*PROGRAM, "serve", "--port", str(unused_port), "--workers", workers]
        done = subprocess.run(command, capture_output=True, cwd=empty_folder, text=True, timeout=60)
        assert done.returncode == status
        assert "was used by a newer version" in done.stderr
        assert "Traceback" not in done.stderr

    def test_it_serves_reloads_and_stops(self, empty_folder: Path, unused_port: int) -> None:
        config = empty_folder / "toolgate.yaml"
        config.write_text("keys: [{name: a, key: first-key}]\nlog: {format: json}")
        command = [*PROGRAM, "serve", "--port", str(unused_port), "--reload", "--open"]
        env = {**os.environ, "BROWSER": f"sh -c 'echo %s > opened; mv opened {empty_folder}/browser'"}
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=empty_folder, text=True, env=env) as server:
            try:
                assert server.stderr is not None
                assert server.stderr.readline() == "Using toolgate.yaml\n"
                _read_until(server.stderr, "Try this next:")
                command_line = server.stderr.readline()
                assert f"curl -s http://127.0.0.1:{unused_port}/v1/chat/completions" in command_line
                env = {**os.environ, "TOOLGATE_KEY": "first-key"}
                tried = subprocess.run(["sh", "-c", command_line], capture_output=True, env=env, check=True)
                assert (
                    "I only repeat what you say: Hello" in json.loads(tried.stdout)["choices"][0]["message"]["content"]
                )
                assert f"chat --url http://127.0.0.1:{unused_port}\n" in server.stderr.readline()
                assert _models(unused_port, "first-key") == ["echo"]
                config.write_text("keys: [{name: b, key: second-key}]\nlog: {format: json}")
                _read_until(server.stderr, '"reloaded"')
                assert _appeared(empty_folder / "browser") == f"http://127.0.0.1:{unused_port}/console/\n"
                assert _models(unused_port, "second-key") == ["echo"]
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=30)
        assert server.returncode == 0

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_signals_before_it_serves_are_handled_once_it_does(
        self, empty_folder: Path, unused_port: int, workers: str
    ) -> None:
        (empty_folder / "toolgate.yaml").write_text("keys: [{name: a, key: first-key}]\nlog: {format: json}")
        command = [*PROGRAM, "serve", "--port", str(unused_port), "--workers", workers]
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=empty_folder, text=True) as server:
            try:
                assert server.stderr is not None
                assert server.stderr.readline() == "Using toolgate.yaml\n"
                server.send_signal(signal.SIGHUP)
                _read_until(server.stderr, '"reloaded"')
                assert _models(unused_port, "first-key") == ["echo"]
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=30)
        assert server.returncode == 0


def _read_until(stream: Any, text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"{text} was never said")


def _appeared(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.05)
    return path.read_text()


def _models(port: int, key: str) -> list[str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"x-api-key": key})
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return [model["id"] for model in json.load(response)["data"]]
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


class TestWatch:
    def test_a_change_of_the_file_is_a_hangup(self, empty_folder: Path) -> None:
        path = empty_folder / "toolgate.yaml"
        path.write_text("a")
        received = threading.Event()
        before = signal.signal(signal.SIGHUP, lambda *_: received.set())
        try:
            stopped = watch_config(path, every=0.01)
            path.write_text("changed")
            assert received.wait(30)
            stopped.set()
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_file_that_is_being_written_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A look sees an empty file, a growing one, and then twice the same: only then it is read."""
        stamps = iter([(2, 0, 1), (2, 0, 1), (3, 40, 1), (4, 80, 1), (5, 99, 1), (5, 99, 1), (5, 99, 1)])
        looks: list[int] = []
        read: list[int] = []

        def stamp(path: Path) -> tuple[int, int, int]:
            looks.append(1)
            return next(stamps)

        monkeypatch.setattr(watching, "_stamp", stamp)
        monkeypatch.setattr(signal, "getsignal", lambda number: print)
        monkeypatch.setattr(os, "kill", lambda pid, number: read.append(len(looks)))
        with pytest.raises(StopIteration):
            watching._poll(Path("toolgate.yaml"), 0.0, (1, 50, 1), threading.Event())
        assert read == [6]

    def test_a_server_whose_file_with_keys_is_gone_does_not_start_open(self, empty_folder: Path) -> None:
        (empty_folder / "toolgate.yaml.keys-required").touch()
        result = CliRunner().invoke(app, ["serve"])
        assert result.exit_code == 2
        assert "toolgate.yaml had keys and is missing" in result.stderr


def test_a_crash_of_a_command_shows_no_variables() -> None:
    assert app.pretty_exceptions_enable is False


@pytest.mark.parametrize(
    ("config", "problem"),
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
def test_check_finds_what_would_keep_a_server_from_starting(empty_folder: Path, config: str, problem: str) -> None:
    (empty_folder / "toolgate.yaml").write_text(f"{config}\n")
    checked, served = run("check"), run("serve", "--port", "0", ENABLE_EMBEDDED_MODEL="no")
    assert (checked.exit_code, served.exit_code) == (2, 2)
    assert problem in checked.stderr
    assert "hunter2" not in checked.stderr + served.stderr
    assert list(empty_folder.iterdir()) == [empty_folder / "toolgate.yaml"]


def test_all_mistakes_are_reported_at_once_also_those_that_only_starting_shows(empty_folder: Path) -> None:
    (empty_folder / "shop.yaml").write_text(PRIVATE_SHOP)
    (empty_folder / "toolgate.yaml").write_text(
        """
server: {prot: 1}
keys: [{name: a, key: "${NO_SUCH}"}]
models: [{name: m, upstream: builtin, model: echo, tools: emulated, syntax: nonsense}]
text: {templates: nowhere}
tools:
  reach: ["http://x"]
  builtin: {roots: [nowhere], disabled: [nothing]}
  approvals: {auto_approve_urls: ["*.com"], auto_approve_commands: [[bash]], webhook: {url: "http://h", secret: whsec_%}}
"""
    )
    paths = [
        "server.prot",
        "keys[0].key",
        "text.templates",
        "models[0].syntax",
        "tools.reach[0]",
        "tools.builtin.roots[0]",
        "tools.builtin.disabled[0]",
        "tools.approvals.auto_approve_urls[0]",
        "tools.approvals.auto_approve_commands[0]",
        "tools.approvals.webhook.secret",
    ]
    for command in ("check", "serve"):
        emitted = run(command)
        assert emitted.exit_code == 2
        assert [line.removeprefix("  - ").partition(":")[0] for line in emitted.stderr.splitlines()[1:]] == paths
    (empty_folder / "toolgate.yaml").write_text("tools: {builtin: {roots: [nowhere, nor-here]}}\n")
    for command in ("check", "serve"):
        assert run(command, ENABLE_EMBEDDED_MODEL="no").stderr.count("is not a folder") == 2


PRIVATE_SHOP = """
openapi: 3.0.0
servers: [{url: "http://127.0.0.1:9/shop"}]
paths: {/items: {get: {operationId: list_items, summary: List the items}}}
"""


def test_a_service_that_tools_may_not_reach_is_refused_before_anything_is_served(empty_folder: Path) -> None:
    (empty_folder / "shop.yaml").write_text(PRIVATE_SHOP)
    for service in ("{openapi: ./shop.yaml}", "{openapi: ./shop.yaml}\n  limits: {rounds: 3}"):
        (empty_folder / "toolgate.yaml").write_text(f"tools:\n  http:\n    shop: {service}\n")
        for command in ("check", "serve"):
            emitted = run(command)
            assert emitted.exit_code == 2
            assert "tools.http.shop: its document names http://127.0.0.1:9/shop" in emitted.stderr
            assert "add 127.0.0.1:9 to tools.reach, or set base_url" in emitted.stderr
    (empty_folder / "toolgate.yaml").write_text(
        "tools: {reach: ['127.0.0.1:9'], http: {shop: {openapi: ./shop.yaml}}}\n"
    )
    assert run("check").exit_code == 0
    (empty_folder / "toolgate.yaml").write_text(
        "tools: {http: {shop: {openapi: ./shop.yaml, base_url: 'http://127.0.0.1:9/shop'}}}\n"
    )
    assert run("check").exit_code == 0


def test_a_missing_redis_package_is_reported_with_the_command_that_installs_it(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    (empty_folder / "toolgate.yaml").write_text("redis: redis://there\n")
    for command in ("check", "serve"):
        emitted = run(command, ENABLE_EMBEDDED_MODEL="no")
        assert emitted.exit_code == 2
        assert (
            f"redis: needs the Python package redis, which is not installed: {sys.executable} -m pip install"
            in emitted.stderr
        )


def test_commands_that_work_on_the_database_need_no_keys_and_ignore_other_mistakes(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text(
        "storage: sqlite:///kept.db\nkeys: [{name: a, key: '${TOOLGATE_KEY}'}]\nserver: {prot: 1}\n"
    )
    assert run("db", "migrate").exit_code == 0
    assert "the newest" in run("db", "status").stdout
    assert run("export").stdout == ""
    forgotten = run("forget", "a", "--yes")
    assert (forgotten.exit_code, forgotten.stderr) == (3, "There were no records of a.\n")


def test_the_home_of_a_user_that_there_is_not_is_a_folder_like_others(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text("embedded: {folder: ~nobody.here/x}\n")
    assert run("check").exit_code == 0
    (empty_folder / "toolgate.yaml").write_text("tools: {python: [~nobody.here/x.py]}\n")
    assert "tools.python[0]: ~nobody.here/x.py: there is no such file or folder\n" in run("check").stderr


def test_check_shows_what_each_alias_pattern_catches(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text(
        "models:\n"
        '  - {name: one, upstream: builtin, model: echo, aliases: ["claude-*", "*"]}\n'
        '  - {name: two, upstream: builtin, model: echo, aliases: ["claude-3-*", gpt-4]}\n'
        "default_model: gpt-4\n"
    )
    shown = run("check")
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    assert ["claude-3-*", "two", ""] in rows
    assert ["claude-*", "one", "claude-3-*"] in rows
    assert ["*", "one", "two, gpt-4, claude-3-*"] in rows
    assert "Requests that name no model go to two." in shown.output


def test_a_default_model_that_does_not_exist_is_refused(empty_folder: Path) -> None:
    (empty_folder / "toolgate.yaml").write_text("default_model: eco\n")
    shown = run("check")
    assert shown.exit_code == 2
    assert "default_model: there is no model eco; did you mean echo?" in shown.output


def test_check_warns_of_a_budget_that_no_price_counts_against(empty_folder: Path) -> None:
    config = (
        "keys: [{name: ann, key: ann-key, budget: {amount: 5}}, {name: bob, key: bob-key}]\n"
        "models: [{name: m, upstream: builtin, model: echo, price: {output: %s}}]\n"
    )
    (empty_folder / "toolgate.yaml").write_text(config % "0")
    shown = run("check")
    assert shown.exit_code == 0
    assert "Warning: the budget of the key ann limits nothing, because no model has a price.\n" in shown.stderr
    assert "bob" not in shown.stderr
    (empty_folder / "toolgate.yaml").write_text(config % "1.5")
    assert "Warning" not in run("check").stderr


def test_check_warns_of_mcp_sessions_that_other_nodes_do_not_know(empty_folder: Path) -> None:
    for redis, sessions, warns in (("redis://there", 5, True), ("redis://there", 0, False), ("null", 5, False)):
        (empty_folder / "toolgate.yaml").write_text(f"redis: {redis}\ntools: {{mcp_sessions: {sessions}}}\n")
        shown = run("check")
        assert shown.exit_code == 0
        assert ("Warning: tools.mcp_sessions keeps MCP sessions in one process" in shown.stderr) is warns


def test_check_warns_of_an_mcp_server_whose_program_does_not_exist(empty_folder: Path) -> None:
    (empty_folder / "own").write_text("#!/bin/sh\n")
    (empty_folder / "own").chmod(0o755)
    (empty_folder / "toolgate.yaml").write_text(
        "tools: {mcp: {time: {command: [uvx, mcp-server-time], env: {PATH: /nowhere}}, gone: {command: [./gone]},"
        " own: {command: [./own]}, shell: {command: [sh]}, far: {url: 'https://example.org/mcp'}}}\n"
    )
    warnings = [line for line in run("check").stderr.splitlines() if line.startswith("Warning")]
    assert warnings == [
        "Warning: the MCP server time cannot be started: there is no program uvx (it comes with uv: pip install uv).",
        "Warning: the MCP server gone cannot be started: there is no program ./gone.",
    ]


def test_help_of_export_and_forget_names_every_kind_of_record() -> None:
    shown = " ".join(run("export", "--help").stdout.replace("│", " ").split())
    assert ", ".join(KINDS) in shown
    shown = " ".join(run("forget", "--help").stdout.replace("│", " ").split())
    assert all(f"{name}s" in shown for name in RECORD_NAMES.values())
    assert len(RECORD_NAMES) >= 13


@pytest.mark.parametrize("command", [["export"], ["forget", "ann", "--yes"]])
def test_a_command_in_the_wrong_folder_says_how_to_name_the_configuration(command: list[str]) -> None:
    result = run(*command)
    assert result.exit_code == 1
    assert "there is no such file. There is no toolgate.yaml here; name one with --config.\n" in result.stderr


@pytest.mark.parametrize("installed", [True, False])
def test_the_banner_promises_the_local_model_only_if_it_can_run(
    installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup_helpers, "find_spec", lambda name: object() if installed else None)
    startup_helpers.print_banner("http://127.0.0.1:8080", load(None, {}))
    shown = capsys.readouterr().err
    assert ("it is made ready meanwhile" in shown) is installed
    assert ("`local` cannot answer: its runtime is not installed" in shown) is not installed
    assert ("chat --url http://127.0.0.1:8080 --model echo" in shown) is not installed
