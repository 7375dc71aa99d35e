"""The work that a schema causes is bounded by its size and the value's (fault: J3)."""

import asyncio
import time
import tracemalloc
from typing import Any

import pytest

from tests.tools.fakes import FakeSource, FakeTool
from toolgate.tools import schema_check
from toolgate.tools.argument_check import MAX_EVALUATIONS, ArgumentValidator
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.schema_check import ToolSchemaValidator, closed_schema
from toolgate.tools.schema_complexity import SchemaComplexity
from toolgate.tools.tool import InvalidArguments, ServerToolDefinition

MANY = 10.0
"""Seconds of CPU in which each of these is done with a wide margin; without a bound they take minutes or for ever."""


def doubling(word: str, levels: int, leaf: dict[str, Any]) -> dict[str, Any]:
    steps = {
        f"a{number}": {word: [{"$ref": f"#/$defs/a{number + 1}"}, {"$ref": f"#/$defs/a{number + 1}"}]}
        for number in range(levels)
    }
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": {**steps, f"a{levels}": leaf}}


def unevaluated(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"properties": {"x": {"type": "string"}}}
    for _ in range(levels):
        inner = {"allOf": [inner], "unevaluatedProperties": False}
    return {"type": "object", **inner}


def chained(links: int) -> dict[str, Any]:
    steps = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(links)}
    last = {"type": "array", "items": {"$ref": "#/$defs/a0"}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": {**steps, f"a{links}": last}}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "anyOf doubles": (doubling("anyOf", 20, {"type": "string"}), "subschemas of one value once its references"),
    "allOf doubles": (doubling("allOf", 20, {"type": "string"}), "subschemas of one value once its references"),
    "oneOf doubles": (doubling("oneOf", 20, {"type": "string"}), "subschemas of one value once its references"),
    "doubles one level below another": (
        {
            "type": "object",
            "$ref": "#/$defs/a0",
            "$defs": {f"a{n}": {"anyOf": [{"properties": {"x": {"$ref": f"#/$defs/a{n + 1}"}}}] * 2} for n in range(30)}
            | {"a30": {"type": "string"}},
        },
        "subschemas of one value once its references",
    ),
    "doubles by anchors": (
        {
            "type": "object",
            "anyOf": [{"$ref": "#n0"}],
            "$defs": {
                f"a{number}": {"$anchor": f"n{number}", "anyOf": [{"$ref": f"#n{number + 1}"}] * 2}
                for number in range(20)
            },
        },
        "subschemas of one value once its references",
    ),
    "doubles in another resource": (
        {
            "type": "object",
            "properties": {"x": {"$ref": "https://example.com/s"}},
            "$defs": {
                "s": {
                    "$id": "https://example.com/s",
                    **doubling("anyOf", 20, {"type": "string"})["properties"]["x"],
                    "$defs": doubling("anyOf", 20, {"type": "string"})["$defs"],
                }
            },
        },
        "subschemas of one value once its references",
    ),
    "unevaluated within unevaluated": (unevaluated(20), "subschemas of one value once its references"),
    "itself": ({"type": "object", "allOf": [{"$ref": "#"}]}, "refers to itself without end"),
    "a circle": (
        {
            "type": "object",
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}},
        },
        "refers to itself without end",
    ),
    "a long chain": (chained(1000), "one inside the other"),
    "many subschemas": (
        {"type": "object", "properties": {f"{n}": {} for n in range(5000)}},
        "more than 4000 subschemas",
    ),
    "an anchor many times": (
        {
            "type": "object",
            "properties": {f"{n}": {"items": {"$ref": "#x"}} for n in range(800)},
            "$defs": {f"{n}": {"$anchor": "x"} for n in range(800)},
        },
        "references and subschemas in all",
    ),
    "many resources": (
        {"type": "object", "$defs": {f"{n}": {"$id": f"x{n}"} for n in range(800)}},
        "subschemas with an $id",
    ),
    "patterns": (
        {"type": "object", "properties": {f"p{n}": {"pattern": f"\\pL{{{n}}}"} for n in range(1000)}},
        "more than 256 patterns",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_stands_for_too_much_is_refused_before_a_validator_sees_it(name: str) -> None:
    schema, why = HOSTILE[name]
    began = time.process_time()
    assert why in (ToolSchemaValidator().problem(schema) or "")
    assert time.process_time() - began < MANY


@pytest.mark.parametrize("name", HOSTILE)
def test_its_tool_is_left_out_and_shown_as_a_problem_of_its_source(name: str) -> None:
    schema, why = HOSTILE[name]

    async def scene() -> None:
        good = FakeTool(ServerToolDefinition(name="good", description="G.", source="python"))
        bad = FakeTool(ServerToolDefinition(name="bad", description="B.", source="python", input_schema=schema))
        registry = ToolRegistry([FakeSource("python", [good, bad])])
        await registry.open()
        assert [tool.spec.name for tool in registry.tools()] == ["good"]
        assert [(tool_problem.tool, why in tool_problem.message) for tool_problem in registry.problems()] == [
            ("bad", True)
        ]
        await registry.aclose()

    asyncio.run(scene())


async def read(schema: dict[str, Any], text: str) -> str:
    """What becomes of these arguments."""
    try:
        await ArgumentValidator().read(
            ServerToolDefinition(name="t", description="T.", source="python", input_schema=schema), text
        )
    except InvalidArguments as error:
        return str(error)
    return "fits"


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/node"}},
    "$defs": {
        "node": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"op": {"const": op}, "of": {"items": {"$ref": "#/$defs/node"}}},
                    "required": ["op", "of"],
                }
                for op in ("and", "or", "not")
            ]
            + [{"type": "string"}]
        }
    },
}


