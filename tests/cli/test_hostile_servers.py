"""Commands that call a server which answers with anything: they end with a sentence, never with a traceback."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from toolgate.cli import api_client
from toolgate.cli.commands import app

KEY = "tg-a-key"


@contextmanager
def answering(answer: Callable[[str], bytes]) -> Iterator[str]:
    """A server that answers every request with status 200 and a body, by its path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            body = answer(self.path)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def run(answer: Callable[[str], bytes], *command: str, key: str = KEY) -> tuple[int, str]:
    with answering(answer) as url:
        result = CliRunner().invoke(app, list(command), env={"TOOLGATE_URL": url, "TOOLGATE_KEY": key})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


COMMANDS = (["tools"], ["approvals"], ["runs"], ["requests"], ["keys", "list"], ["usage"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_answer_that_is_nested_without_end_is_not_json(command: list[str]) -> None:
    status, output = run(lambda path: b"[" * 200_000, *command)
    assert status == 1
    assert "the answer is not JSON" in output


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "MAX_ANSWER", 2**20)
    status, output = run(lambda path: b'{"a":"' + b"x" * 2**20 + b'"}', "tools")
    assert status == 1
    assert "the answer has more than 1 MiB" in output


def test_a_key_that_no_header_takes_is_refused_and_not_printed() -> None:
    for key in (f"{KEY}\n", "clé"):
        status, output = run(lambda path: b"{}", "tools", key=key)
        assert status == 1
        assert "The key holds a line break" in output
        assert key.strip() not in output


@pytest.mark.parametrize("command", [["runs", "show"], ["keys", "revoke"], ["approvals", "approve"]], ids=" ".join)
def test_an_id_that_is_not_unicode_is_sent_as_a_question_mark(command: list[str]) -> None:
    paths: list[str] = []

    def answer(path: str) -> bytes:
        paths.append(path)
        return b"{}"

    run(answer, *command, "\udcff")
    assert all("%ED" not in path for path in paths)


WRONG: list[Any] = [10**400, -(10**18), "x", [], {}, True, -1]


@pytest.mark.parametrize("wrong", WRONG, ids=[str(one)[:20] for one in WRONG])
def test_numbers_of_a_server_are_printed_whatever_they_are(wrong: Any) -> None:
    step = {"type": "step", "started": wrong, "ended": wrong, "output_tokens": wrong}
    numbers = ("cost", "created", "started", "ended", "seconds", "expires_at", "former_expires_at")
    record = dict.fromkeys(numbers, wrong) | {"id": "r", "state": "active", "key": "tg-new", "timeline": [step]}
    record |= {"spent": {"day": wrong}, "budget": {"amount": wrong, "period": "day"}}
    one, many = json.dumps(record).encode(), json.dumps({"data": [record]}).encode()
    assert run(lambda path: one if "/r" in path.removeprefix("/v1/runs") else many, "runs", "show", "r")[0] == 0
    assert run(lambda path: many, "keys", "list")[0] == 0
    assert run(lambda path: one, "keys", "rotate", "r")[0] == 0
    assert run(lambda path: many, "requests")[0] == 0


def test_a_cursor_that_is_not_unicode_leads_to_the_next_page() -> None:
    pages = iter((b'{"data":[{"id":"a"}],"has_more":true,"last_id":"\\ud800"}', b'{"data":[{"id":"b"}]}'))
    status, output = run(lambda path: next(pages), "requests", "--json")
    assert (status, '"b"' in output) == (0, True)
