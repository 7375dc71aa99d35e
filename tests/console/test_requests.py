"""The page Requests: one line a request, filters and details with an address, and browsing by keys."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

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
    """A server that was asked by two keys: three answers, a refusal and an upstream that fails."""
    with on_stage(keys=KEYS) as stage:
        stage.play("One.", "Two.", "Three.", UpstreamUnavailable("The power is out."))
        ask(stage, ADA, "openai_chat")
        ask(stage, ADA, "anthropic", stream=True)
        ask(stage, GUEST, "ollama")
        ask(stage, GUEST, "openai_responses")
        ask(stage, GUEST, "nonesuch")
        yield stage


def ask(stage: Stage, key: str, model: str, **fields: Any) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{stage.url}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code


def open_requests(visit: WatchedPages, server: Stage, address: str = "", key: str = ADA, **options: Any) -> Page:
    page = visit(f"{server.url}/console/#/requests{address}", key=key, **options)
    expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_attached()
    return page


def rows(page: Page) -> Locator:
    return page.get_by_role("region", name="Requests", exact=True).locator("tbody tr")


def expect_models(page: Page, *models: str) -> None:
    expect(rows(page).locator("td:nth-child(3)")).to_have_text(list(models))


ALL = ("openai_responses", "ollama", "anthropic", "openai_chat")


def test_every_request_is_listed_with_its_status_and_key(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "?dialect=openai_chat")
    expect_models(page, *ALL)
    expect(rows(page).locator("td:nth-child(2)")).to_have_text(["502", "200", "200", "200"])
    expect(rows(page).nth(1)).to_contain_text("guest")


@pytest.mark.parametrize(
    ("filters", "models"),
    [
        ({"Key": "ada"}, ALL[2:]),
        ({"Model": "ollama"}, ("ollama",)),
        ({"Status": "5xx"}, ALL[:1]),
        ({"Status": "2xx", "Key": "guest"}, ALL[1:2]),
        ({"Time": "hour"}, ALL),
    ],
    ids=str,
)
def test_filters_narrow_the_list_and_stay_in_the_address(
    visit: WatchedPages, server: Stage, filters: dict[str, str], models: tuple[str, ...]
) -> None:
    page = open_requests(visit, server, "?dialect=openai_chat")
    expect_models(page, *ALL)
    for label, choice in filters.items():
        page.get_by_role("combobox", name=label, exact=True).select_option(choice)
    expect_models(page, *models)
    page.reload()
    expect_models(page, *models)


def test_words_find_requests_by_model_and_error(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "?dialect=openai_chat")
    page.get_by_role("searchbox").fill("power is out")
    expect_models(page, "openai_responses")
    page.get_by_role("button", name="Clear").click()
    expect(rows(page).nth(1)).to_be_visible()


def test_a_failed_upstream_is_explained_at_an_address_of_its_own(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "?status=5xx")
    expect_models(page, "openai_responses")
    rows(page).first.click()
    expect(page.locator(".pane")).to_contain_text("The power is out.")
    again = open_requests(visit, server, page.url.partition("#/requests")[2])
    expect(again.locator(".pane")).to_contain_text("The power is out.")


def test_a_refused_request_says_why(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "?status=4xx")
    rows(page).first.click()
    expect(page.locator(".pane")).to_contain_text("The model 'nonesuch' does not exist")


def test_requests_are_browsed_by_keys_alone(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "?dialect=openai_chat")
    expect_models(page, *ALL)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    pane = page.locator(".pane")
    expect(pane).to_contain_text("The power is out.")
    page.keyboard.press("j")
    expect(pane).to_contain_text("ollama · Ollama")
    page.keyboard.press("j")
    expect(pane).to_contain_text("anthropic · Messages")
    page.keyboard.press("Escape")
    expect(pane).to_have_count(0)


def test_a_key_sees_its_own_requests(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "?dialect=openai_chat", key=GUEST)
    expect_models(page, *ALL[:2])
    expect(page.get_by_role("combobox", name="Key")).to_have_count(0)


def test_a_request_that_is_not_there_is_said_to_be_missing(visit: WatchedPages, server: Stage) -> None:
    page = open_requests(visit, server, "/req_nonesuch", failures=[404])
    expect(page.get_by_role("region", name="Request req_nonesuch").get_by_role("alert")).to_be_visible()


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_is_accessible_and_fits(visit: WatchedPages, server: Stage, width: int, dark: bool) -> None:
    page = open_requests(visit, server, "?dialect=openai_chat", width=width, dark=dark)
    expect_models(page, *ALL)
    take_screenshot(page, f"requests-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
    rows(page).nth(2).click()
    expect(page.locator(".pane")).to_contain_text("First token")
    take_screenshot(page, f"request-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
