"""Approvals in the page: in the conversation that waits for them, and in the inbox (spec: A1, A2, E4)."""

import itertools
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.pages import WatchedPages, accessibility_violations
from tests.console.scripted_server import ReportingTool, ScriptedServer, scripted_server
from tests.console.test_chat import answers, ask, call, log

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def mail(to: str) -> str:
    """A message that makes `echo` send a mail, which needs approval; no two are the same call."""
    return call("send_mail", to=to, number=next(_numbers))


def card(page: Page) -> Locator:
    return page.get_by_role("group", name="send_mail").last


def sent(server: ScriptedServer) -> list[str]:
    return [one.arguments["to"] for one in server.tools["send_mail"].calls]


def test_a_call_is_approved_with_edited_arguments(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, mail("ann"), "echo")
    arguments = card(page).get_by_role("textbox", name="Arguments")
    expect(arguments).to_have_value('{\n  "number": 1,\n  "to": "ann"\n}')
    assert accessibility_violations(page) == []
    arguments.fill('{"number": 1, "to": "bob"}')
    card(page).get_by_role("button", name="Approve").click()
    expect(answers(page)).to_have_count(1)
    expect(card(page)).to_contain_text("done")
    expect(log(page)).to_contain_text("sent to bob")
    assert sent(server)[-1] == "bob"


def test_a_number_keeps_all_its_digits_and_a_hidden_character_is_seen(
    visit: WatchedPages, server: ScriptedServer
) -> None:
    """spec: A2, E5"""
    page = visit(server.page)
    ask(page, 'call send_mail {"to": "ann\u200b\u202e", "number": 12345678901234567890}', "echo")
    arguments = card(page).get_by_role("textbox", name="Arguments")
    expect(arguments).to_have_value('{\n  "number": 12345678901234567890,\n  "to": "ann\\u200b\\u202e"\n}')
    arguments.fill('{"number": 12345678901234567891, "to": "eva"}')
    card(page).get_by_role("button", name="Approve").click()
    expect(log(page)).to_contain_text("sent to eva")
    assert server.tools["send_mail"].calls[-1].arguments["number"] == 12345678901234567891


def test_a_call_is_denied_and_not_run(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, mail("eve"), "echo")
    card(page).get_by_role("button", name="Deny", exact=True).click()
    expect(answers(page)).to_have_count(1)
    expect(card(page)).to_contain_text("denied")
    assert "eve" not in sent(server)


def test_an_approved_call_is_one_card_while_the_answer_goes_on(visit: WatchedPages, server: ScriptedServer) -> None:
    page, gate = visit(server.page), server.gate()
    steps = server.tools["steps"]
    assert isinstance(steps, ReportingTool)
    steps.gate = gate
    ask(page, f"{mail('nina')}\nthen\n{call('steps')}", "echo")
    card(page).get_by_role("textbox", name="Arguments").fill('{"to": "nora"}')
    card(page).get_by_role("button", name="Approve").click()
    expect(page.get_by_role("group", name="steps")).to_contain_text("running")
    expect(page.get_by_role("group", name="send_mail")).to_have_count(1)
    expect(card(page)).to_contain_text("done")
    gate.open()
    expect(answers(page)).to_have_count(1)


def test_arguments_that_are_no_json_are_refused_in_place(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, mail("carl"), "echo")
    card(page).get_by_role("textbox", name="Arguments").fill("{")
    card(page).get_by_role("button", name="Approve").click()
    expect(card(page).get_by_role("alert")).to_contain_text("not valid JSON")
    card(page).get_by_role("button", name="Deny", exact=True).click()
    expect(answers(page)).to_have_count(1)


def test_an_approval_outlives_a_reload(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, mail("dora"), "echo")
    expect(card(page)).to_contain_text("waiting for approval")
    page.reload()
    card(page).get_by_role("button", name="Approve").click()
    expect(log(page)).to_contain_text("sent to dora")


def test_two_conversations_that_make_the_same_call_are_asked_once(visit: WatchedPages, server: ScriptedServer) -> None:
    first, second, same = visit(server.page), visit(server.page), mail("otto")
    ask(first, same, "echo")
    expect(card(first)).to_contain_text("waiting for approval")
    ask(second, same, "echo")
    expect(card(second)).to_contain_text("waiting for approval")
    card(second).get_by_role("combobox", name="How long the approval holds").select_option("always")
    card(second).get_by_role("button", name="Approve").click()
    for page in (first, second):
        expect(log(page)).to_contain_text("sent to otto")
    httpx.post(f"{server.url}/v1/approvals/reset").raise_for_status()


