"""Operations of an HTTP service as tools: what a model sees, what is sent, and hostile documents (R2, T11, J2–J4)."""

import asyncio
import copy
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tools.invoke import invocation_of, run, run_text
from tests.upstreams.transport.faulty import Faulty, answering, whole
from toolgate.conversation.message import Media
from toolgate.tools.egress.pinned_transport import guarded_http
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.sources.openapi import OpenApiSource
from toolgate.tools.sources.openapi.bounded_yaml import OpenApiDocumentError, read_document
from toolgate.tools.sources.openapi.source import MAX_LEFT_OUT, MAX_OPERATIONS
from toolgate.tools.tool import Annotations, Tool, ToolCallFailed

SHOP = """
openapi: 3.0.3
info: {title: Shop, version: 2024-01-01}
servers: [{url: "https://{region}.shop.example/v1", variables: {region: {default: eu}}}]
security: [{key: []}]
paths:
  /items/{id}:
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}, description: Which item.}
    get:
      operationId: getItem
      summary: Get an item
      description: Returns one item by its id.
      tags: [items]
      parameters:
        - {name: fields, in: query, schema: {type: array, items: {type: string}}}
        - {name: "filter[x]", in: query, style: deepObject, schema: {type: object, properties: {a: {type: integer}}}}
        - {name: api_key, in: query, required: true, schema: {type: string}}
        - {name: X-Trace, in: header, schema: {type: string}}
        - {name: Authorization, in: header, schema: {type: string}}
        - {name: taste, in: cookie, schema: {type: string}}
    put:
      operationId: putItem
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: "#/components/schemas/Item"}}}
    delete: {deprecated: true}
  /items:
    post:
      operationId: create item!
      requestBody:
        required: true
        content:
          application/json:
            schema:
              type: object
              required: [name]
              properties:
                name: {type: string, nullable: true}
                price: {type: number, minimum: 0, exclusiveMinimum: true}
                made: {type: string, readOnly: true}
components:
  securitySchemes:
    key: {type: apiKey, in: query, name: api_key}
  schemas:
    Item:
      type: object
      properties:
        id: {type: string}
        parts: {type: array, items: {$ref: "#/components/schemas/Item"}}
"""


async def source_of(
    tmp_path: Path, document: str | Mapping[str, Any], url: str | None = None, **options: Any
) -> OpenApiSource:
    path = tmp_path / "shop.yaml"
    path.write_text(document if isinstance(document, str) else msgspec.json.encode(document).decode())
    source = OpenApiSource("shop", str(path), guarded_http(), base_url=url, **options)
    await source.open(lambda: None)
    return source


def tool_in(source: OpenApiSource, name: str) -> Tool:
    return next(tool for tool in source.tools if tool.spec.name == name)


def minimal(operation: Mapping[str, Any], path: str = "/x", method: str = "get", **more: Any) -> dict[str, Any]:
    """A document of one operation."""
    described = {"operationId": "op", **operation}
    return {
        "openapi": "3.1.0",
        "servers": [{"url": "https://api.example"}],
        "paths": {path: {method: described}},
        **more,
    }


async def test_each_operation_is_a_tool_with_a_flat_schema(tmp_path: Path) -> None:
    source = await source_of(tmp_path, SHOP)
    assert source.problem is None
    assert source.name == "http/shop"
    assert [tool.spec.name for tool in source.tools] == [
        "shop_getItem",
        "shop_putItem",
        "shop_delete_items_id",
        "shop_create_item",
    ]
    spec = tool_in(source, "shop_getItem").spec
    assert spec.description == "Get an item\nReturns one item by its id."
    assert (spec.source, spec.origin, spec.user_description) == (
        "http/shop",
        "getItem",
        "Get an item (GET /items/{id})",
    )
    assert spec.tags == ("http", "shop", "items")
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "Which item."},
            "fields": {"type": "array", "items": {"type": "string"}},
            "filter_x": {"type": "object", "properties": {"a": {"type": "integer"}}},
            "X-Trace": {"type": "string"},
            "taste": {"type": "string"},
        },
        "required": ["id"],
        "additionalProperties": False,
    }


