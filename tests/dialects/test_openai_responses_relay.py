"""A Responses stream reaches a Responses client as it came, and OpenAI's own client can read every one of them."""

import json
from typing import Any

import pytest

from tests.dialects.openai_responses_cases import (
    CITY,
    EMPTY_CALL,
    EMPTY_MESSAGE,
    ID1,
    QUIRKS,
    SEALED,
    USAGE,
    Quirk,
    added,
    argument_delta,
    by_the_sdk,
    call,
    completed,
    created,
    decode_events,
    done,
    event,
    message,
    text_delta,
)
from tests.dialects.relays import end_of
from tests.dialects.test_openai_responses_stream import REQUEST, decode_stream
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.message import Opaque, Reasoning, ToolCall
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.openai_responses import DIALECT
from toolgate.dialects.openai_responses.relay import ResponsesStreamRelay
from toolgate.wire.sse_decoder import SseDecoder

REPLY = AnswerMetadata("resp_ours", 1, "public")
CASES = [pytest.param(quirk, id=f"quirk: {quirk.name}") for quirk in QUIRKS]
GOOD = [case for case, quirk in zip(CASES, QUIRKS, strict=True) if not quirk.fails]


def relayed(stream: bytes) -> tuple[bytes, ResponsesStreamRelay]:
    """What a client gets of the stream, and what the relay knows of it."""
    frames, relay = SseDecoder(), ResponsesStreamRelay(REQUEST, REPLY)
    passed = [relay.feed(frame) for frame in [*frames.feed(stream), *frames.end()]]
    return b"".join([*passed, end_of(relay)]), relay


def last(stream: bytes) -> dict[str, Any]:
    response: dict[str, Any] = decode_events(stream)[-1]["response"]
    return response


@pytest.mark.parametrize("quirk", CASES)
def test_a_relayed_quirk_means_what_it_meant(quirk: Quirk) -> None:
    if quirk.fails:
        with pytest.raises(quirk.fails) as failure:
            relayed(quirk.stream)
        assert quirk.mentions in failure.value.message
        return
    passed, relay = relayed(quirk.stream)
    response = decode_stream(passed)
    assert response.parts == quirk.parts
    assert (response.reason, relay.reason) == (quirk.reason, quirk.reason)
    assert relay.calls == len([part for part in quirk.parts if isinstance(part, ToolCall)])
    assert relay.done
    assert response.usage == (relay.usage or response.usage)


@pytest.mark.parametrize("quirk", GOOD)
def test_the_sdk_reads_a_relayed_quirk(quirk: Quirk) -> None:
    """field: D1"""
    passed, _ = relayed(quirk.stream)
    ids = {one["response"]["id"] for one in decode_events(passed) if "response" in one}
    assert ids == {"resp_ours"}
    if quirk.reason in ("length", "content_filter"):
        return  # the SDK's helper waits for `response.completed` and has no word for these
    if any(isinstance(part, Opaque) for part in quirk.parts):
        return  # the SDK itself warns of items that it does not know
    final = by_the_sdk(passed)
    text = "".join([getattr(part, "text", "") for part in quirk.parts if type(part).__name__ == "Text"])
    assert final.output_text == text
    calls = [item.arguments for item in final.output if item.type == "function_call"]
    assert calls == [part.arguments for part in quirk.parts if isinstance(part, ToolCall) and not part.freeform]


@pytest.mark.parametrize("quirk", GOOD)
def test_every_item_is_announced_and_keeps_its_id_to_the_end(quirk: Quirk) -> None:
    opened: dict[int, str] = {}
    closed: dict[int, str] = {}
    passed, _ = relayed(quirk.stream)
    for one in decode_events(passed):
        if one["type"] == "response.output_item.added":
            assert one["output_index"] == len(opened)
            opened[one["output_index"]] = one["item"]["id"]
        elif one["type"] == "response.output_item.done":
            closed[one["output_index"]] = one["item"]["id"]
        elif "item_id" in one:
            assert opened[one["output_index"]] == one["item_id"]
    assert opened == closed
    assert [item["id"] for item in last(passed)["output"]] == list(opened.values())


@pytest.mark.parametrize("quirk", GOOD)
def test_the_text_of_every_item_was_also_sent_in_deltas(quirk: Quirk) -> None:
    """The AI SDK reads deltas alone."""
    events = decode_events(relayed(quirk.stream)[0])
    deltas: dict[str, str] = {}
    for one in events:
        if one["type"].endswith(("output_text.delta", "arguments.delta", "input.delta")):
            deltas[one["item_id"]] = deltas.get(one["item_id"], "") + one["delta"]
    for item in events[-1]["response"]["output"]:
        if item["type"] in ("function_call", "custom_tool_call"):
            assert deltas[item["id"]] == item.get("arguments", item.get("input"))
        elif item["type"] == "message" and item["content"] and "text" in item["content"][0]:
            assert deltas[item["id"]] == item["content"][0]["text"]


