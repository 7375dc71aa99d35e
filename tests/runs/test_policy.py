"""The policy changes while a run waits for a person, and the server is killed: the next one puts the question anew."""

import json
import signal
from pathlib import Path

import httpx

from tests.runs.processes import WANTS, Server, calling, server, until


def change_policy(running: Server) -> None:
    file = running.place / "toolgate.yaml"
    config = json.loads(file.read_text())
    config["tools"]["approvals"]["open_world"] = "deny"
    file.write_text(json.dumps(config))
    running.signal(signal.SIGHUP)
    until(lambda: "reloaded" in (running.place / "log").read_text())


def test_a_run_goes_on_waiting_under_the_new_policy(tmp_path: Path) -> None:
    with server(tmp_path, f"sqlite:///{tmp_path}/toolgate.db") as running:
        running.play(calling("book"))
        running.start()
        with running.client() as client:
            made = client.responses.create(model="m", input="Go.", background=True, extra_body=WANTS)
        first = running.pending()
        change_policy(running)
        running.kill()
        running.start()
        refused = httpx.post(f"{running.url}/v1/approvals/{first}", json={"decision": "approve"})
        assert refused.status_code == 409

        def other() -> str | None:
            listed = httpx.get(f"{running.url}/v1/approvals?state=pending").json()["data"]
            return next((one["id"] for one in listed if one["id"] != first), None)

        second = until(other)
        assert not running.approval(second)["tainted"], "the call that it asks about has not run"
        with running.client() as client:
            assert client.responses.retrieve(made.id).status == "in_progress"
        running.answer(second, "approve")
        response = running.ended(made.id)
        assert response.status == "completed"
        assert "mcp_approval_request" not in [item.type for item in response.output]
        assert running.ran == ["book"]
