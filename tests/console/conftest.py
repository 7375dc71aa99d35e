"""The browser that drives the console: one for each process of a test run, with new contexts for each test.

Tests here are plain functions, never coroutines: Playwright's blocking API keeps a loop of its own in this thread.
Each test fails on any error in a page's console, any exception, and any violation of the page's policy.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests import chromium
from tests.console.pages import DEADLINE_MS, WatchedPages


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A Chromium, which ends with the tests of this folder: tests of others need the thread without a loop."""
    program = chromium.executable()
    expect.set_options(timeout=DEADLINE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=program, args=list(chromium.ARGUMENTS), env=dict(chromium.environment(program))
        )
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[WatchedPages]:
    """Opens a page: `visit(url, width=360, dark=True, failures=[403])`."""
    pages = WatchedPages(browser)
    yield pages
    pages.close()
    assert pages.problems == []
