"""Decoders and relays of Chat streams take work that grows with what came, whatever order it comes in."""

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.dialects.test_laws import DIALECTS, REPLY, question
from tests.growth import is_linear
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.event_assembler import MAX_NAME, MAX_PARTS
from toolgate.conversation.history import match_results
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

CHAT = DIALECTS["openai_chat"].upstream
OPEN = [
    {"index": number, "id": f"call_{number}", "function": {"name": "add", "arguments": '{"a":"'}} for number in (0, 1)
]


def listener(kind: str) -> Any:
    request = question(DIALECTS["openai_chat"])
    return CHAT.relay(request, REPLY) if kind == "relayed" else CHAT.decoder(request)


def frames(*entries: dict[str, Any], count: int = 1) -> list[ReceivedStreamFrame]:
    """So many frames for each of these pieces of calls."""
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [entry]}}]} for entry in entries]
    return [ReceivedStreamFrame(None, json.dumps(chunk).encode()) for chunk in chunks for _ in range(count)]


def feed(one: Any, sent: list[ReceivedStreamFrame]) -> None:
    for frame in sent:
        one.feed(frame)


ORDERS: dict[str, Callable[[int], list[ReceivedStreamFrame]]] = {
    "arguments before the name": lambda count: frames({"index": 0, "function": {"arguments": "x" * 300}}, count=count),
    "blanks without end": lambda count: [
        *frames({"index": 0, "id": "a", "function": {"name": "add", "arguments": "{"}}),
        *frames({"index": 0, "function": {"arguments": " " * 300}}, count=count),
    ],
    "braces while another call waits": lambda count: [
        *frames(*OPEN),
        *frames({"index": 0, "function": {"arguments": "x" * 300 + "}"}}, count=count),
    ],
    "calls that stay open": lambda count: [
        *frames(*({**OPEN[0], "index": number, "id": f"call_{number}"} for number in range(count // 4))),
        *frames(*({"index": number % (count // 4), "function": {"arguments": "x"}} for number in range(count))),
    ],
}


@pytest.mark.parametrize("kind", ["translated", "relayed"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_work_of_a_stream_grows_with_its_length(order: str, kind: str) -> None:
    def worked(count: int) -> float:
        sent, one = ORDERS[order](count), listener(kind)
        began = time.thread_time()
        feed(one, sent)
        return time.thread_time() - began

    assert is_linear(worked, 3_000)


@pytest.mark.parametrize("kind", ["translated", "relayed"])
def test_an_answer_with_more_calls_than_any_model_makes_is_refused(kind: str) -> None:
    one = listener(kind)
    calls = [{**OPEN[0], "index": number, "id": f"call_{number}"} for number in range(MAX_PARTS + 1)]
    with pytest.raises(InvalidUpstreamAnswer, match=str(MAX_PARTS)):
        feed(one, frames(*calls))


@pytest.mark.parametrize("kind", ["translated", "relayed"])
def test_a_name_that_grows_without_end_is_refused(kind: str) -> None:
    names = [{"index": 0, "id": "a", "function": {"name": f"n{number}"}} for number in range(MAX_NAME)]
    with pytest.raises(InvalidUpstreamAnswer, match=str(MAX_NAME)):
        feed(listener(kind), frames(*names))


def test_an_answer_with_more_choices_than_can_be_asked_for_is_refused() -> None:
    chunks = [{"choices": [{"index": number, "delta": {"content": "x"}}]} for number in range(129)]
    with pytest.raises(InvalidUpstreamAnswer, match="128 choices"):
        feed(listener("relayed"), [ReceivedStreamFrame(None, json.dumps(chunk).encode()) for chunk in chunks])


def history(dialect: str, count: int) -> dict[str, Any]:
    """A turn of so many calls, whose results come in the opposite order."""
    user, numbers = {"role": "user", "content": "go"}, range(count)
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": "{}"}} for n in numbers]
    match dialect:
        case "openai_chat":
            results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "r"} for n in reversed(numbers)]
            return {"model": "m", "messages": [user, {"role": "assistant", "tool_calls": calls}, *results]}
        case "openai_responses":
            made = [{"type": "function_call", "call_id": f"c{n}", "name": "add", "arguments": "{}"} for n in numbers]
            given = [{"type": "function_call_output", "call_id": f"c{n}", "output": "r"} for n in reversed(numbers)]
            return {"model": "m", "input": [user, *made, *given]}
        case "anthropic":
            uses = [{"type": "tool_use", "id": f"c{n}", "name": "add", "input": {}} for n in numbers]
            blocks = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "r"} for n in reversed(numbers)]
            turn = [{"role": "assistant", "content": uses}, {"role": "user", "content": blocks}]
            return {"model": "m", "max_tokens": 9, "messages": [user, *turn]}
        case _:
            named = [{"function": {"name": f"add_{n}", "arguments": {}}} for n in numbers]
            said = [{"role": "tool", "tool_name": f"add_{n}", "content": "r"} for n in reversed(numbers)]
            return {"model": "m", "messages": [user, {"role": "assistant", "content": "", "tool_calls": named}, *said]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_work_of_a_history_grows_with_its_calls(dialect: str) -> None:
    def worked(count: int) -> float:
        body = history(dialect, count)
        gc.disable()  # a collection costs as much as all objects of the tests before
        try:
            began = time.thread_time()
            request = match_results(DIALECTS[dialect].server.decode_request(body))
            took = time.thread_time() - began
        finally:
            gc.enable()
        assert len([part for message in request.messages for part in message.parts]) == 1 + 2 * count
        return took

    assert is_linear(worked, 1_000)