async def test_what_carries_a_credential_is_never_offered_to_a_model(tmp_path: Path) -> None:
    """fault: T11"""
    source = await source_of(tmp_path, SHOP, headers={"X-Trace": "secret"})
    properties = tool_in(source, "shop_getItem").spec.input_schema["properties"]
    assert not properties.keys() & {"api_key", "Authorization", "X-Trace"}


async def test_annotations_come_from_the_method(tmp_path: Path) -> None:
    source = await source_of(tmp_path, SHOP)
    reading = Annotations(read_only=True, destructive=False, idempotent=True, open_world=True)
    assert [tool.spec.annotations for tool in source.tools] == [
        reading,
        Annotations(idempotent=True),
        Annotations(idempotent=True),
        Annotations(),
    ]


async def test_keywords_of_version_3_0_are_translated_and_recursion_stays_a_reference(tmp_path: Path) -> None:
    """fault: J2"""
    source = await source_of(tmp_path, SHOP)
    assert tool_in(source, "shop_create_item").spec.input_schema == {
        "type": "object",
        "properties": {"name": {"type": ["string", "null"]}, "price": {"type": "number", "exclusiveMinimum": 0}},
        "required": ["name"],
        "additionalProperties": False,
    }
    # `id` is taken by the path, so the body stays together.
    nested = tool_in(source, "shop_putItem").spec.input_schema
    assert nested["properties"]["body"] == {"$ref": "#/$defs/Item"}
    assert nested["$defs"]["Item"]["properties"]["parts"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    assert nested["required"] == ["id", "body"]
    for tool in source.tools:
        assert ToolSchemaValidator().problem(tool.spec.input_schema) is None


async def test_a_call_is_sent_as_the_document_describes(tmp_path: Path) -> None:
    async with Faulty(answering(whole(b'{"ok": [1]}', "content-type: application/json"))) as server:
        source = await source_of(tmp_path, SHOP, f"http://{server.name}/v1", headers={"Authorization": "Bearer canary"})
        arguments = {"id": "a/b c", "fields": ["x", "y&z"], "filter_x": {"a": 1}, "X-Trace": "t", "taste": "sweet;"}
        output = await run(tool_in(source, "shop_getItem"), **arguments)
        await run(tool_in(source, "shop_putItem"), id="1", body={"id": "2", "parts": []})
        await run(tool_in(source, "shop_create_item"), name=None)
    get, put, post = server.requests
    assert get.target == "/v1/items/a%2Fb%20c?fields=x&fields=y%26z&filter[x][a]=1"
    assert get.headers["authorization"] == "Bearer canary"
    assert (get.headers["x-trace"], get.headers["cookie"]) == ("t", "taste=sweet%3B")
    assert (put.method, put.target, put.body) == ("PUT", "/v1/items/1", b'{"id":"2","parts":[]}')
    assert (post.body, post.headers["content-type"]) == (b'{"name":null}', "application/json")
    assert [one.headers.get("idempotency-key") for one in (get, put, post)] == [None, "key_1", "key_1"]
    assert (output.structured, output.is_error) == ({"ok": [1]}, False)
    assert output.content[0].text == '{"ok": [1]}'  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "value",
    [
        "..",
        ".",
        "../admin",
        "../../admin",
        "a/../../admin",
        "..\\admin",
        "%2e%2e",
        "%2e%2e%2fadmin",
        "",
        "a\r\nb",
        "a\0",
    ],
)
async def test_no_value_climbs_out_of_its_place_in_the_path(tmp_path: Path, value: str) -> None:
    async with Faulty(answering(whole(b"reached"))) as server:
        source = await source_of(tmp_path, SHOP, f"http://{server.name}/v1")
        with pytest.raises(ToolCallFailed):
            await run(tool_in(source, "shop_getItem"), id=value)
    assert server.requests == []


