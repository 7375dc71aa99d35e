"""A server that asks for keys: the page asks its user for one, and keeps it no longer than its user wants."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.pages import WatchedPages, accessibility_violations, overflows, take_screenshot
from tests.console.scripted_server import ScriptedServer, scripted_server
from tests.console.test_chat import answers, ask, call, log
from toolgate.config import KeySettings, Secret

ADA, GUEST = "tg-" + "a" * 43, "tg-" + "g" * 43
KEYS = (
    KeySettings(name="ada", key=Secret(ADA), scopes=("chat", "tools", "admin")),
    KeySettings(name="guest", key=Secret(GUEST), scopes=("chat",)),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(keys=KEYS) as server:
        yield server


def enter(page: Page, key: str, keep: bool = False) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    if keep:
        page.get_by_role("checkbox", name="Keep it until this tab is closed").check()
    page.get_by_role("button", name="Continue").click()


def test_a_wrong_key_is_refused_and_a_good_one_opens_the_page(visit: WatchedPages, server: ScriptedServer) -> None:
    """spec: E4, E5"""
    page = visit(server.page, failures=[401])
    enter(page, "tg-" + "w" * 43)
    expect(page.get_by_role("alert")).to_be_visible()
    enter(page, ADA)
    ask(page, call("add", a=1, b=2), "echo")
    expect(log(page).get_by_role("group", name="add")).to_contain_text("3")
    assert ADA not in page.content()


def test_the_key_is_entered_by_keyboard(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page, failures=[401])
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.keyboard.type(GUEST)
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_a_key_is_forgotten_with_the_page_unless_its_user_keeps_it(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page, failures=[401])
    enter(page, ADA)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    page.reload()
    enter(page, ADA, keep=True)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    page.reload()
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    page.get_by_role("button", name="Forget the key").click()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    assert page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])").count("tg-") == 0


def test_conversations_of_one_key_are_not_shown_to_another(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page, failures=[401])
    enter(page, ADA)
    ask(page, "A secret of Ada", "echo")
    expect(answers(page)).to_have_count(1)
    address = page.url
    page.get_by_role("button", name="Forget the key").click()
    enter(page, GUEST)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    expect(page.get_by_text("A secret of Ada")).to_have_count(0)
    page.goto(address)
    expect(page.get_by_role("heading", name="This conversation is not in this browser")).to_be_visible()
    expect(page.get_by_text("A secret of Ada")).to_have_count(0)


def test_a_late_refusal_does_not_end_the_use_of_a_key_that_was_entered_meanwhile(
    visit: WatchedPages, server: ScriptedServer
) -> None:
    """Without a key the page asks the server whether it needs one, and the answer may come after the next key is entered."""
    page = visit(server.page, failures=[401])
    enter(page, ADA)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    late: list[Route] = []

    def hold_without_key(route: Route) -> None:
        if "authorization" in route.request.headers:
            route.continue_()
        else:
            late.append(route)

    page.route("**/v1/status", hold_without_key)
    page.get_by_role("button", name="Forget the key").click()
    enter(page, GUEST)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    assert late
    with page.expect_response(lambda response: response.status == 401):
        for route in late:
            route.continue_()
    ask(page, "Still here", "echo")
    expect(answers(page)).to_have_count(1)


def test_a_key_that_may_only_chat_is_asked_in_its_conversation(visit: WatchedPages, server: ScriptedServer) -> None:
    """The run of such a key ends with the question, since the key cannot see one that waits elsewhere."""
    page = visit(server.page, key=GUEST, failures=[403])
    ask(page, call("add", a=2, b=2), "echo")
    expect(answers(page)).to_have_count(1)
    expect(page.get_by_role("navigation").get_by_role("link", name="Approvals")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_that_asks_for_a_key_is_accessible_and_fits(
    visit: WatchedPages, server: ScriptedServer, dark: bool
) -> None:
    page = visit(server.page, width=360, dark=dark, failures=[401])
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    take_screenshot(page, f"sign-in-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