def test_the_inbox_answers_a_call_that_another_page_waits_for(visit: WatchedPages, server: ScriptedServer) -> None:
    asking, inbox = visit(server.page), visit(f"{server.page}#/approvals")
    ask(asking, mail("fred"), "echo")
    expect(card(inbox)).to_contain_text("anonymous")
    expect(inbox.get_by_role("navigation").locator(".count")).to_have_text("1")
    expect(inbox).to_have_title("(1) Approvals · Toolgate")
    assert accessibility_violations(inbox) == []
    card(inbox).get_by_role("button", name="Approve").click()
    expect(log(asking)).to_contain_text("sent to fred")
    expect(inbox.get_by_role("heading", name="Nothing waits for you")).to_be_visible()
    history = inbox.get_by_role("region", name="History").get_by_role("row", name="fred")
    expect(history).to_contain_text("approved")
    id = httpx.get(f"{server.url}/v1/approvals?tool=send_mail&limit=1").json()["data"][0]["id"]
    inbox.goto(f"{server.page}#/approvals/{id}")  # as the timeline of its run links to it
    expect(inbox.get_by_role("region", name=f"Approval {id}")).to_contain_text('"to": "fred"')


def test_an_approval_for_the_session_holds_for_its_conversation_until_it_is_reset(
    visit: WatchedPages, server: ScriptedServer
) -> None:
    page = visit(server.page)
    ask(page, mail("gil"), "echo")
    card(page).get_by_role("combobox", name="How long the approval holds").select_option("session")
    card(page).get_by_role("button", name="Approve").click()
    expect(answers(page)).to_have_count(1)
    ask(page, mail("hal"))
    expect(log(page)).to_contain_text("sent to hal")  # nobody was asked
    other = visit(server.page)
    ask(other, mail("ida"), "echo")
    expect(card(other)).to_contain_text("waiting for approval")
    card(other).get_by_role("button", name="Deny", exact=True).click()

    page.get_by_role("link", name="Approvals").click()
    expect(page.get_by_role("region", name="Grants").get_by_role("row", name="send_mail")).to_be_visible()
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.get_by_role("heading", name="Approved for longer")).to_have_count(0)
    page.go_back()
    ask(page, mail("jo"))
    card(page).get_by_role("button", name="Deny", exact=True).click()
    expect(answers(page)).to_have_count(3)
    assert "jo" not in sent(server)


def test_all_that_waits_is_denied_at_once(visit: WatchedPages, server: ScriptedServer) -> None:
    page, inbox = visit(server.page), visit(f"{server.page}#/approvals")
    ask(page, f"{mail('kim')}\n{mail('leo')}", "echo")
    expect(page.get_by_role("group", name="send_mail")).to_have_count(2)
    inbox.get_by_role("button", name="Reject all").click()
    inbox.get_by_role("dialog").get_by_role("button", name="Reject all").click()
    expect(answers(page)).to_have_count(1)
    assert not {"kim", "leo"} & set(sent(server))


@pytest.mark.parametrize("decision", ["Approve", "Deny"])
def test_an_answer_that_ends_with_the_page_is_continued_after_the_decision(
    visit: WatchedPages, server: ScriptedServer, decision: str
) -> None:
    page = visit(server.page)
    page.get_by_role("button", name="Options").click()
    page.get_by_role("switch", name="Keep running when I leave").uncheck()
    page.get_by_role("button", name="Done").click()
    ask(page, mail(decision), "echo")
    card(page).get_by_role("button", name=decision).click()
    if decision == "Approve":
        expect(log(page)).to_contain_text("sent to Approve")
    else:
        expect(log(page)).to_contain_text("was not allowed")
    assert (decision in sent(server)) == (decision == "Approve")
    ask(page, "And now?")
    expect(log(page)).to_contain_text("And now?")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


HOLD_THE_END = """() => {
  const send = window.fetch;
  const released = new Promise((resolve) => (window.releaseTheEnd = resolve));
  window.fetch = async (...request) => {
    const response = await send(...request);
    if (request[1]?.method !== "POST" || !String(request[0]).endsWith("/v1/responses")) return response;
    window.fetch = send;
    const holding = new TransformStream({
      async transform(chunk, controller) {
        const end = new TextDecoder("latin1").decode(chunk).indexOf("event: response.completed");
        if (end >= 0) {
          controller.enqueue(chunk.subarray(0, end));
          await released;
        }
        controller.enqueue(end >= 0 ? chunk.subarray(end) : chunk);
      },
    });
    return new Response(response.body.pipeThrough(holding), response);
  };
}"""


def test_a_decision_that_is_made_before_the_answer_has_ended_continues_it(
    visit: WatchedPages, server: ScriptedServer
) -> None:
    page = visit(server.page)
    page.get_by_role("button", name="Options").click()
    page.get_by_role("switch", name="Keep running when I leave").uncheck()
    page.get_by_role("button", name="Done").click()
    page.evaluate(HOLD_THE_END)
    ask(page, mail("zoe"), "echo")
    card(page).get_by_role("button", name="Deny").click()
    expect(card(page)).to_contain_text("denied")
    page.evaluate("releaseTheEnd()")
    expect(log(page)).to_contain_text("was not allowed")
    assert "zoe" not in sent(server)
