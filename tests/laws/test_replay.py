"""Replay law (spec: Y9): an answer that a client sends back as it received it reaches its own upstream identical.

Blocks, their order, their signatures and the ids of calls: whichever API the client speaks, whole or streamed. The official
clients put streams together, as an agent would have them do. Ollama's API has no place for signatures and is left out.
Answers in the words of real servers are in `test_replay_as_sent.py`.
"""

from typing import Any

import pytest
from anthropic import Anthropic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from tests.stage import Stage
from toolgate.conversation.message import Part, Reasoning, ReasoningSignature, RefusalPart, Text, ToolCall

TOOL = "look_up"
PROOFS = ("signature", "data", "encrypted_content")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


def signed(text: str, name: str) -> Reasoning:
    return Reasoning(text, ReasoningSignature("anthropic", {"signature": f"signature-{name}"}))


def redacted(name: str) -> Reasoning:
    return Reasoning("", ReasoningSignature("anthropic", {"data": f"redacted-{name}"}))


def call(number: int) -> ToolCall:
    return ToolCall(f"toolu_{number:024d}", TOOL, f'{{"city":"Rome {number}"}}')


def item(text: str, name: str) -> Reasoning:
    return Reasoning(text, ReasoningSignature("openai_responses", {"encrypted_content": f"encrypted-{name}"}))


ANSWERS: dict[str, dict[str, tuple[Part, ...]]] = {
    "anthropic": {
        "thinking before a call": (signed("t1", "a"), call(1)),
        "thinking, redacted thinking, text, thinking, call": (
            signed("t1", "a"),
            redacted("b"),
            Text("Let me see."),
            signed("t2", "c"),
            call(1),
        ),
        "redacted thinking only": (redacted("a"), redacted("b"), Text("Done."), call(1)),
        "thinking between calls": (call(1), signed("t1", "a"), call(2), signed("t2", "b"), call(3)),
        "thinking between texts": (
            Text("One. "),
            signed("", "a"),
            Text("Two: ü 😀. "),
            signed("t2", "b"),
            Text("Three."),
        ),
        "text behind calls": (signed("t1", "a"), call(1), signed("t2", "b"), Text("Working on it."), call(2)),
    },
    "openai_responses": {
        "an encrypted item before a call": (item("Hm.", "a"), call(1)),
        "several encrypted items": (
            item("One.", "a"),
            Text("Let me see."),
            item("", "b"),
            call(1),
            item("Two.", "c"),
            call(2),
        ),
    },
}
CASES = [(upstream, name) for upstream, answers in ANSWERS.items() for name in answers]


class ChatClient:
    """OpenAI Chat Completions."""

    def __init__(self, url: str, model: str, stream: bool) -> None:
        self._chat = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0).chat.completions
        self._model, self._stream = model, stream

    def ask(self, messages: list[Any]) -> list[Any]:
        """The messages to send next: those given, the answer as it was received, and results for its calls."""
        tools: Any = [{"type": "function", "function": {"name": TOOL, "parameters": SCHEMA}}]
        options: Any = {"model": self._model, "messages": messages, "tools": tools}
        if self._stream:
            with self._chat.stream(**options) as stream:
                stream.until_done()
                message = stream.get_final_completion().choices[0].message.model_dump(exclude_none=True)
        else:
            message = self._chat.create(**options).choices[0].message.model_dump(exclude_none=True)
        calls = message.get("tool_calls") or ()
        for one in calls:
            one["function"].pop("parsed_arguments", None)
            one.pop("index", None)
        message.pop("parsed", None)
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "sunny"} for one in calls]
        return [*messages, message, *(results or [{"role": "user", "content": "And then?"}])]


class MessagesClient:
    """Anthropic Messages."""

    def __init__(self, url: str, model: str, stream: bool) -> None:
        self._messages = Anthropic(base_url=url, api_key="unused", max_retries=0).messages
        self._model, self._stream = model, stream

    def ask(self, messages: list[Any]) -> list[Any]:
        """The messages to send next."""
        tools: Any = [{"name": TOOL, "input_schema": SCHEMA}]
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        options: Any = {
            "model": self._model,
            "messages": messages,
            "tools": tools,
            "max_tokens": 2000,
            "thinking": thinking,
        }
        if self._stream:
            with self._messages.stream(**options) as stream:
                message: Any = stream.get_final_message()
        else:
            message = self._messages.create(**options)
        content = [block.model_dump(exclude_none=True) for block in message.content]
        ids = [block["id"] for block in content if block["type"] == "tool_use"]
        results: Any = [{"type": "tool_result", "tool_use_id": id, "content": "sunny"} for id in ids]
        answer = {"role": "assistant", "content": content}
        return [*messages, answer, {"role": "user", "content": results or "And then?"}]


