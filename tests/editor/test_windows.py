"""Windows and gateways that come and go: whoever is started first, and whoever is killed."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.http_client import PATHS, body
from tests.editor.editor import Editor
from tests.editor.gateways import Gateway, GatewayProcess, answers, get, model_names
from tests.editor.window import Window, wait_until
from tests.ports import free_port

MODEL = "vscode/scripted/mini"


def ask(url: str, **headers: str) -> httpx.Response:
    """Ask the lent model on a new connection."""
    asked = body("openai_chat", MODEL, False)
    return httpx.post(url + PATHS["openai_chat"], json=asked, timeout=60, headers=headers)


def windows(url: str) -> dict[str, Any]:
    """The windows that have joined, by the name of their folder."""
    return {joined["folders"][0]: joined for joined in get(f"{url}/v1/bridge")["data"]}


def lends(url: str, folder: str) -> bool:
    """Whether the window of the folder lends the scripted model."""
    return "scripted/mini-1" in windows(url)[folder]["models"]


@pytest.fixture
def away(window: Window, gateway: Gateway) -> Iterator[Window]:
    """The window, which returns to its gateway after the test."""
    yield window
    window.set("toolgate.url", gateway.url)
    wait_until(lambda: MODEL in model_names(gateway.url), window.page)


def test_an_editor_that_was_started_before_the_gateway_joins_it(away: Window, gateway: Gateway, tmp_path: Path) -> None:
    late = GatewayProcess(tmp_path)
    away.set("toolgate.url", late.url)
    wait_until(lambda: MODEL not in model_names(gateway.url), away.page)
    late.start()
    try:
        wait_until(lambda: MODEL in model_names(late.url), away.page)
        assert ask(late.url).json()["choices"][0]["message"]["content"] == "Hello from the editor."
    finally:
        late.kill()


def test_a_gateway_that_is_killed_and_restarted_finds_the_window_again(away: Window, tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path)
    process.start()
    try:
        away.set("toolgate.url", process.url)
        wait_until(lambda: MODEL in model_names(process.url), away.page)
        away.play([{"text": "One."}, {"hang": True}])
        with ThreadPoolExecutor() as pool:
            left = pool.submit(ask, process.url)
            away.until("return state.requests.length === 1")
            process.kill()
            assert isinstance(left.exception(), httpx.TransportError)
        away.until("return state.requests[0].cancelled")
        assert away.run("return (await vscode.lm.selectChatModels({ vendor: 'toolgate' })).length") == 0
        process.start()
        wait_until(lambda: MODEL in model_names(process.url), away.page)
        away.play([{"text": "Back again."}])
        assert ask(process.url).json()["choices"][0]["message"]["content"] == "Back again."
        away.until("return (await vscode.lm.selectChatModels({ vendor: 'toolgate' })).length > 0")
    finally:
        process.kill()


def test_a_gateway_is_started_and_stopped_by_the_window(away: Window) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    away.set("toolgate.server.command", [sys.executable, "-c", "from toolgate.cli import main; main()"])
    away.set("toolgate.url", url)
    away.command("toolgate.startServer")
    wait_until(lambda: answers(url) and MODEL in model_names(url), away.page)
    assert ask(url).json()["choices"][0]["message"]["content"] == "Hello from the editor."
    away.command("toolgate.stopServer")
    wait_until(lambda: not answers(url), away.page)
    away.set("toolgate.server.command", None)


def test_every_worker_reaches_the_window(away: Window, tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path, "--workers", "2")
    process.start()
    try:
        away.set("toolgate.url", process.url)
        wait_until(lambda: all(MODEL in model_names(process.url) for _ in range(12)), away.page)
        answers = [ask(process.url) for _ in range(12)]
        assert [answer.status_code for answer in answers] == [200] * 12, [answer.text for answer in answers]
    finally:
        process.kill()


def test_two_windows_are_reached_by_name_and_a_killed_one_is_noticed(
    window: Window, editor: Editor, gateway: Gateway
) -> None:
    folder = editor.home / "second"
    folder.mkdir()
    second = editor.open(folder)
    wait_until(lambda: "second" in windows(gateway.url), second.page)
    window.play([{"text": "This is the first."}])
    second.play([{"text": "This is the second."}])
    for name in ("project", "second"):
        wait_until(partial(lends, gateway.url, name), second.page)
    first, other = (ask(gateway.url, **{"X-Toolgate-Window": name}) for name in ("project", "second"))
    assert first.json()["choices"][0]["message"]["content"] == "This is the first.", first.text
    assert other.json()["choices"][0]["message"]["content"] == "This is the second.", other.text

    second.crash()
    wait_until(lambda: "second" not in windows(gateway.url), window.page)
    assert ask(gateway.url).json()["choices"][0]["message"]["content"] == "This is the first."