STYLES = [
    ({"schema": {}}, [1, 2], "v=1&v=2"),
    ({"explode": False}, [1, 2], "v=1%2C2"),
    ({"style": "pipeDelimited", "explode": False}, ["a", "b"], "v=a%7Cb"),
    ({"style": "spaceDelimited", "explode": False}, ["a", "b"], "v=a%20b"),
    ({}, {"a": 1, "b": True}, "a=1&b=true"),
    ({"explode": False}, {"a": 1, "b": "x"}, "v=a%2C1%2Cb%2Cx"),
    ({"style": "deepObject"}, {"a": 1}, "v[a]=1"),
    ({"content": {"application/json": {"schema": {}}}}, {"a": [1]}, "v=%7B%22a%22%3A%5B1%5D%7D"),
    ({}, False, "v=false"),
    ({}, 1.5, "v=1.5"),
    ({}, "ä&=?#/", "v=%C3%A4%26%3D%3F%23%2F"),
]


@pytest.mark.parametrize(("how", "value", "query"), STYLES)
async def test_a_query_is_written_in_its_style(tmp_path: Path, how: dict[str, Any], value: Any, query: str) -> None:
    document = minimal({"parameters": [{"name": "v", "in": "query", **how}]})
    tool = (await source_of(tmp_path, document)).tools[0]
    preparation = await tool.prepare(invocation_of(tool, v=value))
    assert preparation.message == f"GET https://api.example/x?{query}"


@pytest.mark.parametrize(
    ("content", "arguments", "body"),
    [
        ({"application/x-www-form-urlencoded": {"a": {}, "b": {}}}, {"a": "x y", "b": [1, 2]}, b"a=x%20y&b=1&b=2"),
        ({"text/plain": None}, {"body": "words"}, b"words"),
        ({"application/vnd.shop+json": {"a": {}}}, {"a": 1}, b'{"a":1}'),
        ({"application/json": {"a": {}}}, {}, b"{}"),
    ],
)
async def test_a_body_is_written_as_the_operation_takes_it(
    tmp_path: Path, content: dict[str, Any], arguments: dict[str, Any], body: bytes
) -> None:
    ((kind, fields),) = content.items()
    media = {kind: {"schema": {"type": "object", "properties": fields} if fields else {"type": "string"}}}
    document = minimal({"requestBody": {"required": True, "content": media}}, method="post")
    async with Faulty(answering(whole(b"", status="204 No Content"))) as server:
        source = await source_of(tmp_path, document, server.url)
        assert await run_text(source.tools[0], **arguments) == "HTTP 204, no content"
    assert (server.requests[0].body, server.requests[0].headers["content-type"]) == (body, kind)


async def test_errors_pictures_and_bytes_come_back_as_what_they_are(tmp_path: Path) -> None:
    """fault: T3"""
    answers = [
        whole(b'{"detail": "no such item"}', "content-type: application/json", status="404 Not Found"),
        whole(b"\x89PNG", "content-type: image/png"),
        whole(b"%PDF\0", "content-type: application/pdf"),
        whole(b"bad \xff", "content-type: text/plain"),
        whole(b"[" * 100_000, "content-type: application/json"),
        whole(b"E" * 100_000, "content-type: text/plain", status="500 Oops"),
    ]
    async with Faulty(answering(*answers)) as server:
        source = await source_of(tmp_path, minimal({}), server.url)
        outputs = [await run(source.tools[0]) for _ in answers]
    missing, picture, pdf, odd, deep, oops = outputs
    assert missing.is_error
    assert missing.content[0].text == 'HTTP 404\n{"detail": "no such item"}'  # type: ignore[union-attr]
    assert isinstance(picture.content[0], Media)
    assert pdf.content[0].text == "[5 bytes of application/pdf, which cannot be shown]"  # type: ignore[union-attr]
    assert odd.content[0].text == "bad \ufffd"  # type: ignore[union-attr]
    assert (deep.structured, deep.is_error) == (None, False)
    assert len(oops.content[0].text) <= 4010  # type: ignore[union-attr]


