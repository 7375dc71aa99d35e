"""More Responses streams as relays really send them: what becomes of calls, ids, usage and characters."""

import json
from typing import Any

from tests.dialects.chat_quirks import ExpectedAnswer, ExpectedCall, Quirk
from tests.dialects.openai_responses_cases import (
    CITY,
    EMPTY_CALL,
    EMPTY_MESSAGE,
    ID1,
    ID2,
    added,
    argument_delta,
    arguments_done,
    call,
    completed,
    created,
    done,
    event,
    message,
    text_delta,
)
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable

CALLED = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY, ID1),), reason="tool_calls")
ANY_CALL = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY),), reason="tool_calls")
TWO = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY), ExpectedCall("get_time", "{}")), reason="tool_calls")
CLOCK = ExpectedAnswer(calls=(ExpectedCall("get_time", "{}", ID1),), reason="tool_calls")
DOUBLE = json.dumps(CITY)


def expected_with(arguments: str) -> ExpectedAnswer:
    """An answer that calls the first tool with these arguments."""
    return ExpectedAnswer(calls=(ExpectedCall("get_weather", arguments, ID1),), reason="tool_calls")


def argued(*pieces: str, whole: Any = None) -> bytes:
    """A stream of one call with these pieces of arguments."""
    final = "".join(pieces) if whole is None else whole
    deltas = b"".join([argument_delta(piece) for piece in pieces])
    return created() + added(EMPTY_CALL) + deltas + arguments_done(final) + done(call(final)) + completed(call(final))


def clock(arguments: Any) -> bytes:
    """A stream of one call of a tool without parameters."""
    value = call(arguments, name="get_time")
    return created() + added(call("", name="get_time", status="in_progress")) + done(value) + completed(value)


def encode_deltas(*pieces: str, **fields: Any) -> bytes:
    """A stream of text."""
    text = message("".join(pieces))
    deltas = b"".join([text_delta(piece) for piece in pieces])
    return created() + added(EMPTY_MESSAGE) + deltas + done(text) + completed(text, **fields)


def _without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: held for name, held in value.items() if name not in names}


_LENGTH: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
_BOOM = event("error", code="server_error", message="boom", param=None)

HALF = '{"city":"Par'
HALF_CALL = call(HALF, status="incomplete")
CUT_OFF = ExpectedAnswer(calls=(ExpectedCall("get_weather", HALF, ID1, False),), reason="length")

