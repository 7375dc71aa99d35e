"""The page Runs: the list, the timeline as it grows, cancelling, and forks with another model, result or message."""

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.pages import LOOKS, WatchedPages, accessibility_violations, overflows, tab_to, take_screenshot
from tests.stage import Stage, on_stage
from tests.tools.execution.toolwork import AUTO, call
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.message import Text
from toolgate.testing import FakeSource, FakeTool

ADA, GUEST = "tg-" + "a" * 43, "tg-" + "g" * 43
KEYS = (
    KeySettings(name="ada", key=Secret(ADA), scopes=("chat", "tools", "admin")),
    KeySettings(name="guest", key=Secret(GUEST), scopes=("chat",)),
)
CITY: Mapping[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


class Weather:
    """A tool that counts its calls, and answers when its gate is open."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = threading.Event()

    async def give(self, arguments: Mapping[str, Any]) -> str:
        self.calls += 1
        await asyncio.to_thread(self.gate.wait, 60)
        return f"Rain in {arguments.get('city')}."

    def tool(self) -> FakeTool:
        return FakeTool("weather", self.give, description="Tell the weather.", input_schema=CITY, timeout=60.0)


@pytest.fixture(scope="module")
def of_the_module() -> Iterator[tuple[Stage, Weather]]:
    weather, tools = Weather(), ServerToolSettings(approvals=ApprovalSettings(default="allow"))
    with on_stage(FakeSource(weather.tool()), keys=KEYS, tools=tools) as stage:
        yield stage, weather
        weather.gate.set()


@pytest.fixture
def server(of_the_module: tuple[Stage, Weather]) -> Stage:
    return of_the_module[0]


@pytest.fixture
def weather(of_the_module: tuple[Stage, Weather]) -> Weather:
    """The tool, with its gate open and no calls yet."""
    weather = of_the_module[1]
    weather.calls = 0
    weather.gate.set()
    return weather


def two_calls() -> list[Any]:
    return [Text("Let me look."), call("weather", '{"city":"Oslo"}'), call("weather", '{"city":"Rome"}', 2)]


def start(server: Stage, key: str = ADA, **fields: Any) -> str:
    """Ask in the background; the id of the run."""
    body = {"model": "openai_chat", "input": "How is the weather?", "background": True, **AUTO, **fields}
    made = httpx.post(f"{server.url}/v1/responses", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)
    return str(made.json()["id"])


def open_run(visit: WatchedPages, server: Stage, id: str, **options: Any) -> Page:
    return visit(f"{server.url}/console/#/runs/{id}", key=ADA, **options)


def expect_state(page: Page, state: str) -> None:
    expect(page.locator(".page-head .badge")).to_have_text(state)


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name="Timeline").get_by_role("button", name=name)


def test_a_run_is_followed_live_and_shows_what_ran_side_by_side(
    visit: WatchedPages, server: Stage, weather: Weather
) -> None:
    """spec: E8"""
    weather.gate.clear()
    server.play(two_calls(), "It rains.")
    page = open_run(visit, server, start(server))
    expect_state(page, "running")
    first, second = row(page, "Call 1.1 weather running"), row(page, "Call 1.2 weather running")
    expect(first).to_be_visible()
    expect(second).to_be_visible()
    weather.gate.set()
    expect_state(page, "completed")
    first, second = row(page, "Call 1.1 weather completed"), row(page, "Call 1.2 weather completed")
    one, other = first.locator(".bar").bounding_box(), second.locator(".bar").bounding_box()
    assert one is not None
    assert other is not None
    assert one["x"] < other["x"] + other["width"]
    assert other["x"] < one["x"] + one["width"]
    first.click()
    detail = page.get_by_role("region", name="Timeline")
    expect(detail).to_contain_text('"city": "Oslo"')
    expect(detail).to_contain_text("Rain in Oslo.")
    row(page, "Step 2").press("Enter")
    expect(detail).to_contain_text("It rains.")
    expect(detail.locator(".offered").first).to_contain_text("weather")


def test_a_fork_takes_another_model_and_an_edited_result_and_repeats_no_call(
    visit: WatchedPages, server: Stage, weather: Weather
) -> None:
    """spec: E8"""
    script = server.play(two_calls(), "It rains.", "The sun shines in Oslo.")
    page = open_run(visit, server, start(server))
    expect_state(page, "completed")
    page.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog", name="Fork this run")
    dialog.get_by_role("combobox", name="Model").select_option("anthropic")
    dialog.get_by_role("textbox", name="Result of 1.1 weather").fill("Sun in Oslo.")
    dialog.get_by_role("button", name="Start the fork").click()
    expect(page.get_by_role("heading", name="anthropic")).to_be_visible()
    expect_state(page, "completed")
    expect(page.locator(".facts")).to_contain_text("after step 1")
    expect(row(page, "Call 1.1 weather")).to_contain_text("copied")
    row(page, "Step 2").click()
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("The sun shines in Oslo.")
    assert weather.calls == 2
    asked = str(script.requests[2].messages)
    assert "Sun in Oslo." in asked
    assert "Rain in Rome." in asked
    assert "Rain in Oslo." not in asked


def test_a_fork_from_the_start_takes_an_edited_message(visit: WatchedPages, server: Stage, weather: Weather) -> None:
    script = server.play(two_calls(), "It rains.", "Hello.")
    page = open_run(visit, server, start(server))
    expect_state(page, "completed")
    page.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog", name="Fork this run")
    dialog.get_by_role("combobox", name="Continue after").select_option("0")
    message = dialog.get_by_role("textbox", name="Message")
    expect(message).to_have_value("How is the weather?")
    message.fill("Just say hello.")
    dialog.get_by_role("button", name="Start the fork").click()
    expect(page.locator(".facts")).to_contain_text("from the start")
    expect_state(page, "completed")
    assert "Just say hello." in str(script.requests[2].messages)
    assert "How is the weather?" not in str(script.requests[2].messages)


def test_a_running_run_is_cancelled(visit: WatchedPages, server: Stage, weather: Weather) -> None:
    weather.gate.clear()
    server.play(two_calls(), "It rains.")
    page = open_run(visit, server, start(server))
    expect(row(page, "Call 1.2 weather running")).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect_state(page, "cancelled")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_the_list_is_filtered_and_leads_to_a_run(visit: WatchedPages, server: Stage, weather: Weather) -> None:
    server.play("Fine.", two_calls(), "It rains.")
    start(server, GUEST, model="ollama")
    open_run(visit, server, last := start(server, ADA, model="anthropic")).close()
    page = visit(f"{server.url}/console/#/runs?model=anthropic", key=ADA)
    runs = page.get_by_role("list", name="Runs").get_by_role("listitem")
    expect(runs.first).to_contain_text("2 steps · 2 calls")
    expect(runs.first).to_contain_text("completed")
    page.get_by_role("combobox", name="Key").select_option("guest")
    expect(page.get_by_role("heading", name="No run matches")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("combobox", name="Model").select_option("anthropic")
    runs.first.get_by_role("link").click()
    expect_state(page, "completed")
    assert page.url.endswith(last)


def test_a_key_sees_its_own_runs(visit: WatchedPages, server: Stage, weather: Weather) -> None:
    server.play("Fine.", "Fine.")
    own, foreign = start(server, GUEST, model="ollama"), start(server, ADA)
    page = visit(f"{server.url}/console/#/runs", key=GUEST, failures=[404])
    expect(page.locator(f'a[href="#/runs/{own}"]')).to_be_visible()
    expect(page.locator(f'a[href="#/runs/{foreign}"]')).to_have_count(0)
    page.goto(f"{server.url}/console/#/runs/{foreign}")
    expect(page.get_by_role("alert")).to_be_visible()


def test_a_run_whose_content_is_not_stored_cannot_be_forked(
    visit: WatchedPages, server: Stage, weather: Weather
) -> None:
    server.play(two_calls(), "It rains.")
    body = {"model": "openai_chat", "messages": [{"role": "user", "content": "Go."}], **AUTO}
    headers = {"authorization": f"Bearer {ADA}"}
    made = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    page = open_run(visit, server, made.headers["x-request-id"])
    expect_state(page, "completed")
    expect(page.get_by_role("main")).to_contain_text("cannot be forked")
    expect(page.get_by_role("button", name="Fork")).to_be_disabled()
    expect(page.get_by_role("button", name="Fork")).to_have_accessible_description(re.compile("store no contents"))
    row(page, "Call 1.1 weather").click()
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("are not stored")


def test_a_run_is_found_read_and_forked_by_keyboard(visit: WatchedPages, server: Stage, weather: Weather) -> None:
    """spec: E4"""
    server.play(two_calls(), "It rains.", "It rains again.")
    made = start(server)
    page = visit(f"{server.url}/console/#/runs", key=ADA)
    tab_to(page, page.locator(f'a[href="#/runs/{made}"]'))
    page.keyboard.press("Enter")
    expect_state(page, "completed")
    tab_to(page, row(page, "Call 1.2 weather"))
    page.keyboard.press("Space")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("Rain in Rome.")
    fork = page.get_by_role("button", name="Fork")
    for _ in range(30):
        if fork.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Fork this run")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(fork).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, dialog.get_by_role("button", name="Start the fork"))
    page.keyboard.press("Enter")
    expect(page.locator(".facts")).to_contain_text("after step 1")
    expect_state(page, "completed")


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_pages_are_accessible_and_fit(
    visit: WatchedPages, server: Stage, weather: Weather, width: int, dark: bool
) -> None:
    name = f"{width}-{'dark' if dark else 'light'}"
    server.play(two_calls(), "It rains.")
    page = open_run(visit, server, start(server), width=width, dark=dark)
    expect_state(page, "completed")
    row(page, "Call 1.1 weather").click()
    take_screenshot(page, f"run-{name}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("How is the weather?")
    take_screenshot(page, f"fork-{name}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("list", name="Runs").get_by_role("listitem").first).to_be_visible()
    take_screenshot(page, f"runs-{name}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
