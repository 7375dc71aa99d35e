"""Messages streams as upstreams and relays really send them, each with what must be understood of it."""

import json
from typing import Any

from tests.dialects.anthropic_cases import (
    ID1,
    ID2,
    PING,
    STOP,
    block,
    call_block,
    delta,
    ending,
    start,
    stop,
    text_block,
    wire,
)
from tests.dialects.chat_quirks import ExpectedAnswer, ExpectedCall, Quirk
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import Usage

CITY = '{"city":"Paris"}'
HELLO = [text_block(), delta(0, text="Hel"), delta(0, text="lo"), stop(0)]
CALL = [call_block(0), delta(0, partial_json='{"city":'), delta(0, partial_json='"Paris"}'), stop(0)]
SAID = ExpectedAnswer("Hello")
CALLED = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY, ID1),), reason="tool_calls")
EARLY = [{"type": "text", "text": "Hello"}]
EARLY_CALL = [{"type": "tool_use", "id": ID1, "name": "get_weather", "input": {"city": "Paris"}}]
ANY_CALL = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY),), reason="tool_calls")
CLOCK = ExpectedAnswer(calls=(ExpectedCall("get_time", "{}", ID1),), reason="tool_calls")
TWO = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY), ExpectedCall("get_time", "{}")), reason="tool_calls")
HALF = ExpectedAnswer(calls=(ExpectedCall("get_weather", '{"city":"Par', ID1, complete=False),), reason="length")


def argued(*pieces: str, reason: str = "tool_use", **more: Any) -> bytes:
    """A stream of one call with these pieces of its input."""
    deltas = [delta(0, partial_json=piece) for piece in pieces]
    return wire(start(), call_block(0, **more), *deltas, stop(0), ending(reason), STOP)


def expected_with(arguments: str) -> ExpectedAnswer:
    """An answer that calls the first tool with these arguments."""
    return ExpectedAnswer(calls=(ExpectedCall("get_weather", arguments, ID1),), reason="tool_calls")


def clock(*events: dict[str, Any], **more: Any) -> bytes:
    """A stream of one call of a tool without parameters."""
    return wire(start(), call_block(0, "get_time", **more), *events, stop(0), ending("tool_use"), STOP)


