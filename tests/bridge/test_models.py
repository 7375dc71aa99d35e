"""Models that an editor lends, by every client API (spec: U5, V1)."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.bridge.gateway import WEATHER, Answer, ask, gateway, tool
from tests.bridge.scripted_editor import (
    GPT,
    GUARD,
    SONNET,
    Frame,
    ScriptedEditor,
    call,
    delta,
    done,
    editor,
    failure,
    replies,
    text,
)
from tests.ports import free_port
from toolgate.config import BUILTIN, VSCODE, KeySettings, ModelConfig, Secret, ServerSettings, TargetConfig

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
EACH = pytest.mark.parametrize("client", CLIENTS)
ECHO = ModelConfig(name="echo", targets=(TargetConfig(upstream=BUILTIN, model="echo"),))
PICTURE = "iVBORw0KGgo="


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with gateway() as client:
        yield client


def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url)


async def names(http: httpx.AsyncClient, **headers: str) -> list[str]:
    return [one["id"] for one in (await http.get("/v1/models", headers=headers)).json()["data"]]


@EACH
@BOTH
async def test_a_lent_model_answers_every_client(http: httpx.AsyncClient, client: str, stream: bool) -> None:
    async with editor(url(http)) as window:
        answer = await ask(http, client, "gpt-4o", stream, "Hello")
    assert (answer.status, answer.text) == (200, "You said: Hello")
    asked = window.all("ask")[0]
    assert asked["model"] == {"vendor": "copilot", "id": "gpt-4o"}
    assert asked["messages"] == [{"role": "user", "parts": text("Hello"), "name": None}]
    assert (asked["caller"], asked["round"]) == ("anonymous", 1)
    assert asked["request"] == answer.headers["x-request-id"]


@EACH
@BOTH
async def test_calls_thoughts_and_text_reach_every_client(http: httpx.AsyncClient, client: str, stream: bool) -> None:
    thinks = delta({"type": "thinking", "text": "Two cities."})
    calls = delta(call("weather", {"city": "Oslo"}, "a"), call("weather", {"city": "Rome"}, "b"))
    script = replies(
        thinks, delta(*text("I look")), delta(*text(" it up.")), calls, done(usage={"input": 3, "output": 4})
    )
    async with editor(url(http), script=script) as window:
        answer = await ask(http, client, "gpt-4o", stream, tools=[tool(client, "weather")])
    assert answer.calls == [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]
    assert answer.text == "I look it up."
    assert answer.reasoning == "Two cities."
    offered = window.all("ask")[0]["tools"]
    assert [(one["name"], one["input_schema"]["required"]) for one in offered] == [("weather", ["city"])]


async def test_a_history_with_calls_results_and_pictures_arrives_whole(http: httpx.AsyncClient) -> None:
    used = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, picture]},
        {"role": "assistant", "content": "I look.", "tool_calls": [used]},
        {"role": "tool", "tool_call_id": "call_7", "content": "Rain"},
    ]
    async with editor(url(http)) as window:
        sent = {"model": "gpt-4o", "messages": messages, "tools": [tool("openai_chat", "weather")], "temperature": 0.5}
        response = await http.post("/v1/chat/completions", json=sent)
    assert response.status_code == 200, response.text
    asked = window.all("ask")[0]
    assert asked["options"] == {"temperature": 0.5}
    assert [{name: one[name] for name in ("role", "parts")} for one in asked["messages"]] == [
        {"role": "user", "parts": text("Be brief.")},
        {"role": "user", "parts": [*text("Look"), {"type": "data", "mime": "image/png", "data": PICTURE}]},
        {"role": "assistant", "parts": [*text("I look."), call("weather", {"city": "Oslo"}, "call_7")]},
        {
            "role": "user",
            "parts": [{"type": "tool_result", "call_id": "call_7", "parts": text("Rain"), "is_error": False}],
        },
    ]


@BOTH
async def test_a_demanded_call_of_one_of_several_tools_is_demanded_of_one_tool(
    http: httpx.AsyncClient, stream: bool
) -> None:
    """Editors can demand a call only of a single tool."""

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        [only] = asked["tools"]
        meant = {"call": {"name": "time", "arguments": {"city": "Oslo"}}}
        yield delta(call(only["name"], meant))
        yield done()

    async with editor(url(http), script=script) as window:
        both = [tool("openai_chat", "weather"), tool("openai_chat", "time")]
        answer = await ask(http, "openai_chat", "gpt-4o", stream, tools=both, tool_choice="required")
    assert answer.calls == [("time", {"city": "Oslo"})]
    asked = window.all("ask")[0]
    assert asked["tool_mode"] == "required"
    assert "weather" in asked["tools"][0]["description"]


@BOTH
async def test_a_model_that_ignores_a_demand_for_a_call_is_asked_once_more(
    http: httpx.AsyncClient, stream: bool
) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        again = len(window.all("ask")) == 2
        yield delta(*([call("weather", {"city": "Oslo"})] if again else text("No.")))
        yield done(usage={"input": 10, "output": 1})

    async with editor(url(http), script=script) as window:
        answer = await ask(
            http, "openai_chat", "gpt-4o", stream, tools=[tool("openai_chat", "weather")], tool_choice="required"
        )
    assert answer.calls == [("weather", {"city": "Oslo"})]
    assert answer.text == ""
    assert [one["round"] for one in window.all("ask")] == [1, 2]


async def test_a_model_that_ignores_it_twice_is_passed_on_with_a_warning(http: httpx.AsyncClient) -> None:
    async with editor(url(http), script=replies(delta(*text("No.")), done())) as window:
        answer = await ask(
            http, "openai_chat", "gpt-4o", False, tools=[tool("openai_chat", "weather")], tool_choice="required"
        )
    assert answer.text == "No."
    assert "though a call was demanded twice" in answer.headers["x-toolgate-warning"]
    assert len(window.all("ask")) == 2


async def test_an_editor_joins_again_after_the_gateway_has_restarted() -> None:
    server = ServerSettings(port=free_port(), drain_seconds=0)
    async with AsyncExitStack() as stack:
        async with gateway(server=server) as http:
            window = await stack.enter_async_context(editor(url(http), id="same"))
            assert "gpt-4o" in (await http.get("/v1/models")).text
        assert await window.closed() in (1001, 1012)
        async with gateway(server=server) as http, editor(url(http), id="same"):
            assert (await ask(http, "openai_chat", "gpt-4o", False, "Hello")).text == "You said: Hello"


@pytest.mark.parametrize(
    ("choice", "offered", "mode"),
    [
        ({"type": "function", "function": {"name": "time"}}, ["time"], "required"),
        ("none", [], "auto"),
        ("auto", ["weather", "time"], "auto"),
    ],
)
async def test_a_tool_choice_is_kept(http: httpx.AsyncClient, choice: object, offered: list[str], mode: str) -> None:
    async with editor(url(http)) as window:
        both = [tool("openai_chat", "weather"), tool("openai_chat", "time")]
        await ask(http, "openai_chat", "gpt-4o", False, tools=both, tool_choice=choice)
    asked = window.all("ask")[0]
    assert [one["name"] for one in asked["tools"]] == offered
    assert asked["tool_mode"] == mode


async def test_an_answer_ends_at_a_stop_text_and_the_rest_is_cancelled(http: httpx.AsyncClient) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("one, two, st"))
        yield delta(*text("op, three"))
        await asyncio.Event().wait()

    async with editor(url(http), script=script) as window:
        answer = await ask(http, "openai_chat", "gpt-4o", False, stop=["stop"])
        assert answer.text == "one, two, "
        await window.received("cancel", id=window.all("ask")[0]["id"])


@BOTH
async def test_an_output_format_is_demanded_as_the_input_of_a_tool(http: httpx.AsyncClient, stream: bool) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        [only] = asked["tools"]
        assert (asked["tool_mode"], only["input_schema"]["required"]) == ("required", ["city"])
        yield delta(call(only["name"], {"city": "Oslo"}))
        yield done()

    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": WEATHER}}
    async with editor(url(http), script=script):
        answer = await ask(http, "openai_chat", "gpt-4o", stream, response_format=schema)
    assert (json.loads(answer.text), answer.calls) == ({"city": "Oslo"}, [])


async def test_one_call_at_a_time_is_one_call(http: httpx.AsyncClient) -> None:
    script = replies(
        delta(call("weather", {"city": "Oslo"}, "a")), delta(call("weather", {"city": "Rome"}, "b")), done()
    )
    async with editor(url(http), script=script):
        tools = [tool("openai_chat", "weather")]
        answer = await ask(http, "openai_chat", "gpt-4o", False, tools=tools, parallel_tool_calls=False)
    assert answer.calls == [("weather", {"city": "Oslo"})]


@EACH
async def test_a_client_that_leaves_cancels_the_question(http: httpx.AsyncClient, client: str) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("Once upon a time"))
        await asyncio.Event().wait()

    async with editor(url(http), script=script) as window:
        async with HttpConnection(url(http)) as caller:
            await caller.post(PATHS[client], body(client, "gpt-4o", True))
            await caller.head()
            await caller.chunk()
        asked = await window.received("ask")
        assert await window.received("cancel", id=asked["id"])


async def test_a_client_that_leaves_before_the_first_word_cancels_the_question(http: httpx.AsyncClient) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield {"type": "started"}
        await asyncio.Event().wait()

    async with editor(url(http), script=script) as window:
        async with HttpConnection(url(http)) as caller:
            await caller.post("/v1/chat/completions", body("openai_chat", "gpt-4o", False))
            asked = await window.received("ask")
        assert await window.received("cancel", id=asked["id"])


async def test_the_usage_that_the_editor_reports_is_the_usage(http: httpx.AsyncClient) -> None:
    script = replies(delta(*text("Hi")), done(usage={"input": 30, "output": 4, "cached": 10}))
    async with editor(url(http), script=script):
        response = await http.post("/v1/chat/completions", json=body("openai_chat", "gpt-4o", False))
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (30, 4)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 10


async def test_usage_is_counted_where_the_editor_reports_none(http: httpx.AsyncClient) -> None:
    async with editor(url(http), script=replies(delta(*text("Hello there")), done())):
        response = await http.post("/v1/chat/completions", json=body("openai_chat", "gpt-4o", False))
    assert response.json()["usage"]["completion_tokens"] > 0


async def test_the_editor_counts_tokens_for_count_requests(http: httpx.AsyncClient) -> None:
    async with editor(url(http)) as window:
        sent = {"model": "gpt-4o", "messages": [{"role": "user", "content": "five!"}]}
        response = await http.post("/v1/messages/count_tokens", json=sent)
    assert response.status_code == 200
    assert response.json()["input_tokens"] >= 5
    assert window.all("count")[0]["texts"] == ["five!"]


CODES = {
    "quota": (429, "insufficient_quota"),
    "rate_limited": (429, "rate_limit_exceeded"),
    "too_long": (400, "context_length_exceeded"),
    "blocked": (400, "content_filter"),
    "rejected": (400, "upstream_rejected"),
    "no_permission": (403, "editor_permission_denied"),
    "not_found": (503, "upstream_unavailable"),
    "cancelled": (502, "cancelled_in_editor"),
    "timeout": (504, "upstream_timeout"),
    "failed": (502, "upstream_unavailable"),
    "from the future": (502, "upstream_unavailable"),
}


@pytest.mark.parametrize("code", CODES)
async def test_a_failure_of_the_editor_has_its_status_and_code(http: httpx.AsyncClient, code: str) -> None:
    async with editor(url(http), script=replies(failure(code, "no more today", retry_after=7))):
        response = await http.post("/v1/chat/completions", json=body("openai_chat", "gpt-4o", False))
    assert (response.status_code, response.json()["error"]["code"]) == CODES[code]
    assert "no more today" in response.json()["error"]["message"]


@EACH
@BOTH
async def test_a_spent_quota_is_told_in_every_dialect(http: httpx.AsyncClient, client: str, stream: bool) -> None:
    async with editor(url(http), script=replies(failure("quota", "Premium requests are used up."))):
        answer = await ask(http, client, "gpt-4o", stream)
    assert answer.status == 429
    assert "Premium requests are used up." in answer.raw


async def test_a_prompt_that_is_clearly_too_long_does_not_reach_the_editor(http: httpx.AsyncClient) -> None:
    async with editor(url(http), models=[{**GPT, "max_input_tokens": 100}]) as window:
        response = await http.post("/v1/chat/completions", json=body("openai_chat", "gpt-4o", False, "word " * 2000))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert window.all("ask") == []


async def test_a_window_that_is_killed_in_mid_answer_ends_the_answer(http: httpx.AsyncClient) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield delta(*text("Once"))
        window.kill()

    async with editor(url(http), script=script):
        answer = await ask(http, "openai_chat", "gpt-4o", True)
        assert answer.text == "Once"
        assert "in mid-answer" in answer.raw
        assert answer.raw.rstrip().endswith("[DONE]")
    assert await names(http) == ["echo"]


async def test_an_empty_answer_is_an_error(http: httpx.AsyncClient) -> None:
    async with editor(url(http), script=replies(done())):
        response = await http.post("/v1/chat/completions", json=body("openai_chat", "gpt-4o", False))
    assert (response.status_code, response.json()["error"]["code"]) == (502, "empty_answer")


async def test_models_come_and_go_with_what_the_window_lends(http: httpx.AsyncClient) -> None:
    async with editor(url(http), models=[GPT, SONNET, {**GPT, "vendor": "toolgate", "id": "own"}]) as window:
        assert await names(http) == ["echo", "vscode/copilot/claude-sonnet-4", "vscode/copilot/gpt-4o"]
        await window.lend(models=[{**SONNET, "access": False}, {**GPT, "id": "auto", "max_input_tokens": 0}])
        assert await names(http) == ["echo"]
        assert (await ask(http, "openai_chat", "gpt-4o", False)).status == 404
        await window.lend(models=[GPT])
        assert (await ask(http, "openai_chat", "vscode/copilot/gpt-4o", False)).status == 200


async def test_a_family_of_several_models_is_named_by_their_ids(http: httpx.AsyncClient) -> None:
    mini = {**GPT, "id": "gpt-4o-2024-05-13"}
    async with editor(url(http), models=[GPT, mini, {**GPT, "vendor": "zed"}]) as window:
        listed = await names(http)
        await ask(http, "openai_chat", "gpt-4o", False)
    assert listed[1:] == ["vscode/copilot/gpt-4o", "vscode/copilot/gpt-4o-2024-05-13", "vscode/zed/gpt-4o"]
    assert window.all("ask")[0]["model"] == {"vendor": "copilot", "id": "gpt-4o"}


async def test_a_lent_model_is_in_the_lists_of_all_dialects(http: httpx.AsyncClient) -> None:
    async with editor(url(http)):
        shown = (await http.get("/v1/models/vscode/copilot/gpt-4o")).json()
        tags = (await http.get("/api/tags")).json()["models"]
        card = (await http.post("/api/show", json={"model": "gpt-4o"})).json()
        anthropic = await names(http, **{"anthropic-version": "2023-06-01"})
    assert (shown["owned_by"], shown["context_length"]) == ("copilot", 64000)
    assert "vscode/copilot/gpt-4o" in [one["model"] for one in tags]
    assert {"tools", "vision"} <= set(card["capabilities"])
    assert "vscode/copilot/gpt-4o" in anthropic


async def test_names_of_the_configuration_win(http: httpx.AsyncClient) -> None:
    own = ModelConfig(name="gpt-4o", targets=ECHO.targets)
    async with gateway(models=(own,)) as http, editor(url(http)) as window:
        assert (await ask(http, "openai_chat", "gpt-4o", False)).status == 200
        assert window.all("ask") == []


async def test_a_configured_model_falls_back_when_no_editor_is_there() -> None:
    lent = ModelConfig(
        name="best", targets=(TargetConfig(upstream=VSCODE, model="copilot/gpt-4o"),), fallbacks=("echo",)
    )
    async with gateway(models=(lent, ECHO)) as http:
        async with editor(url(http)):
            assert (await ask(http, "openai_chat", "best", False, "Hello")).text == "You said: Hello"
        fallen = await ask(http, "openai_chat", "best", False, "Hello")
        assert fallen.status == 200
        assert "no_editor" in fallen.headers["x-toolgate-warning"]


async def test_without_an_editor_a_configured_model_says_what_to_do() -> None:
    lent = ModelConfig(name="best", targets=(TargetConfig(upstream=VSCODE, model="gpt-4o"),))
    async with gateway(models=(lent,)) as http:
        answer = await ask(http, "openai_chat", "best", False)
    assert answer.status == 503
    assert "open it in VS Code and switch lending on" in answer.raw


@BOTH
async def test_a_model_without_tools_gets_them_in_text(http: httpx.AsyncClient, stream: bool) -> None:
    written = '<invoke name="weather"><parameter name="city">Oslo</parameter></invoke>'
    script = replies(delta(*text(written[:20])), delta(*text(written[20:])), done())
    async with editor(url(http), models=[{**GPT, "tools": False}], script=script) as window:
        answer = await ask(http, "openai_chat", "gpt-4o", stream, tools=[tool("openai_chat", "weather")])
    assert answer.calls == [("weather", {"city": "Oslo"})]
    assert window.all("ask")[0]["tools"] == []


async def test_a_key_uses_only_the_lent_models_that_its_patterns_name() -> None:
    def key(name: str, *models: str) -> KeySettings:
        return KeySettings(name=name, key=Secret(f"{name}-secret-key"), models=models)

    keys = (key("all"), key("lent", "vscode/copilot/*"), key("none", "echo", "gpt-*"))
    async with gateway(keys=keys) as http, editor(url(http)):
        for name, status in (("all", 200), ("lent", 200), ("none", 404)):
            headers = {"authorization": f"Bearer {name}-secret-key"}
            answer = await ask(http, "openai_chat", "gpt-4o", False, headers=headers)
            assert answer.status == status, name
            assert ("vscode/copilot/gpt-4o" in await names(http, **headers)) == (status == 200)


async def test_of_two_windows_the_one_that_was_focused_last_answers(http: httpx.AsyncClient) -> None:
    async def asked(**headers: str) -> Answer:
        return await ask(http, "openai_chat", "gpt-4o", False, headers=headers)

    async with editor(url(http), folders=["left"]) as left, editor(url(http), folders=["right"]) as right:
        await right.focus(False)
        await left.focus()
        await asked()
        assert (len(left.all("ask")), len(right.all("ask"))) == (1, 0)
        await asked(**{"x-toolgate-window": "right"})
        await asked(**{"x-toolgate-window": right.window["id"]})
        assert (len(left.all("ask")), len(right.all("ask"))) == (1, 2)
        assert (await asked(**{"x-toolgate-window": "other"})).status == 503
        listed = (await http.get("/v1/bridge")).json()["data"]
        assert [one["folders"] for one in listed] == [["left"], ["right"]]


async def test_a_window_that_connects_again_replaces_its_earlier_connection(http: httpx.AsyncClient) -> None:
    async with editor(url(http), id="same") as earlier, editor(url(http), id="same") as later:
        assert await earlier.closed() == 4409
        assert (await ask(http, "openai_chat", "gpt-4o", False)).status == 200
        assert len(later.all("ask")) == 1


async def test_a_slow_client_pauses_its_answer_and_no_other(http: httpx.AsyncClient) -> None:
    goes_on = asyncio.Event()

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if asked["messages"][0]["parts"][0]["text"] == "short":
            yield delta(*text("quick"))
        else:
            while not any(frame["type"] == "pause" for frame in window.frames):
                yield delta(*text("x" * 50_000))
                await window.round_trip()
            goes_on.set()
            await window.received("resume")
            yield delta(*text("the end"))
        yield done()

    async with editor(url(http), script=script) as window, HttpConnection(url(http)) as slow:
        await slow.post("/v1/chat/completions", body("openai_chat", "gpt-4o", True, "long"))
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket
        async with asyncio.timeout(GUARD):
            await goes_on.wait()
        assert (await ask(http, "openai_chat", "gpt-4o", False, "short")).text == "quick"
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]  # a socket
        assert b"the end" in (await slow.response()).body
        assert window.all("cancel") == []


async def test_consent_that_is_given_late_is_waited_for(http: httpx.AsyncClient) -> None:
    allowed = asyncio.Event()

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        yield {"type": "waiting", "for": "consent"}
        await allowed.wait()
        yield {"type": "started"}
        yield delta(*text("Thanks"))
        yield done()

    async with editor(url(http), script=script) as window:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "gpt-4o", False))
        await window.received("ask")
        allowed.set()
        assert (await asking).text == "Thanks"


async def test_half_a_surrogate_pair_of_an_editor_ends_no_other_answer(http: httpx.AsyncClient) -> None:
    """JavaScript may cut a text inside a character; the frame was refused, and the window left with all its answers."""

    async def script(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
        if "emoji" in json.dumps(asked["messages"]):
            yield delta(*text("a\ud83d"))  # is sent as an escape
        yield delta(*text("fine"))
        yield done()

    async with editor(url(http), script=script):
        answers = await asyncio.gather(
            *[ask(http, "openai_chat", "gpt-4o", False, question) for question in ("an emoji", "Hello")]
        )
    assert [(one.status, one.text) for one in answers] == [(200, "a\ufffdfine"), (200, "fine")]
