"""Pages in a real browser that note everything that goes wrong in them, and the checks that every page must pass."""

import json
import os
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page

from tests.chromium import FOLDER
from tests.node import npm_ci

DEADLINE_MS = 120_000
"""How long a page may take to get to a state: a guard against hanging, so that a busy machine fails no test."""
SCREENSHOTS = "TOOLGATE_SCREENSHOTS"
"""The environment variable with the folder into which `take_screenshot` writes."""
LOOKS = [(1280, False), (360, True)]
"""Width and darkness in which each page is checked: both widths and both themes, in two pages instead of four."""
if SCREENSHOTS in os.environ:
    LOOKS += [(360, False), (1280, True)]

_STATUS = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`violates ${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
"""


class WatchedPages:
    """Opens pages, each in a context of its own, and collects the errors that they report."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.problems: list[str] = []

    def __call__(
        self,
        url: str,
        *,
        key: str | None = None,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        failures: Collection[int] = (),
    ) -> Page:
        """Open a page, with a key that the tab keeps; `failures` are the error statuses that its requests may get."""
        context = self.context(width, height, dark)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('toolgate.key', {json.dumps(key)})")
        page = context.new_page()
        self.watch(page, failures)
        page.goto(url)
        return page

    def context(self, width: int = 1280, height: int = 800, dark: bool = False) -> BrowserContext:
        """A browser without history, cookies or storage."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=width < 500,
            locale="en-GB",
            timezone_id="UTC",
            reduced_motion="reduce",
        )
        context.set_default_timeout(DEADLINE_MS)
        context.add_init_script(_REPORT_VIOLATIONS)
        self._contexts.append(context)
        return context

    def watch(self, page: Page, failures: Collection[int] = ()) -> None:
        """Collect what the page reports: errors in its console, exceptions, violations of its policy.

        The status 0 among `failures` stands for a server that does not answer.
        """

        def on_console(message: ConsoleMessage) -> None:
            if message.type not in ("error", "assert"):
                return
            if 0 in failures and "net::ERR_" in message.text:
                return
            status = _STATUS.match(message.text)
            if not status or int(status[1]) not in failures:
                self.problems.append(f"{message.text} ({message.location.get('url', '')})")

        page.on("console", on_console)
        page.on("pageerror", lambda error: self.problems.append(f"{error.name}: {error.message}\n{error.stack}"))
        page.on("crash", lambda _: self.problems.append("the page crashed"))

    def close(self) -> None:
        """Close all pages that were opened."""
        for context in self._contexts:
            context.close()


def accessibility_violations(page: Page) -> list[str]:
    """What axe-core finds wrong with the page as it is now, one line for each element."""
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": _axe_source()})  # as the debugger, whom the page's policy lets in
    session.detach()
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run(document)).violations")
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def overflows(page: Page) -> int:
    """By how many pixels the page, or its main part, is wider than what is seen of it."""
    parts = "[document.documentElement, ...document.querySelectorAll('main')]"
    width: int = page.evaluate(f"Math.max(...{parts}.map((one) => one.scrollWidth - one.clientWidth))")
    return width


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the target has the focus."""
    for _ in range(100):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {target}.")


def take_screenshot(page: Page, name: str) -> None:
    """Write a picture of the page, if the environment names a folder for pictures."""
    if folder := os.environ.get(SCREENSHOTS):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")


@cache
def _axe_source() -> str:
    return (npm_ci(FOLDER) / "axe-core" / "axe.min.js").read_text("utf-8")