def _endings() -> list[Quirk]:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}
    return [
        Quirk("plain", wire(start(), *HELLO, ending(), STOP), ExpectedAnswer("Hello", usage=Usage(5, 7))),
        Quirk("a_ping", wire(PING, start(), PING, *HELLO, PING, ending(), PING, STOP), SAID),
        Quirk("a_early_content", wire(start(content=EARLY), ending(), STOP), SAID),
        Quirk("a_early_content", wire(start(content=EARLY), *HELLO, ending(), STOP), SAID),
        Quirk("a_early_content", wire(start(content=EARLY_CALL), ending("tool_use"), STOP), CALLED),
        Quirk("a_dup_message_start", wire(start(), start(id="x"), *HELLO, ending(), STOP), SAID),
        Quirk(
            "a_no_message_start",
            wire(*HELLO, ending(), STOP),
            ExpectedAnswer("Hello", usage=Usage(0, 7, missing="input")),
        ),
        Quirk("a_no_message_stop", wire(start(), *HELLO, ending()), SAID),
        Quirk("a_no_message_delta", wire(start(), *HELLO, STOP), SAID),
        Quirk("a_eof", wire(start(), *HELLO), fails=InvalidUpstreamAnswer),
        Quirk("a_eof_mid_tool", wire(start(), *CALL[:2]), fails=InvalidUpstreamAnswer),
        Quirk("a_error", wire(start(), *HELLO, overloaded), fails=UpstreamUnavailable),
        Quirk("a_error_mid_tool", wire(start(), *CALL[:2], overloaded), fails=UpstreamUnavailable),
        Quirk("a_error_first", wire(overloaded), fails=UpstreamUnavailable),
        Quirk("a_not_json", wire(start()) + b"event: ping\ndata: oops\n\n", fails=InvalidUpstreamAnswer),
        Quirk("a_end_turn_with_tool", wire(start(), *CALL, ending("end_turn"), STOP), CALLED),
        Quirk("a_tool_use_without_tool", wire(start(), *HELLO, ending("tool_use"), STOP), SAID),
        Quirk("a_vendor_words", wire(start(), *CALL, ending("tool_calls"), STOP), CALLED),
        Quirk(
            "a_vendor_words", wire(start(), *HELLO, ending("length"), STOP), ExpectedAnswer("Hello", reason="length")
        ),
        Quirk("a_vendor_words", wire(start(), *HELLO, ending("STOP"), STOP), SAID),
        Quirk(
            "a_window",
            wire(start(), *HELLO, ending("model_context_window_exceeded"), STOP),
            ExpectedAnswer("Hello", reason="length"),
        ),
        Quirk(
            "a_pause_turn", wire(start(), *HELLO, ending("pause_turn"), STOP), ExpectedAnswer("Hello", reason="pause")
        ),
        Quirk(
            "a_refusal",
            wire(start(), *HELLO, ending("refusal"), STOP),
            ExpectedAnswer("Hello", reason="content_filter"),
        ),
        Quirk("a_half_call", argued('{"city":', '"Par', reason="max_tokens"), HALF),
        Quirk(
            "a_half_call_without_stop",
            wire(start(), call_block(0), delta(0, partial_json='{"city":"Par'), ending("max_tokens"), STOP),
            HALF,
        ),
        Quirk(
            "a_whole_call_at_the_limit",
            argued(CITY, reason="max_tokens"),
            ExpectedAnswer(calls=CALLED.calls, reason="length"),
        ),
        Quirk("empty_answer", wire(start(), ending(), STOP), ExpectedAnswer()),
        Quirk("a_no_usage", wire({"type": "message_start", "message": {}}, *HELLO, ending(usage={}), STOP), SAID),
        Quirk(
            "a_usage_null",
            wire(start(usage={"input_tokens": None}), *HELLO, ending(usage={"output_tokens": None}), STOP),
            SAID,
        ),
        Quirk(
            "a_input_tokens_in_delta",
            wire(
                start(usage={"input_tokens": 0, "output_tokens": 0}),
                *HELLO,
                ending(usage={"input_tokens": 5, "output_tokens": 7}),
                STOP,
            ),
            ExpectedAnswer("Hello", usage=Usage(5, 7)),
        ),
    ]