async def test_a_huge_answer_is_cut_with_a_note(tmp_path: Path) -> None:
    """fault: T3"""
    async with Faulty(answering(whole(b"x" * 3_000_000, "content-type: application/json"))) as server:
        source = await source_of(tmp_path, minimal({}), server.url)
        text = await run_text(source.tools[0])
    assert text.endswith("[truncated: only the first 2097152 bytes of the answer are shown]")


async def test_a_redirect_takes_no_credential_along(tmp_path: Path) -> None:
    """fault: T11"""
    async with Faulty(answering(whole(b"there"))) as other:
        away = whole(b"", f"location: {other.url}", status="307 Moved")
        async with Faulty(answering(away)) as server:
            http = guarded_http(["127.0.0.1"])
            path = tmp_path / "api.json"
            path.write_bytes(msgspec.json.encode(minimal({}) | {"paths": {"/x": {"get": {}, "post": {}}}}))
            source = OpenApiSource("api", str(path), http, base_url=server.url, headers={"X-Key": "canary"})
            await source.open(lambda: None)
            assert await run_text(tool_in(source, "api_get_x")) == "there"
            with pytest.raises(ToolCallFailed, match="not repeated"):
                await run(tool_in(source, "api_post_x"))
    assert server.requests[0].headers["x-key"] == "canary"
    assert "canary" not in str(other.requests)
    assert len(other.requests) == 1


async def test_a_service_that_the_document_puts_on_the_inside_is_not_reached(tmp_path: Path) -> None:
    """fault: S1"""
    async with Faulty(answering(whole(b"reached"))) as inside:
        document = minimal({}) | {"servers": [{"url": f"http://{inside.name}"}]}
        source = await source_of(tmp_path, document)
        assert source.tools == ()
        assert source.problem == (
            f"its document names http://{inside.name}/, a host that tools may not reach: "
            f"add {inside.name} to tools.reach, or set base_url"
        )
        trusted = await source_of(tmp_path, document, f"http://{inside.name}")
        assert await run_text(trusted.tools[0]) == "reached"
    assert len(inside.requests) == 1


async def opened(url: str, reach: Sequence[str] = ("127.0.0.1",), **options: Any) -> OpenApiSource:
    source, changed = OpenApiSource("api", url, guarded_http(reach), **options), asyncio.Event()
    await source.open(changed.set)
    await asyncio.wait_for(changed.wait(), 30)
    await source.aclose()
    return source


async def test_a_document_is_fetched_in_the_background_until_it_is_there() -> None:
    document = msgspec.json.encode(minimal({}) | {"servers": [{"url": "/api"}]})
    async with Faulty(answering(whole(b"", status="503 Wait"), whole(document))) as server:
        source = await opened(server.url, retry_seconds=0.01)
        assert [tool.spec.name for tool in source.tools] == ["api_op"]
        assert source.problem is None
    assert len(server.requests) == 2


async def test_a_fetched_document_may_name_its_own_origin_and_no_other_private_one() -> None:
    """fault: S1"""
    async with Faulty(answering(whole(b"reached"))) as inside:
        own = whole(msgspec.json.encode(minimal({}) | {"servers": [{"url": "/api"}]}))
        other = whole(msgspec.json.encode(minimal({}) | {"servers": [{"url": f"http://{inside.name}"}]}))
        async with Faulty(answering(own, whole(b"of the service"), other)) as server:
            allowed = await opened(server.url, reach=())
            assert allowed.problem is None
            assert await run_text(allowed.tools[0]) == "of the service"
            refused = await opened(server.url, reach=())
    assert refused.tools == ()
    assert "a host that tools may not reach" in (refused.problem or "")
    assert inside.requests == []


