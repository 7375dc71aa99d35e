"""`toolgate approvals` against a server (spec: A2, E2)."""

import fcntl
import http.server
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.api.approval_server import ApprovalServer, approval_server_in_thread
from tests.ports import refusing_port
from toolgate.cli.approvals import app
from toolgate.tools.tool import CallPreview

ROOT = typer.Typer()
ROOT.add_typer(app, name="approvals")


@ROOT.command()
def other() -> None:
    """A neighbour, as the program has them."""


@pytest.fixture(scope="module")
def opened() -> Iterator[ApprovalServer]:
    with approval_server_in_thread() as inbox:
        yield inbox


@pytest.fixture
def inbox(opened: ApprovalServer) -> ApprovalServer:
    """An inbox in which nothing waits."""
    run(opened, "deny-all", key="root-key")
    run(opened, "reset", key="root-key")
    return opened


def run(inbox: ApprovalServer, *arguments: str, key: str = "ann-key", **env: str) -> Result:
    given = {"COLUMNS": "200", "TOOLGATE_URL": inbox.url, "TOOLGATE_KEY": key, **env}
    return CliRunner().invoke(ROOT, ["approvals", *arguments], env=given)


def test_without_a_command_what_waits_is_listed(inbox: ApprovalServer) -> None:
    assert run(inbox).stdout == ""
    id = inbox.ask_from_outside(arguments={"path": "[b]/tmp/\u202ex[/b]\x1b[2J"}, run="list")
    result = run(inbox)
    assert result.exit_code == 0
    fields = result.stdout.removesuffix("\n").split("\t")
    expires = datetime.fromisoformat(fields.pop(4))
    assert fields == [
        id,
        "delete_file",
        "python",
        "ann",
        "Run delete_file?",
        '{"path":"[b]/tmp/\\u202ex[/b]\\u001b[2J"}',
    ]
    assert timedelta(minutes=30) < expires - datetime.now(UTC) < timedelta(hours=2)


def test_a_terminal_of_80_columns_shows_the_question_first_ids_whole_and_how_to_answer(inbox: ApprovalServer) -> None:
    assert on_terminal(inbox) == ["Nothing waits for approval."]
    assert on_terminal(inbox, "grants") == ["Grants: none."]
    asked = CallPreview(title="Delete a file?")
    arguments = {"path": "/a/very/long/path/that/does/not/fit/into/one/line/of/a/terminal/of/eighty/columns"}
    id = inbox.ask_from_outside(arguments=arguments, run="narrow", preparation=asked)
    shown = on_terminal(inbox)
    assert shown[:2] == ["Delete a file?", "  delete_file of python, asked by ann, expires in 59 minutes"]
    assert f"  {id}" in shown
    assert shown[-2] == "To answer: toolgate approvals approve ID, or deny ID."
    assert max(map(len, shown)) <= 80
    card = on_terminal(inbox, "show", id)
    assert card[0] == "question: Delete a file?"
    assert {"asked by: ann", f"id: {id}", "expires: in 59 minutes", "state: pending"} <= set(card)
    assert [line.partition(":")[0] for line in card[-4:-1]] == ["digest", "definition", "policy"]


def on_terminal(inbox: ApprovalServer, *arguments: str) -> list[str]:
    """The lines that the program prints on a terminal of 80 columns."""
    code = "from toolgate.cli import main; main()"
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "TOOLGATE_URL": inbox.url, "TOOLGATE_KEY": "ann-key"}
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    printed = b""
    with subprocess.Popen([sys.executable, "-c", code, "approvals", *arguments], stdout=follower, env=env) as program:
        os.close(follower)
        with suppress(OSError):  # the other end is closed
            while piece := os.read(leader, 65536):
                printed += piece
    os.close(leader)
    assert program.returncode == 0
    return printed.decode().replace("\r\n", "\n").splitlines()


