"""The command that a server prints for a waiting call reaches that server (spec: A2)."""

import json
from pathlib import Path

import pytest

from tests.api.http_client import ask
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.tools import approve_command, open_tool_catalog
from toolgate.config import Config, Secret
from toolgate.config.settings import ApprovalSettings, ServerSettings, ServerToolSettings
from toolgate.http.listener import listening
from toolgate.mcp.server.stdio import LOCAL
from toolgate.tools.tool import ToolCallFailed, ignore_progress

AT_ONCE = ServerToolSettings(approvals=ApprovalSettings(hold_seconds=0.01))
ASKING = {"url": "https://example.org"}


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("127.0.0.1", 8080, ""),
        ("0.0.0.0", 8080, ""),
        ("127.0.0.1", 9123, " --url http://127.0.0.1:9123"),
        ("0.0.0.0", 9123, " --url http://127.0.0.1:9123"),
        ("192.0.2.7", 8080, " --url http://192.0.2.7:8080"),
        ("::1", 8080, " --url http://[::1]:8080"),
    ],
)
def test_the_command_names_a_url_that_is_not_the_default(host: str, port: int, url: str) -> None:
    assert approve_command(ServerSettings(host=host, port=port)) == f"toolgate approvals approve{url}"


async def test_the_waiting_answer_and_the_log_have_the_url_of_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    config = Config(server=ServerSettings(port=9123), storage=Secret("sqlite://"), tools=AT_ONCE)
    async with listening(Toolgate(config)) as url:
        asked = [{"role": "user", "content": f"call fetch {json.dumps(ASKING)}"}]
        body = {"model": "echo", "messages": asked, "tool_execution": "auto", "use_server_tools": True}
        answer = (await ask(url, "/v1/chat/completions", body)).json["choices"][0]["message"]["content"]
    assert "`toolgate approvals approve --url http://127.0.0.1:9123 mcpr_" in answer
    assert '"toolgate approvals approve --url http://127.0.0.1:9123 mcpr_' in capfd.readouterr().err


@pytest.mark.parametrize("memory", [False, True])
async def test_an_approval_over_stdio_is_logged_with_the_command_that_answers_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], memory: bool
) -> None:
    config = Config(storage=Secret("sqlite://" if memory else f"sqlite:///{tmp_path}/t.db"), tools=AT_ONCE)
    async with open_tool_catalog(config) as catalog:
        with pytest.raises(ToolCallFailed, match="waits for approval"):
            await catalog.call(LOCAL, "fetch", ASKING, json.dumps(ASKING), ignore_progress, "")
    needed = "Allow the tool by a rule" if memory else "while `toolgate serve` runs with the same storage"
    assert needed in capfd.readouterr().err
