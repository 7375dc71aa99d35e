"""An editor with folders of its own, with the packaged extension and the probe installed, and windows in a browser."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext

from tests.editor.install import FOLDER, install
from tests.editor.window import DEADLINE, Window, wait_for_probe
from tests.node import NODE

PROBE = FOLDER / "probe"
_SEED_CHAT = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open('vscode-web-state-db-global', 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore('ItemTable');
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const change = opening.result.transaction('ItemTable', 'readwrite');
    change.objectStore('ItemTable').put('true', 'builtinChatExtensionEnablementMigration');
    change.oncomplete = () => { opening.result.close(); resolve(); };
  };
})"""


class Editor:
    """A running editor that serves windows at `url`."""

    def __init__(self, home: Path, url: str, browser: Browser) -> None:
        self.home = home
        self.url = url
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def open(self, folder: Path, *, width: int = 1280, height: int = 800) -> Window:
        """Open a window on a folder and wait until its extensions run."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, locale="en-GB", timezone_id="UTC"
        )
        context.set_default_timeout(DEADLINE * 1000)
        self._contexts.append(context)
        known = {file.name for file in (self.home / "probes").glob("*.json")}
        page = context.new_page()
        page.goto(f"{self.url}/healthz")  # a page of the same origin, in which the editor does not run yet
        page.evaluate(_SEED_CHAT)
        page.goto(f"{self.url}/?folder={folder}")
        port, pid = wait_for_probe(self.home / "probes", known, page)
        return Window(page, port, pid)

    def close(self) -> None:
        """Close all windows."""
        for context in self._contexts:
            context.close()


@contextmanager
def running_editor(home: Path, vsix: Path, browser: Browser, settings: str) -> Iterator[Editor]:
    """Install the extension into a new editor, start it, and end it with all its processes."""
    entry = install()
    data, extensions = home / "data", home / "extensions"
    (data / "User").mkdir(parents=True)
    (data / "User" / "settings.json").write_text(settings)
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(NODE.parent), *_folders_without("toolgate", "uvx")]),
        "HOME": str(home),
        "PROBE_FOLDER": str(home / "probes"),
    }
    program: list[str | Path] = [NODE, entry, "--user-data-dir", data, "--extensions-dir", extensions]
    subprocess.run([*program, "--install-extension", vsix], env=env, check=True, capture_output=True, timeout=DEADLINE)
    (extensions / "extensions.json").unlink()  # so that folders are looked for again
    shutil.copytree(PROBE, extensions / "testing.probe-0.0.1")
    options = ("--auth", "none", "--bind-addr", "127.0.0.1:0", "--disable-telemetry", "--disable-update-check")
    more = ("--disable-workspace-trust", "--disable-getting-started-override")
    log = (home / "editor.log").open("wb")
    server = subprocess.Popen([*program, *options, *more], env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        editor = Editor(home, _address(home / "editor.log"), browser)
        yield editor
        editor.close()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def _folders_without(*programs: str) -> list[str]:
    """The folders of the PATH without those that hold one of the programs: nothing is installed for a newcomer."""
    folders = os.environ["PATH"].split(os.pathsep)
    return [folder for folder in folders if not any((Path(folder) / program).exists() for program in programs)]


def _address(log: Path) -> str:
    deadline = time.monotonic() + DEADLINE
    while not (found := re.search(r"listening on (http://\S+?)/?\s", log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]
