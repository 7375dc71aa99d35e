"""Responses over a WebSocket: what is answered, remembered, refused and cut short (C1, C3)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from msgspec.structs import replace

from tests.dialects.strategies import responses
from tests.server.sockets import Place, speaking, text_of, with_keys
from tests.server.stateful import until
from tests.server.talk import Caller
from tests.stage import upstream_config
from toolgate.config import Key, Secret
from toolgate.config.settings import Limits, Server
from toolgate.conversation.errors import Unavailable
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.server.responses.memory import Memory, Shelf
from toolgate.server.responses.sockets import Terms
from toolgate.testing import FakeSource, FakeTool, ScriptedModel

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
LOOK_UP = [ToolCall("call_" + "a" * 24, "get_weather", "{}")]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with speaking() as place:
        yield place


def said(request: ModelRequest) -> list[tuple[str, str]]:
    """Who said what, as the model was told."""
    told = []
    for message in request.messages:
        for part in message.parts:
            match part:
                case ToolCall():
                    told.append(("call", part.name))
                case ToolResult():
                    told.append(("result", plain_text(part.content)))
                case Text():
                    told.append((message.role, part.text))
    return told


async def is_closed(model: ScriptedModel) -> bool:
    return model.answers[0].closed


async def test_each_message_is_answered_with_the_events_of_its_response(place: Place) -> None:
    place.play("Hello there.", "And again.")
    async with place.socket() as socket:
        for expected in ("Hello there.", "And again."):
            await socket.create()
            events = await socket.hear_all()
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
            assert text_of(events[-1]["response"]) == expected


async def test_an_unstored_response_is_continued_by_its_id_with_only_what_is_new(place: Place) -> None:
    model = place.play(LOOK_UP, "It is sunny.", "Yes, quite.")
    async with place.socket() as socket:
        first = await socket.ask(input="How is the weather?", tools=[WEATHER])
        result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "22 degrees"}
        second = await socket.ask(input=[result], tools=[WEATHER], previous_response_id=first["id"])
        third = await socket.ask(input="Really?", previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    assert said(model.requests[-1]) == [
        ("user", "How is the weather?"),
        ("call", "get_weather"),
        ("result", "22 degrees"),
        ("assistant", "It is sunny."),
        ("user", "Really?"),
    ]


async def test_an_unstored_response_is_known_on_its_own_socket_only(place: Place) -> None:
    place.play("One.", "Two.")
    async with place.socket() as socket, place.socket() as other:
        first = await socket.ask()
        elsewhere = await other.ask(previous_response_id=first["id"])
        assert (elsewhere["status"], elsewhere["error"]["code"]) == (400, "previous_response_not_found")
        assert text_of(await socket.ask(previous_response_id=first["id"])) == "Two."


async def test_only_the_last_unstored_response_is_remembered(place: Place) -> None:
    place.play("One.", "Two.", "Three.")
    async with place.socket() as socket:
        first = await socket.ask()
        await socket.ask(previous_response_id=first["id"])
        assert (await socket.ask(previous_response_id=first["id"]))["error"]["code"] == "previous_response_not_found"


async def test_a_stored_response_that_continues_an_unstored_one_keeps_all_of_the_past(place: Place) -> None:
    model = place.play("One.", "Two.", "Three.")
    async with place.socket() as socket:
        first = await socket.ask(input="First")
        stored = await socket.ask(input="Second", previous_response_id=first["id"], store=True)
    async with place.socket() as socket:
        await socket.ask(input="Third", previous_response_id=stored["id"])
    told = [text for _, text in said(model.requests[-1])]
    assert told == ["First", "One.", "Second", "Two.", "Third"]


async def test_a_stored_response_is_continued_on_another_socket_and_over_http(place: Place) -> None:
    model = place.play("One.", "Two.", "Three.")
    async with place.socket() as socket:
        first = await socket.ask(store=True)
    async with place.socket() as socket:
        second = await socket.ask(previous_response_id=first["id"], input="Two?", store=True)
    async with Caller(place.url) as caller:
        posted = {"model": "played", "input": "Three?", "previous_response_id": second["id"]}
        await caller.post("/v1/responses", posted)
        assert text_of((await caller.answer()).json) == "Three."
    assert [text for _, text in said(model.requests[-1])] == ["Hi", "One.", "Two?", "Two.", "Three?"]


async def test_a_continuation_that_fails_makes_its_past_forgotten(place: Place) -> None:
    """As the Open Responses specification has it: what follows a failure starts from what the client knows."""
    place.play("One.", Unavailable("out of order"), "Three.")
    async with place.socket() as socket:
        first = await socket.ask()
        failed = await socket.ask(previous_response_id=first["id"])
        assert failed["status"] == 502
        forgotten = await socket.ask(previous_response_id=first["id"])
        assert forgotten["error"]["code"] == "previous_response_not_found"


async def test_an_error_is_an_event_with_its_status_and_the_next_message_is_answered(place: Place) -> None:
    place.play("Fine.")
    async with place.socket() as socket:
        unknown = await socket.ask(model="nobody")
        assert (unknown["type"], unknown["status"], unknown["error"]["code"]) == ("error", 404, "model_not_found")
        assert unknown["error"]["headers"] == unknown["headers"]
        for broken in ('{"type": "response.create", "model": ', "[]", '"hello"', '{"a":1,"a":2}'):
            await socket.connection.send(broken)
            heard = await socket.hear()
            assert (heard["type"], heard["status"], heard["error"]["type"]) == ("error", 400, "invalid_request_error")
        assert text_of(await socket.ask()) == "Fine."


async def test_a_failure_in_the_middle_is_told_in_the_stream_and_the_socket_goes_on(place: Place) -> None:
    place.play([Text("Half an"), Unavailable("gone")], "Whole.")
    async with place.socket() as socket:
        await socket.create()
        events = await socket.hear_all()
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
async def test_what_is_not_for_a_websocket_is_refused_by_name(place: Place, event: dict[str, Any], param: str) -> None:
    async with place.socket() as socket:
        await socket.send(**event)
        refused = await socket.hear()
        assert (refused["status"], refused["error"]["param"]) == (400, param)


async def test_steering_is_refused_in_its_own_words_and_the_input_given_back(place: Place) -> None:
    async with place.socket() as socket:
        await socket.send(type="response.steer", previous_response_id="resp_1", input="Faster!")
        refused = await socket.hear()
        assert (refused["type"], refused["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        assert refused["steer"] == {"previous_response_id": "resp_1", "input": "Faster!"}


async def test_a_warm_up_asks_no_model_and_can_be_continued(place: Place) -> None:
    model = place.play("Ready.")
    async with place.socket() as socket:
        warm = await socket.ask(input="Be brief.", generate=False)
        assert (warm["status"], warm["output"], len(model.requests)) == ("completed", [], 0)
        answer = await socket.ask(input=[], previous_response_id=warm["id"])
        assert text_of(answer) == "Ready."
    assert [text for _, text in said(model.requests[0])] == ["Be brief."]


async def test_messages_of_one_lane_are_answered_in_turn_and_lanes_beside_each_other(place: Place) -> None:
    begun, go = asyncio.Queue[str](), asyncio.Event()

    async def slow(request: ModelRequest) -> str:
        begun.put_nowait(said(request)[-1][1])
        await go.wait()
        return "Slow."

    place.play(slow, "Beside.", "After.")
    async with place.socket() as socket:
        await socket.create(input="a1", stream_id="a")
        assert await begun.get() == "a1"
        await socket.create(input="b1", stream_id="b")
        beside = await socket.hear_all()
        assert {event["stream_id"] for event in beside} == {"b"}
        assert text_of(beside[-1]["response"]) == "Beside."
        await socket.create(input="a2", stream_id="a")
        go.set()
        first, second = await socket.hear_all(), await socket.hear_all()
        assert [text_of(events[-1]["response"]) for events in (first, second)] == ["Slow.", "After."]
        assert {event["stream_id"] for event in (*first, *second)} == {"a"}


async def test_a_new_lane_forks_from_the_last_response_of_another(place: Place) -> None:
    model = place.play("One.", "Two.", "Other two.")
    async with place.socket() as socket:
        first = await socket.ask(stream_id="main")
        fork = await socket.ask(stream_id="fork", previous_response_id=first["id"], input="Fork")
        assert text_of(fork) == "Two."
        assert text_of(await socket.ask(stream_id="main", previous_response_id=first["id"])) == "Other two."
    assert [text for _, text in said(model.requests[1])] == ["Hi", "One.", "Fork"]


async def test_more_lanes_than_allowed_are_refused(place: Place) -> None:
    place.play(*["Yes."] * 32)
    async with place.socket() as socket:
        for number in range(32):
            assert text_of(await socket.ask(stream_id=f"lane {number}")) == "Yes."
        refused = await socket.ask(stream_id="one more")
        assert (refused["error"]["code"], refused["stream_id"]) == ("websocket_stream_limit_reached", "one more")


async def test_messages_that_nobody_can_get_to_are_refused_not_hoarded(place: Place) -> None:
    go = asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        await go.wait()
        return "Done."

    place.play(slow, *["Next."] * 64)
    async with place.socket() as socket:
        for _ in range(66):
            await socket.create()
        refused = await socket.hear()
        assert (refused["status"], refused["headers"]) == (429, {"retry-after": "1"})
        go.set()
        for _ in range(65):
            assert (await socket.hear_all())[-1]["type"] == "response.completed"


async def test_messages_that_wait_are_together_no_larger_than_one_may_be() -> None:
    go = asyncio.Event()

    async def slow(_: ModelRequest) -> str:
        await go.wait()
        return "Done."

    async with speaking(body_bytes=64 * 1024) as place, place.socket() as socket:
        place.play(slow, "Next.")
        for _ in range(3):
            await socket.create(input="x" * 40_000)
        assert (await socket.hear())["status"] == 429
        go.set()
        for _ in range(2):
            assert (await socket.hear_all())[-1]["type"] == "response.completed"


async def test_nothing_is_remembered_of_a_socket_that_is_closed(place: Place) -> None:
    place.play("One.")
    shelf = place.gate._sockets._shelf
    async with place.socket() as socket:
        await socket.ask()
        assert shelf.size > 0

    async def forgotten() -> bool:
        return shelf.size == 0

    await until(forgotten)


async def test_server_tools_run_as_they_do_over_http() -> None:
    tool = FakeTool("get_time", lambda arguments: "noon")
    async with speaking(FakeSource(tool)) as place:
        model = place.play([ToolCall("call_" + "t" * 24, "get_time", "{}")], "It is noon.")
        async with place.socket() as socket:
            answer = await socket.ask(tool_execution="auto", use_server_tools=True)
    assert text_of(answer) == "It is noon."
    assert len(tool.calls) == 1
    assert ("result", "noon") in said(model.requests[-1])


async def test_a_client_that_leaves_has_its_responses_cancelled_upstream(place: Place) -> None:
    """fault: C2"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    model = place.play("A long answer.", pace=pace)
    async with place.socket() as socket:
        await socket.create()
        await paced.wait()
    await until(lambda: is_closed(model))
    assert not model.answers[0].complete