def tree(levels: int, leaf: str) -> str:
    inner = leaf
    for _ in range(levels):
        inner = f'{{"op":"and","of":[{inner}]}}'
    return f'{{"x":{inner}}}'


def test_recursive_alternatives_are_checked_as_long_as_the_arguments_are_not_too_deep() -> None:
    assert ToolSchemaValidator().problem(TREE) is None
    assert asyncio.run(read(TREE, tree(8, '"a"'))) == "fits"
    assert "do not fit" in asyncio.run(read(TREE, tree(8, "1")))
    began = time.process_time()
    assert "would take too long" in asyncio.run(read(TREE, tree(40, "1")))
    assert time.process_time() - began < MANY


@pytest.mark.parametrize(
    ("schema", "text", "output"),
    [
        pytest.param(chained(40), '{"x":' + "[" * 300 + "]" * 300 + "}", "deep", id="arguments that overflow a stack"),
        pytest.param(chained(40), '{"x":' + "[" * 126 + "1" + "]" * 126 + "}", "do not fit", id="as deep as may be"),
        pytest.param(
            {"type": "object", "anyOf": [{"required": [f"r{number}"]} for number in range(2000)]},
            "{" + ",".join([f'"k{number}":{number}' for number in range(15_000)]) + "}",
            "do not fit",
            id="errors that each hold all arguments",
        ),
        pytest.param(
            {"type": "object", "properties": {"x": {"items": {"enum": [{"a": number} for number in range(5000)]}}}},
            '{"x":[' + ",".join(['{"a":4999}'] * 20_000) + "]}",
            "would take too long",
            id="many values compared with many",
        ),
        pytest.param(
            {"type": "object", "properties": {"x": {"items": {"pattern": "(?=(a+)+$)x"}}}},
            '{"x":["' + '","'.join(["a" * 2000 + "!"] * 100) + '"]}',
            "would take too long",
            id="patterns that look around",
        ),
        pytest.param(
            {"type": "object", "properties": {"x": {"items": {"type": "string"}}}},
            '{"x":[' + "1," * 60_000 + "1]}",
            "do not fit",
            id="many errors",
        ),
    ],
)
def test_the_work_for_arguments_is_bounded(schema: dict[str, Any], text: str, output: str) -> None:
    assert ToolSchemaValidator().problem(schema) is None
    began = time.process_time()
    assert output in asyncio.run(read(schema, text))
    assert time.process_time() - began < MANY


def test_types_that_are_used_again_and_again_under_other_names_are_no_reason_to_refuse() -> None:
    steps = {
        f"a{n}": {"properties": {side: {"$ref": f"#/$defs/a{n + 1}"} for side in ("left", "right")}} for n in range(30)
    }
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a0"}},
        "$defs": {**steps, "a30": {"type": "string"}},
    }
    assert ToolSchemaValidator().problem(schema) is None
    assert asyncio.run(read(schema, '{"x":{"left":{"right":{"left":{}}}}}')) == "fits"


def test_large_arguments_of_a_plain_schema_fit() -> None:
    item = {"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"items": {"type": "string"}}}}
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": item}}}
    text = '{"rows":[' + ",".join(['{"id":1,"tags":["a","b"]}'] * 8000) + "]}"
    assert asyncio.run(read(schema, text)) == "fits"


def test_work_is_counted_as_often_as_a_validator_may_do_it() -> None:
    cost = SchemaComplexity(closed_schema(doubling("anyOf", 10, {"type": "string"})))
    assert cost.evaluations({"x": 1}, MAX_EVALUATIONS) > 2**10
    assert cost.evaluations({"y": 1}, MAX_EVALUATIONS) < 10
    assert SchemaComplexity(TREE).evaluations({"x": "a"}, MAX_EVALUATIONS) < 20


def test_errors_of_large_arguments_are_limited_to_missing_and_undeclared_fields() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"items": {"type": "string"}}, "y": {}},
        "required": ["y"],
    }
    output = asyncio.run(read(schema, '{"z":1,"x":[' + "1," * 60_000 + "1]}"))
    assert "- 'y' is required\n- 'z' is not declared\n" in output


def test_a_checker_keeps_digests_of_schemas_and_not_the_schemas() -> None:
    """4,096 schemas of 64 KiB were once kept."""
    checker = ToolSchemaValidator()
    checker.problem({"type": "object"})
    tracemalloc.start()
    try:
        for number in range(50):
            checker.problem({"type": "object", "description": f"{number}" + "x" * 60_000})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept <= 5 * 60_000


def test_a_checker_forgets_the_oldest_of_too_many_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "_MAX_CACHED", 10)
    checker = ToolSchemaValidator()
    for number in range(30):
        assert checker.problem({"type": "object", "description": str(number)}) is None
    assert len(checker._results) == 10
