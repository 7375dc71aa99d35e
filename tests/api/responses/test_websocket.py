"""Responses over a WebSocket: what is answered, remembered, refused and cut short (spec: C1, C3)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from msgspec.structs import replace

from tests.api.http_client import HttpConnection
from tests.api.responses.stateful import until
from tests.dialects.strategies import responses
from tests.http.websocket_server import WebSocketServer, text_of, websocket_server, with_keys
from tests.stage import upstream_config
from toolgate.api.responses.unstored import UnstoredResponses, WebSocketUnstoredResponses
from toolgate.api.responses.websocket import ResponseSocketLimits
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import RequestLimitSettings, ServerSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.testing import FakeSource, FakeTool, ScriptedModel

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
LOOK_UP = [ToolCall("call_" + "a" * 24, "get_weather", "{}")]


@pytest.fixture
async def server() -> AsyncIterator[WebSocketServer]:
    async with websocket_server() as server:
        yield server


def output(request: ModelRequest) -> list[tuple[str, str]]:
    """Who said what, as the model was told."""
    emitted = []
    for message in request.messages:
        for part in message.parts:
            match part:
                case ToolCall():
                    emitted.append(("call", part.name))
                case ToolResult():
                    emitted.append(("result", plain_text(part.content)))
                case Text():
                    emitted.append((message.role, part.text))
    return emitted


async def is_closed(model: ScriptedModel) -> bool:
    return model.answers[0].closed


async def test_each_message_is_answered_with_the_events_of_its_response(server: WebSocketServer) -> None:
    server.play("Hello there.", "And again.")
    async with server.socket() as socket:
        for expected in ("Hello there.", "And again."):
            await socket.create()
            events = await socket.receive_all()
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
            assert text_of(events[-1]["response"]) == expected


async def test_an_unstored_response_is_continued_by_its_id_with_only_what_is_new(server: WebSocketServer) -> None:
    model = server.play(LOOK_UP, "It is sunny.", "Yes, quite.")
    async with server.socket() as socket:
        first = await socket.ask(input="How is the weather?", tools=[WEATHER])
        result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "22 degrees"}
        second = await socket.ask(input=[result], tools=[WEATHER], previous_response_id=first["id"])
        third = await socket.ask(input="Really?", previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    assert output(model.requests[-1]) == [
        ("user", "How is the weather?"),
        ("call", "get_weather"),
        ("result", "22 degrees"),
        ("assistant", "It is sunny."),
        ("user", "Really?"),
    ]


async def test_an_unstored_response_is_known_on_its_own_socket_only(server: WebSocketServer) -> None:
    server.play("One.", "Two.")
    async with server.socket() as socket, server.socket() as other:
        first = await socket.ask()
        elsewhere = await other.ask(previous_response_id=first["id"])
        assert (elsewhere["status"], elsewhere["error"]["code"]) == (400, "previous_response_not_found")
        assert text_of(await socket.ask(previous_response_id=first["id"])) == "Two."


async def test_only_the_last_unstored_response_is_remembered(server: WebSocketServer) -> None:
    server.play("One.", "Two.", "Three.")
    async with server.socket() as socket:
        first = await socket.ask()
        await socket.ask(previous_response_id=first["id"])
        assert (await socket.ask(previous_response_id=first["id"]))["error"]["code"] == "previous_response_not_found"


async def test_a_stored_response_that_continues_an_unstored_one_keeps_all_of_the_past(server: WebSocketServer) -> None:
    model = server.play("One.", "Two.", "Three.")
    async with server.socket() as socket:
        first = await socket.ask(input="First")
        stored = await socket.ask(input="Second", previous_response_id=first["id"], store=True)
    async with server.socket() as socket:
        await socket.ask(input="Third", previous_response_id=stored["id"])
    emitted = [text for _, text in output(model.requests[-1])]
    assert emitted == ["First", "One.", "Second", "Two.", "Third"]


async def test_a_stored_response_is_continued_on_another_socket_and_over_http(server: WebSocketServer) -> None:
    model = server.play("One.", "Two.", "Three.")
    async with server.socket() as socket:
        first = await socket.ask(store=True)
    async with server.socket() as socket:
        second = await socket.ask(previous_response_id=first["id"], input="Two?", store=True)
    async with HttpConnection(server.url) as caller:
        posted = {"model": "played", "input": "Three?", "previous_response_id": second["id"]}
        await caller.post("/v1/responses", posted)
        assert text_of((await caller.response()).json) == "Three."
    assert [text for _, text in output(model.requests[-1])] == ["Hi", "One.", "Two?", "Two.", "Three?"]


async def test_a_continuation_that_fails_makes_its_past_forgotten(server: WebSocketServer) -> None:
    """As the Open Responses specification has it: what follows a failure starts from what the client knows."""
    server.play("One.", UpstreamUnavailable("out of order"), "Three.")
    async with server.socket() as socket:
        first = await socket.ask()
        failed = await socket.ask(previous_response_id=first["id"])
        assert failed["status"] == 502
        forgotten = await socket.ask(previous_response_id=first["id"])
        assert forgotten["error"]["code"] == "previous_response_not_found"


async def test_an_error_is_an_event_with_its_status_and_the_next_message_is_answered(server: WebSocketServer) -> None:
    server.play("Fine.")
    async with server.socket() as socket:
        unknown = await socket.ask(model="nobody")
        assert (unknown["type"], unknown["status"], unknown["error"]["code"]) == ("error", 404, "model_not_found")
        assert unknown["error"]["headers"] == unknown["headers"]
        for broken in ('{"type": "response.create", "model": ', "[]", '"hello"', '{"a":1,"a":2}'):
            await socket.connection.send(broken)
            received = await socket.receive()
            assert (received["type"], received["status"], received["error"]["type"]) == (
                "error",
                400,
                "invalid_request_error",
            )
        assert text_of(await socket.ask()) == "Fine."


async def test_a_failure_in_the_middle_is_reported_in_the_stream_and_the_socket_goes_on(
    server: WebSocketServer,
) -> None:
    server.play([Text("Half an"), UpstreamUnavailable("gone")], "Whole.")
    async with server.socket() as socket:
        await socket.create()
        events = await socket.receive_all()
        assert events[-1]["type"] == "response.failed"
        assert [event["error"]["message"] for event in events if event["type"] == "error"] == ["gone"]
        assert text_of(await socket.ask()) == "Whole."


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "response.cancel"}, "type"),
        ({"type": "response.create", "model": "played", "input": "Hi", "background": True}, "background"),
        ({"type": "response.create", "model": "played", "input": "Hi", "generate": "no"}, "generate"),
        ({"type": "response.create", "model": "played", "input": "Hi", "stream_id": 7}, "stream_id"),
        ({"type": "response.create", "model": "played", "input": "Hi", "stream_id": ""}, "stream_id"),
    ],
)
async def test_what_is_not_for_a_websocket_is_refused_by_name(
    server: WebSocketServer, event: dict[str, Any], param: str
) -> None:
    async with server.socket() as socket:
        await socket.send(**event)
        refused = await socket.receive()
        assert (refused["status"], refused["error"]["param"]) == (400, param)


async def test_steering_is_refused_in_its_own_words_and_the_input_given_back(server: WebSocketServer) -> None:
    async with server.socket() as socket:
        await socket.send(type="response.steer", previous_response_id="resp_1", input="Faster!")
        refused = await socket.receive()
        assert (refused["type"], refused["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        assert refused["steer"] == {"previous_response_id": "resp_1", "input": "Faster!"}


async def test_a_warm_up_asks_no_model_and_can_be_continued(server: WebSocketServer) -> None:
    model = server.play("Ready.")
    async with server.socket() as socket:
        warm = await socket.ask(input="Be brief.", generate=False)
        assert (warm["status"], warm["output"], len(model.requests)) == ("completed", [], 0)
        answer = await socket.ask(input=[], previous_response_id=warm["id"])
        assert text_of(answer) == "Ready."
    assert [text for _, text in output(model.requests[0])] == ["Be brief."]


async def test_messages_of_one_lane_are_answered_in_turn_and_lanes_beside_each_other(server: WebSocketServer) -> None:
    begun, go = asyncio.Queue[str](), asyncio.Event()

    async def slow(request: ModelRequest) -> str:
        begun.put_nowait(output(request)[-1][1])
        await go.wait()
        return "Slow."

    server.play(slow, "Beside.", "After.")
    async with server.socket() as socket:
        await socket.create(input="a1", stream_id="a")
        assert await begun.get() == "a1"
        await socket.create(input="b1", stream_id="b")
        beside = await socket.receive_all()
        assert {event["stream_id"] for event in beside} == {"b"}
        assert text_of(beside[-1]["response"]) == "Beside."
        await socket.create(input="a2", stream_id="a")
        go.set()
        first, second = await socket.receive_all(), await socket.receive_all()
        assert [text_of(events[-1]["response"]) for events in (first, second)] == ["Slow.", "After."]
        assert {event["stream_id"] for event in (*first, *second)} == {"a"}


async def test_a_new_lane_forks_from_the_last_response_of_another(server: WebSocketServer) -> None:
    model = server.play("One.", "Two.", "Other two.")
    async with server.socket() as socket:
        first = await socket.ask(stream_id="main")
        fork = await socket.ask(stream_id="fork", previous_response_id=first["id"], input="Fork")
        assert text_of(fork) == "Two."
        assert text_of(await socket.ask(stream_id="main", previous_response_id=first["id"])) == "Other two."
    assert [text for _, text in output(model.requests[1])] == ["Hi", "One.", "Fork"]


async def test_more_lanes_than_allowed_are_refused(server: WebSocketServer) -> None:
    server.play(*["Yes."] * 32)
    async with server.socket() as socket:
        for number in range(32):
            assert text_of(await socket.ask(stream_id=f"lane {number}")) == "Yes."
        refused = await socket.ask(stream_id="one more")
        assert (refused["error"]["code"], refused["stream_id"]) == ("websocket_stream_limit_reached", "one more")


async def test_messages_beyond_the_queue_are_refused_not_buffered(server: WebSocketServer) -> None:
    go = asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        await go.wait()
        return "Done."

    server.play(slow, *["Next."] * 64)
    async with server.socket() as socket:
        for _ in range(66):
            await socket.create()
        refused = await socket.receive()
        assert (refused["status"], refused["headers"]) == (429, {"retry-after": "1"})
        go.set()
        for _ in range(65):
            assert (await socket.receive_all())[-1]["type"] == "response.completed"


async def test_messages_that_wait_are_together_no_larger_than_one_may_be() -> None:
    go = asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        await go.wait()
        return "Done."

    async with websocket_server(body_bytes=64 * 1024) as server, server.socket() as socket:
        server.play(slow, "Next.")
        for _ in range(3):
            await socket.create(input="x" * 40_000)
        assert (await socket.receive())["status"] == 429
        go.set()
        for _ in range(2):
            assert (await socket.receive_all())[-1]["type"] == "response.completed"


async def test_nothing_is_remembered_of_a_socket_that_is_closed(server: WebSocketServer) -> None:
    server.play("One.")
    unstored = server.gate.services.sockets._unstored
    async with server.socket() as socket:
        await socket.ask()
        assert unstored.size > 0

    async def forgotten() -> bool:
        return unstored.size == 0

    await until(forgotten)


async def test_server_tools_run_as_they_do_over_http() -> None:
    tool = FakeTool("get_time", lambda arguments: "noon")
    async with websocket_server(FakeSource(tool)) as server:
        model = server.play([ToolCall("call_" + "t" * 24, "get_time", "{}")], "It is noon.")
        async with server.socket() as socket:
            answer = await socket.ask(tool_execution="auto", use_server_tools=True)
    assert text_of(answer) == "It is noon."
    assert len(tool.calls) == 1
    assert ("result", "noon") in output(model.requests[-1])


async def test_a_client_that_leaves_has_its_responses_cancelled_upstream(server: WebSocketServer) -> None:
    """fault: C2"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    model = server.play("A long answer.", pace=pace)
    async with server.socket() as socket:
        await socket.create()
        await paced.wait()
    await until(lambda: is_closed(model))
    assert not model.answers[0].complete


