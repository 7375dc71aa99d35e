"""Plain chats are stored as they were sent, each message once, if that is configured or requested (spec: D1, D2)."""

import json
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from msgspec.structs import replace
from ollama import Client as Ollama
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage

from tests.api.records.record_server import ANN, RecordServer, record_server
from tests.clients.scenes import HELLO, ID1, LOOK_UP, SUNNY, WEATHER_SCHEMA
from tests.stage import UPSTREAMS
from toolgate.config import Secret
from toolgate.config.settings import RecordSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Reasoning, Text, ToolCall

TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}]
QUESTION: Any = {"role": "user", "content": "How is the weather?"}


def chat_turns(kept: RecordServer, model: str, stream: bool) -> None:
    """Three turns of a client that sends its growing history with each."""
    kept.play(LOOK_UP, SUNNY, HELLO)
    history: list[Any] = [{"role": "system", "content": "Be brief."}, QUESTION]
    with OpenAI(base_url=f"{kept.url}/v1", api_key="ann-key", max_retries=0) as client:
        for more in (
            [{"role": "tool", "tool_call_id": ID1, "content": "22 degrees"}],
            [{"role": "user", "content": "And now\r\ngreet me. "}],
            [],
        ):
            answer: ChatCompletionMessage
            if stream:
                with client.chat.completions.stream(model=model, messages=history, tools=TOOLS) as events:
                    answer = events.get_final_completion().choices[0].message
            else:
                answer = client.chat.completions.create(model=model, messages=history, tools=TOOLS).choices[0].message
            history += [answer.model_dump(exclude_none=True, exclude={"parsed"}), *more]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", UPSTREAMS)
def test_a_growing_history_is_one_chat_with_each_message_once(model: str, stream: bool) -> None:
    with record_server() as kept:
        chat_turns(kept, model, stream)
        [messages] = kept.chats()
    assert [one["role"] for one in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert [one["content"] for one in messages] == [
        "Be brief.",
        "How is the weather?",
        "Let me look.",
        "22 degrees",
        "It is sunny.",
        "And now\r\ngreet me. ",
        "Hello from the model.",
    ]
    [call] = messages[2]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == (ID1, "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert messages[3]["tool_call_id"] == ID1
    assert [one.get("finish_reason") for one in messages[2::2]] == ["tool_calls", "stop", "stop"]
    assert messages[2]["model"] == model
    assert messages[6]["usage"]["output_tokens"] == 5
    assert len({one["request_id"] for one in messages}) == 3


def test_chats_are_kept_in_either_database(storage_url: str) -> None:
    with record_server(storage=Secret(storage_url)) as kept:
        chat_turns(kept, "openai_chat", stream=True)
        [messages] = kept.chats()
    assert len(messages) == 7


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["anthropic", "openai_chat"])
def test_a_chat_of_anthropics_client_is_kept(model: str, stream: bool) -> None:
    tools: Any = [{"name": "get_weather", "input_schema": WEATHER_SCHEMA}]
    history: list[Any] = [QUESTION]
    with record_server() as kept, Anthropic(base_url=kept.url, api_key="ann-key", max_retries=0) as client:
        kept.play(LOOK_UP, SUNNY)
        for _ in range(2):
            asked: Any = {"model": model, "messages": history, "max_tokens": 99, "tools": tools, "system": "Be brief."}
            if stream:
                with client.messages.stream(**asked) as events:
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(**asked)
            result = {"type": "tool_result", "tool_use_id": ID1, "content": [{"type": "text", "text": "22 degrees"}]}
            output = [block.model_dump(exclude_none=True) for block in answer.content]
            history += [{"role": "assistant", "content": output}, {"role": "user", "content": [result]}]
        [messages] = kept.chats()
    assert [(one["role"], one["content"]) for one in messages] == [
        ("system", "Be brief."),
        ("user", "How is the weather?"),
        ("assistant", "Let me look."),
        ("tool", "22 degrees"),
        ("assistant", "It is sunny."),
    ]
    assert messages[2]["tool_calls"][0]["id"] == messages[3]["tool_call_id"] == ID1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["ollama", "openai_chat"])