async def test_headers_go_to_no_server_that_only_a_fetched_document_names() -> None:
    """fault: T11"""
    document = whole(msgspec.json.encode(minimal({})))
    async with Faulty(answering(document)) as server:
        source = await opened(server.url, headers={"X-Key": "canary"})
        assert source.tools == ()
        assert "set base_url" in (source.problem or "")
        free = await opened(server.url)
        assert len(free.tools) == 1
        emitted = await opened(server.url, headers={"X-Key": "canary"}, base_url="https://api.example")
        assert len(emitted.tools) == 1
        own = await opened(server.url, headers={"X-Key": "canary"}, base_url=f"http://{server.name}/api")
        assert len(own.tools) == 1
    assert ["canary" in str(request) for request in server.requests] == [False, False, False, True]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"include": ["get*"]}, ["shop_getItem"]),
        ({"include": ["GET /items/*", "PUT *"]}, ["shop_getItem", "shop_putItem"]),
        ({"exclude": ["DELETE *", "create*"]}, ["shop_getItem", "shop_putItem"]),
    ],
)
async def test_operations_are_chosen_by_patterns(tmp_path: Path, options: dict[str, Any], names: list[str]) -> None:
    source = await source_of(tmp_path, SHOP, **options)
    assert [tool.spec.name for tool in source.tools] == names


async def test_names_are_short_and_unique(tmp_path: Path) -> None:
    paths = {
        f"/x{count}": {"get": {"operationId": name}} for count, name in enumerate(["a b", "a-b", "a.b", "a/b", "é"])
    }
    paths["/long"] = {"get": {"operationId": "n" * 200}, "post": {"operationId": "n" * 200 + "m"}}
    source = await source_of(tmp_path, minimal({}) | {"paths": paths})
    names = [tool.spec.name for tool in source.tools]
    assert names[:5] == ["shop_a_b", "shop_a-b", "shop_a_b_2", "shop_a_b_3", "shop"]
    assert len(set(names)) == 7
    assert max(map(len, names)) == 64


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:{port}/evil.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.yaml#/x"},
        {"$ref": "#/components/schemas/Missing"},
        {"$dynamicRef": "#node"},
        {"properties": {"a": {"$ref": "http://127.0.0.1:{port}/evil.json"}}},
        {"type": 5},
        {"type": "object", "properties": {"a": {"minimum": "x"}}},
        "not a schema",
    ],
)
async def test_an_operation_with_a_foreign_reference_is_left_out_and_nothing_is_opened(
    tmp_path: Path, schema: Any
) -> None:
    """fault: J2"""
    async with Faulty(answering(whole(b"{}"))) as sink:
        text = msgspec.json.encode(schema).decode().replace("{port}", str(sink.port))
        node = {"requestBody": {"content": {"application/json": {"schema": msgspec.json.decode(text)}}}}
        document = minimal(node, method="post")
        document["paths"]["/fine"] = {"get": {"operationId": "fine"}}
        source = await source_of(tmp_path, document)
    assert [tool.spec.name for tool in source.tools] == ["shop_fine"]
    assert "POST /x" in (source.problem or "")
    assert sink.peers == []


async def test_keywords_that_change_the_meaning_of_references_are_left_out(tmp_path: Path) -> None:
    """fault: J2"""
    schema = {
        "$id": "http://evil.example/",
        "$schema": "http://evil.example/",
        "$anchor": "x",
        "type": "object",
        "x-y": 1,
    }
    source = await source_of(tmp_path, minimal({"parameters": [{"name": "v", "in": "query", "schema": schema}]}))
    assert source.tools[0].spec.input_schema["properties"] == {"v": {"type": "object"}}


def billion_laughs() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "openapi: 3.0.0\n" + "\n".join(lines)


def merged_laughs() -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    return "openapi: 3.0.0\n" + "\n".join(lines)


