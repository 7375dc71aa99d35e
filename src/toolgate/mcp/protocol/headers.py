"""The HTTP headers of MCP, the same for the client that sends them and the server that checks them.

Since 2026-07-28 a request repeats its method, its tool and some arguments in headers, so that a proxy can route it without
reading the body. Pure; header names are in lower case.
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SESSION_ID = "mcp-session-id"
PROTOCOL_VERSION = "mcp-protocol-version"
METHOD = "mcp-method"
NAME = "mcp-name"

# The parameter that `mcp-name` repeats, by method.
NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

# Printable ASCII, without spaces at its ends: proxies and servers strip those.
_PLAIN = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_ENCODED = re.compile(r"=\?base64\?(.*)\?=")


class HeaderParameter(NamedTuple):
    """A property of an input schema with `x-mcp-header`: its path, the annotation's value and the property's type."""

    path: tuple[str, ...]
    header: Any
    type: Any


def header_parameters(schema: Any, path: tuple[str, ...] = ()) -> Iterator[HeaderParameter]:
    """Find the properties of a schema that a header repeats; their annotations are not checked."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for name, inner in properties.items():
        if isinstance(inner, Mapping):
            header = inner.get("x-mcp-header")
            if header is not None:
                yield HeaderParameter((*path, name), header, inner.get("type"))
            yield from header_parameters(inner, (*path, name))


def parameter_header(header: str) -> str:
    """Return the name of the header that repeats an argument."""
    return f"mcp-param-{header.lower()}"


def argument_at(arguments: Any, path: tuple[str, ...]) -> Any:
    """Return the argument at a path, None if there is none."""
    for key in path:
        arguments = arguments.get(key) if isinstance(arguments, Mapping) else None
    return arguments


def header_text(value: str | float | bool) -> str:
    """Return a value as the text that a header repeats."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def encode_value(text: str) -> str:
    """Encode text for a header: unchanged if a header can hold it, otherwise as `=?base64?…?=`."""
    # A text that looks encoded is encoded, too, or it would be decoded to another.
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{b64encode(text.encode('utf-8', 'replace')).decode()}?="


def decode_value(text: str) -> str | None:
    """Decode the text of a header; None if it is malformed base64."""
    encoded = _ENCODED.fullmatch(text)
    if encoded is None:
        return text
    try:
        value = b64decode(encoded[1], validate=True)
        # Two encodings of one value could mean different things to a proxy: only the canonical one is accepted.
        return value.decode() if b64encode(value).decode() == encoded[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None