async def test_a_client_that_breaks_off_without_a_word_has_its_responses_cancelled_too(server: WebSocketServer) -> None:
    """fault: C2"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    model = server.play("A long answer.", pace=pace)
    async with server.socket() as socket:
        await socket.create()
        await paced.wait()
        socket.connection.transport.abort()
        await until(lambda: is_closed(model))


async def test_draining_lets_what_runs_finish_refuses_more_and_closes_idle_sockets() -> None:
    """fault: K-G"""
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return "Finished."

    async with websocket_server(drain_seconds=30) as server:
        server.play(slow)
        async with server.socket() as busy, server.socket() as idle:
            await busy.create()
            await asked.wait()
            closing = asyncio.create_task(server.listener.close())
            assert await idle.close_code() == 1001
            await busy.create()
            assert (await busy.receive())["status"] == 503
            go.set()
            assert text_of((await busy.receive_all())[-1]["response"]) == "Finished."
            assert await busy.close_code() == 1001
            await closing


async def test_what_runs_longer_than_the_drain_is_ended_with_a_last_word() -> None:
    """fault: K-G"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    async with websocket_server() as server:
        server.play("A long answer.", pace=pace)
        async with server.socket() as socket:
            await socket.create()
            await paced.wait()
            closing = asyncio.create_task(server.listener.close())
            events = await socket.receive_all()
            assert events[-1]["type"] == "response.failed"
            assert "shutting down" in events[-1]["response"]["error"]["message"]
            assert await socket.close_code() == 1012
            await closing