class ResponsesClient:
    """OpenAI Responses, nothing stored: the client keeps the items itself."""

    def __init__(self, url: str, model: str, stream: bool) -> None:
        self._responses = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0).responses
        self._model, self._stream = model, stream

    def ask(self, messages: list[Any]) -> list[Any]:
        """The items to send next."""
        tools: Any = [{"type": "function", "name": TOOL, "parameters": SCHEMA, "strict": False}]
        options: Any = {
            "model": self._model,
            "input": messages,
            "tools": tools,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if self._stream:
            with self._responses.stream(**options) as stream:
                stream.until_done()
                response: Any = stream.get_final_response()
        else:
            response = self._responses.create(**options)
        items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        ids = [item["call_id"] for item in items if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": id, "output": "sunny"} for id in ids]
        return [*messages, *items, *(results or [{"role": "user", "content": "And then?"}])]


CLIENTS: dict[str, Any] = {"chat": ChatClient, "messages": MessagesClient, "responses": ResponsesClient}


def essence(part: Part) -> tuple[Any, ...]:
    """What must come back of a part."""
    match part:
        case Text(text) | RefusalPart(text):
            return "text", text
        case Reasoning(text, signature):
            proof = [(name, value) for name, value in (signature.fields if signature else {}).items() if name in PROOFS]
            return "reasoning", text, signature and signature.dialect, *proof
        case ToolCall():
            return "call", part.id, part.name, part.arguments.replace(" ", "")
        case _:
            return (repr(part),)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("upstream", "answer"), CASES)
def test_an_answer_sent_back_as_received_reaches_its_upstream_identical(
    stage: Stage, upstream: str, answer: str, client: str, stream: bool
) -> None:
    parts = ANSWERS[upstream][answer]
    model = stage.play(parts, "Done.")
    talk = CLIENTS[client](stage.url, upstream, stream)
    talk.ask(talk.ask([{"role": "user", "content": "How is the weather?"}]))
    turn = [part for message in model.requests[1].messages if message.role == "assistant" for part in message.parts]
    assert [essence(part) for part in turn] == [essence(part) for part in parts]


@st.composite
def answers(draw: st.DrawFn, upstream: str, client: str) -> tuple[Part, ...]:
    """Parts in any order, the last a call, so that the turn goes on.

    Text never follows text, nor a call for a client of Chat, whose messages have one text and calls behind it: only
    signed reasoning marks a place there.
    """
    before_text = (Text, ToolCall) if client == "chat" else Text
    proof = signed if upstream == "anthropic" else item
    kinds = draw(st.lists(st.sampled_from(["thinking", "redacted", "text", "call"]), max_size=6))
    words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=9).filter(str.strip)
    parts: list[Part] = []
    for number, kind in enumerate([*kinds, "call"]):
        match kind:
            case "thinking":
                parts.append(proof(draw(words), str(number)))
            case "redacted":
                parts.append(redacted(str(number)) if upstream == "anthropic" else item("", str(number)))
            case "call":
                parts.append(call(number))
            case _ if not parts or not isinstance(parts[-1], before_text):
                parts.append(Text(draw(words)))
    return tuple(parts)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_sequence_of_blocks_comes_back_in_its_order(stage_of_the_session: Stage, data: st.DataObject) -> None:
    upstream = data.draw(st.sampled_from(list(ANSWERS)))
    client, stream = data.draw(st.sampled_from(list(CLIENTS))), data.draw(st.booleans())
    parts = data.draw(answers(upstream, client))
    model = stage_of_the_session.play(parts, "Done.")
    talk = CLIENTS[client](stage_of_the_session.url, upstream, stream)
    talk.ask(talk.ask([{"role": "user", "content": "How is the weather?"}]))
    turn = [part for message in model.requests[1].messages if message.role == "assistant" for part in message.parts]
    assert [essence(part) for part in turn] == [essence(part) for part in parts]
