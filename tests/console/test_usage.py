"""The page Usage: sums, charts over time and a table, of one key or of all."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.pages import LOOKS, WatchedPages, accessibility_violations, overflows, tab_to, take_screenshot
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
    expect(chart(page, "Requests")).to_be_visible()
    return page


def chart(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name, exact=True)


def expect_rows(page: Page, *names: str) -> None:
    expect(page.get_by_role("region", name="Totals").get_by_role("rowheader")).to_have_text(list(names))


@pytest.mark.parametrize("range", ["day", "week", "month", "quarter"])
def test_requests_tokens_and_errors_are_summed_and_drawn(visit: WatchedPages, server: Stage, range: str) -> None:
    """spec: E4"""
    page = open_usage(visit, server, f"?range={range}")
    tiles = page.locator(".tiles")
    expect(tiles).to_contain_text("1 error")
    for model in ("openai_chat", "anthropic", "ollama"):
        expect(chart(page, "Requests")).to_have_attribute("aria-valuetext", re.compile(f"^All: .*{model} 1"))
    expect(
        page.locator(".chart", has=page.get_by_role("heading", name="Requests")).locator("path.fill").first
    ).to_be_visible()
    expect(chart(page, "Errors")).to_have_attribute("aria-valuetext", "All: openai_responses 1")
    expect(chart(page, "Time to the whole answer")).to_be_visible()


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


def test_a_chart_is_read_zoomed_and_thinned_out_by_keyboard(visit: WatchedPages, server: Stage) -> None:
    """spec: E4"""
    page = open_usage(visit, server)
    requests = chart(page, "Requests")
    tab_to(page, requests)
    page.keyboard.press("End")
    expect(requests).to_have_attribute("aria-valuetext", re.compile(r"\d\d:00: .*ollama 1"))
    page.keyboard.press("ArrowLeft")
    expect(requests).to_have_attribute("aria-valuetext", re.compile(r"\d\d:00: .*ollama 0"))
    expect(requests).to_have_attribute("aria-valuemax", "23")
    page.keyboard.press("+")
    expect(requests).to_have_attribute("aria-valuemax", "11")
    page.keyboard.press("Escape")
    expect(requests).to_have_attribute("aria-valuemax", "23")
    legend = page.locator(".chart", has=requests).get_by_role("button", name="ollama")
    tab_to(page, legend)
    page.keyboard.press("Enter")
    expect(legend).to_have_attribute("aria-pressed", "false")
    expect(requests).not_to_have_attribute("aria-valuetext", re.compile("ollama"))


def test_a_part_of_the_time_is_dragged_out(visit: WatchedPages, server: Stage) -> None:
    page = open_usage(visit, server)
    requests = chart(page, "Requests")
    box = requests.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 40)
    page.mouse.up()
    expect(requests).to_have_attribute("aria-valuemax", "11")
    page.get_by_role("button", name="Show all").click()
    expect(requests).to_have_attribute("aria-valuemax", "23")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_is_accessible_and_fits(visit: WatchedPages, server: Stage, width: int, dark: bool) -> None:
    page = open_usage(visit, server, width=width, dark=dark)
    take_screenshot(page, f"usage-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
