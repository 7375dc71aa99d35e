"""The official OpenAI client against the state of Responses: conversations, background, resumed streams (spec: C3)."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import Conversation, ConversationItem, Message

from tests.api.responses.stateful import Stateful, stateful, until
from tests.clients.scenes import LOOK_UP, SUNNY, WEATHER_SCHEMA, results_received
from toolgate.conversation.message import plain_text
from toolgate.testing import ScriptedModel

LONG = "One two three four five six seven eight nine ten."


@pytest.fixture
async def server() -> AsyncIterator[Stateful]:
    async with stateful() as server:
        yield server


@pytest.fixture
async def client(server: Stateful) -> AsyncIterator[AsyncOpenAI]:
    async with server.client() as client:
        yield client


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


def text_of(item: ConversationItem) -> str:
    """What a message says; the client has read it as one."""
    assert isinstance(item, Message), item
    Message.model_validate(item.model_dump())  # the client itself is not strict
    return str(item.content[0].text)  # type: ignore[union-attr]


def received(scripted: ScriptedModel) -> list[tuple[str, str]]:
    """Who said what in the last request to the model."""
    return [(message.role, plain_text(message.parts)) for message in scripted.requests[-1].messages]


async def test_a_conversation_is_made_read_changed_and_forgotten(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("Hi")], metadata={"topic": "tea"})
    Conversation.model_validate(made.model_dump())
    assert (made.object, made.metadata) == ("conversation", {"topic": "tea"})
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"topic": "coffee"})
    assert (changed.id, changed.metadata) == (made.id, {"topic": "coffee"})
    assert await client.conversations.retrieve(made.id) == changed
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_items_are_added_paged_read_and_taken_out(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("0")])
    for begin in (1, 21, 41):
        added = await client.conversations.items.create(made.id, items=[user(str(n)) for n in range(begin, begin + 20)])
        assert [text_of(item) for item in added.data] == [str(n) for n in range(begin, begin + 20)]
        assert (added.first_id, added.last_id) == (added.data[0].id, added.data[-1].id)
    with pytest.raises(openai.BadRequestError, match="at most 20"):
        await client.conversations.items.create(made.id, items=[user("x")] * 21)
    newest = [text_of(item) async for item in client.conversations.items.list(made.id)]
    assert newest == [str(n) for n in range(60, -1, -1)]
    pages = client.conversations.items.list(made.id, order="asc", limit=7, include=["reasoning.encrypted_content"])
    items = [item async for item in pages]
    assert [text_of(item) for item in items] == newest[::-1]
    third = str(items[3].id)
    assert text_of(await client.conversations.items.retrieve(third, conversation_id=made.id)) == "3"
    left = await client.conversations.items.delete(third, conversation_id=made.id)
    assert left == made
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(third, conversation_id=made.id)
    behind = client.conversations.items.list(made.id, order="asc", after=str(items[2].id), limit=1)
    assert text_of((await behind).data[0]) == "4"


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_go_on_in_a_conversation(server: Stateful, client: AsyncOpenAI, stream: bool) -> None:
    scripted = server.play("Hello.", "Ten.")
    made = await client.conversations.create(items=[user("I am Ann.")])
    options: Any = {"model": "m", "conversation": made.id}
    for question in ("Hi", "How many?"):
        if stream:
            async with client.responses.stream(input=question, **options) as emitted:
                answer: Any = await emitted.get_final_response()
        else:
            answer = await client.responses.create(input=question, **options)
        assert answer.conversation.id == made.id
    assert received(scripted) == [
        ("user", "I am Ann."),
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", "How many?"),
    ]
    items = [text_of(item) async for item in client.conversations.items.list(made.id, order="asc")]
    assert items == ["I am Ann.", "Hi", "Hello.", "How many?", "Ten."]
    assert answer.output[0].id == (await client.conversations.items.list(made.id)).data[0].id


async def test_tools_of_the_client_work_in_a_conversation(server: Stateful, client: AsyncOpenAI) -> None:
    scripted = server.play(LOOK_UP, SUNNY)
    made = await client.conversations.create()
    tools: Any = [{"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER_SCHEMA}]
    options: Any = {"model": "m", "conversation": made.id, "tools": tools}
    first = await client.responses.create(input="Weather?", **options)
    result: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "22 degrees"}
    assert (await client.responses.create(input=[result], **options)).output_text == "It is sunny."
    assert results_received(scripted) == [("get_weather", "22 degrees")]


async def test_a_conversation_in_use_is_refused_by_its_code(server: Stateful, client: AsyncOpenAI) -> None:
    server.play(LONG, pace=asyncio.Event().wait)
    made = await client.conversations.create()
    await client.responses.create(model="m", input="Hi", conversation=made.id, background=True)
    with pytest.raises(openai.ConflictError) as caught:
        await client.responses.create(model="m", input="Hi", conversation=made.id)
    assert caught.value.code == "conversation_locked"


async def test_a_background_response_is_polled_until_it_is_complete(server: Stateful, client: AsyncOpenAI) -> None:
    """field: D14"""
    server.play(LONG)
    queued = await client.responses.create(model="m", input="Hi", background=True)
    assert (queued.status, queued.background, queued.output_text) == ("queued", True, "")

    async def over() -> bool:
        return (await client.responses.retrieve(queued.id)).status == "completed"

    await until(over)
    answer = await client.responses.retrieve(queued.id)
    assert (answer.id, answer.output_text) == (queued.id, LONG)
    assert [item.type async for item in client.responses.input_items.list(queued.id)] == ["message"]


async def test_a_background_response_is_cancelled(server: Stateful, client: AsyncOpenAI) -> None:
    server.play(LONG, pace=asyncio.Event().wait)
    queued = await client.responses.create(model="m", input="Hi", background=True)
    assert (await client.responses.cancel(queued.id)).status == "cancelled"
    assert (await client.responses.retrieve(queued.id)).status == "cancelled"


async def test_a_stream_that_was_cut_is_resumed_where_it_was(server: Stateful, client: AsyncOpenAI) -> None:
    """field: D14"""
    steps: asyncio.Queue[None] = asyncio.Queue()
    server.play(LONG, pace=steps.get)
    steps.put_nowait(None)
    stream = await client.responses.create(model="m", input="Hi", background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        steps.put_nowait(None)
        if len(seen) == 7:
            break
    await stream.close()
    for _ in range(30):
        steps.put_nowait(None)
    id = seen[0].response.id
    rest = await client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == LONG
    async with client.responses.stream(response_id=id) as again:
        assert (await again.get_final_response()).output_text == LONG


async def test_what_a_response_answered_is_paged(server: Stateful, client: AsyncOpenAI) -> None:
    server.play("Hello.")
    answer = await client.responses.create(model="m", input=[user(str(n)) for n in range(45)])
    listed: list[Any] = [item async for item in client.responses.input_items.list(answer.id, limit=10)]
    assert [item.content[0].text for item in listed] == [str(n) for n in range(44, -1, -1)]
    assert len({item.id for item in listed}) == 45
    oldest: Any = await client.responses.input_items.list(
        answer.id, order="asc", limit=2, include=["message.output_text.logprobs"]
    )
    assert [item.content[0].text for item in oldest.data] == ["0", "1"]


_SERVER = """
import asyncio, pathlib, sys
from tests.api.responses.stateful import stateful
from toolgate.api.responses import BackgroundResponseOptions

