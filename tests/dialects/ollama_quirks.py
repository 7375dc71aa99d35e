"""Ollama's streams as servers really send them, each with what must be understood of it."""

import json
from typing import Any

from tests.dialects.chat_quirks import ExpectedAnswer, ExpectedCall, Quirk
from tests.dialects.ollama_cases import DONE, call, line, wire
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import Usage

CITY = '{"city":"Paris"}'
PARIS = {"city": "Paris"}
SAID = ExpectedAnswer("Hello", usage=Usage(5, 7))
CALLED = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY),), reason="tool_calls")
CLOCK = ExpectedAnswer(calls=(ExpectedCall("get_time", "{}"),), reason="tool_calls")
TWO = ExpectedAnswer(calls=(ExpectedCall("get_weather", CITY), ExpectedCall("get_time", "{}")), reason="tool_calls")
HELLO = [line("Hel"), line("lo")]


def called(*entries: Any, done: Any = DONE) -> bytes:
    """A stream with one line of calls."""
    return wire(line(tool_calls=list(entries)), done)


def expected_with(arguments: str) -> ExpectedAnswer:
    """An answer that calls the first tool with these arguments."""
    return ExpectedAnswer(calls=(ExpectedCall("get_weather", arguments),), reason="tool_calls")


def ended(**fields: Any) -> dict[str, Any]:
    """A last line."""
    return {**DONE, **fields}


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """The line without some of its fields."""
    return {name: value for name, value in fields.items() if name not in names}


