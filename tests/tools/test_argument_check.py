"""Arguments are read and checked before anything runs, whatever the schema and whatever the model wrote: R6."""

import asyncio
from typing import Any

import pytest

from toolgate.tools.argument_check import MAX_ARGUMENTS, ArgumentValidator
from toolgate.tools.tool import ServerToolDefinition, ToolCallFailed

PATH = {"type": "string"}


def read(schema: dict[str, Any], text: str) -> dict[str, Any]:
    spec = ServerToolDefinition(name="t", description="T.", source="python", input_schema=schema)
    return asyncio.run(ArgumentValidator().read(spec, text))


NEEDY: dict[str, Any] = {"type": "object", "properties": {"path": PATH}, "required": ["path"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"path":"a"', "not valid JSON"),
        ('{"path":"a"}{"path":"b"}', "not valid JSON"),
        ("{'path':'a'}", "not valid JSON"),
        ('{"path":NaN}', "not valid JSON"),
        ("null", "must be one JSON object"),
        ('["a"]', "must be one JSON object"),
        ('"{}"', "must be one JSON object"),
        ("{}", '"path" is a required property'),
        ('{"path":1}', "path: 1 is not of type"),
        ('{"path":"a","more":2}', "more"),
        ("[" * 100_000, "not valid JSON"),
        (f'{{"path":"{"a" * MAX_ARGUMENTS}"}}', "longer than"),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_refused_with_a_precise_message(text: str, why: str) -> None:
    """field: E7"""
    with pytest.raises(ToolCallFailed, match="nothing was run") as failure:
        read(NEEDY, text)
    assert why in str(failure.value)


@pytest.mark.parametrize("text", ['{"n":1e400}', '{"n":[-1E999]}', '{"n":1e400,"m":18446744073709551616}'])
def test_a_number_that_no_tool_can_get_is_refused(text: str) -> None:
    """Tools got null in its place."""
    with pytest.raises(ToolCallFailed, match="is beyond the range of numbers"):
        read({"type": "object"}, text)


def test_numbers_of_any_size_are_kept_as_they_are() -> None:
    assert read({"type": "object"}, f'{{"n":{10**30}}}') == {"n": 10**30}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}},
        {"properties": {"a": {}}, "patternProperties": {"^x-": {}}},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"allOf": [{"properties": {"a": {}}}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {}}}}},
        {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
    ],
)
def test_an_undeclared_field_is_refused_wherever_fields_are_declared(schema: dict[str, Any]) -> None:
    assert read({"type": "object", **schema}, '{"a":1}') == {"a": 1}
    with pytest.raises(ToolCallFailed, match="extra"):
        read({"type": "object", **schema}, '{"a":1,"extra":2}')


def test_where_no_field_is_declared_any_is_welcome() -> None:
    schema = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert read(schema, '{"a":1,"c":2}') == {"a": 1, "c": 2}


@pytest.mark.parametrize("allowed", [{"additionalProperties": True}, {"unevaluatedProperties": True}])
def test_a_tool_that_allows_more_fields_gets_them(allowed: dict[str, Any]) -> None:
    assert read({"type": "object", "properties": {"a": {}}, **allowed}, '{"a":1,"b":2}') == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "https://example.com/own", "properties": {"a": PATH}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": PATH}},
        {"properties": {"a": {"type": "string", "pattern": "^(?!y)x"}}},
        {"properties": {"a": PATH, "pair": {"type": "array", "items": [PATH, PATH]}}},
    ],
)
def test_every_schema_that_the_registry_accepts_can_be_checked(schema: dict[str, Any]) -> None:
    assert read({"type": "object", **schema}, '{"a":"x"}') == {"a": "x"}
    with pytest.raises(ToolCallFailed, match="do not fit"):
        read({"type": "object", **schema}, '{"a":1}')


@pytest.mark.parametrize("reference", ["#/definitions/nowhere", "http://127.0.0.1:9/x", "file:///etc/passwd"])
def test_a_schema_that_leads_nowhere_fails_its_own_call_alone(reference: str) -> None:
    """fault: J2"""
    with pytest.raises(ToolCallFailed, match="cannot be checked"):
        read({"type": "object", "properties": {"a": {"$ref": reference}}}, '{"a":"x"}')


def test_a_pattern_that_would_take_for_ever_gives_up() -> None:
    """fault: J3"""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=x)(x+x+)+y$"}}}
    with pytest.raises(ToolCallFailed, match="do not fit"):
        read(schema, f'{{"a":"{"x" * 2000}"}}')
    with pytest.raises(ToolCallFailed, match="would take too long"):
        read(schema, f'{{"a":"{"x" * 200_000}"}}')
