"""Chat, Approvals and Start on a phone and a desktop, in light and dark, by keyboard and for a screen reader."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.pages import WatchedPages, accessibility_violations, overflows, tab_to, take_screenshot
from tests.console.scripted_server import ScriptedServer, scripted_server
from tests.console.test_chat import answers, ask, call, log

RICH = (
    "## Plan\n\n1. one\n2. two\n\n> quoted\n\n```js\nconsole.log(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    + "x" * 300
)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_pages_are_accessible_and_fit(visit: WatchedPages, server: ScriptedServer, width: int, dark: bool) -> None:
    """spec: E4"""
    name = f"{width}-{'dark' if dark else 'light'}"
    page = visit(server.page, width=width, dark=dark)
    expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
    check(page, f"welcome-{name}")
    server.play(RICH)
    ask(page, "Make a plan.", "played")
    expect(answers(page)).to_have_count(1)
    ask(page, f"{call('add', a=1, b=2)}\n{call('broken')}", "echo")
    expect(answers(page)).to_have_count(2)
    check(page, f"chat-{name}")
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_role("checkbox", name="add")).to_be_visible()
    check(page, f"options-{name}")
    page.get_by_role("button", name="Done").click()
    ask(page, call("send_mail", to=name))
    expect(log(page).get_by_role("button", name="Approve")).to_be_visible()
    check(page, f"approval-{name}")
    page.get_by_role("navigation").get_by_role("link", name="Approvals").click()
    expect(page.get_by_role("group", name="send_mail")).to_be_visible()
    check(page, f"approvals-{name}")
    page.get_by_role("button", name="Deny", exact=True).click()
    expect(page.get_by_role("heading", name="Nothing waits for you")).to_be_visible()
    page.get_by_role("link", name="Toolgate").click()
    page.get_by_role("tab", name="Anthropic").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("from anthropic import Anthropic")
    check(page, f"start-{name}")


def check(page: Page, name: str) -> None:
    take_screenshot(page, name)
    assert (accessibility_violations(page), overflows(page)) == ([], 0), name


def test_a_chat_with_a_tool_and_an_approval_needs_no_mouse(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    keyboard = page.keyboard
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    keyboard.type("First line")
    keyboard.press("Shift+Enter")
    keyboard.type(call("send_mail", to="keys"))
    keyboard.press("Enter")
    approve = log(page).get_by_role("button", name="Approve")
    expect(approve).to_be_visible()
    for _ in range(30):
        if approve.evaluate("one => one === document.activeElement"):
            break
        keyboard.press("Shift+Tab")
    expect(approve).to_be_focused()
    keyboard.press("Enter")
    expect(log(page)).to_contain_text("sent to keys")
    expect(log(page).get_by_role("group", name="send_mail")).to_have_count(1)
    head = log(page).get_by_role("group", name="send_mail").get_by_role("button", name="Details")
    head.focus()
    keyboard.press("Enter")
    expect(head).to_have_attribute("aria-expanded", "true")


def test_the_examples_of_the_start_page_are_reached_by_keyboard(visit: WatchedPages, server: ScriptedServer) -> None:
    """spec: E4"""
    page = visit(f"{server.page}#/start")
    tab_to(page, page.get_by_role("tab", name="curl"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Anthropic")).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_contain_text("from anthropic import Anthropic")
    tab_to(page, page.get_by_role("tabpanel").get_by_role("button", name="Copy code"))
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tabpanel")).to_contain_text("from openai import OpenAI")


def test_escape_stops_an_answer(visit: WatchedPages, server: ScriptedServer) -> None:
    page, gate = visit(server.page), server.gate()
    server.play("A very long answer indeed.", pace=gate.after(6))
    ask(page, "Talk.", "played")
    expect(log(page)).to_contain_text("A very")
    page.get_by_role("textbox", name="Message").press("Escape")
    expect(log(page)).to_contain_text("Stopped.")
    gate.open()


def test_the_theme_follows_the_system_until_it_is_chosen(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page, dark=True)
    html = page.locator("html")
    expect(html).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(html).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Use the dark theme").click()
    expect(html).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(html).to_have_attribute("data-theme", "dark")