def test_the_beginning_of_an_id_is_enough_if_only_one_begins_so(inbox: ApprovalServer) -> None:
    ids = [
        inbox.ask_from_outside(arguments={"path": f"/prefix/{number}"}, run=f"prefix {number}") for number in range(2)
    ]
    short = next(id[: len("mcpr_") + n] for id in ids[:1] for n in range(1, 24) if id[: 5 + n] != ids[1][: 5 + n])
    several = run(inbox, "approve", "mcpr_")
    assert (several.exit_code, "is the beginning of 2 approvals" in several.stderr) == (1, True)
    assert f"id: {ids[0]}" in run(inbox, "show", short.removeprefix("mcpr_")).stdout
    assert run(inbox, "approve", short).stdout == "delete_file: approved\n"
    assert run(inbox, "deny", ids[1][5:20]).stdout == "delete_file: denied\n"
    assert "state: denied" in run(inbox, "show", ids[1][:20]).stdout


def test_what_a_call_asks_beyond_consent_is_in_the_list(inbox: ApprovalServer) -> None:
    """An answer to it is more than leave to run: it may run the call a second time (spec: D3)."""
    inbox.ask_from_outside(arguments={"path": "/a"}, run="again", preparation=CallPreview(title="Run it again?"))
    assert "Run it again?" in run(inbox).stdout


def test_long_arguments_are_cut_in_the_list_with_a_word_and_shown_whole(inbox: ApprovalServer) -> None:
    """(fault: A3)"""
    id = inbox.ask_from_outside(arguments={"a": "x" * 5000, "z": "THE END"}, run="long", tainted=True)
    listed = "".join(run(inbox).stdout.split())
    assert "THEEND" not in listed
    assert "morecharacters" in listed
    shown = run(inbox, "show", id).stdout
    assert "THE END" in shown
    assert shown.count("x") >= 5000
    assert "WARNING" in shown
    assert "delete_file of python" in shown


def test_one_is_approved_with_level_edit_and_reason(inbox: ApprovalServer) -> None:
    id = inbox.ask_from_outside(run="approve")
    result = run(inbox, "approve", id, "--level", "session", "--edit", '{"path": "/tmp/b"}', "--reason", "fine")
    assert (result.exit_code, result.stdout) == (0, "delete_file: approved (session)\n")
    shown = run(inbox, "show", id).stdout
    assert '{"path":"/tmp/b"}' in shown
    assert "fine" in shown
    assert "delete_file" in run(inbox, "grants").stdout
    assert run(inbox, "reset").stdout == "Deleted 1 grants.\n"
    assert "delete_file" not in run(inbox, "grants").stdout


def test_one_is_denied_and_a_second_answer_hears_of_it(inbox: ApprovalServer) -> None:
    id = inbox.ask_from_outside(run="deny")
    assert run(inbox, "deny", id, "--reason", "no").stdout == "delete_file: denied\n"
    again = run(inbox, "approve", id)
    assert (again.exit_code, again.stderr) == (1, "It was denied by ann already.\n")


def test_all_are_denied_at_once(inbox: ApprovalServer) -> None:
    for number in range(3):
        inbox.ask_from_outside(arguments={"n": number}, run=f"all {number % 2}")
    assert run(inbox, "deny-all", "--run", "all 1").stdout == "Denied 1.\n"
    assert run(inbox, "deny-all").stdout == "Denied 2.\n"


@pytest.mark.parametrize(("text", "stated"), [("{", "not JSON"), ("[]", "must be a JSON object")])
def test_an_edit_that_cannot_be_read_answers_nothing(inbox: ApprovalServer, text: str, stated: str) -> None:
    id = inbox.ask_from_outside(arguments={"edit": text}, run="bad edit")
    result = run(inbox, "approve", id, "--edit", text)
    assert result.exit_code == 1
    assert stated in result.stderr
    assert id in run(inbox).stdout