def _blocks() -> list[Quirk]:
    thinking = [
        block(0, type="thinking", thinking="", signature=""),
        delta(0, thinking="hm"),
        delta(0, signature="s"),
        stop(0),
    ]
    later = [text_block(1), delta(1, text="Hello"), stop(1)]
    return [
        Quirk(
            "a_no_stops",
            wire(start(), *HELLO[:-1], *CALL[:-1], ending("tool_use"), STOP),
            ExpectedAnswer("Hello", CALLED.calls, "tool_calls"),
        ),
        Quirk("a_dup_block_stop", wire(start(), *CALL, stop(0), ending("tool_use"), STOP), CALLED),
        Quirk(
            "a_dup_block_start", wire(start(), CALL[0], CALL[1], CALL[0], *CALL[2:], ending("tool_use"), STOP), CALLED
        ),
        Quirk("a_never_began", wire(start(), delta(4, text="Hello"), stop(4), ending(), STOP), SAID),
        Quirk(
            "a_empty_text_block",
            wire(
                start(),
                text_block(),
                stop(0),
                call_block(1),
                delta(1, partial_json=CITY),
                stop(1),
                ending("tool_use"),
                STOP,
            ),
            CALLED,
        ),
        Quirk("a_text_in_start", wire(start(), block(0, type="text", text="Hello"), stop(0), ending(), STOP), SAID),
        Quirk(
            "a_text_after_call",
            wire(start(), *CALL, *later, ending("tool_use"), STOP),
            ExpectedAnswer("Hello", CALLED.calls, "tool_calls"),
        ),
        Quirk(
            "a_unknown_event",
            wire(start(), {"type": "sorcery"}, block(0, type="spell", power=3), stop(0), *later, ending(), STOP),
            SAID,
        ),
        Quirk("a_thinking", wire(start(), *thinking, *later, ending(), STOP), ExpectedAnswer("Hello", reasoning="hm")),
        Quirk(
            "a_redacted",
            wire(start(), block(0, type="redacted_thinking", data="r"), stop(0), *later, ending(), STOP),
            SAID,
        ),
        Quirk(
            "a_thinking_in_text",
            wire(start(), text_block(), delta(0, thinking="hm"), delta(0, text="Hello"), stop(0), ending(), STOP),
            ExpectedAnswer("Hello", reasoning="hm"),
        ),
        Quirk("a_several_texts", wire(start(), *HELLO, *later, ending(), STOP), ExpectedAnswer("HelloHello")),
        Quirk(
            "a_surrogate_halves",
            wire(start(), text_block(), delta(0, text="\ud83c"), delta(0, text="\udf0d"), stop(0), ending(), STOP),
            ExpectedAnswer("🌍"),
        ),
        Quirk(
            "a_lone_surrogate",
            wire(start(), text_block(), delta(0, text="a\ud83c"), stop(0), ending(), STOP),
            ExpectedAnswer("a\ufffd"),
        ),
        Quirk(
            "a_surrogate_thinking",
            wire(
                start(),
                block(0, type="thinking", thinking="", signature=""),
                delta(0, thinking="\ud83c"),
                delta(0, thinking="\udf0d"),
                delta(0, signature="s"),
                stop(0),
                *later,
                ending(),
                STOP,
            ),
            ExpectedAnswer("Hello", reasoning="🌍"),
        ),
    ]