async def main():
    async with stateful(pathlib.Path(sys.argv[1]), terms=BackgroundResponseOptions(flush_seconds=0.01)) as server:
        server.play("Kept.", "One two three four five", pace=lambda: asyncio.sleep(0.02))
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_nothing_that_was_sent_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """field: D14"""
    path = tmp_path / "t.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVER, str(path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="ann-key", max_retries=0) as client:
        made = await client.conversations.create(items=[user("Hi")])
        first = await client.responses.create(model="m", input="Go", conversation=made.id)
        stream = await client.responses.create(model="m", input="Count", background=True, stream=True)
        seen: list[Any] = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        process.kill()
        await process.wait()
        await stream.close()
    async with stateful(path, played=["Once more."]) as server, server.client() as client:
        assert (await client.responses.retrieve(first.id)).output_text == "Kept."
        items = [text_of(item) async for item in client.conversations.items.list(made.id, order="asc")]
        assert items == ["Hi", "Go", "Kept."]
        last, id = seen[-1].sequence_number, seen[0].response.id
        rest = [event async for event in await client.responses.retrieve(id, stream=True, starting_after=last)]
        assert [event.sequence_number for event in rest] == list(range(last + 1, last + 1 + len(rest)))
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == (await client.responses.retrieve(id)).output_text == "Once more."


CALL_A, CALL_B = "call_" + "a" * 24, "call_" + "b" * 24


def call(id: str) -> Any:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def result(id: str, text: str) -> Any:
    return {"type": "function_call_output", "call_id": id, "output": text}


@pytest.mark.parametrize("chained", [False, True])
async def test_a_conversation_is_compacted_and_goes_on(server: Stateful, client: AsyncOpenAI, chained: bool) -> None:
    """field: D12"""
    scripted = server.play("Ann wants tea; the kettle is on.", "Here it is.")
    stated: Any = {"type": "message", "role": "assistant", "content": "The kettle is on."}
    history = [user("I am Ann."), call(CALL_A), result(CALL_A, "hot"), stated, user("Tea, please.")]
    short = await client.responses.compact(model="m", input=history)
    assert received(scripted)[0] == ("user", "I am Ann.")
    assert short.object == "response.compaction"
    assert [item.type for item in short.output] == ["message", "message", "compaction"]
    assert short.usage.total_tokens >= 0
    if chained:
        answer = await client.responses.create(model="m", input="And?", previous_response_id=short.id)
    else:
        items: Any = [*[item.model_dump(exclude_none=True, warnings=False) for item in short.output], user("And?")]
        answer = await client.responses.create(model="m", input=items)
    assert answer.output_text == "Here it is."
    summary = "Summary of the conversation so far:\n\nAnn wants tea; the kettle is on."
    words = [("user", "I am Ann."), ("user", "Tea, please."), ("assistant", summary), ("user", "And?")]
    assert received(scripted) == words


async def test_compaction_loses_no_call_that_waits_and_no_finished_sibling(
    server: Stateful, client: AsyncOpenAI
) -> None:
    """field: D17"""
    scripted = server.play("Looked around.", "Both seen.")
    history = [user("Look twice."), call(CALL_A), call(CALL_B), result(CALL_A, "first")]
    short = await client.responses.compact(model="m", input=history)
    assert [item.type for item in short.output] == [
        "message",
        "compaction",
        "function_call",
        "function_call",
        "function_call_output",
    ]
    await client.responses.create(model="m", input=[result(CALL_B, "second")], previous_response_id=short.id)
    assert [text for _, text in results_received(scripted)] == ["first", "second"]


async def test_there_must_be_something_to_compact(server: Stateful, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing to compact"):
        await client.responses.compact(model="m")


async def test_a_compaction_names_its_model(server: Stateful, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="model is required"):
        await client.post("/responses/compact", cast_to=object, body={"input": [{"role": "user", "content": "Hi"}]})
