"""Calls as JSON behind a special mark: Granite, Llama's `<|python_tag|>`, InternLM, Command-A, GigaChat, Apertus."""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls, python_calls
from toolgate.text.bodies.plain import between
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.strings import quoted
from toolgate.text.syntax import Opener, Read, Syntax, always
from toolgate.text.writing import Tools, arguments, call_object, listed

_TURN_ENDS = ("<|eom_id|>", "<|eot_id|>")
_RESPONSE, _RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
_THINKS = (("<|START_THINKING|>", "<|END_THINKING|>"),)


def _json(*closers: str, then: str = "", keyed: bool = False) -> Read:
    """A reader of JSON calls; `then` must stand behind the opener."""

    def read(reading: Reading, _: str) -> Steps[None]:
        if then:
            yield from reading.source.blanks()
            if not (yield from reading.source.word(then)):
                return
        yield from json_calls.calls(reading, *closers, keyed=keyed)

    return read


def _python_tag(reading: Reading, _: str) -> Steps[None]:
    yield from reading.source.blanks()
    if (yield from reading.source.peek()) in ("{", "["):
        yield from json_calls.calls(reading, *_TURN_ENDS)
    else:
        yield from python_calls.calls(reading, *_TURN_ENDS)


def _array(opening: str, closing: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{opening}{listed([call_object(call) for call in calls])}{closing}"


def _each(opening: str, closing: str, gap: str, key: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return gap.join([f"{opening}{call_object(call, arguments_key=key)}{closing}" for call in calls])


def _tagged_llama(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<|python_tag|>{'; '.join([call_object(call, arguments_key='parameters') for call in calls])}"


def _command_a(calls: Sequence[ToolCall], _: Tools) -> str:
    lines = [
        f'    {{"tool_call_id": "{number}", "tool_name": {quoted(call.name)}, "parameters": {arguments(call)}}}'
        for number, call in enumerate(calls)
    ]
    return f"<|START_ACTION|>[\n{f',{chr(10)}'.join(lines)}\n]<|END_ACTION|>"


def _apertus(calls: Sequence[ToolCall], _: Tools) -> str:
    return (
        f"<|tools_prefix|>{listed([f'{{{quoted(call.name)}: {arguments(call)}}}' for call in calls])}<|tools_suffix|>"
    )


_INTERN, _GIGA = "<|action_start|> <|plugin|>\n", "<|message_sep|>\n\nfunction call<|role_sep|>\n"
_COHERE = always(
    Opener(_json("<|END_ACTION|>"), "<|START_ACTION|>"),
    Opener(lambda reading, _: between(reading, _RESPONSE_END), _RESPONSE),
)

SYNTAXES = (
    Syntax("granite3", always(Opener(_json(), "<|tool_call|>")), partial(_array, "<|tool_call|>", "")),
    Syntax(
        "granite_20b_fc",
        always(Opener(_json("</function_call>"), "<function_call>")),
        partial(_each, "<function_call> ", "", "", "arguments"),
    ),
    Syntax("llama3_tag", always(Opener(_python_tag, "<|python_tag|>")), _tagged_llama),
    Syntax(
        "internlm2",
        always(Opener(_json("<|action_end|>", then="<|plugin|>"), "<|action_start|>")),
        partial(_each, _INTERN, "<|action_end|>", "\n", "parameters"),
    ),
    Syntax("command_a", _COHERE, _command_a, thinks=_THINKS),
    Syntax(
        "gigachat3",
        always(Opener(_json(then="function call<|role_sep|>"), "<|message_sep|>")),
        partial(_each, _GIGA, "", "", "arguments"),
    ),
    Syntax(
        "gigachat31",
        always(Opener(_json("<|message_sep|>"), "<|function_call|>")),
        partial(_each, "<|function_call|>", "", "", "arguments"),
    ),
    Syntax("apertus", always(Opener(_json("<|tools_suffix|>", keyed=True), "<|tools_prefix|>")), _apertus),
)
