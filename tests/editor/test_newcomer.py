"""A fresh editor, as a newcomer meets it: nothing is lent before the person says so, whatever a folder's settings say."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.editor.conftest import SETTINGS
from tests.editor.editor import Editor, running_editor
from tests.editor.gateways import Gateway, GatewayProcess, answers, get, model_names
from tests.editor.window import Window, wait_until
from tests.ports import free_port


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway as it is without any configuration."""
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"))
    process.start()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def fresh(
    tmp_path_factory: pytest.TempPathFactory, vsix: Path, browser: Browser, process: GatewayProcess
) -> Iterator[Editor]:
    """An editor in which only the address is set, because the tests may not use the usual port."""
    settings = json.dumps({**SETTINGS, "toolgate.url": process.url})
    with running_editor(tmp_path_factory.mktemp("fresh"), vsix, browser, settings) as editor:
        yield editor


def lending(process: GatewayProcess) -> list[str]:
    """The names of the models that windows lend."""
    return [name for name in model_names(process.url) if name.startswith("vscode/")]


def test_the_settings_of_a_folder_switch_nothing_on_and_redirect_nothing(
    fresh: Editor, process: GatewayProcess, gateway: Gateway
) -> None:
    folder = fresh.home / "hostile"
    started = fresh.home / "started"
    (folder / ".vscode").mkdir(parents=True)
    hostile = {
        "toolgate.url": gateway.url,
        "toolgate.lending.models": True,
        "toolgate.lending.tools": True,
        "toolgate.server.command": ["touch", str(started)],
        "toolgate.server.startAutomatically": True,
        "toolgate.tokenFile": str(folder / "token"),
    }
    (folder / ".vscode" / "settings.json").write_text(json.dumps(hostile))
    window = fresh.open(folder)
    wait_until(lambda: get(f"{process.url}/v1/bridge")["data"], window.page)
    [joined] = get(f"{process.url}/v1/bridge")["data"]
    assert (joined["folders"], joined["models"], joined["tools"]) == (["hostile"], [], 0)
    assert not [one for one in get(f"{gateway.url}/v1/bridge")["data"] if one["folders"] == ["hostile"]]
    assert lending(process) == []
    assert not started.exists()
    window.page.context.close()


@pytest.fixture(scope="module")
def window(fresh: Editor) -> Window:
    """The newcomer's window."""
    folder = fresh.home / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("A quiet harbour.\n")
    return fresh.open(folder, width=1600, height=900)


def test_a_newcomer_follows_the_walkthrough_to_an_answer_from_curl(window: Window, process: GatewayProcess) -> None:
    window.until("return (await vscode.lm.selectChatModels({ vendor: 'scripted' })).length > 0")
    for part in ("AuxiliaryBar", "Sidebar"):
        window.command(f"workbench.action.close{part}")
    window.command("toolgate.openWalkthrough")
    window.page.get_by_text("The First Five Minutes").first.wait_for()
    joined = window.page.locator(".getting-started-step", has_text="Start or join a gateway")
    expect(joined.locator(".codicon-getting-started-step-checked")).to_be_visible()
    window.page.get_by_role("button", name="Lend the editor's models", exact=False).first.click()
    window.take_picture("walkthrough")
    window.page.get_by_role("button", name="Lend the Editor's Models", exact=True).last.click()
    window.dialog().get_by_text("Lend the editor’s models to Toolgate?").wait_for()
    window.take_picture("lend")
    assert lending(process) == []
    window.press("Lend Models")
    wait_until(lambda: "vscode/scripted/mini" in lending(process), window.page)

    window.play(
        [
            {"text": "Hello from the editor."},
            {"usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}},
        ]
    )
    asked = json.dumps({"model": "mini", "messages": [{"role": "user", "content": "Hello"}]})
    curl = ["curl", "-s", f"{process.url}/v1/chat/completions", "-H", "content-type: application/json", "-d", asked]
    answer = subprocess.run(curl, capture_output=True, check=True, timeout=60).stdout
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello from the editor."

    window.command("toolgate.overview.focus")
    row = window.page.get_by_role("treeitem").filter(has_text="mini")
    expect(row.filter(has_text="1 round")).to_be_visible()
    expect(window.page.get_by_role("treeitem").filter(has_text="1 round this hour")).to_be_visible()
    window.take_picture("view", width=640)


def test_a_lent_model_is_asked_in_a_terminal(window: Window) -> None:
    window.play([{"text": "Hello from the editor."}])
    window.command("toolgate.askInTerminal")
    terminal = "vscode.window.terminals.find(({ name }) => name === 'Toolgate')"
    window.until(f"return {terminal} !== undefined")
    assert window.requests == []  # the person presses Enter
    window.run(f"{terminal}.sendText('', true)")
    [request] = window.until("return state.requests.length === 1 && state.requests")
    assert request["messages"][-1]["parts"] == [{"text": "Hello"}]
    window.take_picture("terminal")
    window.run(f"{terminal}.dispose()")


def test_the_server_is_started_by_uvx_after_a_question(window: Window, fresh: Editor, process: GatewayProcess) -> None:
    """Instead of a download, this uvx runs the Toolgate of the tests."""
    uvx, called = fresh.home / ".local" / "bin" / "uvx", fresh.home / "uvx.called"
    uvx.parent.mkdir(parents=True)
    program = f'{sys.executable} -c "from toolgate.cli import main; main()"'
    uvx.write_text(f'#!/bin/sh\necho "$@" > {called}\nshift 3\nexec {program} "$@"\n')
    uvx.chmod(0o755)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    window.set("toolgate.url", url)
    window.command("toolgate.startServer")
    window.dialog().get_by_text("Start it with uvx?").wait_for()
    window.take_picture("uvx")
    assert not called.exists()
    window.press("Download and Start")
    wait_until(lambda: answers(url) and get(f"{url}/v1/bridge")["data"], window.page)
    assert called.read_text().strip() == f"--from toolgate-server toolgate serve --host 127.0.0.1 --port {port}"
    window.command("toolgate.stopServer")
    wait_until(lambda: not answers(url), window.page)
    window.set("toolgate.url", process.url)
    wait_until(lambda: get(f"{process.url}/v1/bridge")["data"], window.page)


def test_one_click_on_the_status_bar_stops_lending(window: Window, process: GatewayProcess) -> None:
    window.set("toolgate.lending.models", True)
    wait_until(lambda: "vscode/scripted/mini" in lending(process), window.page)
    window.play([{"text": "One."}, {"hang": True}])
    asked = json.dumps({"model": "mini", "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    curl = ["curl", "-sN", f"{process.url}/v1/chat/completions", "-H", "content-type: application/json", "-d", asked]
    with subprocess.Popen(curl, stdout=subprocess.PIPE) as running:
        expect(window.page.locator(".statusbar-item", has_text="anonymous → mini")).to_be_visible()
        window.take_picture("running")
        window.page.get_by_role("button", name="stop lending models and tools", exact=False).click()
        window.until("return state.requests[0].cancelled")
        assert running.stdout is not None
        running.stdout.read()
    wait_until(lambda: lending(process) == [], window.page)
    assert window.run("return vscode.workspace.getConfiguration('toolgate').get('lending.models')") is False
