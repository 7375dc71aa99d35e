"""`toolgate export` and `toolgate forget` work on the database of a running server (spec: D2, E2)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from typer.testing import CliRunner, Result

from tests.api.records.record_server import EVE, RecordServer, record_server
from tests.clients.scenes import HELLO
from tests.runs.processes import until
from tests.stage import QUIET, served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.cli.commands import app
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import KeyBudgetSettings, PriceSettings, ServerSettings
from toolgate.storage.exports import KINDS


def run(folder: Path, *arguments: str, **options: Any) -> Result:
    (folder / "toolgate.yaml").write_text(f"storage: sqlite:///{folder}/toolgate.db\n")
    return CliRunner().invoke(app, [*arguments, "--config", str(folder / "toolgate.yaml")], **options)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def talk(kept: RecordServer, who: str) -> None:
    kept.play(HELLO, HELLO)
    with OpenAI(base_url=f"{kept.url}/v1", api_key=f"{who}-key", max_retries=0) as client:
        client.chat.completions.create(model="openai_chat", messages=[{"role": "user", "content": "Hi"}])
        conversation = client.conversations.create()
        client.responses.create(model="openai_chat", input="Hi", conversation=conversation.id)
    for path in ("/v1/usage", "/v1/requests"):  # what waits is written before it is read
        kept.listed(path, who)


def test_what_is_kept_is_printed_while_the_server_runs(tmp_path: Path) -> None:
    with record_server(storage=Secret(f"sqlite:///{tmp_path}/toolgate.db")) as kept:
        for who in ("ann", "bob"):
            talk(kept, who)
        everything = run(tmp_path, "export")
        emitted = lines(everything)
        kinds = [one["kind"] for one in emitted]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == {
            "conversation": 2,
            "response": 2,
            "chat": 2,
            "usage": 2,
            "request": 6,
        }
        assert "2 conversations, 2 responses, 2 chats, 0 invocations, 6 requests, 0 runs, 2 daily usage totals" in (
            everything.stderr
        )
        assert len(emitted[0]["items"]) == 2
        assert "ann-key" not in everything.stdout
        chats = lines(run(tmp_path, "export", "chats", "--owner", "ann"))
        assert run(tmp_path, "export", "conversations", "chats", "usage", "spending", "--owner", "ann").stderr == (
            "1 conversation, 1 chat, 1 daily usage total, 0 spending totals\n"
        )
        assert [[message["content"] for message in chat["messages"]] for chat in chats] == [
            ["Hi", "Hello from the model."]
        ]
        assert lines(run(tmp_path, "export", "chats", "usage", "--since", "2200-01-01")) == []


def test_what_a_key_has_is_forgotten(tmp_path: Path) -> None:
    with record_server(storage=Secret(f"sqlite:///{tmp_path}/toolgate.db")) as kept:
        for who in ("ann", "bob"):
            talk(kept, who)
        assert run(tmp_path, "forget", "ann", input="n\n").exit_code == 1
        assert len(lines(run(tmp_path, "export", "--owner", "ann"))) == 7
        gone = run(tmp_path, "forget", "ann", "--yes")
        assert (
            gone.stderr
            == "Deleted of ann: 1 response, 1 conversation, 1 chat, 3 request records, 1 daily usage total.\n"
        )
        assert run(tmp_path, "export", "--owner", "ann").exit_code == 3
        assert len(lines(run(tmp_path, "export", "--owner", "bob"))) == 7
        assert "no records of ann" in run(tmp_path, "forget", "ann", "--yes").stderr


def test_an_owner_without_records_is_reported_and_the_note_of_a_key_is_no_owner(tmp_path: Path) -> None:
    with record_server(storage=Secret(f"sqlite:///{tmp_path}/toolgate.db")) as kept:
        for name, note in (("carl", "Sales"), ("dora", "Sales"), ("Press", "Press")):
            made, _ = kept.ask("/v1/keys", who="eve", method="POST", body={"name": name, "owner": note})
            assert made == 200
        noted = run(tmp_path, "export", "--owner", "Sales")
        others = {name: run(tmp_path, "export", "chats", "--owner", name) for name in ("Press", "nobody")}
    assert (noted.exit_code, noted.stdout) == (1, "")
    assert "no key Sales. It is the note of carl, dora; --owner takes the name of a key." in noted.stderr
    for name, emitted in others.items():
        expected = f"No records of {name} were found; --owner takes the name of a key.\n"
        assert (emitted.exit_code, emitted.stderr) == (3, expected)


def test_a_key_whose_spending_is_forgotten_has_its_budget_again_while_the_server_runs(tmp_path: Path) -> None:
    carl = KeySettings(name="carl", key=Secret("carl-key"), budget=KeyBudgetSettings(amount=1e-6, period="total"))
    echo = TargetConfig(upstream=BUILTIN, model="echo")
    config = Config(
        server=ServerSettings(port=0),
        models=(ModelConfig(name="m", targets=(echo,), price=PriceSettings(input=1.0, output=1.0)),),
        keys=(carl, EVE),
        storage=Secret(f"sqlite:///{tmp_path}/toolgate.db"),
        log=QUIET,
    )
    with served(Toolgate(config)) as url, httpx.Client(base_url=url, timeout=30) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

        def status() -> int:
            headers = {"authorization": "Bearer carl-key"}
            return client.post("/v1/chat/completions", json=body, headers=headers).status_code

        def spent() -> float:
            key = client.get("/v1/keys/carl", headers={"authorization": "Bearer eve-key"}).json()
            return float(key["spent"]["total"])

        assert [status(), status()] == [200, 429]
        until(lambda: run(tmp_path, "export", "spending", "--owner", "carl").stdout)
        assert spent() > 0
        assert "3 spending totals" in run(tmp_path, "forget", "carl", "--yes").stderr
        assert spent() == 0
        assert until(lambda: status() == 200)


@pytest.mark.parametrize(
    "arguments", [["secrets"], ["chats", "--since", "yesterday"], ["usage", "--since", "0001-01-01T00:00+14:00"]]
)
def test_a_malformed_query_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "toolgate.db").touch()
    result = run(tmp_path, "export", *arguments)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert result.stdout == ""


def test_a_span_that_begins_before_1970_lists_all_usage(tmp_path: Path) -> None:
    with record_server(storage=Secret(f"sqlite:///{tmp_path}/toolgate.db")) as kept:
        talk(kept, "ann")
        arguments = ["usage", "--since", "999999d", "--url", kept.url, "--key", "ann-key", "--json"]
        assert len(json.loads(CliRunner().invoke(app, arguments).stdout)["data"]) == 1


@pytest.mark.parametrize("command", [["export"], ["forget", "ann", "--yes"]])
def test_a_file_that_is_not_there_is_named_and_not_made(tmp_path: Path, command: list[str]) -> None:
    result = run(tmp_path, *command)
    assert (result.exit_code, result.stderr) == (1, f"sqlite:///{tmp_path}/toolgate.db: there is no such file.\n")
    assert not (tmp_path / "toolgate.db").exists()


def test_a_disk_without_room_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with record_server(storage=Secret(f"sqlite:///{tmp_path}/toolgate.db")) as kept:
        talk(kept, "ann")
        run(tmp_path, "db", "status")
        command = [sys.executable, "-c", "from toolgate.cli import main; main()", "export", "--config", "toolgate.yaml"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "The records cannot be written: No space left on device.\n")


def test_a_database_that_cannot_be_opened_is_reported_in_words(tmp_path: Path) -> None:
    (tmp_path / "toolgate.db").write_text("This is no database, but a text that somebody has put here." * 20)
    result = run(tmp_path, "export", *KINDS)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