ANN = KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat",))
BOB = KeySettings(name="bob", key=Secret("bob-key"), scopes=("chat",))


async def test_a_key_that_is_revoked_ends_its_socket_and_what_runs_there() -> None:
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    async with websocket_server(config=with_keys(ANN, BOB)) as server:
        server.play("A long answer.", pace=pace)
        async with server.socket("ann-key") as ann, server.socket("bob-key") as bob:
            await ann.create()
            await paced.wait()
            server.gate.services.keys.configure(with_keys(BOB))
            events = await ann.receive_all()
            assert events[-1]["type"] == "response.failed"
            assert (await ann.receive())["status"] == 401
            assert await ann.close_code() == 1008
            server.play("Still here.")
            assert text_of(await bob.ask()) == "Still here."


async def test_a_key_that_is_no_longer_known_is_refused_at_its_next_message() -> None:
    async with websocket_server(config=with_keys(ANN, BOB)) as server, server.socket("ann-key") as ann:
        server.gate.services.keys.authenticator.configure((BOB,), server.gate.config.models)
        assert (await ann.ask())["status"] == 401
        assert await ann.close_code() == 1008


async def test_limits_of_a_key_hold_for_every_message() -> None:
    config = with_keys(KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat",), requests_per_minute=2))
    async with websocket_server(config=config) as server, server.socket("ann-key") as ann:
        server.play("One.", "Two.")
        assert [text_of(await ann.ask()) for _ in range(2)] == ["One.", "Two."]
        refused = await ann.ask()
        assert (refused["status"], refused["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused["headers"]["retry-after"]) > 0


async def test_a_socket_that_has_been_open_too_long_is_closed_with_the_reason() -> None:
    async with websocket_server() as server:
        server.gate.services.sockets.options = ResponseSocketLimits(seconds=0.05)
        async with server.socket() as socket:
            emitted = await socket.receive()
            assert (emitted["status"], emitted["error"]["code"]) == (400, "websocket_connection_limit_reached")
            assert await socket.close_code() == 1000


def limited(**limits: Any) -> Any:
    return replace(upstream_config(), server=ServerSettings(port=0, limits=RequestLimitSettings(**limits)))


async def test_more_sockets_than_a_key_may_have_are_refused_until_one_is_closed() -> None:
    async with websocket_server(config=limited(websockets_per_key=1)) as server:
        async with server.socket():
            assert await refusal(server) == (429, "too_many_websockets")
        await until(lambda: is_let_in(server))


async def test_sockets_that_are_turned_off_make_a_client_take_http() -> None:
    """Codex falls back to HTTP at once when it is told 426."""
    async with websocket_server(config=limited(websockets=0)) as server:
        assert await refusal(server) == (426, "upgrade_required")


async def is_let_in(server: WebSocketServer) -> bool:
    return await refusal(server) == (101, "")


async def refusal(server: WebSocketServer) -> tuple[int, str]:
    """What a handshake is answered with."""
    from websockets.exceptions import InvalidStatus

    try:
        async with server.socket():
            return 101, ""
    except InvalidStatus as refused:
        return refused.response.status_code, msgspec.json.decode(refused.response.body or b"{}")["error"]["code"]


async def test_a_full_memory_drops_the_response_that_was_not_used_for_the_longest() -> None:
    unstored = UnstoredResponses(max_bytes=40, max_bytes_each=30)
    memory, other = WebSocketUnstoredResponses(unstored), WebSocketUnstoredResponses(unstored)
    await memory.keep("a", "r1", ["x" * 10])
    await other.keep("a", "r2", ["y" * 10])
    assert await memory.recall("r1") == ["x" * 10]
    await memory.keep("b", "r3", ["z" * 10])
    assert (await memory.recall("r1"), await other.recall("r2"), await memory.recall("r3")) == (
        ["x" * 10],
        None,
        ["z" * 10],
    )
    await memory.keep("a", "r4", ["w" * 40])
    assert (await memory.recall("r1"), await memory.recall("r4"), unstored.size) == (None, None, 14)
    memory.clear()
    other.clear()
    assert unstored.size == 0


VARYING = {"id", "item_id", "created_at", "call_id", "encrypted_content", "completed_at"}


def alike(value: Any) -> Any:
    """The value without what is new in every answer."""
    match value:
        case dict():
            return {name: alike(inner) for name, inner in value.items() if name not in VARYING}
        case list():
            return [alike(inner) for inner in value]
        case _:
            return value


async def over_http(server: WebSocketServer, request: dict[str, Any]) -> list[dict[str, Any]]:
    async with HttpConnection(server.url) as caller:
        await caller.post("/v1/responses", {**request, "stream": True})
        lines = (await caller.response()).body.split(b"\n")
    frames = b"\n".join([line for line in lines if not line.startswith(b":")]).split(b"\n\n")
    emitted = [frame.partition(b"\ndata: ")[2] for frame in frames if frame.startswith(b"event: ")]
    return [msgspec.json.decode(event) for event in emitted]


@hypothesis_settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(response=responses())
def test_a_socket_sends_the_same_events_as_a_stream(response: ModelResponse) -> None:
    request = {"model": "played", "input": "Hi", "store": False}

    async def compare() -> None:
        async with websocket_server() as server, server.socket() as socket:
            model: ScriptedModel = server.play(response, response)
            streamed = await over_http(server, request)
            await socket.create()
            sent = await socket.receive_all()
            assert alike(sent) == alike(streamed)
            assert len(model.requests) == 2

    asyncio.run(compare())


ENVELOPE = '{"type":"response.create","model":"played","store":false,'
REPAIRED = {
    "nothing": '"input":"hi","stream_id":"a"}',
    "a surrogate in the input": r'"input":"cut \ud83d","stream_id":"a"}',
    "a surrogate before the name": r'"metadata":{"a":"\ude00"},"stream_id":"a","input":"hi"}',
    "a surrogate in a key": r'"x\ud83d":1,"input":"hi","stream_id":"a"}',
    "a surrogate in the name": r'"input":"hi","stream_id":"a\ud83d"}',
    "a number that no float holds": '"input":"hi","x":1e999,"stream_id":"a"}',
    "a surrogate in a large message": r'"input":"\ud83d' + "x" * 100_000 + '","stream_id":"a"}',
}


@pytest.mark.parametrize("case", REPAIRED)
async def test_a_message_that_is_repaired_keeps_its_lane(server: WebSocketServer, case: str) -> None:
    lane = "a\ufffd" if case == "a surrogate in the name" else "a"
    server.play("Hello.")
    async with server.socket() as socket:
        await socket.connection.send(ENVELOPE + REPAIRED[case])
        events = await socket.receive_all()
    assert events[-1]["type"] == "response.completed"
    assert {event.get("stream_id") for event in events} == {lane}


async def test_a_repaired_continuation_that_fails_makes_its_past_forgotten(server: WebSocketServer) -> None:
    server.play("One.", UpstreamUnavailable("out of order"), "Three.")
    async with server.socket() as socket:
        first = await socket.ask()
        again = rf'"input":"\ud83d","previous_response_id":"{first["id"]}"}}'
        await socket.connection.send(ENVELOPE + again)
        assert (await socket.receive_all())[-1]["type"] in ("error", "response.failed")
        assert (await socket.ask(previous_response_id=first["id"]))["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("name", ["1e999", "1", "[]", "{}", '""', '"' + "x" * 257 + '"', "[" * 600 + "]" * 600])
async def test_a_lane_whose_name_is_no_text_is_refused(server: WebSocketServer, name: str) -> None:
    model = server.play("Hello.")
    async with server.socket() as socket:
        await socket.connection.send(f'{ENVELOPE}"input":"hi","stream_id":{name}}}')
        error = (await socket.receive_all())[-1]
    assert (error["status"], error["error"]["param"], error["error"]["code"]) == (400, "stream_id", "invalid_type")
    assert model.requests == []


@pytest.mark.parametrize("levels", [512, 960, 970, 980, 5_000])
async def test_a_message_that_is_nested_too_deeply_is_refused(server: WebSocketServer, levels: int) -> None:
    server.play("Hello.")
    async with server.socket() as socket:
        await socket.connection.send(ENVELOPE + f'"x":{"[" * levels}{"]" * levels},"input":"hi","stream_id":"a"}}')
        error = (await socket.receive_all())[-1]
        assert (error["status"], error["error"]["code"]) == (400, "invalid_json")
        assert "512 levels" in error["error"]["message"]
        assert text_of(await socket.ask()) == "Hello."


async def test_a_refused_steer_gives_its_repaired_input_back(server: WebSocketServer) -> None:
    async with server.socket() as socket:
        await socket.connection.send(r'{"type":"response.steer","input":"\ud83d!","previous_response_id":"resp_1"}')
        refused = await socket.receive()
    assert (refused["type"], refused["steer"]["input"]) == ("response.steer.failed", "\ufffd!")
