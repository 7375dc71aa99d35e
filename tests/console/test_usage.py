"""The page Usage: sums, charts over time and a table, of one key or of all."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.console.pages import LOOKS, WatchedPages, accessibility_violations, overflows, take_screenshot
from tests.stage import Stage, on_stage
from toolgate.config import KeySettings, Secret
from toolgate.conversation.errors import UpstreamUnavailable

ADA, GUEST = "tg-" + "a" * 43, "tg-" + "g" * 43
KEYS = (
    KeySettings(name="ada", key=Secret(ADA), scopes=("chat", "tools", "admin")),
    KeySettings(name="guest", key=Secret(GUEST), scopes=("chat",)),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Stage]:
    """A server that answered two keys three times, and once could not."""
    with on_stage(keys=KEYS) as stage:
        stage.play("One.", "Two.", "Three.", UpstreamUnavailable("The power is out."))
        for key, model in ((ADA, "openai_chat"), (ADA, "anthropic"), (GUEST, "ollama"), (GUEST, "openai_responses")):
            body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"authorization": f"Bearer {key}"}
            httpx.post(f"{stage.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        yield stage


def open_usage(visit: WatchedPages, server: Stage, query: str = "", key: str = ADA, **options: Any) -> Page:
    page = visit(f"{server.url}/console/#/usage{query}", key=key, **options)
    expect(page.get_by_role("img", name="Requests: ")).to_be_visible()
    return page


def expect_rows(page: Page, *names: str) -> None:
    expect(page.get_by_role("region", name="Totals").get_by_role("rowheader")).to_have_text(list(names))


@pytest.mark.parametrize("range", ["day", "week", "month", "quarter"])
def test_requests_tokens_and_errors_are_summed_and_drawn(visit: WatchedPages, server: Stage, range: str) -> None:
    """spec: E4"""
    page = open_usage(visit, server, f"?range={range}")
    tiles = page.locator(".tiles")
    expect(tiles).to_contain_text("1 error")
    for model in ("openai_chat", "anthropic", "ollama"):
        expect(page.get_by_role("img", name="Requests: ")).to_have_accessible_name(re.compile(f"{model} 1"))
    expect(
        page.locator(".chart", has=page.get_by_role("heading", name="Requests")).locator("path.fill").first
    ).to_be_visible()
    expect(page.get_by_role("img", name="Errors: ")).to_have_accessible_name("Errors: openai_responses 1")
    expect(page.get_by_role("img", name="Time to the whole answer")).to_be_visible()


def test_an_administrator_sees_usage_by_key(visit: WatchedPages, server: Stage) -> None:
    page = open_usage(visit, server)
    page.get_by_role("combobox", name="By").select_option("key")
    expect_rows(page, "ada", "guest")
    page.get_by_role("combobox", name="Key").select_option("guest")
    expect_rows(page, "guest")
    page.reload()
    expect_rows(page, "guest")


def test_a_key_sees_its_own_usage(visit: WatchedPages, server: Stage) -> None:
    page = open_usage(visit, server, key=GUEST)
    expect(page.get_by_role("region", name="Totals").get_by_role("rowheader", name="ollama")).to_be_visible()
    expect(page.get_by_role("region", name="Totals").get_by_role("rowheader", name="anthropic")).to_have_count(0)
    expect(page.get_by_role("combobox", name="Key")).to_have_count(0)


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_is_accessible_and_fits(visit: WatchedPages, server: Stage, width: int, dark: bool) -> None:
    page = open_usage(visit, server, width=width, dark=dark)
    take_screenshot(page, f"usage-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
