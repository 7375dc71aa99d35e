"""Check that the HTTP headers of a stateless request repeat the fields of its body.

A proxy may route or refuse a request by its headers alone; if the body could differ, it could be bypassed. Pure functions
over raw headers.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from toolgate.mcp.protocol.headers import (
    METHOD,
    NAME,
    NAME_PARAMS,
    PROTOCOL_VERSION,
    argument_at,
    decode_value,
    header_parameters,
    header_text,
    parameter_header,
)
from toolgate.mcp.protocol.jsonrpc import HEADER_MISMATCH, RpcRequest, RpcRequestRefused
from toolgate.mcp.protocol.revisions import VERSION_KEY

Header: TypeAlias = tuple[bytes, bytes]

# Bounded, because Python refuses to convert more than 4300 digits with an error of its own.
_INTEGER = re.compile(r"(-?\d{1,400})(?:\.0+)?")
_TYPES = frozenset(("string", "integer", "boolean"))


def check_headers(request: RpcRequest, headers: Iterable[Header]) -> None:
    """Raise RpcRequestRefused unless the headers repeat the revision, the method and the name of the request."""
    received = _Headers(headers, request)
    received.expect(PROTOCOL_VERSION, request.meta.get(VERSION_KEY))
    received.expect(METHOD, request.method)
    param = NAME_PARAMS.get(request.method)
    if param is not None and isinstance(request.params.get(param), str):
        received.expect(NAME, request.params[param], encoded=True)


def check_argument_headers(request: RpcRequest, schema: Mapping[str, Any], headers: Iterable[Header]) -> None:
    """Raise RpcRequestRefused unless each argument that the schema annotates has its header, and no missing one has."""
    received = _Headers(headers, request)
    arguments = request.params.get("arguments")
    for path, annotation, kind in header_parameters(schema):
        if not isinstance(annotation, str) or kind not in _TYPES:
            continue
        header, value = parameter_header(annotation), argument_at(arguments, path)
        if value is None:
            received.expect_none(header)
        elif kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
            received.expect_integer(header, value)
        elif isinstance(value, str | bool | int | float):
            received.expect(header, header_text(value), encoded=True)


class _Headers:
    """The headers of one request; every mismatch raises RpcRequestRefused."""

    def __init__(self, headers: Iterable[Header], request: RpcRequest) -> None:
        self._headers = tuple(headers)
        self._request = request

    def expect(self, name: str, value: Any, encoded: bool = False) -> None:
        found = self._value(name, encoded)
        if found is None:
            raise self._mismatch(name, "is missing")
        if found != value:
            raise self._mismatch(name, "differs from the body")

    def expect_integer(self, name: str, value: int) -> None:
        # Some clients write an integer as 5.0.
        found = _INTEGER.fullmatch(self._value(name, encoded=True) or "")
        if found is None or int(found[1]) != value:
            raise self._mismatch(name, "is missing or differs from the body")

    def expect_none(self, name: str) -> None:
        if self._value(name, encoded=True) is not None:
            raise self._mismatch(name, "is given, but the body has no such value")

    def _value(self, name: str, encoded: bool) -> str | None:
        key = name.encode("latin-1", "replace")
        values = [value for other, value in self._headers if other == key]
        if len(values) > 1:  # a proxy may read the first and we the last
            raise self._mismatch(name, "is given twice")
        if not values:
            return None
        text = values[0].decode("latin-1").strip(" \t")
        if not text.isascii() or not text.isprintable():
            raise self._mismatch(name, "holds characters that a header cannot")
        if not encoded:
            return text
        value = decode_value(text)
        if value is None:
            raise self._mismatch(name, "is not valid base64 of UTF-8")
        return value

    def _mismatch(self, name: str, problem: str) -> RpcRequestRefused:
        shown = name.encode("latin-1", "replace").decode("latin-1")
        return RpcRequestRefused(HEADER_MISMATCH, f"The header {shown} {problem}.", id=self._request.id)
