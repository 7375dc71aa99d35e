"""A window of the editor: a page of a browser, and the probe extension that runs code inside the editor for a test."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from playwright.sync_api import Error, FloatRect, Locator, Page

DEADLINE = 120.0
PICTURES = "TOOLGATE_SCREENSHOTS"
"""The environment variable with the folder into which pictures of the editor are written."""

_POLL = 0.1


class Window:
    """One window, its page and its probe."""

    def __init__(self, page: Page, port: int, pid: int) -> None:
        self.page = page
        self.pid = pid
        self._url = f"http://127.0.0.1:{port}/"

    def run(self, code: str, argument: object = None) -> Any:
        """Run a JavaScript function body in the editor's extension host, with `vscode`, `state` and `argument`."""
        body = json.dumps({"code": code, "argument": argument}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self._url, body), timeout=DEADLINE) as answer:
                return json.load(answer).get("value")
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["error"]) from None

    def until(self, code: str, argument: object = None, *, seconds: float = DEADLINE) -> Any:
        """Run the code again and again until it returns something true."""
        deadline = time.monotonic() + seconds
        while True:
            if value := self.run(code, argument):
                return value
            assert time.monotonic() < deadline, f"never became true: {code}"
            self.page.wait_for_timeout(_POLL * 1000)

    def play(self, *answers: list[dict[str, Any]]) -> None:
        """Set the script of the scripted models, one answer for each request; the last one repeats."""
        self.run("state.script = argument; state.requests = []; state.calls = []", list(answers))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What reached the scripted models since `play`."""
        found: list[dict[str, Any]] = self.run("return state.requests")
        return found

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What reached the probe's tools since `play`."""
        found: list[dict[str, Any]] = self.run("return state.calls")
        return found

    def command(self, name: str, *arguments: object) -> None:
        """Start a command of the editor, without waiting for its end: it may ask the person something."""
        self.run("void vscode.commands.executeCommand(...argument)", [name, *arguments])

    def set(self, name: str, value: object) -> None:
        """Change a setting of the person."""
        code = "await vscode.workspace.getConfiguration().update(argument[0], argument[1] ?? undefined, 1)"
        self.run(code, [name, value])

    def take_picture(self, name: str, *, width: int | None = None) -> None:
        """Write a picture of the window, or of its left part, if the environment names a folder for that."""
        if folder := os.environ.get(PICTURES):
            self.page.wait_for_timeout(1500)  # animations
            size = self.page.viewport_size
            assert size is not None
            clip = {"x": 0, "y": 0, "width": width or size["width"], "height": size["height"]}
            self.page.screenshot(path=Path(folder) / f"vscode-{name}.png", clip=cast(FloatRect, clip))

    def crash(self) -> None:
        """Kill the window's process; its extension host lives on for a while and does not know."""
        with suppress(Error):
            self.page.goto("chrome://crash", timeout=2000)

    def dialog(self) -> Locator:
        """The modal dialog that is open, or will be."""
        return self.page.locator(".monaco-dialog-box")

    def press(self, label: str) -> None:
        """Press a button of the modal dialog."""
        self.dialog().get_by_role("button", name=label, exact=True).click()

    def toast(self, text: str) -> Locator:
        """The notification that holds the text."""
        return self.page.locator(".notification-list-item", has_text=text).first

    def dismiss_toasts(self) -> None:
        """Remove all notifications."""
        self.run("await vscode.commands.executeCommand('notifications.clearAll')")


def wait_until(true: Callable[[], object], page: Page | None = None) -> None:
    """Ask again and again until it is true; a page is given time to work meanwhile."""
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline, "It never became true."
        if page is None:
            time.sleep(_POLL)
        else:
            page.wait_for_timeout(_POLL * 1000)


def wait_for_probe(folder: Path, known: set[str], page: Page) -> tuple[int, int]:
    """Wait until the extension host of a new window has written its port, and return the port and the process id."""
    deadline = time.monotonic() + 3 * DEADLINE
    while True:
        for file in folder.glob("*.json"):
            if file.name not in known and (text := file.read_text()):
                found = json.loads(text)
                return found["port"], found["pid"]
        assert time.monotonic() < deadline, "The extension host did not start."
        page.wait_for_timeout(_POLL * 1000)