async def test_a_client_that_breaks_off_without_a_word_has_its_responses_cancelled_too(place: Place) -> None:
    """fault: C2"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    model = place.play("A long answer.", pace=pace)
    async with place.socket() as socket:
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

    async with speaking(drain_seconds=30) as place:
        place.play(slow)
        async with place.socket() as busy, place.socket() as idle:
            await busy.create()
            await asked.wait()
            closing = asyncio.create_task(place.listener.close())
            assert await idle.farewell() == 1001
            await busy.create()
            assert (await busy.hear())["status"] == 503
            go.set()
            assert text_of((await busy.hear_all())[-1]["response"]) == "Finished."
            assert await busy.farewell() == 1001
            await closing


async def test_what_runs_longer_than_the_drain_is_ended_with_a_last_word() -> None:
    """fault: K-G"""
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    async with speaking() as place:
        place.play("A long answer.", pace=pace)
        async with place.socket() as socket:
            await socket.create()
            await paced.wait()
            closing = asyncio.create_task(place.listener.close())
            events = await socket.hear_all()
            assert events[-1]["type"] == "response.failed"
            assert "shutting down" in events[-1]["response"]["error"]["message"]
            assert await socket.farewell() == 1012
            await closing


ANN = Key(name="ann", key=Secret("ann-key"), scopes=("chat",))
BOB = Key(name="bob", key=Secret("bob-key"), scopes=("chat",))


async def test_a_key_that_is_revoked_ends_its_socket_and_what_runs_there() -> None:
    paced, never = asyncio.Event(), asyncio.Event()

    async def pace() -> None:
        paced.set()
        await never.wait()

    async with speaking(config=with_keys(ANN, BOB)) as place:
        place.play("A long answer.", pace=pace)
        async with place.socket("ann-key") as ann, place.socket("bob-key") as bob:
            await ann.create()
            await paced.wait()
            place.gate._access.renew(with_keys(BOB))
            events = await ann.hear_all()
            assert events[-1]["type"] == "response.failed"
            assert (await ann.hear())["status"] == 401
            assert await ann.farewell() == 1008
            place.play("Still here.")
            assert text_of(await bob.ask()) == "Still here."


async def test_a_key_that_is_no_longer_known_is_refused_at_its_next_message() -> None:
    async with speaking(config=with_keys(ANN, BOB)) as place, place.socket("ann-key") as ann:
        place.gate._access.keys.renew((BOB,), place.gate.config.models)
        assert (await ann.ask())["status"] == 401
        assert await ann.farewell() == 1008


async def test_limits_of_a_key_hold_for_every_message() -> None:
    config = with_keys(Key(name="ann", key=Secret("ann-key"), scopes=("chat",), requests_per_minute=2))
    async with speaking(config=config) as place, place.socket("ann-key") as ann:
        place.play("One.", "Two.")
        assert [text_of(await ann.ask()) for _ in range(2)] == ["One.", "Two."]
        refused = await ann.ask()
        assert (refused["status"], refused["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused["headers"]["retry-after"]) > 0


async def test_a_socket_that_has_been_open_too_long_is_closed_with_the_reason() -> None:
    async with speaking() as place:
        place.gate._sockets.terms = Terms(seconds=0.05)
        async with place.socket() as socket:
            told = await socket.hear()
            assert (told["status"], told["error"]["code"]) == (400, "websocket_connection_limit_reached")
            assert await socket.farewell() == 1000


def limited(**limits: Any) -> Any:
    return replace(upstream_config(), server=Server(port=0, limits=Limits(**limits)))


async def test_more_sockets_than_a_key_may_have_are_refused_until_one_is_closed() -> None:
    async with speaking(config=limited(websockets_per_key=1)) as place:
        async with place.socket():
            assert await refusal(place) == (429, "too_many_websockets")
        await until(lambda: is_let_in(place))


async def test_sockets_that_are_turned_off_make_a_client_take_http() -> None:
    """Codex falls back to HTTP at once when it is told 426."""
    async with speaking(config=limited(websockets=0)) as place:
        assert await refusal(place) == (426, "upgrade_required")


async def is_let_in(place: Place) -> bool:
    return await refusal(place) == (101, "")


async def refusal(place: Place) -> tuple[int, str]:
    """What a handshake is answered with."""
    from websockets.exceptions import InvalidStatus

    try:
        async with place.socket():
            return 101, ""
    except InvalidStatus as refused:
        return refused.response.status_code, msgspec.json.decode(refused.response.body or b"{}")["error"]["code"]


async def test_the_shelf_makes_room_by_forgetting_what_was_not_asked_for_the_longest() -> None:
    shelf = Shelf(most=40, most_each=30)
    memory, other = Memory(shelf), Memory(shelf)
    memory.keep("a", "r1", ["x" * 10])
    other.keep("a", "r2", ["y" * 10])
    assert await memory.recall("r1") == ["x" * 10]
    memory.keep("b", "r3", ["z" * 10])
    assert (await memory.recall("r1"), await other.recall("r2"), await memory.recall("r3")) == (
        ["x" * 10],
        None,
        ["z" * 10],
    )
    memory.keep("a", "r4", ["w" * 40])
    assert (await memory.recall("r1"), await memory.recall("r4"), shelf.size) == (None, None, 14)
    memory.clear()
    other.clear()
    assert shelf.size == 0


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


async def over_http(place: Place, request: dict[str, Any]) -> list[dict[str, Any]]:
    async with Caller(place.url) as caller:
        await caller.post("/v1/responses", {**request, "stream": True})
        lines = (await caller.answer()).body.split(b"\n")
    frames = b"\n".join([line for line in lines if not line.startswith(b":")]).split(b"\n\n")
    told = [frame.partition(b"\ndata: ")[2] for frame in frames if frame.startswith(b"event: ")]
    return [msgspec.json.decode(event) for event in told]


@hypothesis_settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(response=responses())
def test_a_socket_tells_the_same_events_as_a_stream(response: ModelResponse) -> None:
    request = {"model": "played", "input": "Hi", "store": False}

    async def compare() -> None:
        async with speaking() as place, place.socket() as socket:
            model: ScriptedModel = place.play(response, response)
            streamed = await over_http(place, request)
            await socket.create()
            spoken = await socket.hear_all()
            assert alike(spoken) == alike(streamed)
            assert len(model.requests) == 2

    asyncio.run(compare())