QUIRKS = [
    Quirk(
        "r_half_call_of_a_completed_response",
        created() + added(EMPTY_CALL) + argument_delta(HALF) + done(HALF_CALL) + completed(HALF_CALL),
        CUT_OFF,
    ),
    Quirk(
        "r_half_call_without_done",
        created() + added(EMPTY_CALL) + argument_delta(HALF) + completed(call(HALF, status="in_progress")),
        CUT_OFF,
    ),
    Quirk("r_half_call_that_nothing_ends", created() + added(EMPTY_CALL) + argument_delta(HALF) + completed(), CUT_OFF),
    Quirk(
        "r_half_call_without_arguments",
        created() + done(call("", status="incomplete")) + completed(call("", status="incomplete")),
        ExpectedAnswer(calls=(ExpectedCall("get_weather", "", ID1, False),), reason="length"),
    ),
    Quirk("r_whole_call_in_progress", created() + completed(call(status="in_progress")), CALLED),
    Quirk("r_half_call_at_the_end_alone", created() + completed(HALF_CALL), CUT_OFF),
    Quirk(
        "r_half_call_behind_a_whole_one",
        created()
        + done(call())
        + done(call(HALF, "fc_2", ID2, "get_time", status="incomplete"), 1)
        + completed(call(), call(HALF, "fc_2", ID2, "get_time", status="incomplete")),
        ExpectedAnswer(
            calls=(ExpectedCall("get_weather", CITY, ID1), ExpectedCall("get_time", HALF, ID2, False)), reason="length"
        ),
    ),
    Quirk("r_args_null", clock(None), CLOCK),
    Quirk("r_args_blank", clock(" \n"), CLOCK),
    Quirk("r_args_empty_object", clock({}), CLOCK),
    Quirk("r_args_double", argued(DOUBLE), CALLED),
    Quirk("r_args_double_in_pieces", argued(DOUBLE[:4], DOUBLE[4:]), CALLED),
    Quirk("r_args_double_in_the_item", created() + added(EMPTY_CALL) + done(call(DOUBLE)) + completed(), CALLED),
    Quirk("r_args_double_mended_at_the_end", argued(DOUBLE, whole=CITY), CALLED),
    Quirk("r_args_space", argued(" \n", CITY, "\n "), CALLED),
    Quirk("r_args_brace_prefix", argued("{}", CITY), CALLED),
    Quirk("r_args_brace_prefix_mended", argued("{}", CITY, whole=CITY), CALLED),
    Quirk("r_args_invalid", argued("{'city': 'Paris',}"), expected_with("{'city': 'Paris',}")),
    Quirk("r_args_surrogate", argued(r'{"city":"\ud83d"}'), expected_with(r'{"city":"\ufffd"}')),
    Quirk(
        "r_args_surrogate_pieces",
        argued('{"city":"', r"\ud83d", r"\ude00", '"}'),
        expected_with(r'{"city":"\ud83d\ude00"}'),
    ),
    Quirk("r_args_bignum", argued('{"id":9007199254740993}'), expected_with('{"id":9007199254740993}')),
    Quirk("r_args_before_name", created() + argument_delta(CITY) + done(call()) + completed(call()), CALLED),
    Quirk(
        "r_name_when_done",
        created()
        + added(call("", name="", status="in_progress"))
        + argument_delta(CITY)
        + done(call())
        + completed(call()),
        CALLED,
    ),
    Quirk(
        "r_name_null_when_added",
        created()
        + added(call("", name=None, status="in_progress"))
        + argument_delta(CITY)
        + done(call())
        + completed(call()),
        CALLED,
    ),
    Quirk(
        "r_nameless",
        created()
        + added(call("", name="", status="in_progress"))
        + argument_delta(CITY)
        + done(call(name=""))
        + completed(),
        fails=InvalidUpstreamAnswer,
    ),
    Quirk(
        "r_nameless_without_done",
        created() + argument_delta(CITY) + completed(),
        fails=InvalidUpstreamAnswer,
    ),
    Quirk(
        "r_ids_duplicate",
        created()
        + done(call())
        + done(call("{}", "fc_2", ID1, "get_time"), 1)
        + completed(call(), call("{}", "fc_2", ID1, "get_time")),
        TWO,
    ),
    Quirk(
        "r_id_missing",
        created() + done(_without(call(), "call_id", "id")) + completed(_without(call(), "call_id", "id")),
        ANY_CALL,
    ),
    Quirk("r_id_empty", created() + done(call(call_id="")) + completed(call(call_id="")), ANY_CALL),
    Quirk(
        "r_kimi_ids",
        created() + done(call(call_id="functions.get_weather:0")) + completed(call(call_id="functions.get_weather:0")),
        ANY_CALL,
    ),
    Quirk(
        "r_unknown_tool",
        created() + done(call(name="no_such_tool")) + completed(call(name="no_such_tool")),
        ExpectedAnswer(calls=(ExpectedCall("no_such_tool", CITY, ID1),), reason="tool_calls"),
    ),
    Quirk("r_no_done", created() + added(EMPTY_CALL) + argument_delta(CITY) + completed(), CALLED),
    Quirk(
        "r_whole_call_at_the_limit",
        created() + done(call()) + completed(call(), **_LENGTH),
        ExpectedAnswer(calls=CALLED.calls, reason="length"),
    ),
    Quirk(
        "r_whole_call_without_done_at_the_limit",
        created() + added(EMPTY_CALL) + argument_delta(CITY) + completed(**_LENGTH),
        ExpectedAnswer(calls=CALLED.calls, reason="length"),
    ),
    Quirk(
        "r_empty_call_at_the_limit",
        created() + added(EMPTY_CALL) + completed(**_LENGTH),
        ExpectedAnswer(calls=(ExpectedCall("get_weather", "", ID1, complete=False),), reason="length"),
    ),
    Quirk("r_no_usage", encode_deltas("Hello", usage=None), ExpectedAnswer("Hello")),
    Quirk("r_no_usage_with_call", created() + done(call()) + completed(call(), usage=None), CALLED),
    Quirk("r_surrogate_halves", encode_deltas("\ud83c", "\udf0d"), ExpectedAnswer("🌍")),
    Quirk("r_lone_surrogate", encode_deltas("a\ud83c"), ExpectedAnswer("a\ufffd")),
    Quirk(
        "r_error_after_text", created() + added(EMPTY_MESSAGE) + text_delta("Hel") + _BOOM, fails=UpstreamUnavailable
    ),
    Quirk(
        "r_error_mid_call", created() + added(EMPTY_CALL) + argument_delta('{"ci') + _BOOM, fails=UpstreamUnavailable
    ),
    Quirk(
        "r_refusal",
        created() + done({**message(""), "content": [{"type": "refusal", "refusal": "No."}]}) + completed(),
        ExpectedAnswer(refusal="No."),
    ),
    Quirk(
        "r_two_calls_without_indexes",
        created()
        + event("response.output_item.added", item=EMPTY_CALL)
        + event("response.function_call_arguments.delta", delta=CITY)
        + event("response.output_item.done", item=call())
        + event("response.output_item.added", item=call("", "fc_2", ID2, "get_time"))
        + event("response.function_call_arguments.delta", delta="{}")
        + event("response.output_item.done", item=call("{}", "fc_2", ID2, "get_time"))
        + completed(),
        TWO,
    ),
]