QUIRKS = [
    Quirk("plain", wire(*HELLO, DONE), SAID),
    Quirk("o_crlf", wire(*HELLO, DONE).replace(b"\n", b"\r\n"), SAID),
    Quirk("o_no_final_newline", wire(*HELLO, DONE)[:-1], SAID),
    Quirk("o_glued", wire(*HELLO, DONE).replace(b"\n", b""), SAID),
    Quirk("o_blank_lines", b"\n" + wire(*HELLO, DONE).replace(b"\n", b"\n\n"), SAID),
    Quirk("o_eof", wire(*HELLO), fails=InvalidUpstreamAnswer),
    Quirk("o_cut_mid_line", wire(*HELLO, DONE)[:-20], fails=InvalidUpstreamAnswer),
    Quirk("o_error_line", wire(*HELLO, {"error": "boom"}), fails=UpstreamUnavailable),
    Quirk("o_error_first", wire({"error": "boom"}), fails=UpstreamUnavailable),
    Quirk(
        "o_error_after_call",
        wire(line(tool_calls=[call(arguments=PARIS)]), {"error": "boom"}),
        fails=UpstreamUnavailable,
    ),
    Quirk("o_not_json", wire(*HELLO, "oops"), fails=InvalidUpstreamAnswer),
    Quirk("o_thinking", wire(line(thinking="hm"), *HELLO, DONE), ExpectedAnswer("Hello", reasoning="hm")),
    Quirk("o_length", wire(*HELLO, ended(done_reason="length")), ExpectedAnswer("Hello", reason="length")),
    Quirk(
        "o_done_no_reason",
        wire(*HELLO, without(DONE, "done_reason", "prompt_eval_count", "eval_count")),
        ExpectedAnswer("Hello"),
    ),
    Quirk("o_done_reason_null", wire(*HELLO, ended(done_reason=None)), SAID),
    Quirk("o_done_no_message", wire(*HELLO, without(DONE, "message")), SAID),
    Quirk("o_done_words", wire(*HELLO, ended(done_reason="tool_calls")), SAID),
    Quirk("o_content_null", wire(line(None), *HELLO, DONE), SAID),
    Quirk("o_calls_null", wire(line("Hel", tool_calls=None), line("lo", tool_calls=[]), DONE), SAID),
    Quirk("o_no_role", wire({**line(), "message": {"content": "Hello"}}, DONE), SAID),
    Quirk(
        "o_no_model", wire(without(line("Hello"), "model", "created_at"), without(DONE, "model", "created_at")), SAID
    ),
    Quirk("empty_answer", wire(DONE), ExpectedAnswer()),
    Quirk("o_call_then_done", called(call(arguments=PARIS)), CALLED),
    Quirk(
        "o_call_in_done",
        wire(line("Hello"), ended(message={"role": "assistant", "content": "", "tool_calls": [call(arguments=PARIS)]})),
        ExpectedAnswer("Hello", CALLED.calls, "tool_calls"),
    ),
    Quirk(
        "o_text_after_call",
        wire(line(tool_calls=[call(arguments=PARIS)]), *HELLO, DONE),
        ExpectedAnswer("Hello", CALLED.calls, "tool_calls"),
    ),
    Quirk("o_two_calls", called(call(arguments=PARIS), call("get_time", {})), TWO),
    Quirk(
        "o_two_lines",
        wire(line(tool_calls=[call(arguments=PARIS)]), line(tool_calls=[call("get_time", {})]), DONE),
        TWO,
    ),
    Quirk("o_ids_duplicate", called(call(arguments=PARIS, id="call_1"), call("get_time", {}, id="call_1")), TWO),
    Quirk("o_kimi_ids", called(call(arguments=PARIS, id="functions.get_weather:0")), CALLED),
    Quirk(
        "o_length_after_call",
        called(call(arguments=PARIS), done=ended(done_reason="length")),
        ExpectedAnswer(calls=CALLED.calls, reason="length"),
    ),
    Quirk("o_args_string", called(call(arguments=CITY)), CALLED),
    Quirk("o_args_double", called(call(arguments=json.dumps(CITY))), CALLED),
    Quirk("o_args_space", called(call(arguments=f" {CITY}\n")), CALLED),
    Quirk("o_args_brace_prefix", called(call(arguments="{}" + CITY)), CALLED),
    Quirk("o_args_text_empty", called({"function": {"name": "get_time", "arguments": ""}}), CLOCK),
    Quirk("o_no_args", called({"function": {"name": "get_time", "arguments": None}}), CLOCK),
    Quirk("o_no_args", called({"function": {"name": "get_time"}}), CLOCK),
    Quirk("o_args_invalid", called(call(arguments="{'city': 'Paris',}")), expected_with("{'city': 'Paris',}")),
    Quirk("o_args_list", called(call(arguments=["Paris"])), expected_with('["Paris"]')),
    Quirk(
        "o_args_bignum",
        called("?").replace(b'"?"', b'{"function":{"name":"get_weather","arguments":{"id":9007199254740993}}}'),
        expected_with('{"id":9007199254740993}'),
    ),
    Quirk("o_args_surrogate", called(call(arguments={"city": "\ud83d"})), expected_with('{"city":"\ufffd"}')),
    Quirk("o_lone_surrogate", wire(line("a\ud83c"), DONE), ExpectedAnswer("a\ufffd")),
    Quirk("o_surrogate_halves", wire(line("\ud83c"), line("\udf0d"), DONE), ExpectedAnswer("🌍")),
    Quirk(
        "o_surrogate_thinking",
        wire(line(thinking="\ud83c"), line(thinking="\udf0d"), *HELLO, DONE),
        ExpectedAnswer("Hello", reasoning="🌍"),
    ),
    Quirk("o_nameless", called(call("", PARIS)), fails=InvalidUpstreamAnswer),
    Quirk("o_no_function", called({"id": "call_1"}), fails=InvalidUpstreamAnswer),
    Quirk("o_no_function_later", wire(*HELLO, line(tool_calls=[{"id": "call_1"}]), DONE), fails=InvalidUpstreamAnswer),
    Quirk("o_nameless_later", wire(*HELLO, line(tool_calls=[call("", PARIS)]), DONE), fails=InvalidUpstreamAnswer),
    Quirk(
        "o_unknown_tool",
        called(call("no_such_tool", PARIS)),
        ExpectedAnswer(calls=(ExpectedCall("no_such_tool", CITY),), reason="tool_calls"),
    ),
    Quirk("o_call_no_object", called("get_weather"), fails=InvalidUpstreamAnswer),
]
