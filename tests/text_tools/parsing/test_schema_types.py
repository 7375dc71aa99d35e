"""The work of looking up the types of parameters grows with their number and no faster. (fault: Z1)"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.text_tools.parsed import summary
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing import schema_types
from toolgate.text_tools.syntaxes import syntax

SYNTAXES = ["anthropic_legacy", "functiongemma", "glm45", "invoke", "minicpm5", "minimax_m3", "qwen3_coder"]


def declared(count: int) -> dict[str, Any]:
    """A schema of as many parts and parameters, whose types stand behind one reference to as many alternatives."""
    text = {"anyOf": [{"type": "string", "minLength": number} for number in range(count)]}
    parts = [{"properties": {f"p{number}": {"$ref": "#/$defs/text"}}} for number in range(count)]
    return {"type": "object", "allOf": parts, "$defs": {"text": text}}


def steps(work: Callable[[], object]) -> int:
    """How often a function of `text_tools/parsing/schema_types.py`, or one within it, is called."""
    counted = [0]

    def count(frame: FrameType, event: str, _: Any) -> None:
        counted[0] += event == "call" and frame.f_code.co_filename == schema_types.__file__

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted[0]


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_call_of_many_parameters_is_written_and_read_in_linear_work(name: str) -> None:
    def cost(count: int) -> int:
        tool = ToolDef("t", None, declared(count))
        values = {f"p{number}": "v" for number in range(count)}
        given = "{" + ",".join([f'"{key}":"{value}"' for key, value in values.items()]) + "}"

        def work() -> None:
            text = syntax(name).render([ToolCall("call_1", "t", given)], {"t": tool})
            assert summary(text, name, [tool]) == [("t", values)]

        return steps(work)

    assert cost(40) <= cost(160) <= 6 * cost(40)


def test_types_in_a_cycle_of_references_do_not_depend_on_earlier_lookups() -> None:
    circle = {
        "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "string"}]},
        "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]},
    }
    properties = {name: {"$ref": f"#/$defs/{name}"} for name in circle}
    for order in (["a", "b"], ["b", "a"]):
        types = schema_types.ParameterTypes({"properties": properties, "$defs": circle})
        assert {name: types.of(name) for name in order} == dict.fromkeys(order, frozenset({"string", "integer"}))


def test_a_reference_to_an_alternative_of_thousands_of_digits_points_to_nothing() -> None:
    """It was an error 500: Python refuses to convert more than 4300 digits."""
    number = {"$ref": f"#/$defs/either/anyOf/{0:05000}"}
    either = {"anyOf": [{"type": "integer"}]}
    tool = ToolDef("t", None, {"type": "object", "properties": {"a": number}, "$defs": {"either": either}})
    text = syntax("qwen3_coder").render([ToolCall("call_1", "t", '{"a":5}')], {"t": tool})
    assert [name for name, _ in summary(text, "qwen3_coder", [tool])] == ["t"]
