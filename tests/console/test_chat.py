"""The chat in a real browser against a real server (spec: E4)."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.pages import WatchedPages
from tests.console.scripted_server import PIXEL, ReportingTool, ScriptedServer, scripted_server
from tests.stage import UPSTREAMS, on_stage
from toolgate.config import BUILTIN, ModelConfig, TargetConfig
from toolgate.config.settings import PriceSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Media, Reasoning, Text, ToolCall

# Makes each change to the browser's storage wait for many reads, as on a busy disk.
SLOW_STORAGE = """
const begin = IDBDatabase.prototype.transaction;
IDBDatabase.prototype.transaction = function (stores, mode, ...rest) {
  const transaction = begin.call(this, stores, mode, ...rest);
  let left = mode === "readwrite" ? 3000 : 0;
  const read = () => left-- > 0 && (transaction.objectStore(transaction.objectStoreNames[0]).count().onsuccess = read);
  read();
  return transaction;
};
"""
HOSTILE = """<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>

[a link](javascript:document.title='owned') and [another](data:text/html,owned) and [a good one](https://example.com/)

![remote](https://example.com/pixel.png) and user\u202egnp.exe
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def ask(page: Page, text: str, model: str | None = None) -> None:
    """Type a message and send it."""
    if model is not None:
        page.get_by_role("combobox", name="Model").select_option(model)
    message = page.get_by_role("textbox", name="Message")
    message.fill(text)
    message.press("Enter")


def answers(page: Page) -> Locator:
    """The complete answers: each has a button that copies it."""
    return page.get_by_role("button", name="Copy answer")


def log(page: Page) -> Locator:
    return page.get_by_role("log")


def call(tool: str, **arguments: object) -> str:
    """What makes `echo` call a tool."""
    return f"call {tool} {json.dumps(arguments)}"


def test_an_answer_is_streamed_and_its_markdown_is_rendered(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    server.play("# Plan\n\nFirst **this**, then `that`:\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    ask(page, "Make a plan.", "played")
    expect(answers(page)).to_have_count(1)
    expect(log(page).get_by_role("heading", name="Plan")).to_be_visible()
    expect(log(page).locator("strong", has_text="this")).to_be_visible()
    expect(log(page).locator("pre")).to_have_text("print(1)")
    expect(log(page).get_by_role("cell", name="2")).to_be_visible()
    expect(log(page).get_by_role("button", name="Copy code")).to_be_visible()


def test_an_answer_is_shown_while_it_grows(visit: WatchedPages, server: ScriptedServer) -> None:
    page, gate = visit(server.page), server.gate()

    server.play("one two three four five six seven", pace=gate.after(4))
    ask(page, "Count.", "played")
    expect(log(page)).to_contain_text("one two")
    expect(log(page)).not_to_contain_text("seven")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    gate.open()
    expect(log(page)).to_contain_text("six seven")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_the_chat_works_over_all_upstream_dialects_and_the_model_changes_in_its_middle(visit: WatchedPages) -> None:
    with on_stage() as stage:
        page = visit(f"{stage.url}/console/")
        for number, dialect in enumerate(UPSTREAMS, 1):
            model = stage.play(f"I am **{dialect}**.")
            ask(page, f"Who are you, {dialect}?", dialect)
            expect(answers(page)).to_have_count(number)
            expect(log(page).locator("strong", has_text=dialect)).to_be_visible()
        asked = [
            part.text for message in model.requests[-1].messages for part in message.parts if isinstance(part, Text)
        ]
        assert len(asked) == 2 * len(UPSTREAMS) - 1  # the model gets what the others were asked and answered
        page.close()


def test_a_tool_call_is_a_card_with_its_arguments_and_its_result(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, call("add", a=20, b=22), "echo")
    card = log(page).get_by_role("group", name="add")
    expect(card).to_contain_text("done")
    expect(card).to_contain_text('{"a": 20, "b": 22}')
    expect(card).to_contain_text("42")
    card.get_by_role("button", name="Details").click()
    expect(card.get_by_text("Result", exact=True)).to_be_visible()
    expect(card.get_by_role("button", name="Copy arguments")).to_be_visible()


def test_a_failed_call_an_image_and_the_progress_of_a_call_are_shown(
    visit: WatchedPages, server: ScriptedServer
) -> None:
    page, gate = visit(server.page), server.gate()
    ask(page, f"{call('broken')}\n{call('draw')}", "echo")
    expect(log(page).get_by_role("group", name="broken")).to_contain_text("failed")
    expect(log(page).get_by_role("img", name="Image from draw")).to_be_visible()
    expect(answers(page)).to_have_count(1)
    steps = server.tools["steps"]
    assert isinstance(steps, ReportingTool)
    steps.gate = gate
    ask(page, call("steps"))
    expect(log(page).get_by_role("group", name="steps")).to_contain_text("running")
    expect(log(page)).to_contain_text("halfway")
    gate.open()
    expect(log(page).get_by_role("group", name="steps")).to_contain_text("done")


def test_server_tools_can_be_switched_off(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    tools = page.get_by_role("switch", name="Server tools")
    expect(tools).to_be_checked()
    tools.uncheck()
    model = server.play("No tools here.")
    ask(page, "Add.", "played")
    expect(log(page)).to_contain_text("No tools here.")
    assert model.requests[0].tools == ()


def test_chosen_tools_and_instructions_are_sent(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    page.get_by_role("button", name="Options").click()
    page.get_by_role("textbox", name="Instructions").fill("Be brief.")
    page.get_by_role("button", name="None", exact=True).click()
    page.get_by_role("searchbox", name="Search tools").fill("add")
    page.get_by_role("checkbox", name="add").check()
    page.get_by_role("button", name="Done").click()
    model = server.play("Yes.")
    ask(page, "Hello", "played")
    expect(log(page)).to_contain_text("Yes.")
    (request,) = model.requests
    assert [tool.name for tool in request.tools] == ["add"]
    assert "Be brief." in str(request.messages[0])


def test_reasoning_is_folded(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    server.play([Reasoning("first I think"), Text("Done.")])
    ask(page, "Think.", "played")
    expect(answers(page)).to_have_count(1)
    expect(log(page)).not_to_contain_text("first I think")
    log(page).get_by_role("button", name="Thought").click()
    expect(log(page)).to_contain_text("first I think")


def test_stop_ends_the_answer_and_the_work_of_the_upstream(visit: WatchedPages, server: ScriptedServer) -> None:
    page, gate = visit(server.page), server.gate()

    model = server.play("This answer takes for ever and ever.", "Short.", pace=gate.after(4))
    ask(page, "Talk.", "played")
    expect(log(page)).to_contain_text("This answer")
    page.get_by_role("button", name="Stop").click()
    expect(log(page)).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    gate.open()
    ask(page, "Go on.")
    expect(log(page)).to_contain_text("Short.")
    assert "This answer" in str(model.requests[1].messages)  # the model knows how far it had come
    assert not model.answers[0].complete


def test_a_reload_in_the_middle_of_an_answer_goes_on(visit: WatchedPages, server: ScriptedServer) -> None:
    page, gate = visit(server.page), server.gate()

    model = server.play("Once upon a time there was a page.", pace=gate.after(4))
    ask(page, "Tell a story.", "played")
    expect(log(page)).to_contain_text("Once upon")
    page.reload()
    expect(log(page)).to_contain_text("Tell a story.")
    expect(log(page)).to_contain_text("Once upon")
    gate.open()
    expect(log(page)).to_contain_text("Once upon a time there was a page.")
    expect(answers(page)).to_have_count(1)
    assert len(model.requests) == 1


def test_a_closed_page_loses_nothing(visit: WatchedPages, server: ScriptedServer) -> None:
    context, gate = visit.context(), server.gate()
    page = context.new_page()
    page.add_init_script(SLOW_STORAGE)
    visit.watch(page)
    page.goto(server.page)

    model = server.play("It was finished while nobody looked.", pace=gate.after(4))
    ask(page, "Work alone.", "played")
    expect(log(page)).to_contain_text("It was")
    page.close()
    gate.open()
    again = context.new_page()
    visit.watch(again)
    again.goto(server.page)
    again.get_by_role("link", name="Work alone.").click()
    expect(log(again)).to_contain_text("It was finished while nobody looked.")
    assert len(model.requests) == 1


def test_a_message_is_edited_and_sent_again(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    model = server.play("Paris.", "Rome.", "Of Italy.")
    ask(page, "Capital of France?", "played")
    expect(answers(page)).to_have_count(1)
    log(page).get_by_role("button", name="Edit message").click()
    edited = log(page).get_by_role("textbox", name="Edited text")
    edited.fill("Capital of Italy?")
    edited.press("Enter")
    expect(log(page)).to_contain_text("Rome.")
    expect(log(page)).not_to_contain_text("Paris.")
    ask(page, "Of which country?")
    expect(log(page)).to_contain_text("Of Italy.")
    assert "France" not in str(model.requests[2].messages)
    assert "Rome." in str(model.requests[2].messages)


def test_an_image_is_attached(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    model = server.play("A dot.")
    page.get_by_label("Image files").set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL})
    expect(page.get_by_role("img", name="Attached image 1")).to_be_visible()
    ask(page, "What is this?", "played")
    expect(log(page)).to_contain_text("A dot.")
    assert any(isinstance(part, Media) for part in model.requests[0].messages[-1].parts)
    expect(log(page).get_by_role("img", name="Attached image 1")).to_be_visible()


def test_tokens_and_time_are_below_each_answer(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, "Hello", "echo")
    expect(log(page).get_by_text(re.compile(r"^\d+ in · \d+ out · [\d.]+ (ms|s)$"))).to_be_visible()


def test_the_cost_of_an_answer_is_shown_where_models_have_prices(visit: WatchedPages) -> None:
    price = PriceSettings(input=3.0, output=15.0)
    models = (ModelConfig(name="echo", targets=(TargetConfig(upstream=BUILTIN, model="echo"),), price=price),)
    with scripted_server(models=models) as server:
        page = visit(server.page)
        ask(page, "Hello", "echo")
        expect(log(page).get_by_text(re.compile(r" · \$0\.000\d+$"))).to_be_visible()
        log(page).get_by_role("link", name="Timeline").click()
        expect(page.get_by_role("main")).to_contain_text("completed")
        page.close()


def test_an_upstream_that_fails_is_reported_and_can_be_asked_again(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    server.play(UpstreamUnavailable("The oven is cold."), "Warm now.")
    ask(page, "Bake.", "played")
    alert = log(page).get_by_role("alert")
    expect(alert).to_contain_text("The oven is cold.")
    alert.get_by_role("button", name="Try again").click()
    expect(log(page)).to_contain_text("Warm now.")
    expect(alert).to_have_count(0)


def test_responses_that_the_server_has_lost_are_sent_again(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page, failures=[400])
    model = server.play("I am Ann.", "Ann, as I said.")
    ask(page, "Who are you?", "played")
    expect(answers(page)).to_have_count(1)
    page.evaluate(
        """async () => {
          const rows = await new Promise((resolve) => {
            indexedDB.open("toolgate").onsuccess = ({ target }) => {
              const all = target.result.transaction("turns").objectStore("turns").getAll();
              all.onsuccess = () => resolve(all.result);
            };
          });
          for (const { answer } of rows) await fetch(`/v1/responses/${answer.id}`, { method: "DELETE" });
        }"""
    )
    ask(page, "Who?")
    expect(log(page)).to_contain_text("Ann, as I said.")
    assert "I am Ann." in str(model.requests[1].messages)


def test_a_hostile_answer_stays_text(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    server.play(HOSTILE)
    ask(page, "Attack.", "played")
    expect(answers(page)).to_have_count(1)
    expect(log(page)).to_contain_text("<img src=x onerror=\"document.title='owned'\">")
    expect(log(page).locator("img")).to_have_count(0)
    assert log(page).locator(".markdown a").evaluate_all("links => links.map((one) => one.href)") == [
        "https://example.com/",
        "https://example.com/pixel.png",
    ]
    expect(log(page)).to_contain_text("U+202E")
    assert "\u202e" not in log(page).inner_text()
    assert "owned" not in page.title()


def test_an_ordered_list_begins_with_its_number(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    server.play("1. one\n2. two\n\nThen\n\n7. seven")
    ask(page, "Count.", "played")
    expect(answers(page)).to_have_count(1)
    assert log(page).locator("ol").evaluate_all("lists => lists.map((one) => one.start)") == [1, 7]


def test_a_megabyte_is_shown_and_the_page_still_works(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    lines = ("word " * 199 + "end\n") * 700
    listing = "```\n" + "code line\n" * 30_000 + "```\n"
    server.play_pieces(lines + "\n\n" + listing + "\n\nThe last sentence.", size=2000)
    ask(page, "Write much.", "played")
    expect(answers(page)).to_have_count(1)
    expect(log(page).locator(".markdown > p").last).to_have_text("The last sentence.")
    ask(page, "Still there?", "echo")
    expect(answers(page)).to_have_count(2)


def test_an_answer_in_a_long_log_changes_its_own_turn_alone(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    ask(page, "First", "echo")
    expect(answers(page)).to_have_count(1)
    page.evaluate(_ADD_TURNS, 250)
    page.reload()
    expect(answers(page)).to_have_count(251)  # 502 messages; all of them are in the page in the end
    assert page.evaluate("getComputedStyle(document.querySelector('.turn')).contentVisibility") == "auto"
    server.play("word " * 100)
    page.evaluate(_WATCH_TURNS)
    ask(page, "Go.", "played")
    expect(answers(page)).to_have_count(252)
    assert page.evaluate("[...window.changed].map((turn) => turn.textContent.startsWith('Go.'))") == [True]


_WATCH_TURNS = """() => {
  window.changed = new Set();
  const turnOf = (node) => (node.closest ? node : node.parentElement)?.closest(".turn") ?? null;
  const note = (list) => list.forEach(({ target }) => window.changed.add(turnOf(target)));
  const everything = { subtree: true, childList: true, characterData: true, attributes: true };
  const observer = new MutationObserver((list) => (note(list), window.changed.delete(null)));
  observer.observe(document.querySelector("[role=log]"), everything);
}"""
_ADD_TURNS = """async (count) => {
  const done = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
  const database = await done(indexedDB.open("toolgate"));
  const first = async () => (await done(database.transaction("turns").objectStore("turns").getAll()))[0];
  let model = await first();
  // The page stores the end of an answer after it shows it; copies of a turn that still runs would be asked for.
  while (model?.answer.status !== "completed") {
    await new Promise((resolve) => setTimeout(resolve, 20));
    model = await first();
  }
  const store = database.transaction("turns", "readwrite").objectStore("turns");
  for (let at = 0; at < count; at += 1) {
    const item = { ...model.answer.items[0], id: `msg_${at}` };
    const answer = { ...model.answer, id: `resp_${at}`, items: [item] };
    store.put({ ...model, id: `turn-${at}`, position: -1 - at, answer });
  }
  await new Promise((resolve) => (store.transaction.oncomplete = resolve));
}"""


def test_a_provider_s_call_of_no_tool_is_no_card(visit: WatchedPages, server: ScriptedServer) -> None:
    page = visit(server.page)
    server.play([ToolCall("call_1", "nothing_like_this", "{}")], "I could not.")
    ask(page, "Try it.", "played")
    expect(log(page)).to_contain_text("I could not.")
