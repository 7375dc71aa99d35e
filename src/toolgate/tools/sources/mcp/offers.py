"""A tool as its server offers it: read from untrusted JSON, found usable, and made into one of ours."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.tools.schema import SchemaCheck
from toolgate.tools.sources.mcp.pieces import printable
from toolgate.tools.tool import Annotations

_LONGEST_NAME = 256
_LONGEST_DESCRIPTION = 16 * 1024
_LONGEST_ICON = 64 * 1024
_ICON = re.compile(r"https://[^\s\"'<>]+|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MIRRORED = "x-mcp-header"


class Unusable(Exception):
    """Why a tool is left out, in words that complete its name."""


class Mirror(Struct, frozen=True):
    """An argument that a remote server wants to see in a header, too: its place in the arguments and the header's name."""

    path: tuple[str, ...]
    header: str


class Offer(Struct, frozen=True):
    """A usable tool. `definition` is all of it that a person or a model sees, the same bytes whatever order its keys have.

    `former_definition` is what was kept of it before titles, output schemas and icons were part of that.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Annotations
    definition: bytes
    former_definition: bytes
    title: str | None = None
    output_schema: Mapping[str, Any] | None = None
    icon: str | None = None
    mirrors: tuple[Mirror, ...] = ()


def read_offer(value: Any, schemas: SchemaCheck) -> Offer:
    """The tool that a piece of a list describes, or Unusable."""
    if type(value) is not dict or type(value.get("name")) is not str or not value["name"]:
        raise Unusable("a tool without a name")
    name = value["name"]
    if len(name) > _LONGEST_NAME:
        raise Unusable(f"{printable(name[:40])}: its name is longer than {_LONGEST_NAME} letters")
    try:
        return _offer(name, value, schemas)
    except Unusable as reason:
        raise Unusable(f"{printable(name)}: {reason}") from None
    except RecursionError:
        raise Unusable(f"{printable(name)}: its definition is nested too deeply") from None


def _offer(name: str, value: Mapping[str, Any], schemas: SchemaCheck) -> Offer:
    description = _text(value.get("description")) or ""
    if len(description) > _LONGEST_DESCRIPTION:
        raise Unusable(f"its description is longer than {_LONGEST_DESCRIPTION} letters")
    if _object(value.get("execution")).get("taskSupport") == "required":
        raise Unusable("it runs only as a task")
    schema = value.get("inputSchema", {"type": "object"})
    if type(schema) is not dict or (complaint := schemas.complaint(schema)) is not None:
        raise Unusable(f"its input schema {complaint if type(schema) is dict else 'is no object'}")
    hints = _object(value.get("annotations"))
    output = value.get("outputSchema")
    output = output if type(output) is dict and schemas.complaint(output) is None else None
    title = _text(value.get("title")) or _text(hints.get("title"))
    if title is not None and len(title) > _LONGEST_NAME:
        raise Unusable(f"its title is longer than {_LONGEST_NAME} letters")
    icon = _icon(value.get("icons"))
    seen = {"name": name, "description": description, "inputSchema": schema, "annotations": hints}
    return Offer(
        name=name,
        description=description,
        input_schema=schema,
        annotations=_annotations(hints),
        definition=_definition(seen | {"title": title, "outputSchema": output, "icon": icon}),
        former_definition=_definition(seen),
        title=title,
        output_schema=output,
        icon=icon,
        mirrors=tuple(_mirrors(schema, ())),
    )


def _definition(parts: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(parts, order="sorted")
    except UnicodeEncodeError:
        raise Unusable("its definition holds halves of characters") from None


def _annotations(hints: Mapping[str, Any]) -> Annotations:
    """What the server promises; only a plain yes or no counts, and what it does not say is taken to be dangerous."""
    read_only = hints.get("readOnlyHint") is True
    return Annotations(
        read_only=read_only,
        destructive=not read_only and hints.get("destructiveHint") is not False,
        idempotent=hints.get("idempotentHint") is True,
        open_world=hints.get("openWorldHint") is not False,
    )


def _icon(icons: Any) -> str | None:
    """The first picture that is safe to show: nothing that could hold a script, nothing over plain HTTP."""
    sources = [_text(_object(icon).get("src")) or "" for icon in icons[:8]] if type(icons) is list else []
    return next((src for src in sources if len(src) <= _LONGEST_ICON and _ICON.fullmatch(src)), None)


def _mirrors(schema: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Mirror]:
    for name, inner in _object(schema.get("properties")).items():
        if type(inner) is not dict:
            continue
        header = inner.get(_MIRRORED)
        if header is not None:
            if type(header) is not str or not _TOKEN.fullmatch(header):
                raise Unusable(f"it wants {printable(name)!r} in a header that cannot be")
            yield Mirror((*path, name), header)
        yield from _mirrors(inner, (*path, name))


def _object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _text(value: Any) -> str | None:
    return value if type(value) is str and value else None
