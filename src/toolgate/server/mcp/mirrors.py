"""What a client of 2026-07-28 repeats in HTTP headers must be what it says in the body.

Somebody on the way may route or refuse a request by its headers alone; if the two could differ, they could be fooled.
Pure functions over raw headers; values that a header cannot hold come as `=?base64?…?=`.
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from toolgate.server.mcp.jsonrpc import HEADER_MISMATCH, Request, RpcError
from toolgate.server.mcp.revisions import VERSION_KEY

Header: TypeAlias = tuple[bytes, bytes]

VERSION_HEADER = b"mcp-protocol-version"
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_ENCODED = re.compile(r"=\?base64\?(.*)\?=")
_INTEGER = re.compile(r"(-?\d{1,400})(?:\.0+)?")
_TYPES = frozenset(("string", "integer", "boolean"))


def check(request: Request, headers: Iterable[Header]) -> None:
    """RpcError unless revision, method and name stand in the headers as they do in the request."""
    given = _Given(headers, request)
    given.expect(VERSION_HEADER, request.meta.get(VERSION_KEY))
    given.expect(b"mcp-method", request.method)
    key = _NAMED.get(request.method)
    if key is not None and isinstance(request.params.get(key), str):
        given.expect(b"mcp-name", request.params[key], encoded=True)


def check_arguments(request: Request, schema: Mapping[str, Any], headers: Iterable[Header]) -> None:
    """RpcError unless every argument that the schema wants mirrored stands in its header, and no other does."""
    given = _Given(headers, request)
    arguments = request.params.get("arguments")
    for path, name, kind in _mirrored(schema, ()):
        header = f"mcp-param-{name.lower()}".encode("latin-1", "replace")
        value = _at(arguments, path)
        if value is None:
            given.expect_none(header)
        elif kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
            given.expect_integer(header, value)
        elif isinstance(value, str | bool | int | float):
            given.expect(header, str(value).lower() if isinstance(value, bool) else str(value), encoded=True)


class _Given:
    """The headers of one request."""

    def __init__(self, headers: Iterable[Header], request: Request) -> None:
        self._headers = tuple(headers)
        self._request = request

    def expect(self, name: bytes, value: Any, encoded: bool = False) -> None:
        found = self._value(name, encoded)
        if found is None:
            raise self._refusal(name, "is missing")
        if found != value:
            raise self._refusal(name, "differs from what the body says")

    def expect_integer(self, name: bytes, value: int) -> None:
        found = _INTEGER.fullmatch(self._value(name, encoded=True) or "")
        if found is None or int(found[1]) != value:
            raise self._refusal(name, "is missing or differs from what the body says")

    def expect_none(self, name: bytes) -> None:
        if self._value(name, encoded=True) is not None:
            raise self._refusal(name, "is given, but the body has no such value")

    def _value(self, name: bytes, encoded: bool) -> str | None:
        values = [value for key, value in self._headers if key == name]
        if len(values) > 1:
            raise self._refusal(name, "is given twice")
        if not values:
            return None
        text = values[0].decode("latin-1").strip(" \t")
        if not text.isascii() or not text.isprintable():
            raise self._refusal(name, "holds characters that a header cannot")
        return self._decoded(name, text) if encoded else text

    def _decoded(self, name: bytes, text: str) -> str:
        found = _ENCODED.fullmatch(text)
        if found is None:
            return text
        try:
            value = b64decode(found[1], validate=True)
            if b64encode(value).decode() == found[1]:
                return value.decode()
        except (binascii.Error, UnicodeDecodeError):
            pass
        raise self._refusal(name, "is not valid base64 of UTF-8")

    def _refusal(self, name: bytes, why: str) -> RpcError:
        return RpcError(HEADER_MISMATCH, f"The header {name.decode('latin-1')} {why}.", id=self._request.id)


def _mirrored(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Where in the arguments a value stands that a header repeats, the header's own name and the value's type."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for key, inner in properties.items():
        if not isinstance(inner, Mapping):
            continue
        name, kind = inner.get("x-mcp-header"), inner.get("type")
        if isinstance(name, str) and kind in _TYPES:
            yield (*path, key), name, kind
        yield from _mirrored(inner, (*path, key))


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        arguments = arguments.get(key) if isinstance(arguments, Mapping) else None
    return arguments