def test_a_chat_of_ollamas_client_is_kept(model: str, stream: bool) -> None:
    history: list[Any] = [QUESTION]
    with record_server() as kept:
        client: Any = Ollama(kept.url, headers={"authorization": "Bearer ann-key"})
        kept.play(LOOK_UP, SUNNY, HELLO)
        for _ in range(2):
            answers = client.chat(model, history, tools=TOOLS, stream=stream)
            contents = list(answers) if stream else [answers]
            calls = [call for one in contents for call in one.message.tool_calls or ()]
            output = {"role": "assistant", "content": "".join([one.message.content or "" for one in contents])}
            history += [{**output, "tool_calls": calls}, {"role": "tool", "content": "22 degrees"}]
        generated = client.generate(model, "Greet me.", stream=stream)
        assert [one.response for one in (generated if stream else [generated])]
        client.close()
        first, second = kept.chats()
    assert [one["content"] for one in first] == ["How is the weather?", "Let me look.", "22 degrees", "It is sunny."]
    assert first[1]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert [one["content"] for one in second] == ["Greet me.", "Hello from the model."]


def test_a_call_is_kept_under_the_id_that_its_client_knows() -> None:
    """Ids such as `0` that upstreams give are made unique on their way to the client, and only once."""
    with record_server() as kept, OpenAI(base_url=f"{kept.url}/v1", api_key="ann-key", max_retries=0) as client:
        kept.play([ToolCall("0", "get_weather", "{}")])
        with client.chat.completions.stream(model="anthropic", messages=[QUESTION], tools=TOOLS) as events:
            [call] = events.get_final_completion().choices[0].message.tool_calls or []
        [[_, answer]] = kept.chats()
    assert call.id.startswith("call_tg")
    assert answer["tool_calls"][0]["id"] == call.id


def test_a_request_that_continues_from_an_earlier_point_starts_a_new_chat() -> None:
    with record_server() as kept:
        kept.play("One.", "Two.", "Other.")
        ask(kept, [QUESTION])
        history = [QUESTION, {"role": "assistant", "content": "One."}, {"role": "user", "content": "Go on."}]
        ask(kept, history)
        ask(kept, history)
        first, second = kept.chats()
    assert [one["content"] for one in first] == ["How is the weather?", "One.", "Go on.", "Two."]
    assert [one["content"] for one in second] == ["How is the weather?", "One.", "Go on.", "Other."]


def test_two_keys_with_the_same_messages_have_separate_chats() -> None:
    with record_server() as kept:
        kept.play("One.", "Two.")
        ask(kept, [QUESTION])
        ask(kept, [QUESTION, {"role": "assistant", "content": "One."}, QUESTION], who="bob")
        assert [len(one) for one in kept.chats("ann")] == [2]
        assert [len(one) for one in kept.chats("bob")] == [4]


def test_a_changed_system_prompt_is_stored_where_it_takes_effect() -> None:
    with record_server() as kept:
        kept.play("One.", "Two.", "Three.")
        history: list[Any] = [QUESTION]
        for time, answer in (("9:00", "One."), ("9:05", "Two."), ("9:05", "Three.")):
            ask(kept, [{"role": "system", "content": f"It is {time}."}, *history])
            history += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
        [messages] = kept.chats()
    contents = ["It is 9:00.", "How is the weather?", "One.", "It is 9:05.", "Go on.", "Two.", "Go on.", "Three."]
    assert [one["content"] for one in messages] == contents


def test_images_reasoning_and_refusals_are_structured_parts() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    with record_server() as kept:
        kept.play(ModelResponse((Reasoning("Let me think."), Text("A cat.")), "stop", Usage(3, 4, reasoning=2)))
        ask(kept, [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}])
        [[asked, answered]] = kept.chats()
    assert asked["content"] == "What is this?"
    shown = {"type": "image", "mime": "image/png", "data": "aGk="}
    assert asked["content_json"] == [{"type": "text", "text": "What is this?"}, shown]
    assert answered["content"] == "A cat."
    assert answered["content_json"][0] == {"type": "reasoning", "text": "Let me think."}
    assert answered["usage"]["reasoning_tokens"] == 2


