"""One editor with one window for most tests, joined to a gateway over four scripted upstreams (spec: V5).

These tests run with `make test-editor` only: the editor is a download of 340 MB. Tests are plain functions, because
Playwright's blocking API keeps a loop of its own in this thread.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, expect, sync_playwright

from tests import chromium
from tests.editor.chat_peer import TOKEN, ScriptedPeer, listening_peer
from tests.editor.editor import Editor, running_editor
from tests.editor.gateways import Gateway, model_names
from tests.editor.window import DEADLINE, Window, wait_until
from tests.node import npm_ci, run_node
from tests.stage import in_a_thread, on_stage
from toolgate.config import ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.testing import FakeSource, FakeTool
from toolgate.tools.tool import Annotations

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Dark Modern",
    "window.commandCenter": False,
    "chat.tools.global.autoApprove": False,
    "security.workspace.trust.enabled": False,
}

if not os.environ.get("TOOLGATE_TEST_EDITOR"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser in which all windows are pages."""
    program = chromium.executable()
    expect.set_options(timeout=DEADLINE * 1000)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=program, args=list(chromium.ARGUMENTS), env=dict(chromium.environment(program))
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def vsix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged extension."""
    package = tmp_path_factory.mktemp("vsix") / "toolgate.vsix"
    modules = npm_ci(EXTENSION)
    run_node("build.mjs", cwd=EXTENSION)
    options = ("--no-dependencies", "--allow-missing-repository", "--out", package)
    run_node(modules / "@vscode" / "vsce" / "vsce", "package", *options, cwd=EXTENSION)
    return package


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """A gateway in a thread of this process, over four dialects, a model that only writes text, and a chat peer."""
    erase = FakeTool("erase", lambda given: f"erased {given.get('path')}", annotations=Annotations(destructive=True))
    add = FakeTool("add", lambda given: str(given["a"] + given["b"]))
    peer = ScriptedPeer()
    text_only = ModelConfig(
        name="text-only",
        targets=(TargetConfig(upstream="openai_chat", model="played"),),
        tools="emulated",
        system="inject",
        retries=0,
    )
    with in_a_thread(listening_peer(peer)) as url:
        row = UpstreamConfig(name="peer", dialect="peer", base_url=url, api_key=Secret(TOKEN))
        over_peer = replace(text_only, name="peer", targets=(TargetConfig(upstream="peer", model="bot"),))
        with on_stage(
            FakeSource(erase, add),
            tools=ServerToolSettings(approvals=ApprovalSettings(hold_seconds=60)),
            upstreams={"peer": row},
            models=(text_only, over_peer),
        ) as stage:
            yield Gateway(stage, erase, peer)


@pytest.fixture(scope="session")
def editor(
    tmp_path_factory: pytest.TempPathFactory, vsix: Path, browser: Browser, gateway: Gateway
) -> Iterator[Editor]:
    """An editor whose person has switched lending on, for this gateway."""
    lending = {"toolgate.url": gateway.url, "toolgate.lending.models": True, "toolgate.lending.tools": True}
    settings = json.dumps({**SETTINGS, **lending, "toolgate.lending.maxRoundsPerHour": 0})
    with running_editor(tmp_path_factory.mktemp("editor"), vsix, browser, settings) as editor:
        yield editor


@pytest.fixture(scope="session")
def window_of_the_session(editor: Editor, gateway: Gateway) -> Window:
    """A window that has joined the gateway and lends its models and tools."""
    folder = editor.home / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("A quiet harbour.\n")
    window = editor.open(folder)
    wait_until(lambda: "vscode/scripted/mini" in model_names(gateway.url))
    return window


@pytest.fixture
def window(window_of_the_session: Window) -> Iterator[Window]:
    """The window, without requests, dialogs and notifications of earlier tests."""
    window_of_the_session.play([{"text": "Hello from the editor."}])
    yield window_of_the_session
    window_of_the_session.dismiss_toasts()
