"""Definitions and results as servers write them, read into ours (spec: R1)."""

from typing import Any

import pytest

from toolgate.conversation.message import Media, Text
from toolgate.mcp.client.definitions import HeaderArgument, McpToolDefinition, UnusableToolError, parse_definition
from toolgate.mcp.client.results import decode_result
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.tool import Annotations, ToolCallFailed


def offer(**fields: Any) -> McpToolDefinition:
    return parse_definition({"name": "t", "inputSchema": {"type": "object"}, **fields}, ToolSchemaValidator())


def test_what_a_server_does_not_promise_is_taken_to_be_dangerous() -> None:
    assert offer().annotations == Annotations(read_only=False, destructive=True, idempotent=False, open_world=True)
    assert offer(annotations={"destructiveHint": "no", "readOnlyHint": 1}).annotations == Annotations()
    assert offer(annotations={"readOnlyHint": True}).annotations == Annotations(read_only=True, destructive=False)
    assert not offer(annotations={"destructiveHint": False}).annotations.destructive


def test_titles_schemas_and_harmless_pictures_are_kept() -> None:
    icons = [{"src": "javascript:alert(1)"}, {"src": "data:image/svg+xml;base64,AA"}, {"src": "https://e.org/i.png"}]
    read = offer(title="T", outputSchema={"type": "object", "title": "out"}, icons=icons)
    assert (read.title, read.output_schema, read.icon) == (
        "T",
        {"type": "object", "title": "out"},
        "https://e.org/i.png",
    )
    assert offer(annotations={"title": "from hints"}).title == "from hints"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": ""}, "without a name"),
        ({"name": 7}, "without a name"),
        ({"name": "x" * 300}, "longer than 256"),
        ({"inputSchema": []}, "is no object"),
        ({"inputSchema": {"type": "string"}}, "must describe an object"),
        ({"inputSchema": {"properties": {"a": {"type": "nothing"}}}}, "not valid JSON Schema"),
        ({"inputSchema": {"x": "y" * 70_000}}, "larger than"),
        ({"description": "x" * 20_000}, "description is longer"),
        ({"description": "\ud800"}, "halves of characters"),
        ({"execution": {"taskSupport": "required"}}, "only as a task"),
        ({"inputSchema": {"properties": {"a": {"x-mcp-header": "a b"}}}}, "header with an invalid name"),
    ],
)
def test_a_tool_that_cannot_be_used_is_left_out_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableToolError, match=reason):
        offer(**fields)


def test_the_order_of_keys_makes_no_difference_to_what_is_accepted() -> None:
    one = offer(inputSchema={"type": "object", "properties": {"a": {"type": "string"}, "b": {}}})
    two = offer(inputSchema={"properties": {"b": {}, "a": {"type": "string"}}, "type": "object"})
    assert one.definition == two.definition
    assert one.definition != offer(description="other").definition


def test_arguments_that_are_wanted_in_headers_are_found_where_they_stand() -> None:
    inner = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    read = offer(inputSchema={"type": "object", "properties": {"where": inner}})
    assert read.header_arguments == (HeaderArgument(("where", "region"), "Region"),)


def test_every_kind_of_content_becomes_one_of_ours() -> None:
    blocks = [
        {"type": "text", "text": "hi"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "aGk=", "mimeType": "application/pdf"}},
        {"type": "resource_link", "uri": "file:///c", "name": "c", "mimeType": "text/plain"},
        {"type": "hologram", "n": 1},
        {"type": "image", "data": "not base64!"},
    ]
    assert decode_result({"content": blocks, "_meta": {"k": 1}, "isError": True}).content == (
        Text("hi"),
        Media("image", mime="image/png", data="aGk="),
        Media("audio", mime="audio/wav", data="aGk="),
        Text("file:///a:\ninside"),
        Media("file", mime="application/pdf", data="aGk=", name="file:///b"),
        Text("c: file:///c (text/plain)"),
        Text('{"type":"hologram","n":1}'),
        Text('{"type":"image","data":"not base64!"}'),
    )
    assert decode_result({"content": blocks, "_meta": {"k": 1}, "isError": True}).is_error
    assert decode_result({"content": [], "_meta": {"k": 1}}).meta == {"k": 1}


def test_structured_content_is_kept_as_data_and_written_out_where_there_are_no_words() -> None:
    assert decode_result({"structuredContent": {"a": 1}, "content": []}).content == (Text('{"a":1}'),)
    output = decode_result({"structuredContent": {"a": 1}, "content": [{"type": "text", "text": "one"}]})
    assert (output.content, output.structured) == ((Text("one"),), {"a": 1})


@pytest.mark.parametrize("kind", ["input_required", "task"])
def test_a_result_that_is_none_is_a_failure_in_words(kind: str) -> None:
    with pytest.raises(ToolCallFailed):
        decode_result({"resultType": kind, "requestState": "x"})
