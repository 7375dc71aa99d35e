"""A client finds what it asked to `store` by its id, through the official client (spec: D1, D2)."""

from decimal import Decimal
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.api.records.record_server import RecordServer, record_server
from tests.clients.scenes import HELLO, ID1, LOOK_UP, SUNNY, WEATHER_SCHEMA
from tests.stage import UPSTREAMS
from toolgate.config.settings import RecordSettings
from toolgate.wire.jsontext import encode

TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}]
QUESTION: Any = {"role": "user", "content": "How is the weather?"}
ASKED = RecordSettings()


def client_of(kept: RecordServer, who: str = "ann") -> OpenAI:
    return OpenAI(base_url=f"{kept.url}/v1", api_key=f"{who}-key", max_retries=0)


@pytest.mark.parametrize("model", UPSTREAMS)
def test_a_stored_completion_is_returned_as_it_was(model: str) -> None:
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        kept.play(LOOK_UP)
        made = client.chat.completions.create(
            model=model, messages=[QUESTION], tools=TOOLS, store=True, metadata={"topic": "weather"}
        )
        found = client.chat.completions.retrieve(made.id)
        listed = list(client.chat.completions.messages.list(made.id))
    assert found.choices == made.choices
    assert found.model == model
    assert (found.usage and found.usage.total_tokens) == (made.usage and made.usage.total_tokens)
    assert found.to_dict()["metadata"] == {"topic": "weather"}
    assert [(one.role, one.content) for one in listed] == [("user", "How is the weather?")]


@pytest.mark.parametrize("model", UPSTREAMS)
def test_a_streamed_completion_is_stored_when_the_stream_ends(model: str) -> None:
    """Acknowledged is durable: behind the last chunk it can be read."""
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        kept.play(HELLO)
        chunks = list(client.chat.completions.create(model=model, messages=[QUESTION], store=True, stream=True))
        found = client.chat.completions.retrieve(chunks[-1].id)
    assert found.choices[0].message.content == "Hello from the model."
    assert found.choices[0].finish_reason == "stop"


def test_each_turn_of_a_chat_has_its_own_messages() -> None:
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        kept.play(LOOK_UP, SUNNY)
        first = client.chat.completions.create(model="openai_chat", messages=[QUESTION], tools=TOOLS, store=True)
        history: Any = [QUESTION, first.choices[0].message, {"role": "tool", "tool_call_id": ID1, "content": "22"}]
        second = client.chat.completions.create(model="openai_chat", messages=history, tools=TOOLS, store=True)
        assert len(kept.chats()) == 1
        assert [one.role for one in client.chat.completions.messages.list(first.id)] == ["user"]
        roles = [one.role for one in client.chat.completions.messages.list(second.id, limit=1)]
        assert roles == ["user", "assistant", "tool"]
        assert client.chat.completions.retrieve(first.id).choices[0].message.tool_calls


def test_the_list_has_pages_and_is_narrowed_by_model_and_metadata() -> None:
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        kept.play(*["Yes."] * 6)
        made = [
            client.chat.completions.create(
                model=UPSTREAMS[number % 2],
                messages=[{"role": "user", "content": str(number)}],
                store=True,
                metadata={"half": str(number // 3)},
            ).id
            for number in range(6)
        ]
        listing = client.chat.completions.list
        assert [one.id for one in listing(limit=2)] == made
        assert [one.id for one in listing(order="desc", limit=4)] == made[::-1]
        assert [one.id for one in listing(model=UPSTREAMS[1], limit=1)] == made[1::2]
        assert [one.id for one in listing(metadata={"half": "1"}, limit=1)] == made[3:]
        assert list(listing(metadata={"half": "2"})) == []
        changed = client.chat.completions.update(made[0], metadata={"half": "2"})
        assert changed.id == made[0]
        assert [one.id for one in listing(metadata={"half": "2"})] == made[:1]


def test_a_deleted_completion_is_gone_with_the_messages_stored_for_it() -> None:
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        kept.play("One.", "Two.")
        first = client.chat.completions.create(model="openai_chat", messages=[QUESTION], store=True)
        history: Any = [QUESTION, first.choices[0].message, {"role": "user", "content": "Go on."}]
        second = client.chat.completions.create(model="openai_chat", messages=history, store=True)
        assert client.chat.completions.delete(second.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve(second.id)
        [messages] = kept.chats()
        assert [one["content"] for one in messages] == ["How is the weather?", "One."]
        client.chat.completions.delete(first.id)
        assert kept.chats() == []


def test_deleting_a_completion_leaves_a_chat_that_is_stored_anyway() -> None:
    with record_server() as kept, client_of(kept) as client:
        kept.play("One.")
        made = client.chat.completions.create(model="openai_chat", messages=[QUESTION], store=True)
        client.chat.completions.delete(made.id)
        assert len(kept.chats()) == 1
        assert list(client.chat.completions.list()) == []


def test_a_completion_of_another_key_is_not_found() -> None:
    with record_server(records=ASKED) as kept, client_of(kept) as ann, client_of(kept, "bob") as bob:
        kept.play("One.")
        made = ann.chat.completions.create(model="openai_chat", messages=[QUESTION], store=True)
        for reach in (
            bob.chat.completions.retrieve,
            bob.chat.completions.delete,
            lambda name: bob.chat.completions.update(name, metadata={}),
            lambda name: list(bob.chat.completions.messages.list(name)),
        ):
            with pytest.raises(openai.NotFoundError):
                reach(made.id)
        assert list(bob.chat.completions.list()) == []


OVERSIZED = ({str(number): "" for number in range(17)}, {"a" * 65: ""}, {"a": "b" * 513})


def test_metadata_must_hold_strings() -> None:
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        kept.play("One.")
        made = client.chat.completions.create(model="openai_chat", messages=[QUESTION], store=True)
        path = f"/v1/chat/completions/{made.id}"
        for wrong in ({"a": 1}, ["a"], *OVERSIZED):
            assert kept.ask(path, method="POST", body={"metadata": wrong})[0] == 400


def test_oversized_metadata_is_refused_before_the_model_is_asked() -> None:
    """A list reads the metadata of a hundred completions at once: with 8 MB in each, one GET took 800 MB."""
    with record_server(records=ASKED) as kept, client_of(kept) as client:
        for wrong in OVERSIZED:
            with pytest.raises(openai.BadRequestError, match="metadata"):
                client.chat.completions.create(model="openai_chat", messages=[QUESTION], store=True, metadata=wrong)
        assert list(client.chat.completions.list()) == []
        kept.play("One.")
        client.chat.completions.create(model="openai_chat", messages=[QUESTION], metadata=OVERSIZED[0])


def test_numbers_that_no_float_can_hold_are_listed_as_they_were_sent() -> None:
    """They were stored, and their lists got 500 from then on."""
    with record_server() as kept:
        kept.play(HELLO)
        called = {
            "id": ID1,
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "weight": Decimal("1e400"),
        }
        history = [
            QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": ID1, "content": "22"},
        ]
        body = encode({"model": "openai_chat", "store": True, "messages": history})
        headers = {"authorization": "Bearer ann-key"}
        made = httpx.post(f"{kept.url}/v1/chat/completions", content=body, headers=headers)
        listed = httpx.get(f"{kept.url}/v1/chat/completions/{made.json()['id']}/messages", headers=headers)
        [chat] = kept.listed("/v1/chats")
        messages = httpx.get(f"{kept.url}/v1/chats/{chat['id']}/messages", headers=headers)
    assert [made.status_code, listed.status_code, messages.status_code] == [200, 200, 200]
