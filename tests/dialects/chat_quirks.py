"""Chat streams as upstreams really send them, each with what must be understood of it.

A case is the bytes of a stream and either the answer or the failure it tells. Names are those of the project's list of
wire quirks, so that a test's id says which one broke.
"""

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError, UpstreamUnavailable
from toolgate.conversation.events import FinishReason, Usage

WEATHER = "get_weather"
CLOCK = "get_time"
ID1, ID2 = "call_" + "a" * 24, "call_" + "b" * 24
CITY = '{"city":"Paris"}'


class ExpectedCall(Struct, frozen=True):
    """A call as it must be understood; no id means that any fresh one will do."""

    name: str
    arguments: str
    id: str | None = None
    complete: bool = True


class ExpectedAnswer(Struct, frozen=True):
    """An answer as it must be understood."""

    text: str = ""
    calls: tuple[ExpectedCall, ...] = ()
    reason: FinishReason = "stop"
    usage: Usage | None = None
    reasoning: str = ""
    refusal: str = ""


class Quirk(Struct, frozen=True):
    """One stream and what it means."""

    name: str
    stream: bytes
    expected: ExpectedAnswer | None = None
    fails: type[ToolgateError] | None = None


def chunk(delta: Any = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    """A chunk of an ordinary stream; `more` overrides fields of the chunk."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    body = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 7, "model": "up", "choices": [choice]}
    return {**body, **more}


def entry(index: Any = 0, id: Any = None, name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """An entry of `tool_calls`, with only what is given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields = {"index": index, "id": id, "type": "function" if id else None, "function": function, **more}
    return {key: value for key, value in fields.items() if value is not None}


def calls(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A chunk with entries of `tool_calls`."""
    return chunk({"tool_calls": list(entries)}, **more)


def sse(*chunks: Any, done: bool = True) -> bytes:
    """Chunks as an ordinary event stream."""
    lines = [c if isinstance(c, str) else f"data: {json.dumps(c, ensure_ascii=False)}\n\n" for c in chunks]
    return ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()


ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "Hello"})
STOP = chunk({}, "stop")
CALLS = chunk({}, "tool_calls")
HELLO_ANSWER = ExpectedAnswer("Hello")
PLAIN = sse(ROLE, HELLO, STOP)
ONE_CALL = ExpectedAnswer(calls=(ExpectedCall(WEATHER, CITY, ID1),), reason="tool_calls")
ANY_CALL = ExpectedAnswer(calls=(ExpectedCall(WEATHER, CITY),), reason="tool_calls")
TWO_CALLS = ExpectedAnswer(
    calls=(ExpectedCall(WEATHER, CITY, ID1), ExpectedCall(CLOCK, "{}", ID2)), reason="tool_calls"
)
START1 = entry(0, ID1, WEATHER, "")
START2 = entry(1, ID2, CLOCK, "")


def one_call(*deltas: dict[str, Any], finish: str = "tool_calls") -> bytes:
    """A stream of one call made of these entries."""
    return sse(ROLE, *[calls(delta) for delta in deltas], chunk({}, finish))


def argued(*fragments: Any) -> bytes:
    """A stream of one call with these argument fragments."""
    return one_call(START1, *[entry(0, arguments=fragment) for fragment in fragments])


def _elsewhere(*entries: dict[str, Any], finish: Any = None) -> dict[str, Any]:
    """A chunk with calls in a second choice, though one was asked for."""
    delta = {"tool_calls": list(entries)} if entries else {}
    return chunk(choices=[{"index": 1, "delta": delta, "finish_reason": finish}])


def expected_with(arguments: str) -> ExpectedAnswer:
    """One call with these arguments."""
    return ExpectedAnswer(calls=(ExpectedCall(WEATHER, arguments, ID1),), reason="tool_calls")


def _framing() -> list[Quirk]:
    crlf: Callable[[bytes], bytes] = lambda stream: stream.replace(b"\n", b"\r\n")  # noqa: E731
    pretty = "".join(f"data: {line}\n" for line in json.dumps(HELLO, indent=1).split("\n")) + "\n"
    big = json.dumps({"text": "x" * 1_500_000})
    tiny = [entry(0, arguments=letter) for letter in json.dumps({"text": "y" * 3990})]
    return [
        Quirk("crlf", crlf(PLAIN), HELLO_ANSWER),
        Quirk("cr_only", PLAIN.replace(b"\n", b"\r"), HELLO_ANSWER),
        Quirk("no_space", PLAIN.replace(b"data: ", b"data:"), HELLO_ANSWER),
        Quirk("comment_keepalive", sse(": OPENROUTER PROCESSING\n\n", ROLE, ": PING\n\n", HELLO, STOP), HELLO_ANSWER),
        Quirk("comment_inside", PLAIN.replace(b"\n\n", b"\n: inside\n\n"), HELLO_ANSWER),
        Quirk("empty_data", sse(ROLE, "data:\n\n", HELLO, "data: \n\n", STOP), HELLO_ANSWER),
        Quirk("multiline_data", sse(ROLE, pretty, STOP), HELLO_ANSWER),
        Quirk("bom", b"\xef\xbb\xbf" + PLAIN, HELLO_ANSWER),
        Quirk("no_done", sse(ROLE, HELLO, STOP, done=False), HELLO_ANSWER),
        Quirk("no_final_newline", sse(ROLE, HELLO, STOP, done=False)[:-2], HELLO_ANSWER),
        Quirk("done_variants", sse(ROLE, HELLO, STOP, "data:[DONE]\n\n", done=False), HELLO_ANSWER),
        Quirk("done_variants", sse(ROLE, HELLO, STOP, "data: [DONE]  \n\n", done=False), HELLO_ANSWER),
        Quirk("done_variants", sse(ROLE, HELLO, STOP, "data: [DONE]", done=False), HELLO_ANSWER),
        Quirk("utf8_split", sse(ROLE, chunk({"content": "Grüße 🌍 日本"}), STOP), ExpectedAnswer("Grüße 🌍 日本")),
        Quirk("one_write", PLAIN, HELLO_ANSWER),
        Quirk("huge_event", argued(big), expected_with(big)),
        Quirk("many_tiny", one_call(START1, *tiny), expected_with(json.dumps({"text": "y" * 3990}))),
        Quirk(
            "surrogate_halves",
            sse(ROLE, *[f"data: {json.dumps(chunk({'content': half}))}\n\n" for half in ("\ud83c", "\udf0d")], STOP),
            ExpectedAnswer("🌍"),
        ),
    ]


def _endings() -> list[Quirk]:
    error = {"message": "boom", "type": "server_error", "code": 500}
    return [
        Quirk("eof_before_finish", sse(ROLE, HELLO, done=False), fails=InvalidUpstreamAnswer),
        Quirk("done_without_finish", sse(ROLE, HELLO), fails=InvalidUpstreamAnswer),
        Quirk("cut_mid_json", PLAIN[: PLAIN.index(b"Hello") + 3], fails=InvalidUpstreamAnswer),
        Quirk("error_object", sse(ROLE, HELLO, {"error": error}, done=False), fails=UpstreamUnavailable),
        Quirk(
            "error_with_choices", sse(ROLE, HELLO, {**chunk({}, "error"), "error": error}), fails=UpstreamUnavailable
        ),
        Quirk("error_string", sse(ROLE, HELLO, {"error": "boom"}, done=False), fails=UpstreamUnavailable),
        Quirk(
            "error_event",
            sse(ROLE, HELLO, f"event: error\ndata: {json.dumps(error)}\n\n", done=False),
            fails=UpstreamUnavailable,
        ),
        Quirk("not_json_data", sse(ROLE, "data: oops\n\n", HELLO, STOP), fails=InvalidUpstreamAnswer),
        Quirk("finish_empty_string", sse(chunk({"role": "assistant", "content": "Hello"}, ""), STOP), HELLO_ANSWER),
        Quirk("finish_stop_with_calls", one_call(START1, entry(0, arguments=CITY), finish="stop"), ONE_CALL),
        Quirk(
            "text_after_finish", sse(ROLE, chunk({"content": "Hel"}, "stop"), chunk({"content": "lo"})), HELLO_ANSWER
        ),
        Quirk("call_after_finish", sse(ROLE, STOP, calls(START1), calls(entry(0, arguments=CITY))), ONE_CALL),
        Quirk("finish_twice", sse(ROLE, calls(START1), calls(entry(0, arguments=CITY)), CALLS, STOP), ONE_CALL),
        *[
            Quirk("finish_vendor_word", sse(ROLE, HELLO, chunk({}, word)), HELLO_ANSWER)
            for word in ("eos", "end_turn", "STOP")
        ],
        Quirk(
            "finish_vendor_word", sse(ROLE, HELLO, chunk({}, "max_tokens")), ExpectedAnswer("Hello", reason="length")
        ),
        Quirk("finish_vendor_word", one_call(START1, entry(0, arguments=CITY), finish="tool_use"), ONE_CALL),
        Quirk("finish_eos", sse(ROLE, HELLO, chunk({}, "eos_token")), HELLO_ANSWER),
        Quirk(
            "finish_length_mid_call",
            one_call(START1, entry(0, arguments='{"city":"Pa'), finish="length"),
            ExpectedAnswer(calls=(ExpectedCall(WEATHER, '{"city":"Pa', ID1, complete=False),), reason="length"),
        ),
        Quirk("empty_answer", sse(ROLE, STOP), ExpectedAnswer()),
        Quirk("linger_after_done", PLAIN + b": still here\n\n", HELLO_ANSWER),
    ]


def _deltas() -> list[Quirk]:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    counted = ExpectedAnswer("Hello", usage=Usage(5, 2))
    azure = {"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    offsets = {"index": 0, "finish_reason": None, "content_filter_offsets": {"start_offset": 1}}
    second = {"index": 1, "delta": {"role": "assistant", "content": "B"}, "finish_reason": None}
    second_end = {"index": 1, "delta": {}, "finish_reason": "stop"}
    return [
        Quirk("no_role", sse(HELLO, STOP), HELLO_ANSWER),
        Quirk(
            "role_null_empty",
            sse(ROLE, chunk({"role": None, "content": "Hel"}), chunk({"role": "", "content": "lo"}), STOP),
            HELLO_ANSWER,
        ),
        Quirk(
            "content_null",
            sse(
                ROLE,
                chunk({"content": None, "tool_calls": [entry(0, ID1, WEATHER, CITY)]}),
                chunk({"content": None}, "tool_calls"),
            ),
            ONE_CALL,
        ),
        Quirk(
            "delta_null",
            sse(ROLE, HELLO, {**STOP, "choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}),
            HELLO_ANSWER,
        ),
        Quirk(
            "delta_null", sse(ROLE, HELLO, {**STOP, "choices": [{"index": 0, "finish_reason": "stop"}]}), HELLO_ANSWER
        ),
        Quirk("azure_filter_first", sse(azure, ROLE, HELLO, STOP), HELLO_ANSWER),
        Quirk("azure_async_filter", sse(ROLE, HELLO, chunk(choices=[offsets]), STOP), HELLO_ANSWER),
        Quirk("usage_last", sse(ROLE, HELLO, STOP, chunk(choices=[], usage=usage)), counted),
        Quirk("usage_with_content", sse(ROLE, chunk({"content": "Hello"}, "stop", usage=usage)), counted),
        Quirk("x_groq_usage", sse(ROLE, HELLO, chunk({}, "stop", x_groq={"usage": usage})), counted),
        Quirk("created_changes", sse(ROLE, {**HELLO, "created": 8}, {**STOP, "created": 9}), HELLO_ANSWER),
        Quirk(
            "legacy_function_call",
            sse(
                ROLE,
                chunk({"function_call": {"name": WEATHER, "arguments": ""}}),
                chunk({"function_call": {"arguments": CITY}}),
                chunk({}, "function_call"),
            ),
            ANY_CALL,
        ),
        Quirk(
            "two_choices",
            sse(ROLE, chunk({"content": "A"}), chunk(choices=[second]), STOP, chunk(choices=[second_end])),
            ExpectedAnswer("A"),
        ),
        Quirk(
            "empty_tool_calls",
            sse(ROLE, chunk({"content": "Hel", "tool_calls": []}), chunk({"content": "lo", "tool_calls": None}), STOP),
            HELLO_ANSWER,
        ),
        Quirk(
            "text_then_call",
            sse(ROLE, HELLO, calls(START1), calls(entry(0, arguments=CITY)), CALLS),
            ExpectedAnswer("Hello", ONE_CALL.calls, "tool_calls"),
        ),
        Quirk(
            "call_then_text",
            sse(ROLE, calls(START1), calls(entry(0, arguments=CITY)), HELLO, CALLS),
            ExpectedAnswer("Hello", ONE_CALL.calls, "tool_calls"),
        ),
        Quirk(
            "unknown_tool",
            one_call(entry(0, ID1, "no_such_tool", CITY)),
            ExpectedAnswer(calls=(ExpectedCall("no_such_tool", CITY, ID1),), reason="tool_calls"),
        ),
        Quirk(
            "reasoning_content",
            sse(ROLE, chunk({"reasoning_content": "hm"}), HELLO, STOP),
            ExpectedAnswer("Hello", reasoning="hm"),
        ),
        Quirk(
            "reasoning_field",
            sse(ROLE, chunk({"reasoning": "hm"}), HELLO, STOP),
            ExpectedAnswer("Hello", reasoning="hm"),
        ),
        Quirk(
            "reasoning_details",
            sse(
                ROLE,
                chunk(
                    {
                        "reasoning": "hm",
                        "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}],
                    }
                ),
                HELLO,
                STOP,
            ),
            ExpectedAnswer("Hello", reasoning="hm"),
        ),
        Quirk("content_number", sse(ROLE, chunk({"content": 42}), STOP), ExpectedAnswer("42")),
        Quirk("content_number", sse(ROLE, chunk({"content": 0}), STOP), ExpectedAnswer("0")),
        Quirk(
            "content_parts",
            sse(
                ROLE,
                chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
                chunk({"content": [{"type": "text", "text": "Hello"}]}),
                STOP,
            ),
            ExpectedAnswer("Hello", reasoning="hm"),
        ),
        Quirk(
            "think_tags",
            sse(ROLE, chunk({"content": "<thi"}), chunk({"content": "nk>hm</think>Hello"}), STOP),
            ExpectedAnswer("<think>hm</think>Hello"),
        ),
        Quirk(
            "refusal", sse(ROLE, chunk({"refusal": "No"}), chunk({"refusal": "."}), STOP), ExpectedAnswer(refusal="No.")
        ),
        Quirk(
            "thought_signature",
            one_call(entry(0, ID1, WEATHER, CITY, extra_content={"google": {"thought_signature": "sig"}})),
            ONE_CALL,
        ),
    ]


def _calls() -> list[Quirk]:
    same = ExpectedAnswer(
        calls=(ExpectedCall(WEATHER, CITY, ID1), ExpectedCall(WEATHER, '{"city":"Rome"}', ID2)), reason="tool_calls"
    )
    fresh = ExpectedAnswer(calls=(ExpectedCall(WEATHER, CITY), ExpectedCall(CLOCK, "{}")), reason="tool_calls")
    whole1, whole2 = entry(None, ID1, WEATHER, CITY), entry(None, ID2, CLOCK, "{}")
    return [
        Quirk("no_index_single", one_call(whole1), ONE_CALL),
        Quirk("no_index_two", one_call(whole1, whole2), TWO_CALLS),
        Quirk("no_index_two_one_chunk", sse(ROLE, calls(whole1, whole2), CALLS), TWO_CALLS),
        Quirk(
            "index_null",
            sse(ROLE, calls({**whole1, "index": None}), calls({**whole2, "index": None}), CALLS),
            TWO_CALLS,
        ),
        Quirk(
            "all_index_0_same_name",
            one_call(entry(0, ID1, WEATHER, CITY), entry(0, ID2, WEATHER, '{"city":"Rome"}')),
            same,
        ),
        Quirk(
            "index_from_1",
            one_call(entry(1, ID1, WEATHER, ""), entry(1, arguments=CITY), entry(2, ID2, CLOCK, "{}")),
            TWO_CALLS,
        ),
        Quirk(
            "interleaved",
            one_call(
                START1,
                START2,
                entry(0, arguments='{"city":'),
                entry(1, arguments="{"),
                entry(0, arguments='"Paris"}'),
                entry(1, arguments="}"),
            ),
            TWO_CALLS,
        ),
        Quirk(
            "id_empty_later",
            one_call(
                START1, entry(0, arguments='{"city":', id="", name=""), {**entry(0, arguments='"Paris"}'), "id": ""}
            ),
            ONE_CALL,
        ),
        Quirk(
            "id_unstable",
            one_call(
                START1,
                entry(0, "call_" + "z" * 24, arguments='{"city":'),
                entry(0, "call_" + "y" * 24, arguments='"Paris"}'),
            ),
            ONE_CALL,
        ),
        Quirk("id_missing", one_call(entry(0, None, WEATHER, ""), entry(0, arguments=CITY)), ANY_CALL),
        Quirk("id_missing", one_call(entry(0, None, WEATHER, CITY), entry(1, None, CLOCK, "{}")), fresh),
        Quirk("id_then_name", one_call(entry(0, ID1), entry(0, None, WEATHER), entry(0, arguments=CITY)), ONE_CALL),
        Quirk("ids_duplicate", one_call(entry(0, ID1, WEATHER, CITY), entry(1, ID1, CLOCK, "{}")), fresh),
        Quirk(
            "kimi_ids", one_call(entry(0, "functions.get_weather:0", WEATHER, ""), entry(0, arguments=CITY)), ANY_CALL
        ),
        Quirk(
            "name_split",
            one_call(entry(0, ID1, "get_", ""), entry(0, None, "weather"), entry(0, arguments=CITY)),
            ONE_CALL,
        ),
        Quirk(
            "name_every_chunk",
            one_call(START1, entry(0, None, WEATHER, '{"city":'), entry(0, None, WEATHER, '"Paris"}')),
            ONE_CALL,
        ),
        Quirk(
            "name_empty_later",
            one_call(
                START1,
                {"index": 0, "function": {"name": "", "arguments": '{"city":'}},
                {"index": 0, "function": {"name": None, "arguments": '"Paris"}'}},
            ),
            ONE_CALL,
        ),
        Quirk("args_object", one_call(entry(0, ID1, WEATHER, {"city": "Paris"})), ONE_CALL),
        Quirk("args_double", argued(json.dumps(CITY)), ONE_CALL),
        Quirk("args_empty", one_call(START1), expected_with("{}")),
        Quirk("args_brace_prefix", argued("{}", CITY), ONE_CALL),
        Quirk("args_space", argued(" \n", '{"city":', '"Paris"}', "\n "), ONE_CALL),
        Quirk(
            "args_null",
            one_call({"index": 0, "id": ID1, "function": {"name": WEATHER, "arguments": None}}),
            expected_with("{}"),
        ),
        Quirk(
            "args_empty_at_the_end",
            sse(ROLE, calls(entry(0, ID1, WEATHER, ""), finish="tool_calls")),
            expected_with("{}"),
        ),
        Quirk(
            "args_before_name",
            one_call(entry(0, ID1, arguments=CITY[:5]), entry(0, name=WEATHER, arguments=CITY[5:])),
            ONE_CALL,
        ),
        Quirk("args_without_name", one_call(entry(0, ID1, arguments=CITY)), fails=InvalidUpstreamAnswer),
        Quirk("args_double_in_pieces", argued(json.dumps(CITY)[:4], json.dumps(CITY)[4:]), ONE_CALL),
        Quirk(
            "call_in_another_choice",
            sse(
                ROLE,
                HELLO,
                _elsewhere(START1),
                _elsewhere(entry(0, arguments=CITY)),
                CALLS,
                _elsewhere(finish="tool_calls"),
            ),
            ExpectedAnswer("Hello", ONE_CALL.calls, "tool_calls"),
        ),
        Quirk(
            "call_in_another_choice_after_the_end",
            sse(ROLE, HELLO, CALLS, _elsewhere(START1), _elsewhere(entry(0, arguments=CITY), finish="tool_calls")),
            ExpectedAnswer("Hello", ONE_CALL.calls, "tool_calls"),
        ),
        Quirk(
            "call_in_another_choice_at_once",
            sse(
                chunk(
                    choices=[
                        {"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": "tool_calls"},
                        {
                            "index": 1,
                            "delta": {"tool_calls": [entry(0, ID1, WEATHER, CITY)]},
                            "finish_reason": "tool_calls",
                        },
                    ]
                )
            ),
            ExpectedAnswer("Hello", ONE_CALL.calls, "tool_calls"),
        ),
        Quirk(
            "calls_in_two_choices",
            sse(
                ROLE,
                calls(entry(0, ID1, WEATHER, CITY)),
                _elsewhere(entry(0, ID2, CLOCK, "")),
                CALLS,
                _elsewhere(finish="tool_calls"),
            ),
            TWO_CALLS,
        ),
        Quirk("calls_that_never_come", sse(ROLE, HELLO, CALLS), HELLO_ANSWER),
        Quirk("args_invalid", argued("{'city': 'Paris',}"), expected_with("{'city': 'Paris',}")),
        Quirk("args_dup_keys", argued('{"a":1,"a":2}'), expected_with('{"a":1,"a":2}')),
        Quirk(
            "args_bignum",
            argued('{"id":9007199254740993,"x":1e400}'),
            expected_with('{"id":9007199254740993,"x":1e400}'),
        ),
    ]


QUIRKS = [*_framing(), *_endings(), *_deltas(), *_calls()]