def test_a_good_stream_passes_unchanged_but_for_id_and_numbers() -> None:
    stream = (
        created(x=1)
        + event("response.in_progress", response={"id": "resp_up", "model": "up", "status": "in_progress"})
        + added(EMPTY_MESSAGE, x=2)
        + event("response.content_part.added", item_id="msg_1", output_index=0, content_index=0, part={"x": 3})
        + event(
            "response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="a", obfuscation="zz"
        )
        + event(
            "response.output_text.done", item_id="msg_1", output_index=0, content_index=0, text="a", logprobs=[{"x": 4}]
        )
        + event("response.web_search_call.searching", item_id="ws_1", output_index=1, x=5)
        + done(message("a", x=6))
        + completed(message("a", x=6), x=7)
    )
    before = [json.loads(frame.data) for frame in SseDecoder().feed(stream)]
    after = decode_events(relayed(stream)[0])
    assert [one["type"] for one in after] == [one["type"] for one in before]
    for old, new in zip(before, after, strict=True):
        old.pop("response", None)
        assert {name: value for name, value in new.items() if name in old} == old
    assert after[-1]["response"]["x"] == 7
    assert after[-1]["response"]["model"] == "up"


def test_unknown_fields_of_items_stay() -> None:
    item = message("a", phase="final_answer", x_strange=1)
    passed, _ = relayed(
        created() + added({**EMPTY_MESSAGE, "x_strange": 1}) + text_delta("a") + done(item) + completed(item)
    )
    events = decode_events(passed)
    assert [one["item"]["x_strange"] for one in events if "item" in one] == [1, 1]
    assert last(passed)["output"][0]["phase"] == "final_answer"


def test_the_last_event_fills_what_clients_need() -> None:
    """VS Code reads usage without asking; the open specification wants every field."""
    passed, _ = relayed(created() + event("response.completed", response={"id": "resp_up", "output": []}))
    response = last(passed)
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert response["status"] == "completed"
    assert response["service_tier"] == "default"
    assert response["store"] is True


def test_the_response_repeats_the_settings_of_the_clients_request_not_of_ours() -> None:
    stream = created() + event("response.completed", response={"id": "resp_up", "store": False, "output": []})
    assert last(relayed(stream)[0])["store"] is True


def test_a_late_proof_of_reasoning_is_the_one_that_counts() -> None:
    stream = created() + added({**SEALED, "encrypted_content": "early"}) + done(SEALED) + completed()
    assert last(relayed(stream)[0])["output"][0]["encrypted_content"] == "final"


@pytest.mark.parametrize("wrong", [5, "text", {"a": 1}, [5]])
def test_texts_are_read_from_lists_of_parts_only(wrong: Any) -> None:
    item = {"type": "reasoning", "id": "rs_1", "content": wrong, "summary": wrong}
    _, relay = relayed(created() + added(item) + done(item) + completed(item))
    assert relay.received() == [Reasoning("")]


def test_numbers_that_repeat_are_numbered_anew() -> None:
    """field: D9"""
    stream = created(sequence_number=0) + event("response.in_progress", response={}, sequence_number=0) + completed()
    decode_events(relayed(stream)[0])


def test_one_of_two_calls_with_the_same_id_gets_another() -> None:
    """field: B6"""
    stream = created() + done(call()) + done(call("{}", "fc_2", ID1, "get_time"), 1) + completed()
    calls = [item["call_id"] for item in last(relayed(stream)[0])["output"]]
    assert calls[0] == ID1
    assert calls[1] != ID1


def test_a_stream_that_breaks_off_can_be_ended_in_its_own_numbering() -> None:
    relay = ResponsesStreamRelay(REQUEST, REPLY)
    passed = b"".join([relay.feed(frame) for frame in SseDecoder().feed(created() + done(message("a")))])
    with pytest.raises(InvalidUpstreamAnswer):
        relay.end()
    events = decode_events(passed + relay.error(UpstreamUnavailable("gone")))
    assert [one["type"] for one in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "a"


def test_a_name_that_would_break_the_framing_is_refused() -> None:
    with pytest.raises(InvalidUpstreamAnswer):
        relayed(created() + b'data: {"type":"response.x\\ndata: y"}\n\n')


def test_a_half_call_is_not_completed_on_the_way() -> None:
    """quirk: r_incomplete_call"""
    half = call('{"city":"Par', status="incomplete")
    stream = created() + added(EMPTY_CALL) + argument_delta('{"city":"Par') + done(half)
    passed, _ = relayed(
        stream + completed(half, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    )
    events = decode_events(passed)
    assert "response.function_call_arguments.done" not in [one["type"] for one in events]
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_call_cut_off_before_its_arguments_gets_none() -> None:
    half = call("", status="incomplete")
    cut = completed(half, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert last(relayed(created() + added(EMPTY_CALL) + done(half) + cut)[0])["output"][0]["arguments"] == ""


def test_a_whole_answer_is_repaired_and_kept() -> None:
    items = [message("a", phase="commentary"), call({"city": "Paris"}, "fc_1"), call("", "", ID1, "get_time")]
    body = {"id": "resp_up", "model": "up", "output": items, "usage": {"input_tokens": 3}, "x_strange": 1}
    response = DIALECT.upstream.decode_response(body, REQUEST)
    repaired = DIALECT.upstream.relay_response(body, response, REQUEST, REPLY)
    assert repaired["id"] == "resp_ours"
    assert repaired["x_strange"] == 1
    assert repaired["usage"]["total_tokens"] == 3
    text_item, first, second = repaired["output"]
    assert text_item["phase"] == "commentary"
    assert first["arguments"] == CITY
    assert second["arguments"] == "{}"
    assert second["call_id"] not in ("", first["call_id"])
    assert second["id"]
    assert response.reason == "tool_calls"


def test_the_upstreams_counts_pass_whole() -> None:
    passed, relay = relayed(created() + completed())
    assert last(passed)["usage"] == USAGE
    assert relay.usage is not None
    assert relay.usage.cache_read == 4