def test_arguments_can_be_edited_in_an_editor(inbox: ApprovalServer) -> None:
    id = inbox.ask_from_outside(arguments={"path": "/old"}, run="editor")
    result = run(inbox, "approve", id, "--edit", "-", EDITOR="sed -i s/old/new/", VISUAL="sed -i s/old/new/")
    assert result.exit_code == 0, result.output
    assert '{"path":"/new"}' in run(inbox, "show", id).stdout
    other = inbox.ask_from_outside(arguments={"path": "/left"}, run="editor")
    left = run(inbox, "approve", other, "--edit", "-", EDITOR="true", VISUAL="true")
    assert (left.exit_code, left.stderr) == (1, "the arguments were not changed, so nothing was answered\n")
    missing = run(inbox, "approve", other, "--edit", "-", EDITOR="no-such-editor", VISUAL="")
    assert missing.stderr == "no-such-editor could not be started: No such file or directory\n"


def test_refusals_are_reported_in_a_sentence(inbox: ApprovalServer) -> None:
    assert run(inbox, "show", "mcpr_x/../y").stderr == (
        "There is no approval 'mcpr_x/../y'. `toolgate approvals` lists them.\n"
    )
    assert "No valid API key" in run(inbox, key="wrong").stderr
    assert "lacks the scope tools" in run(inbox, key="talker-key").stderr
    assert "must start with http" in run(inbox, TOOLGATE_URL="file:///etc/passwd").stderr
    with refusing_port() as port:
        gone = run(inbox, TOOLGATE_URL=f"http://127.0.0.1:{port}")
    assert gone.exit_code == 1
    assert "no answer" in gone.stderr


class Changing(http.server.BaseHTTPRequestHandler):
    """Lists one more approval at every second look, then has enough; what it says is not escaped."""

    looks: ClassVar[int] = 0

    def do_GET(self) -> None:
        Changing.looks += 1
        data = [{"id": f"mcpr_{n}\x1b[2J", "tool": "t", "arguments": "{}"} for n in range(Changing.looks // 2)]
        body: Any = {"object": "list", "data": data} if Changing.looks < 6 else {"error": {"message": "enough\x1b"}}
        self.send_response(200 if Changing.looks < 6 else 503)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_watching_through_a_pipe_prints_each_approval_once_and_lets_no_escape_through() -> None:
    Changing.looks = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Changing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = CliRunner().invoke(ROOT, ["approvals", "watch", "--every", "0.01", "--url", url])
        server.shutdown()
        thread.join()
    assert result.exit_code == 1
    assert result.stderr == "enough\ufffd\n"
    assert "\x1b" not in result.stdout
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["mcpr_0\ufffd[2J", "mcpr_1\ufffd[2J"]


def test_help_names_every_command(inbox: ApprovalServer) -> None:
    output = run(inbox, "--help").stdout
    for command in ("show", "approve", "deny", "deny-all", "watch", "grants", "reset"):
        assert command in output


def test_nothing_heavy_is_loaded_before_a_command_runs() -> None:
    code = "import sys, toolgate.cli.approvals; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["rich.table", "http.client", "ssl", "msgspec", "toolgate.app", "toolgate.config", "toolgate.tools"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_many_questions_of_one_key_do_not_hide_those_of_another(inbox: ApprovalServer) -> None:
    theirs = inbox.ask_from_outside(caller="bob", run="lonely")
    mine = [inbox.ask_from_outside(arguments={"path": f"/{number}"}, run="flood") for number in range(3)]
    listed = run(inbox, "--limit", "2", key="root-key")
    assert theirs in listed.stdout
    assert mine[0] in listed.stdout
    assert mine[2] not in listed.stdout
    assert "There are more" in listed.stderr
    narrowed = run(inbox, "--caller", "bob", key="root-key")
    assert theirs in narrowed.stdout
    assert mine[0] not in narrowed.stdout
    assert "There are more" not in narrowed.stderr