@pytest.mark.parametrize(
    "document",
    [
        billion_laughs(),
        merged_laughs(),
        "a: &a [*a]",
        "a: &a {b: *a}",
        "[" * 100_000,
        "{" * 100_000,
        '{"a":' * 100_000,
        "a:\n" + "- " * 50_000 + "x",
        "x" * (3 * 1024 * 1024),
        "{" + " " * (9 * 1024 * 1024) + "}",
        "!!python/object/apply:os.system [touch evil]",
        "a: !!binary aGVsbG8=",
        "a: .nan",
        "a: !!set {b, c}",
        "? [a, b]\n: c",
        "a: " + "9" * 5000,
        "a: !!int ''",
        "a: !!bool maybe",
        "a: !!float ''",
        "a: !!timestamp soon",
        "? !!int '-'\n: a",
        "a: 0x" + "f" * 10_000,
        "? 0x" + "f" * 10_000 + "\n: a",
        "a: 1" + ":1" * 500_000,
        "- just a list",
        "just text",
        "",
        "\ud800",
        "a: b: c",
        "swagger: '2.0'",
        "openapi: 3.0.0\npaths: []",
        "openapi: 3.0.0\npaths: {}",
    ],
    ids=lambda text: text[:20],
)
async def test_a_hostile_document_costs_little_and_brings_nothing(tmp_path: Path, document: str) -> None:
    """fault: J4"""
    began = time.process_time()
    path = tmp_path / "evil.yaml"
    path.write_bytes(document.encode("utf-8", "surrogatepass"))
    source = OpenApiSource("evil", str(path), guarded_http())
    await source.open(lambda: None)
    assert source.tools == ()
    assert source.problem is not None
    assert time.process_time() - began < 5
    assert not (tmp_path / "evil").exists()


def test_aliases_are_written_out_and_dates_stay_text() -> None:
    document = read_document(b"a: &a {b: 1}\nc: *a\nd: 2024-01-01\n200: ok\nyes: no")
    assert document == {"a": {"b": 1}, "c": {"b": 1}, "d": "2024-01-01", "200": "ok", "true": False}
    with pytest.raises(OpenApiDocumentError, match="merge keys"):
        read_document(b"a: &a {b: 1}\nc: {<<: *a}")


async def test_a_schema_of_many_references_is_shown_as_far_as_a_model_should_see(tmp_path: Path) -> None:
    """fault: J3. Each schema refers to the next two, twenty deep: written out it would be a million."""
    schemas: dict[str, Any] = {
        f"S{n}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/components/schemas/S{n + 1}"} for side in ("left", "right")},
        }
        for n in range(20)
    }
    schemas["S20"] = {"type": "string"}
    schemas["Wide"] = {"type": "object", "properties": {f"p{n}": {"description": "w" * 100} for n in range(5000)}}
    for name in ("S0", "Wide"):
        body = {
            "content": {"application/json": {"schema": {"properties": {"x": {"$ref": f"#/components/schemas/{name}"}}}}}
        }
        document = minimal({"requestBody": body}, method="post", components={"schemas": schemas})
        source = await source_of(tmp_path, document)
        assert source.problem is None
        assert len(msgspec.json.encode(source.tools[0].spec.input_schema)) < 64 * 1024
        assert name in source.tools[0].spec.input_schema["$defs"]


async def test_operations_are_counted(tmp_path: Path) -> None:
    """fault: J4"""
    paths: dict[str, Any] = {f"/p{count}": {"get": {}} for count in range(MAX_OPERATIONS + 10)}
    source = await source_of(tmp_path, minimal({}) | {"paths": paths})
    assert len(source.tools) == MAX_OPERATIONS
    assert "more than 1000 operations" in (source.problem or "")


