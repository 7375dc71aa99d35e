"""Approvals over the whole server: they are for the tool as a person has seen it, and for where its calls go (spec: A2)."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml

from tests.stage import served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import load

SERVER = Path(__file__).parents[1] / "mcp" / "client" / "mock_server.py"
DOCUMENT = {"openapi": "3.1.0", "paths": {"/things": {"post": {"operationId": "make", "responses": {}}}}}


@contextmanager
def gateway(folder: Path, **tools: Any) -> Iterator[httpx.Client]:
    """A gateway with these tools, whose storage is the same at every start."""
    path = folder / "toolgate.yaml"
    config = {"server": {"port": 0}, "storage": f"sqlite:///{folder}/gate.db", "log": {"level": "error"}}
    tools["approvals"] = {"hold_seconds": 0, **tools.get("approvals", {})}
    path.write_text(yaml.safe_dump({**config, "tools": tools}))
    with served(Toolgate(load(path, {}))) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def call(client: httpx.Client, tool: str) -> str:
    """Have the model call a tool, and return what it answers with the result."""
    deadline = time.monotonic() + 30
    while client.get(f"/v1/tools/{tool}").status_code == 404 and time.monotonic() < deadline:
        time.sleep(0.02)  # its source is still connecting
    # Each time another conversation, which is not resumed from a stored one.
    messages = [{"role": "system", "content": uuid4().hex}, {"role": "user", "content": f"call {tool} {{}}"}]
    body = {"model": "echo", "messages": messages, "use_server_tools": [tool], "tool_execution": "auto"}
    return str(client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])


def is_asked(client: httpx.Client, tool: str) -> bool:
    """Whether a call of the tool waits for a person; a call that fails was made without asking."""
    return "waits for approval" in call(client, tool)


def grant(client: httpx.Client) -> None:
    """Approve the open question for good, and the call that was asked about."""
    [waiting] = client.get("/v1/approvals?state=pending").json()["data"]
    assert client.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve", "level": "always"}).is_success


def http_service(folder: Path, which: str) -> dict[str, Any]:
    (folder / "things.json").write_text(json.dumps(DOCUMENT))
    return {"http": {"box": {"openapi": "things.json", "base_url": f"http://127.0.0.1:1/{which}"}}}


def stdio_server(folder: Path, which: str) -> dict[str, Any]:
    state = folder / which
    state.mkdir(exist_ok=True)
    return {"mcp": {"box": {"command": [sys.executable, str(SERVER), "good", str(state)]}}}


@pytest.mark.parametrize(("tools", "name"), [(http_service, "box_make"), (stdio_server, "box_echo")])
def test_a_grant_outlives_a_restart_but_not_a_change_of_where_calls_go(
    tools: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gateway(tmp_path, **tools(tmp_path, "one")) as client:
        assert is_asked(client, name)
        grant(client)
        assert not is_asked(client, name)  # uses the approval of that call
    monkeypatch.chdir(tmp_path)  # from where the path of the configuration is a relative one
    with gateway(Path("."), **tools(tmp_path, "one")) as client:
        assert not is_asked(client, name)
    with gateway(tmp_path, **tools(tmp_path, "other")) as client:
        assert is_asked(client, name)


def test_a_grant_does_not_pass_to_a_tool_that_is_registered_under_the_same_name_with_another_url(
    tmp_path: Path,
) -> None:
    tool = {"type": "http", "name": "hook", "description": "Does it.", "url": "http://127.0.0.1:1/seen"}
    with gateway(tmp_path) as client:
        client.post("/v1/tools", json=tool)
        assert is_asked(client, "hook")
        grant(client)
        assert not is_asked(client, "hook")
        for url, asked in ((tool["url"], False), ("http://127.0.0.1:1/other", True)):
            assert client.delete("/v1/tools/hook").is_success
            assert client.post("/v1/tools", json={**tool, "url": url}).is_success
            assert is_asked(client, "hook") == asked


def test_a_question_about_a_tool_that_was_registered_anew_with_another_url_is_out_of_scope(tmp_path: Path) -> None:
    tool = {"type": "http", "name": "hook", "description": "Does it.", "url": "http://127.0.0.1:1/seen"}
    with gateway(tmp_path) as client:
        client.post("/v1/tools", json=tool)
        assert is_asked(client, "hook")
        client.delete("/v1/tools/hook")
        client.post("/v1/tools", json={**tool, "url": "http://127.0.0.1:1/other"})
        [waiting] = client.get("/v1/approvals?state=pending").json()["data"]
        answer = client.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "out_of_scope")


@pytest.mark.parametrize(
    ("trusted", "asked"), [([], True), (["mcp/*"], True), (["mcp/other"], False), (["api"], False), (["*"], False)]
)
def test_the_annotations_of_a_registered_mcp_server_count_only_if_the_configuration_means_it(
    trusted: list[str], asked: bool, tmp_path: Path
) -> None:
    """The operator vouches for the servers of the configuration; one with an admin key registers others."""
    (tmp_path / "gate").mkdir()
    with gateway(tmp_path) as other:
        address = str(other.base_url).rstrip("/")
        server = {"type": "mcp", "name": "other", "url": f"{address}/mcp"}
        approvals = {"trusted": trusted} if trusted else {}
        with gateway(tmp_path / "gate", reach=[address.removeprefix("http://")], approvals=approvals) as client:
            assert client.post("/v1/tools", json=server).is_success
            assert is_asked(client, "other_clock") == asked


def test_a_call_that_waits_is_not_made_once_its_registered_tool_is_deleted(tmp_path: Path) -> None:
    tool = {"type": "http", "name": "hook", "description": "Does it.", "url": "http://127.0.0.1:1/seen"}
    with gateway(tmp_path, approvals={"hold_seconds": 60}) as client, ThreadPoolExecutor() as threads:
        client.post("/v1/tools", json=tool)
        none = client.get("/v1/approvals?state=pending").json()["version"]
        asking = threads.submit(call, client, "hook")
        [waiting] = client.get(f"/v1/approvals?state=pending&wait=30&version={none}").json()["data"]
        assert client.delete("/v1/tools/hook").is_success
        client.post(f"/v1/approvals/{waiting['id']}", json={"decision": "approve"})
        assert "It was not run" in asking.result(60)