def _calls() -> list[Quirk]:
    other = call_block(1, "get_time", ID2)
    return [
        Quirk("a_call", wire(start(), *CALL, ending("tool_use"), STOP), CALLED),
        Quirk("a_no_args", clock(delta(0, partial_json="")), CLOCK),
        Quirk("a_no_deltas", clock(), CLOCK),
        Quirk(
            "a_no_input_field",
            wire(start(), block(0, type="tool_use", id=ID1, name="get_time"), stop(0), ending("tool_use"), STOP),
            CLOCK,
        ),
        Quirk("a_input_null", clock(input=None), CLOCK),
        Quirk("a_input_text_empty", clock(input=""), CLOCK),
        Quirk("a_input_in_start", argued(input={"city": "Paris"}), CALLED),
        Quirk("a_input_text", argued(input=CITY), CALLED),
        Quirk("a_input_double", argued(input=json.dumps(CITY)), CALLED),
        Quirk("a_input_in_start_and_deltas", argued(CITY, input={"city": "Paris"}), CALLED),
        Quirk("a_args_double", argued(json.dumps(CITY)), CALLED),
        Quirk("a_args_double_in_pieces", argued(json.dumps(CITY)[:4], json.dumps(CITY)[4:]), CALLED),
        Quirk("a_args_space", argued(" \n", CITY, "\n "), CALLED),
        Quirk("a_args_brace_prefix", argued("{}", CITY), CALLED),
        Quirk("a_args_blank", clock(delta(0, partial_json=" \n")), CLOCK),
        Quirk(
            "a_args_object",
            wire(
                start(),
                call_block(0),
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": {"city": "Paris"}},
                },
                stop(0),
                ending("tool_use"),
                STOP,
            ),
            CALLED,
        ),
        Quirk(
            "a_args_null",
            clock(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": None}}
            ),
            CLOCK,
        ),
        Quirk("a_args_invalid", argued("{'city': 'Paris',}"), expected_with("{'city': 'Paris',}")),
        Quirk("a_args_list", argued('["Paris"]'), expected_with('["Paris"]')),
        Quirk("a_args_cut_at_the_end", argued('{"city":"Par'), expected_with('{"city":"Par')),
        Quirk("a_args_bignum", argued('{"id":9007199254740993}'), expected_with('{"id":9007199254740993}')),
        Quirk("a_args_surrogate", argued(r'{"city":"\ud83d"}'), expected_with(r'{"city":"\ufffd"}')),
        Quirk(
            "a_args_surrogate_pieces",
            argued('{"city":"', r"\ud83d", r"\ude00", '"}'),
            expected_with(r'{"city":"\ud83d\ude00"}'),
        ),
        Quirk(
            "a_nameless",
            wire(start(), call_block(0, ""), delta(0, partial_json=CITY), stop(0), ending("tool_use"), STOP),
            fails=InvalidUpstreamAnswer,
        ),
        Quirk(
            "a_name_null",
            wire(
                start(),
                block(0, type="tool_use", id=ID1, name=None, input={}),
                delta(0, partial_json=CITY),
                stop(0),
                ending("tool_use"),
                STOP,
            ),
            fails=InvalidUpstreamAnswer,
        ),
        Quirk(
            "a_args_without_call",
            wire(start(), delta(0, partial_json=CITY), stop(0), ending("tool_use"), STOP),
            fails=InvalidUpstreamAnswer,
        ),
        Quirk(
            "a_ids_duplicate", wire(start(), *CALL, call_block(1, "get_time"), stop(1), ending("tool_use"), STOP), TWO
        ),
        Quirk(
            "a_all_index_0",
            wire(start(), *CALL, call_block(0, "get_time", ID2), stop(0), ending("tool_use"), STOP),
            TWO,
        ),
        Quirk("a_no_index", wire(start(), *[{**one, "index": None} for one in CALL], ending("tool_use"), STOP), CALLED),
        Quirk(
            "a_interleaved",
            wire(
                start(),
                CALL[0],
                other,
                CALL[1],
                delta(1, partial_json="{"),
                CALL[2],
                delta(1, partial_json="}"),
                stop(0),
                stop(1),
                ending("tool_use"),
                STOP,
            ),
            TWO,
        ),
        Quirk(
            "a_text_around_a_call",
            wire(
                start(),
                text_block(),
                delta(0, text="Hel"),
                call_block(1),
                {**CALL[1], "index": 1},
                delta(0, text="lo"),
                {**CALL[2], "index": 1},
                stop(0),
                stop(1),
                ending("tool_use"),
                STOP,
            ),
            ExpectedAnswer("Hello", CALLED.calls, "tool_calls"),
        ),
        Quirk("a_id_missing", wire(start(), call_block(0, id=None), *CALL[1:], ending("tool_use"), STOP), ANY_CALL),
        Quirk("a_id_empty", wire(start(), call_block(0, id=""), *CALL[1:], ending("tool_use"), STOP), ANY_CALL),
        Quirk(
            "a_kimi_ids",
            wire(start(), call_block(0, id="functions.get_weather:0"), *CALL[1:], ending("tool_use"), STOP),
            ANY_CALL,
        ),
        Quirk(
            "a_unknown_tool",
            wire(start(), call_block(0, "no_such_tool"), *CALL[1:], ending("tool_use"), STOP),
            ExpectedAnswer(calls=(ExpectedCall("no_such_tool", CITY, ID1),), reason="tool_calls"),
        ),
        Quirk(
            "a_two_calls",
            wire(start(), *CALL, other, delta(1, partial_json="{}"), stop(1), ending("tool_use"), STOP),
            TWO,
        ),
    ]


QUIRKS = [*_endings(), *_blocks(), *_calls()]
