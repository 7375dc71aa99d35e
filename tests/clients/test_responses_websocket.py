"""The official OpenAI client over a WebSocket, over every upstream dialect: asyncio and blocking."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.clients.scenes import HELLO, LOOK_UP, SUNNY, WEATHER_SCHEMA, calls_received, results_received, weather
from tests.stage import UPSTREAMS, Stage

TOOLS: Any = [{"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER_SCHEMA}]
over_every_upstream = pytest.mark.parametrize("model", UPSTREAMS)
ENDS = ("response.completed", "response.failed", "error")
_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def blocking(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def ended(connection: Any) -> Any:
    """The event that ends a response; every event must be one that the client knows, with all its fields."""
    async for event in connection:
        _EVENTS.validate_python(event.to_dict())
        if event.type in ENDS:
            return event
    raise AssertionError("The server closed the socket.")


@over_every_upstream
async def test_a_text_turn(stage: Stage, client: AsyncOpenAI, model: str) -> None:
    stage.play(HELLO)
    async with client.responses.connect() as connection:
        await connection.response.create(model=model, input="Hi", store=False)
        last = await ended(connection)
    assert (last.response.output_text, last.response.status) == ("Hello from the model.", "completed")
    assert (last.response.usage.input_tokens, last.response.usage.output_tokens) == (12, 5)


@over_every_upstream
async def test_the_clients_tools_with_only_what_is_new_sent(stage: Stage, client: AsyncOpenAI, model: str) -> None:
    scripted = stage.play(LOOK_UP, SUNNY)
    async with client.responses.connect() as connection:
        await connection.response.create(model=model, input="How is the weather?", tools=TOOLS, store=False)
        asked = (await ended(connection)).response
        results: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": weather("Paris")}
            for item in asked.output
            if item.type == "function_call"
        ]
        await connection.response.create(
            model=model, input=results, tools=TOOLS, store=False, previous_response_id=asked.id
        )
        last = await ended(connection)
    assert last.response.output_text == "It is sunny."
    assert calls_received(scripted) == [("get_weather", '{"city":"Paris"}')]
    assert [text for _, text in results_received(scripted)] == ["22 degrees in Paris"]


async def test_an_error_is_an_event_that_the_client_knows_and_the_socket_goes_on(
    stage: Stage, client: AsyncOpenAI
) -> None:
    stage.play(HELLO)
    async with client.responses.connect() as connection:
        await connection.response.create(model="nobody", input="Hi", store=False)
        error = await ended(connection)
        assert (error.status, error.error.code, error.error.type) == (404, "model_not_found", "not_found_error")
        await connection.response.create(model="openai_chat", input="Hi", store=False)
        assert (await ended(connection)).response.output_text == "Hello from the model."


async def test_steering_fails_in_words_that_the_client_knows(stage: Stage, client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.steer(previous_response_id="resp_1", input="Faster!")
        async for event in connection:
            _EVENTS.validate_python(event.to_dict())
            assert event.type == "response.steer.failed"
            assert event.error.code == "steering_not_supported"
            break


async def test_lanes_are_distinguished_by_their_names(stage: Stage, client: AsyncOpenAI) -> None:
    stage.play(HELLO, SUNNY)
    async with client.responses.connect() as connection:
        for lane in ("main", "fork"):
            await connection.response.create(model="openai_chat", input="Hi", store=False, stream_id=lane)
            last = await ended(connection)
            assert (last.stream_id, last.response.status) == (lane, "completed")


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the client's own
def test_the_blocking_client(stage: Stage, blocking: OpenAI) -> None:
    stage.play(HELLO, HELLO)
    with blocking.responses.connect() as connection:
        for _ in range(2):
            connection.response.create(model="openai_responses", input="Hi", store=False)
            last: Any = next(event for event in connection if event.type in ENDS)
            assert last.response.output_text == "Hello from the model."