def places(node: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield way
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, one in inner:
        yield from places(one, (*way, key))


def replaced(document: Any, way: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    if not way:
        return value
    here = changed
    for key in way[:-1]:
        here = here[key]
    here[way[-1]] = value
    return changed


def test_no_value_in_the_wrong_place_breaks_the_reader() -> None:
    """fault: J4. Every node of a document is replaced by everything that it should not be."""
    shop = read_document(SHOP.encode())
    source = OpenApiSource("shop", "shop.yaml", guarded_http())
    wrong: tuple[Any, ...] = (
        None,
        True,
        7,
        -1.5,
        "",
        "text",
        [],
        ["x"],
        [[]],
        [{}],
        {},
        {"$ref": "#/paths"},
        {"a": {}},
    )
    for way in places(shop):
        for value in wrong:
            raw = msgspec.json.encode(replaced(shop, way, value))
            try:
                _, tools, _ = source.parse(raw)
            except (OpenApiDocumentError, ToolCallFailed):
                continue
            for tool in tools:
                assert ToolSchemaValidator().problem(tool.spec.input_schema) is None, (way, value)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"url": "https://[x"}, "malformed"),
        ({"url": "https://a.example:99999999999/"}, "malformed"),
        (
            {
                "url": "https://{a0}.example",
                "variables": {f"a{n}": {"default": f"{{a{n + 1}}}" * 2} for n in range(28)},
            },
            "host",
        ),
        ({"url": "https://a.example/" + "{v}" * 1000, "variables": {"v": {"default": "v" * 5000}}}, "longer than"),
    ],
)
@pytest.mark.parametrize("remote", [False, True])
async def test_a_server_that_is_none_is_a_problem_of_its_source(
    tmp_path: Path, server: dict[str, Any], why: str, remote: bool
) -> None:
    """fault: J4. Defaults of variables were filled in again and again: 5 KB became 372 MB."""
    document = minimal({}) | {"servers": [server]}
    if not remote:
        source = await source_of(tmp_path, document)
        assert why in (source.problem or "")
        return
    async with Faulty(answering(whole(msgspec.json.encode(document)))) as upstream:
        source = OpenApiSource("shop", f"{upstream.url}openapi.json", guarded_http(), retry_seconds=60)
        emitted = asyncio.Event()
        await source.open(emitted.set)
        await asyncio.wait_for(emitted.wait(), 30)
        assert why in (source.problem or "")
        await source.aclose()


async def test_a_long_default_that_is_filled_in_many_times_costs_no_more_than_the_longest_url(tmp_path: Path) -> None:
    """fault: J4: a megabyte a hundred times."""
    variables = {"v": {"default": "v" * 1_000_000}}
    document = minimal({}) | {"servers": [{"url": "https://a.example/" + "{v}" * 100, "variables": variables}]}
    tracemalloc.start()
    try:
        source = await source_of(tmp_path, document)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "longer than" in (source.problem or "")
    assert peak < 20_000_000