def test_a_legacy_function_call_is_stored_as_one() -> None:
    functions = [{"name": "get_weather", "parameters": WEATHER_SCHEMA}]
    call = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    with record_server() as kept:
        kept.play(LOOK_UP, SUNNY)
        ask(kept, [QUESTION], functions=functions)
        history = [QUESTION, {"role": "assistant", "content": "Let me look.", "function_call": call}]
        ask(kept, [*history, {"role": "function", "name": "get_weather", "content": "22"}], functions=functions)
        [messages] = kept.chats()
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["function_call"] == call
    assert "tool_calls" not in messages[1]
    assert messages[2]["name"] == "get_weather"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_failed_is_not_kept(stream: bool) -> None:
    with record_server() as kept:
        kept.play([Text("Well,"), UpstreamUnavailable("out of order")])
        ask(kept, [QUESTION], stream=stream, status=200 if stream else 502)
        assert kept.chats() == []
        counted = httpx.get(f"{kept.url}/metrics", headers={"authorization": "Bearer eve-key"})
    assert counted.status_code == 200
    assert "toolgate_records_lost_total{" not in counted.text


@pytest.mark.parametrize(
    ("records", "key", "store", "is_kept", "is_warned"),
    [
        (RecordSettings(), None, False, False, False),
        (RecordSettings(), None, True, True, False),
        (RecordSettings(), True, False, True, False),
        (RecordSettings(), False, True, False, True),
        (RecordSettings(chats="none"), None, True, False, True),
        (RecordSettings(chats="none"), True, False, True, False),
        (RecordSettings(chats="all"), None, False, True, False),
        (RecordSettings(chats="all"), False, False, False, False),
    ],
)
def test_configuration_key_and_request_decide_which_chats_are_stored(
    records: RecordSettings, key: bool | None, store: bool, is_kept: bool, is_warned: bool
) -> None:
    with record_server(records=records, keys=(replace(ANN, keep_chats=key),)) as kept:
        kept.play("One.")
        asked: dict[str, Any] = {"store": True} if store else {}
        headers = ask(kept, [QUESTION], **asked)
        assert len(kept.chats()) == is_kept
    assert ("keeps no chats" in headers.get("x-toolgate-warning", "")) == is_warned


def test_lists_come_in_pages_and_their_order() -> None:
    with record_server() as kept:
        kept.play(*[f"Answer {number}." for number in range(5)])
        for number in range(5):
            ask(kept, [{"role": "user", "content": f"Question {number}"}])
        whole = [one["id"] for one in kept.listed("/v1/chats")]
        assert [one["id"] for one in kept.listed("/v1/chats?order=asc")] == whole[::-1]
        _, first = kept.ask("/v1/chats?limit=2")
        assert ([one["id"] for one in first["data"]], first["has_more"]) == (whole[:2], True)
        _, last = kept.ask(f"/v1/chats?limit=3&after={whole[1]}")
        assert ([one["id"] for one in last["data"]], last["has_more"]) == (whole[2:], False)
        path = f"/v1/chats/{whole[0]}/messages"
        newest = kept.listed(path)
        assert [one["content"] for one in newest] == ["Answer 4.", "Question 4"]
        assert kept.listed(f"{path}?after={newest[0]['id']}") == newest[1:]
        assert kept.ask(f"{path}?after=nonsense")[0] == 400
        assert kept.ask("/v1/chats?after=chat_unknown")[0] == 400


def test_a_deleted_chat_is_gone_and_anothers_is_not_there_at_all() -> None:
    with record_server() as kept:
        kept.play("One.")
        ask(kept, [QUESTION])
        [chat] = kept.listed("/v1/chats")
        for path in (f"/v1/chats/{chat['id']}", f"/v1/chats/{chat['id']}/messages"):
            for who in ("bob", "eve"):
                assert kept.ask(path, who=who)[0] == 404
        assert kept.ask(f"/v1/chats/{chat['id']}", who="bob", method="DELETE")[0] == 404
        assert kept.ask(f"/v1/chats?after={chat['id']}", who="bob")[0] == 400
        assert kept.ask(f"/v1/chats/{chat['id']}") == (200, chat)
        assert kept.ask(f"/v1/chats/{chat['id']}", method="DELETE")[1]["deleted"] is True
        assert kept.ask(f"/v1/chats/{chat['id']}")[0] == 404
        assert kept.ask(f"/v1/chats/{chat['id']}/messages")[0] == 404


def ask(kept: RecordServer, messages: Any, *, who: str = "ann", status: int = 200, **more: Any) -> Any:
    """Ask a model in Chat's words; the headers of the answer."""
    body = {"model": "openai_chat", "messages": messages, **more}
    with httpx.Client(headers={"authorization": f"Bearer {who}-key"}, timeout=30) as client:
        answer = client.post(f"{kept.url}/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    return answer.headers
