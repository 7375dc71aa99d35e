"""`toolgate runs` over the API of runs (spec: E2, E8)."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from openai import OpenAI
from typer.testing import CliRunner, Result

from tests.cli.pseudo_terminal import on_terminal
from tests.stage import MEMORY, QUIET, served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.cli.commands import app
from toolgate.config import Config
from toolgate.config.settings import ServerSettings

STEP = {"type": "step", "step": 1, "started": 1000.0, "ended": None, "outcome": "running", "model": "gpt"}
CALL = {
    "type": "call",
    "step": 1,
    "call": "call_x",
    "tool": "clock\x1b[2J",
    "source": "builtin",
    "started": 1000.5,
    "ended": None,
    "outcome": "waiting",
    "arguments": '{"zone": "UTC"}',
    "result": None,
    "approval": "mcpr_abc",
}
RUN: dict[str, Any] = {
    "object": "run",
    "id": "resp_0123456789abcdef",
    "kind": "background",
    "state": "running",
    "model": "gpt",
    "key": "me",
    "created": 999.0,
    "started": 1000.0,
    "ended": None,
    "steps": 1,
    "calls": 1,
    "tools": ["clock"],
    "input_tokens": 12,
    "output_tokens": 30,
    "cost": 0.25,
    "error": None,
    "response": "resp_0123456789abcdef",
    "forked_from": {"run": "resp_old", "step": 2},
    "can_cancel": True,
    "can_fork": True,
}
ENDED = {**RUN, "state": "completed", "ended": 1003.0, "steps": 2}
DONE_STEP = {
    **STEP,
    "ended": 1000.4,
    "outcome": "tool_calls",
    "input_tokens": 5,
    "output_tokens": 7,
    "text": "Let me look.",
}
DONE_CALL = {**CALL, "tool_started": 1001.8, "ended": 1002.0, "outcome": "completed", "result": "noon " * 100}
CUT_OFF = {**CALL, "tool_started": 1000.9, "outcome": "unknown"}
ANSWER = {**STEP, "step": 2, "started": 1002.0, "ended": 1003.0, "outcome": "answer"}


class Runs(http.server.BaseHTTPRequestHandler):
    """Plays the endpoints of runs: two pages of a list, the first of them empty, a run, and its stream."""

    seen: ClassVar[list[tuple[str, str, Any]]] = []
    stream: ClassVar[list[tuple[str, Any]]] = []

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/v1/runs":
            self.seen.append(("GET", path, query))
            first = "after" not in query
            data = [] if first else [RUN, {**RUN, "id": "x" * 20, "state": "failed"}]
            self._send(200, {"object": "list", "data": data, "last_id": "cursor", "has_more": first})
        elif path == f"/v1/runs/{RUN['id']}" and "stream" in query:
            self.send_response(200)
            self.end_headers()
            for name, value in self.stream:
                self.wfile.write(f": keep-alive\n\nevent: {name}\ndata: {json.dumps(value)}\n\n".encode())
        elif path == f"/v1/runs/{RUN['id']}":
            self._send(200, {**ENDED, "timeline": [DONE_STEP, DONE_CALL, ANSWER]})
        else:
            self._send(404, {"error": {"message": "There is no such run.", "code": "run_not_found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(("POST", self.path, body))
        if self.path.endswith("/cancel"):
            self._send(200, {**RUN, "state": "cancelled"})
        elif body["step"] > 2:
            self._send(409, {"error": {"message": "The run has no step 3.", "code": "no_such_step"}})
        else:
            self._send(201, RUN)

    def _send(self, status: int, value: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Runs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(url: str, *arguments: str) -> Result:
    Runs.seen.clear()
    return CliRunner().invoke(app, ["runs", *arguments], env={"TOOLGATE_URL": url})


def test_runs_are_listed_over_all_pages_and_filters_are_sent(url: str) -> None:
    listed = run(url, "--state", "running", "--model", "gpt", "--owner", "me", "--limit", "30")
    assert [line.split("\t")[1:5] for line in listed.stdout.splitlines()] == [
        ["resp_0123456789abcdef", "me", "gpt", "running"],
        ["x" * 20, "me", "gpt", "failed"],
    ]
    queries = [query for _, _, query in Runs.seen]
    assert queries[0] == {"state": ["running"], "model": ["gpt"], "key": ["me"], "limit": ["30"]}
    assert queries[1]["after"] == ["cursor"]
    assert [json.loads(line)["id"] for line in run(url, "--json").stdout.splitlines()] == [RUN["id"], "x" * 20]


def test_a_terminal_of_80_columns_shows_short_ids_that_can_be_used(url: str) -> None:
    with on_terminal("runs", env={"TOOLGATE_URL": url}) as program:
        assert program.wait() == 0
    assert " 01234567 " in program.screen.text
    assert max([len(line) for line in program.screen.lines]) <= 80
    assert "resp_0123456789abcdef: completed" in run(url, "show", "01234567").stdout


def test_a_run_is_shown_with_its_timeline(url: str) -> None:
    lines = run(url, "show", "resp_0123").stdout.splitlines()
    assert lines[0] == "resp_0123456789abcdef: completed"
    assert lines[2] == "  2 steps, 1 call, 12 tokens in, 30 out, cost 0.25, 3.0 s"
    assert lines[3] == "  forked from resp_old after step 2"
    assert lines[4] == "  +0.00 s  step 1, gpt: tool_calls, 400 ms, 5 + 7 tokens"
    assert lines[5] == " " * 11 + "Let me look."
    assert lines[6] == "  +0.50 s    call clock\ufffd[2J of builtin, call_x: completed, 200 ms, after 1.3 s of waiting"
    assert lines[7] == " " * 13 + '{"zone": "UTC"}'
    assert "more characters: --all" in lines[8]
    assert lines[9] == "  +2.00 s  step 2, gpt: answer, 1.0 s"
    assert "more characters" not in run(url, "show", "resp_0123", "--all").stdout
    assert run(url, "show", "nothing").stderr == "There is no such run. `toolgate runs` lists them.\n"


def test_following_prints_each_change_once_and_how_to_answer_and_ends_with_the_run(url: str) -> None:
    Runs.stream = [
        ("run", {**RUN, "timeline": [STEP]}),
        ("run", {**RUN, "state": "waiting", "timeline": [DONE_STEP, CALL]}),
        ("run", {**RUN, "state": "waiting", "timeline": [DONE_STEP, CALL]}),
        ("run", {**RUN, "state": "running", "timeline": [DONE_STEP, CUT_OFF, {**CALL, "outcome": "running"}]}),
        ("run", {**ENDED, "timeline": [DONE_STEP, CUT_OFF, DONE_CALL, ANSWER]}),
        ("end", {}),
    ]
    followed = run(url, "follow", "resp_0123")
    assert followed.exit_code == 0
    heads = [line.strip() for line in followed.stdout.splitlines() if line.startswith("  +")]
    assert [head.rpartition(": ")[2].split(",")[0] for head in heads] == [
        *("running", "tool_calls", "waiting", "unknown", "running", "completed"),
        "answer",
    ]
    assert "To answer: toolgate approvals approve mcpr_abc, or deny" in followed.stdout
    assert [line.rpartition(" ")[2] for line in followed.stderr.splitlines()] == [
        *("running", "waiting", "running", "completed")
    ]
    Runs.stream = [("run", {**RUN, "state": "failed", "timeline": []}), ("end", {})]
    assert run(url, "follow", "resp_0123").exit_code == 1


def test_a_run_is_cancelled_and_forked(url: str) -> None:
    assert run(url, "cancel", "resp_0123").stdout == "resp_0123456789abcdef: cancelled\n"
    assert Runs.seen[-1][:2] == ("POST", "/v1/runs/resp_0123456789abcdef/cancel")
    changes = ["--model", "big", "--message", "Again", "--result", "call_x=nine=9", "--result", "call_y="]
    forked = run(url, "fork", "resp_0123", "--step", "1", *changes)
    assert forked.stdout == "resp_0123456789abcdef\n"
    body = {"step": 1, "model": "big", "message": "Again", "results": {"call_x": "nine=9", "call_y": ""}}
    assert Runs.seen[-1] == ("POST", "/v1/runs/resp_0123456789abcdef/fork", body)
    refused = run(url, "fork", "resp_0123", "--step", "3")
    assert (refused.exit_code, refused.stderr) == (1, "The run has no step 3.\n")
    assert "CALL=TEXT" in run(url, "fork", "resp_0123", "--step", "1", "--result", "x").stderr


def test_the_runs_of_a_real_server_are_listed_shown_forked_and_followed_to_their_end() -> None:
    config = Config(server=ServerSettings(port=0), storage=MEMORY, log=QUIET)
    with served(Toolgate(config)) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        tools = {"tool_execution": "auto", "use_server_tools": ["calculator"]}
        question = 'call calculator {"expression": "6 * 7"}'
        id = client.responses.create(model="echo", input=question, background=True, extra_body=tools).id
        followed = run(url, "follow", id)
        assert followed.exit_code == 0, followed.output
        shown = run(url, "show", id[5:13]).stdout
        call = shown.partition("call calculator of builtin, ")[2].partition(":")[0]
        forked = run(url, "fork", id, "--step", "1", "--result", f"{call}=forty-two", "--follow")
        assert forked.exit_code == 0, forked.output
        listed = run(url, "--state", "completed").stdout.splitlines()
        ended = run(url, "cancel", id)
    assert shown.splitlines()[0] == f"{id}: completed"
    assert " call calculator of builtin, " in shown
    assert " = 42" in shown
    assert "step 2, echo: answer" in followed.stdout
    assert "calculator returned: forty-two" in forked.stdout
    assert [line.split("\t")[1] for line in listed] == [forked.stdout.split("\n")[0], id]
    assert (ended.exit_code, "ended already" in ended.stderr) == (1, True)
