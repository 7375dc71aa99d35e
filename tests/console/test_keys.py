"""The page Keys: a key is made, changed, rotated and revoked by an administrator, and by no other key."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.console.pages import LOOKS, WatchedPages, accessibility_violations, overflows, tab_to, take_screenshot
from tests.stage import Stage, on_stage
from toolgate.config import KeySettings, Secret

ADA, GUEST, ROOT = ("tg-" + letter * 43 for letter in "agr")
KEYS = (
    KeySettings(name="ada", key=Secret(ADA), scopes=("chat", "tools", "admin")),
    KeySettings(name="guest", key=Secret(GUEST), scopes=("chat",)),
    KeySettings(name="root", key=Secret(ROOT), scopes=("tools", "admin")),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Stage]:
    with on_stage(keys=KEYS) as stage:
        yield stage


def open_keys(visit: WatchedPages, server: Stage) -> Page:
    page = visit(f"{server.url}/console/#/keys", key=ADA, failures=[400, 409])
    expect(page.get_by_role("listitem", name="Key ada")).to_be_visible()
    return page


def status_of(server: Stage, secret: str) -> int:
    return httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {secret}"}).status_code


def create(page: Page, name: str) -> str:
    """Make a key by the dialog, and return the secret that is shown."""
    page.get_by_role("button", name="New key").click()
    page.get_by_role("textbox", name="Name").fill(name)
    page.get_by_role("button", name="Create key").click()
    secret = page.get_by_role("textbox", name="Secret").input_value()
    page.get_by_role("button", name="I have saved it").click()
    return secret


def test_a_key_is_made_used_and_revoked(visit: WatchedPages, server: Stage) -> None:
    """spec: E5"""
    page = open_keys(visit, server)
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog", name="New key")
    dialog.get_by_role("textbox", name="Name").fill("carl")
    dialog.get_by_role("textbox", name="Owner").fill("Sales")
    dialog.get_by_role("checkbox", name="tools").check()
    dialog.get_by_role("combobox", name="Models").fill("openai_*, ollama")
    dialog.get_by_role("spinbutton", name="Requests a minute").fill("60")
    dialog.get_by_role("spinbutton", name="Budget in $").fill("25")
    dialog.get_by_role("combobox", name="Expires").select_option("90")
    dialog.get_by_role("button", name="Create key").click()
    secret = page.get_by_role("textbox", name="Secret").input_value()
    assert secret.startswith("tg-")
    assert status_of(server, secret) == 200
    page.get_by_role("button", name="I have saved it").click()

    carl = page.get_by_role("listitem", name="Key carl")
    for text in (
        "chat",
        "tools",
        "openai_*",
        "ollama",
        "60 requests/min",
        "Sales",
        "of $25.00 a month",
        "expires in 90",
    ):
        expect(carl).to_contain_text(text)
    assert secret not in page.content()

    carl.get_by_role("button", name="Revoke carl").click()
    page.get_by_role("dialog", name="Revoke carl?").get_by_role("button", name="Revoke the key").click()
    expect(carl).to_have_count(0)
    assert status_of(server, secret) == 401
    page.get_by_label("State").select_option("revoked")
    expect(carl).to_contain_text("revoked")


def test_a_key_is_made_and_revoked_with_the_keyboard_alone(visit: WatchedPages, server: Stage) -> None:
    """spec: E4"""
    page = open_keys(visit, server)
    tab_to(page, page.get_by_role("button", name="New key"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("textbox", name="Name"))
    page.keyboard.type("hanna")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Secret")).to_be_visible()
    page.keyboard.press("Escape")
    tab_to(page, page.get_by_role("button", name="Revoke hanna"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Revoke the key"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("listitem", name="Key hanna")).to_have_count(0)


def test_the_limits_of_a_key_are_changed(visit: WatchedPages, server: Stage) -> None:
    page = open_keys(visit, server)
    create(page, "dora")
    page.get_by_role("button", name="Change dora").click()
    dialog = page.get_by_role("dialog", name="Change dora")
    dialog.get_by_role("spinbutton", name="At the same time").fill("3")
    dialog.get_by_role("checkbox", name="chat").uncheck()
    dialog.get_by_role("checkbox", name="tools").check()
    dialog.get_by_role("button", name="Save").click()
    dora = page.get_by_role("listitem", name="Key dora")
    expect(dora).to_contain_text("3 at a time")
    expect(dora.locator(".badge")).to_have_text(["active", "tools"])


def test_a_rotated_key_keeps_its_former_secret_for_the_grace(visit: WatchedPages, server: Stage) -> None:
    page = open_keys(visit, server)
    former = create(page, "emil")
    page.get_by_role("button", name="Rotate emil").click()
    page.get_by_label("The former secret ends").select_option("In an hour")
    page.get_by_role("button", name="Make a new secret").click()
    secret = page.get_by_role("textbox", name="Secret").input_value()
    assert (status_of(server, former), status_of(server, secret), former != secret) == (200, 200, True)
    page.get_by_role("button", name="I have saved it").click()
    expect(page.get_by_role("listitem", name="Key emil")).to_contain_text("former secret valid")


def test_a_refusal_is_shown_at_its_field_and_what_was_typed_stays(visit: WatchedPages, server: Stage) -> None:
    page = open_keys(visit, server)
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog", name="New key")
    dialog.get_by_role("textbox", name="Name").fill("guest")
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.get_by_role("alert")).to_contain_text("take another name")
    dialog.get_by_role("textbox", name="Name").fill("fritz")
    dialog.get_by_role("combobox", name="Models").fill("nonesuch")
    dialog.get_by_role("textbox", name="Name").press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("There is no model 'nonesuch'")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="New key")).to_be_focused()


def test_a_key_of_the_configuration_cannot_be_changed_here(visit: WatchedPages, server: Stage) -> None:
    ada = open_keys(visit, server).get_by_role("listitem", name="Key ada")
    expect(ada).to_contain_text("configuration")
    expect(ada.get_by_role("button")).to_have_count(0)


@pytest.mark.parametrize("path", ["keys", "tools", "approvals"])
def test_a_key_with_the_scope_chat_is_refused_other_pages(visit: WatchedPages, server: Stage, path: str) -> None:
    """spec: E4"""
    page = visit(f"{server.url}/console/#/{path}", key=GUEST)
    expect(page.get_by_role("main")).to_contain_text("This key may not open")
    links = page.get_by_role("navigation").get_by_role("link")
    expect(links.filter(has_text="Usage")).to_be_visible()
    expect(links.filter(has_text="Keys")).to_have_count(0)
    assert accessibility_violations(page) == []


def test_a_key_without_the_scope_chat_manages_keys(visit: WatchedPages, server: Stage) -> None:
    page = visit(f"{server.url}/console/#/keys", key=ROOT, failures=[403])
    expect(page.get_by_role("listitem", name="Key root")).to_be_visible()
    links = page.get_by_role("navigation").get_by_role("link")
    expect(links).to_have_text(["Approvals", "Tools", "Keys"])


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_is_accessible_and_fits(visit: WatchedPages, server: Stage, width: int, dark: bool) -> None:
    page = visit(f"{server.url}/console/#/keys", key=ADA, width=width, dark=dark)
    expect(page.get_by_role("listitem", name="Key ada")).to_be_visible()
    take_screenshot(page, f"keys-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
    page.get_by_role("button", name="New key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    take_screenshot(page, f"key-dialog-{width}-{'dark' if dark else 'light'}")
    assert (accessibility_violations(page), overflows(page)) == ([], 0)
