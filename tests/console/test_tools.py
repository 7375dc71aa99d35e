"""The page Tools: finding a tool, reading what it takes, and running it through /mcp with the caller's rights."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.pages import LOOKS, WatchedPages, accessibility_violations, overflows, tab_to, take_screenshot
from tests.stage import Stage, on_stage
from tests.tools.execution.toolserver import WaryMcp
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.message import Media, Text
from toolgate.testing import FakeSource, FakeTool
from toolgate.tools.tool import Annotations, ToolOutput

ADA, BOB = "tg-" + "a" * 43, "tg-" + "b" * 43
KEYS = (
    KeySettings(name="ada", key=Secret(ADA), scopes=("chat", "tools", "admin")),
    KeySettings(name="bob", key=Secret(BOB), scopes=("chat", "tools"), tools=("weather",)),
)
CHANGING = Annotations(read_only=False, destructive=True, idempotent=False, open_world=True)
MAIL = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Who gets it."},
        "text": {"type": "string"},
        "copies": {"type": "integer", "minimum": 0, "default": 0},
        "priority": {"enum": ["low", "high"]},
        "cc": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object", "properties": {"html": {"type": "boolean"}}},
    },
    "required": ["to", "text"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Sent:
    """The mails that the tool was given."""

    def __init__(self) -> None:
        self.mails: list[Mapping[str, Any]] = []

    def give(self, arguments: Mapping[str, Any]) -> str:
        self.mails.append(arguments)
        return f"Sent to {arguments['to']}."


@pytest.fixture(scope="module")
def sent() -> Sent:
    return Sent()


@pytest.fixture(scope="module")
def server(sent: Sent) -> Iterator[Stage]:
    mail = FakeTool(
        "send_mail", sent.give, description="Send a mail.", input_schema=MAIL, tags=("mail",), annotations=CHANGING
    )
    weather = FakeTool("weather", lambda _: "<b>Rain</b>", description="Tell the weather.", input_schema=CITY)
    svg = Media("image", "image/svg+xml", base64.b64encode(b"<svg onload='alert(1)'/>").decode())
    trick = FakeTool(
        "trick",
        lambda _: ToolOutput((Text("\x1b[31mred \u202egnp.exe"), svg)),
        description="<img src=x onerror=alert(1)> \u202egnp.exe",
    )
    broken = FakeSource(name="mcp/wiki")
    broken.problem = "It does not answer."
    tools = ServerToolSettings(approvals=ApprovalSettings(self_approval=True))
    with on_stage(FakeSource(mail, weather, trick), broken, WaryMcp("shop"), keys=KEYS, tools=tools) as stage:
        yield stage


def open_tools(visit: WatchedPages, server: Stage, path: str = "", key: str = ADA, **options: Any) -> Page:
    page = visit(f"{server.url}/console/#/tools{path}", key=key, **options)
    expect(page.get_by_role("list", name="Tools")).to_be_visible()
    return page


def expect_names(page: Page, *names: str) -> None:
    expect(page.get_by_role("list", name="Tools").locator("b")).to_have_text(list(names))


def test_tools_are_found_by_words_tags_and_sources_which_the_address_keeps(visit: WatchedPages, server: Stage) -> None:
    page = open_tools(visit, server)
    expect_names(page, "calculator", "clock", "fetch", "send_mail", "trick", "weather", "shop_ask")
    page.get_by_role("searchbox", name="Search tools").fill("MAIL send")
    expect_names(page, "send_mail")
    page.reload()
    expect_names(page, "send_mail")
    page.get_by_role("searchbox", name="Search tools").fill("")
    page.get_by_label("Tag").select_option("math")
    expect_names(page, "calculator")
    page.get_by_label("Tag").select_option("")
    page.get_by_role("button", name="python").click()
    expect_names(page, "send_mail", "trick", "weather")


def test_a_source_that_fails_is_shown_with_its_reason(visit: WatchedPages, server: Stage) -> None:
    page = open_tools(visit, server)
    sources = page.get_by_role("region", name="Sources")
    expect(sources.get_by_role("button", name="mcp/wiki")).to_contain_text("not available")
    expect(sources).to_contain_text("It does not answer.")


def test_a_tool_shows_what_it_takes(visit: WatchedPages, server: Stage) -> None:
    page = open_tools(visit, server)
    page.get_by_role("link", name="send_mail").click()
    rows = page.get_by_role("region", name="Parameters of send_mail").get_by_role("row")
    expect(rows.nth(1)).to_have_text("to requiredstringWho gets it.")
    expect(rows.nth(3)).to_contain_text("≥ 0, default 0")
    expect(rows.nth(4)).to_contain_text('"low" | "high"')
    expect(rows.nth(7)).to_contain_text("html")
    assert page.url.endswith("#/tools/send_mail")


def test_a_tool_is_run_by_a_form_and_its_result_is_text(visit: WatchedPages, server: Stage) -> None:
    page = open_tools(visit, server, "/weather", key=BOB)
    form = page.get_by_role("region", name="Try it")
    form.get_by_role("button", name="Run tool").click()
    expect(form.get_by_role("alert")).to_have_text("This must be given.")
    form.get_by_role("textbox", name="city").fill("Oslo")
    form.get_by_role("button", name="Run tool").press("Enter")
    expect(form.locator("pre")).to_have_text("<b>Rain</b>")
    expect(form).to_contain_text("Done")


def test_a_run_waits_for_its_approval(visit: WatchedPages, server: Stage, sent: Sent) -> None:
    """spec: A1"""
    sent.mails.clear()
    page = open_tools(visit, server, "/send_mail")
    form = page.get_by_role("region", name="Try it")
    form.get_by_role("textbox", name="to", exact=False).first.fill("ann@example.org")
    form.get_by_role("textbox", name="text").fill("Hello")
    form.get_by_role("spinbutton", name="copies").fill("2")
    form.get_by_role("combobox", name="priority").select_option("high")
    form.get_by_role("textbox", name="cc").fill("bob\ncarl")
    form.get_by_role("combobox", name="html").select_option("true")
    form.get_by_role("button", name="Run tool").click()
    asked = form.get_by_role("group", name="Approval")
    expect(asked.get_by_role("button", name="Approve")).to_be_visible()
    assert sent.mails == []
    asked.get_by_role("button", name="Approve").click()
    expect(form.locator("pre")).to_have_text("Sent to ann@example.org.")
    options = {"html": True}
    expected = {"copies": 2, "priority": "high", "cc": ["bob", "carl"], "options": options}
    assert sent.mails == [{"to": "ann@example.org", "text": "Hello", **expected}]


def test_a_denied_run_fails_and_the_tool_is_not_run(visit: WatchedPages, server: Stage, sent: Sent) -> None:
    sent.mails.clear()
    page = open_tools(visit, server, "/send_mail")
    form = page.get_by_role("region", name="Try it")
    form.get_by_role("button", name="Edit as JSON").click()
    form.get_by_role("textbox", name="Arguments").fill('{"to": "eve", "text": "Hi"}')
    form.get_by_role("button", name="Run tool").click()
    form.get_by_role("button", name="Deny").click()
    expect(form).to_contain_text("Failed")
    assert sent.mails == []


def test_arguments_that_are_no_json_are_not_sent(visit: WatchedPages, server: Stage) -> None:
    page = open_tools(visit, server, "/weather")
    form = page.get_by_role("region", name="Try it")
    form.get_by_role("button", name="Edit as JSON").click()
    form.get_by_role("textbox", name="Arguments").fill("{city}")
    form.get_by_role("button", name="Run tool").click()
    expect(form.get_by_role("alert")).to_contain_text("This is not JSON")


def test_a_key_sees_the_tools_that_it_may_use(visit: WatchedPages, server: Stage) -> None:
    expect_names(open_tools(visit, server, key=BOB), "weather")


def test_a_changed_definition_is_compared_and_accepted(visit: WatchedPages, server: Stage) -> None:
    page = open_tools(visit, server)
    changed = page.get_by_role("region", name="Changed tool shop_odd")
    expect(changed.locator("del")).to_have_text("a")
    expect(changed.locator("ins")).to_have_text("b")
    assert accessibility_violations(page) == []
    changed.get_by_role("button", name="Accept the new definition").click()
    expect(changed).to_have_count(0)
    expect(page.get_by_role("link", name="shop_odd")).to_be_visible()


def test_a_tool_is_found_and_run_by_keyboard(visit: WatchedPages, server: Stage) -> None:
    """spec: E4"""
    page = open_tools(visit, server)
    tab_to(page, page.get_by_role("searchbox", name="Search tools"))
    page.keyboard.type("weather")
    expect_names(page, "weather")
    tab_to(page, page.get_by_role("list", name="Tools").get_by_role("link"))
    page.keyboard.press("Enter")
    pane = page.get_by_role("region", name="Tool weather")
    expect(pane).to_be_focused()
    tab_to(page, pane.get_by_role("textbox", name="city"))
    page.keyboard.type("Oslo")
    page.keyboard.press("Enter")
    expect(pane).to_contain_text("<b>Rain</b>")
    page.keyboard.press("Escape")
    expect(pane).to_have_count(0)
    expect(page.get_by_role("list", name="Tools").get_by_role("link")).to_be_focused()


def test_what_a_tool_says_of_itself_and_returns_cannot_deceive(visit: WatchedPages, server: Stage) -> None:
    """spec: E5"""
    page = open_tools(visit, server, "/trick")
    pane = page.get_by_role("region", name="Tool trick")
    expect(pane).to_contain_text("<img src=x onerror=alert(1)> U+202Egnp.exe")
    page.get_by_role("button", name="Run tool").click()
    expect(pane).to_contain_text("U+001B[31mred")
    expect(pane).to_contain_text("image/svg+xml")
    expect(pane.locator("img")).to_have_count(0)
    assert "\u202e" not in page.locator("body").inner_text()


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_is_accessible_and_fits(visit: WatchedPages, server: Stage, width: int, dark: bool) -> None:
    page = visit(f"{server.url}/console/#/tools/send_mail", key=ADA, width=width, dark=dark)
    page.get_by_role("region", name="Tool send_mail").wait_for()
    take_screenshot(page, f"tool-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
    page.get_by_role("region", name="Tool send_mail").press("Escape")
    expect(page.get_by_role("link", name="weather")).to_be_visible()
    take_screenshot(page, f"tools-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