async def test_bodies_that_are_made_of_one_another_again_and_again_are_left_out(tmp_path: Path) -> None:
    """fault: J4"""
    wide: dict[str, Any] = {f"S{n}": {"allOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 100} for n in range(6)}
    wide["S6"] = {"properties": {"x": {"type": "string"}}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    document = minimal({"requestBody": body}, method="post", components={"schemas": wide})
    source = await source_of(tmp_path, document)
    assert "too large or too deeply nested" in (source.problem or "")


@pytest.mark.parametrize(
    ("operation", "path", "why"),
    [
        ({"parameters": [{"name": f"p{n}", "in": "query"} for n in range(600)]}, "/x", "more than 500 parameters"),
        ({}, "/" + "{v}" * 1000, "its path is longer"),
        ({"operationId": "x" * 3000}, "/x", "its operationId is longer"),
        ({"tags": ["x" * 1000]}, "/x", "one with more than 100 characters"),
        ({"tags": [f"t{n}" for n in range(1000)]}, "/x", "more than 50 tags"),
        ({"parameters": [{"$ref": "#/" + "x" * 3000}]}, "/x", "is longer than 2000"),
        (
            {"parameters": [{"name": "p", "in": "query", "schema": {"enum": list(range(100_000))}}]},
            "/x",
            "too large",
        ),
    ],
)
async def test_operations_that_are_too_much_are_left_out(
    tmp_path: Path, operation: dict[str, Any], path: str, why: str
) -> None:
    """fault: J4"""
    document = minimal({}) | {"paths": {path: {"get": operation}}}
    source = await source_of(tmp_path, document)
    assert why in (source.problem or "")


def shared_operation(operation: Mapping[str, Any], paths: int) -> bytes:
    """A document in which many paths refer to one item: a few bytes each bring its operation once more."""
    items = {f"/p{count}": {"$ref": "#/item"} for count in range(paths)}
    return msgspec.json.encode(minimal({}) | {"paths": items, "item": {"post": operation}})


@pytest.mark.parametrize(
    "operation",
    [
        {"operationId": "a/" * 500_000},
        {"summary": "a " * 500_000, "description": "b " * 500_000},
        {"parameters": [{"name": "a/" * 500_000, "in": "query"}]},
        {"parameters": [{"name": "p", "in": "query", "schema": {"properties": {"a" * 1_000_000: True}}}]},
        {"parameters": [{"name": "p", "in": "query", "schema": {"default": {"a" * 1_000_000: 1}}}]},
        {
            "requestBody": {
                "content": {
                    "application/json": {
                        "schema": {
                            "properties": {f"p{n}": {} for n in range(20_000)},
                            "required": [f"p{n}" for n in reversed(range(20_000))],
                        }
                    }
                }
            }
        },
        {
            "requestBody": {
                "content": {"application/json": {"schema": {"allOf": [{"required": list(range(500))}] * 500}}}
            }
        },
    ],
    ids=["id", "texts", "name", "property", "default", "required", "allOf"],
)
def test_what_many_operations_share_is_looked_at_only_as_far_as_it_is_shown(operation: dict[str, Any]) -> None:
    """fault: J4. An id of a megabyte took half a second of processor time for each of the operations."""
    source = OpenApiSource("shop", "shop.yaml", guarded_http())
    times: list[float] = []
    for paths in (1, 500):
        raw = shared_operation(operation, paths)
        began = time.thread_time()
        source.parse(raw)
        times.append(time.thread_time() - began)
    assert times[1] - times[0] < 0.01 * 500  # 10 ms for each operation more


def test_operations_that_cannot_be_tools_are_counted() -> None:
    """fault: J4. Two nodes of the document bring six operations more."""
    source = OpenApiSource("shop", "shop.yaml", guarded_http())
    _, tools, left_out = source.parse(shared_operation({"tags": ["x" * 1000]}, 5000))
    assert (len(tools), len(left_out)) == (0, MAX_LEFT_OUT + 1)
    assert "all after it are left out" in left_out[-1]
    with pytest.raises(OpenApiDocumentError, match="more than 50000 operations"):
        OpenApiSource("shop", "shop.yaml", guarded_http(), include=["none"]).parse(shared_operation({}, 50_001))


async def test_a_long_path_is_named_by_its_beginning(tmp_path: Path) -> None:
    """fault: J4. Lists of tools and the log had all of its megabytes."""
    source = await source_of(tmp_path, minimal({}, path="/" + "x" * 1_000_000))
    assert "its path is longer" in (source.problem or "")
    assert len(source.problem or "") < 1000


class _RaisingValidator(ToolSchemaValidator):
    def problem(self, schema: Mapping[str, Any]) -> str | None:
        raise ZeroDivisionError("of no kind that is expected")


async def test_a_document_that_breaks_the_reader_is_a_problem_of_its_source() -> None:
    """fault: J4. A download ended without a word, and nothing said why the service had no tools."""
    async with Faulty(answering(whole(msgspec.json.encode(minimal({}))))) as upstream:
        schemas = _RaisingValidator()
        source = OpenApiSource("shop", f"{upstream.url}openapi.json", guarded_http(), schemas=schemas)
        await source.open(lambda: None)
        await asyncio.wait_for(source.settled(), 30)
        assert "cannot be used: ZeroDivisionError" in (source.problem or "")
        await source.aclose()


@pytest.mark.parametrize("content", [{}, {"content": {"application/json": {"schema": True}}}])
async def test_no_placeholder_of_a_path_is_sent(tmp_path: Path, content: dict[str, Any]) -> None:
    """fault: J4. A null was left out, and the service got `/items/%7Bid%7D`."""
    operation = {"parameters": [{"name": "id", "in": "path", **content}]}
    source = await source_of(tmp_path, minimal(operation, path="/items/{id}"))
    with pytest.raises(ToolCallFailed, match="must not be null"):
        await source.tools[0].prepare(invocation_of(source.tools[0], id=None))
