"""Encode arguments by OpenAPI's rules in the path, the query, headers and cookies. Knows no document."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from toolgate.tools.tool import ToolCallFailed

Where = Literal["path", "query", "header", "cookie"]
# The styles that can be encoded; the first of each is the default.
STYLES: Mapping[Where, tuple[str, ...]] = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}

_DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|"}
_MAX_SEGMENT = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class OperationParameter(Struct, frozen=True):
    """A parameter of an operation; `argument` is its name among the tool's arguments."""

    name: str
    argument: str
    where: Where
    style: str
    explode: bool
    as_json: bool = False


def path_with(template: str, parameters: Iterable[OperationParameter], arguments: Mapping[str, Any]) -> str:
    """Encode the path; no value can leave its own segment."""
    path = template
    for one in parameters:
        value = arguments.get(one.argument)
        text = _json(value) if one.as_json and value is not None else _simple(value, one.explode)
        if not text or _CONTROL.search(text):
            raise ToolCallFailed(
                f"{one.argument} goes into a path: it must not be null, empty or with control characters"
            )
        # Encoded, a slash is no slash; but not every server agrees, so no part of the value may be a step up.
        if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(text))):
            raise ToolCallFailed(f"{one.argument} goes into a path: '.' and '..' are not allowed in it")
        if len(text) > _MAX_SEGMENT:
            raise ToolCallFailed(
                f"{one.argument} goes into a path: it must not be longer than {_MAX_SEGMENT} characters"
            )
        path = path.replace(f"{{{one.name}}}", quote(text, safe=""))
    # Values can be harmless one by one and a step up together: `/{a}{b}/` with two dots.
    if any(unquote(segment) in (".", "..") for segment in path.split("/")):
        raise ToolCallFailed("the values given would make a path that leads elsewhere")
    return path


def pairs(one: OperationParameter, value: Any) -> list[tuple[str, str]]:
    """List the names and values that a parameter adds to a query."""
    if one.as_json:
        return [(one.name, _json(value))]
    # With an array [1, 2] or an object {"a": 1, "b": 2} as the parameter `p`:
    #   form, exploded    p=1&p=2    a=1&b=2
    #   form              p=1,2      p=a,1,b,2
    #   pipeDelimited     p=1|2
    #   deepObject                   p[a]=1&p[b]=2
    if isinstance(value, list):
        if one.explode and one.style == "form":
            return [(one.name, _text(item)) for item in value]
        return [(one.name, _DELIMITERS.get(one.style, ",").join(map(_text, value)))]
    if isinstance(value, dict):
        if one.style == "deepObject":
            return [(f"{one.name}[{key}]", _text(item)) for key, item in value.items()]
        if one.explode:
            return [(key, _text(item)) for key, item in value.items()]
        return [(one.name, ",".join([part for key, item in value.items() for part in (key, _text(item))]))]
    return [(one.name, _text(value))]


def query_with(parameters: Iterable[OperationParameter], arguments: Mapping[str, Any]) -> str:
    """Encode the query, without its question mark."""
    found = [pair for one in parameters for pair in pairs(one, arguments[one.argument])]
    return "&".join([f"{quote(name, safe='[]')}={quote(value, safe='')}" for name, value in found])


def headers_with(parameters: Iterable[OperationParameter], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Encode headers and cookies."""
    headers: dict[str, str] = {}
    cookies: list[str] = []
    for one in parameters:
        value = arguments[one.argument]
        if one.where == "cookie":
            cookies += [f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs(one, value)]
        else:
            headers[one.name] = _json(value) if one.as_json else _simple(value, one.explode)
    if any(_CONTROL.search(value) for value in headers.values()):
        raise ToolCallFailed("a value that goes into a header contains a line break or another control character")
    return {**headers, "Cookie": "; ".join(cookies)} if cookies else headers


def _simple(value: Any, explode: bool) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        joint = "=" if explode else ","
        return ",".join([f"{key}{joint}{_text(item)}" for key, item in value.items()])
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
