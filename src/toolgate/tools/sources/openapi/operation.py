"""One operation of a document as a tool: its schema, flat, and the way from arguments to a request. Sends nothing.

Parameters and the fields of a JSON body stand side by side in one object. Whatever carries a credential is no argument:
the operator's headers satisfy it, and a model never sees it.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.tools.egress import HttpRequest
from toolgate.tools.schema import MAX_BYTES, SchemaCheck
from toolgate.tools.sources.openapi.body import Body, chosen
from toolgate.tools.sources.openapi.parameter import (
    STYLES,
    Parameter,
    Where,
    headers_with,
    path_with,
    query_with,
)
from toolgate.tools.sources.openapi.reference import References, Unusable, listed, mapped
from toolgate.tools.sources.openapi.schema import MAX_NODES, Translation
from toolgate.tools.tool import Annotations, ToolSpec

METHODS = ("get", "head", "post", "put", "patch", "delete")
# How much of its schemas a model is shown; less if that is more than may be sent.
_PORTIONS = (MAX_NODES, 500, 100)
_MAX_WORDS = 2000
_MAX_PATH = 2000
_MAX_PARAMETERS = 500
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLACEHOLDER = re.compile(r"\{([^{}/]+)\}")
# Ours, or somebody's credentials: no document can make them a model's business.
_RESERVED = re.compile(
    r"(?i)authorization|cookie2?|host|accept|content-.*|connection|keep-alive|te|trailer|transfer-encoding|upgrade|expect"
    r"|proxy-.*|forwarded|x-forwarded-.*|x-api-key|api-key|x-auth-.*|x-access-token"
)
_ANNOTATIONS: Mapping[str, Annotations] = {
    "get": Annotations(read_only=True, destructive=False, idempotent=True),
    "head": Annotations(read_only=True, destructive=False, idempotent=True),
    "put": Annotations(idempotent=True),
    "delete": Annotations(idempotent=True, destructive=True),
}


class Operation(Struct, frozen=True):
    """A tool's spec, and how its arguments become a request."""

    spec: ToolSpec
    method: str
    base: str
    path: str
    parameters: tuple[Parameter, ...]
    body: Body | None

    def compose(self, arguments: Mapping[str, Any]) -> HttpRequest:
        """The request, without credentials."""
        given = [one for one in self.parameters if arguments.get(one.argument) is not None]
        path = path_with(self.path, [one for one in given if one.where == "path"], arguments)
        query = query_with([one for one in given if one.where == "query"], arguments)
        headers = headers_with([one for one in given if one.where in ("header", "cookie")], arguments)
        body = None if self.body is None else self.body.write(arguments)
        if self.body is not None and body is not None:
            headers["Content-Type"] = self.body.media_type
        url = f"{self.base}{path}{f'?{query}' if query else ''}"
        return HttpRequest(url, self.method.upper(), headers, body or b"")


class Found(Struct, frozen=True):
    """Where in the document an operation stands."""

    method: str
    path: str
    item: Mapping[str, Any]
    node: Mapping[str, Any]

    @property
    def label(self) -> str:
        """As people write it."""
        return f"{self.method.upper()} {self.path}"

    @property
    def id(self) -> str:
        """What the document calls it, or a name made of method and path."""
        said = self.node.get("operationId")
        return said if isinstance(said, str) and said.strip() else f"{self.method}_{self.path}"


def found_in(references: References) -> Iterator[Found]:
    """Every operation of the document, in its order."""
    for path, node in references.section("paths").items():
        try:
            item = references.follow(node)
        except Unusable:
            continue
        for method in METHODS:
            if isinstance(item.get(method), dict):
                yield Found(method, path, item, item[method])


class Reader:
    """Reads the operations of one service; `credentials` are the names of its configured headers, in lower case."""

    def __init__(
        self, service: str, references: References, base: str, credentials: frozenset[str], schemas: SchemaCheck
    ) -> None:
        self._service = service
        self._references = references
        self._base = base.rstrip("/")
        self._credentials = credentials | _secured(references)
        self._check = schemas
        self._taken: set[str] = set()

    def read(self, found: Found) -> Operation:
        """The operation as a tool; Unusable says why it cannot be one."""
        if not found.path.startswith("/") or re.search(r"[?#\\\s]", found.path):
            raise Unusable("its path is malformed")
        if len(found.path) > _MAX_PATH:
            raise Unusable(f"its path is longer than {_MAX_PATH} characters")
        for nodes in _PORTIONS:
            arguments = _Arguments(Translation(self._references, nodes))
            parameters = tuple(self._parameters(found, arguments))
            body = self._body(found.node, arguments)
            schema = arguments.schema()
            if len(msgspec.json.encode(schema)) <= MAX_BYTES:
                break
        if (complaint := self._check.complaint(schema)) is not None:
            raise Unusable(f"its input schema {complaint}")
        return Operation(self._spec(found, schema), found.method, self._base, found.path, parameters, body)

    def _spec(self, found: Found, schema: Mapping[str, Any]) -> ToolSpec:
        node = found.node
        tags = [tag for tag in listed(node.get("tags")) if isinstance(tag, str)]
        return ToolSpec(
            name=self._name(found.id),
            description=_description(found),
            source=f"http/{self._service}",
            input_schema=schema,
            origin=found.id,
            display_name=str(node.get("summary") or found.label)[:100],
            user_description=found.label,
            tags=tuple(dict.fromkeys(("http", self._service, *tags))),
            annotations=_ANNOTATIONS.get(found.method, Annotations()),
        )

    def _name(self, operation: str) -> str:
        words = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{self._service}_{operation}").strip("_")
        words = re.sub(r"__+", "_", words)
        name, count = _short(words, words), 1
        while name in self._taken:
            count += 1
            name = _short(f"{words}_{count}", words)
        self._taken.add(name)
        return name

    def _parameters(self, found: Found, arguments: "_Arguments") -> Iterator[Parameter]:
        said: dict[tuple[str, str], Mapping[str, Any]] = {}
        for holder in (found.item, found.node):
            if len(listed(holder.get("parameters"))) > _MAX_PARAMETERS:
                raise Unusable(f"it has more than {_MAX_PARAMETERS} parameters")
            for node in listed(holder.get("parameters")):
                one = self._references.follow(node)
                said[str(one.get("in")), str(one.get("name"))] = one
        for name in _PLACEHOLDER.findall(found.path):
            said.setdefault(("path", name), {"name": name, "in": "path", "schema": {"type": "string"}})
        for (where, name), node in sorted(said.items(), key=lambda item: item[0][0] != "path"):
            match where:
                case "path" | "query" | "header" | "cookie":
                    if not self._is_credential(where, name):
                        yield self._parameter(where, name, node, arguments)

    def _parameter(self, where: Where, name: str, node: Mapping[str, Any], arguments: "_Arguments") -> Parameter:
        if where == "header" and not _TOKEN.fullmatch(name):
            raise Unusable(f"its header {name[:50]!r} has a name that HTTP does not allow")
        style = str(node.get("style") or STYLES[where][0])
        if style not in STYLES[where]:
            raise Unusable(f"its parameter {name[:50]!r} is written in the style {style[:30]!r}")
        content = node.get("content")
        holder = next(iter(map(mapped, content.values())), {}) if isinstance(content, dict) else node
        required = where == "path" or node.get("required") is True
        argument = arguments.add(name, holder.get("schema", True), required, where, node)
        explode = node.get("explode", style == "form") is True
        return Parameter(name, argument, where, style, explode, as_json=isinstance(content, dict))

    def _is_credential(self, where: Where, name: str) -> bool:
        if f"{where}:{name.lower()}" in self._credentials:
            return True
        return where == "header" and (name.lower() in self._credentials or bool(_RESERVED.fullmatch(name)))

    def _body(self, node: Mapping[str, Any], arguments: "_Arguments") -> Body | None:
        if node.get("requestBody") is None:
            return None
        said = self._references.follow(node["requestBody"])
        content = mapped(said.get("content"))
        media_type, form = chosen(content)
        media = mapped(content[media_type])
        written = "application/json" if "*" in media_type else media_type
        required, schema = said.get("required") is True, media.get("schema", {})
        flat = arguments.translation.flat(schema) if form != "text" and isinstance(schema, dict) else None
        if flat is None or any(arguments.clashes(name) for name in flat[0]) or (flat[1] and not required):
            whole = arguments.add("body", {"type": "string"} if form == "text" else schema, required, "request", said)
            return Body(written, form, whole=whole)
        fields = {arguments.add(name, one, name in flat[1], "body", {}): name for name, one in flat[0].items()}
        return Body(written, form, fields, required=required)


class _Arguments:
    """The arguments of a tool as they are found, each under a name that every upstream accepts."""

    def __init__(self, translation: Translation) -> None:
        self.translation = translation
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []

    def clashes(self, name: str) -> bool:
        """Whether the name would not be free."""
        return _plain(name) in self._properties

    def add(self, name: str, node: Any, required: bool, where: str, about: Mapping[str, Any]) -> str:
        """Take an argument up; its name says where it goes if another one was first."""
        argument = _plain(name)
        if argument in self._properties:
            argument = _plain(f"{where}_{name}")
        while argument in self._properties:
            argument = f"{argument[:60]}_{len(self._properties)}"
        schema = self.translation.schema(node)
        words = about.get("description")
        if isinstance(schema, dict) and isinstance(words, str) and "description" not in schema:
            schema = {**schema, "description": words[:_MAX_WORDS]}
        self._properties[argument] = schema
        if required:
            self._required.append(argument)
        return argument

    def schema(self) -> dict[str, Any]:
        """The tool's input schema."""
        schema: dict[str, Any] = {"type": "object", "properties": self._properties, "additionalProperties": False}
        self.translation.finish()
        if self._required:
            schema["required"] = self._required
        if self.translation.defs:
            schema["$defs"] = self.translation.defs
        return schema


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:64] or "value"


def _short(name: str, whole: str) -> str:
    """A name of at most 64 characters; what is cut off is told by a digest."""
    return name if len(name) <= 64 else f"{name[:55]}_{sha256(whole.encode() + name[-4:].encode()).hexdigest()[:8]}"


def _description(found: Found) -> str:
    words = [str(found.node.get(key) or "").strip() for key in ("summary", "description")]
    text = "\n".join(dict.fromkeys(filter(None, words))) or found.label
    text = text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}…"
    return f"Deprecated. {text}" if found.node.get("deprecated") is True else text


def _secured(references: References) -> frozenset[str]:
    """Where keys are carried, by the document's own word, as `where:name`."""
    found = set()
    for node in references.section("components", "securitySchemes").values():
        try:
            scheme = references.follow(node)
        except Unusable:
            continue
        if scheme.get("type") == "apiKey":
            found.add(f"{scheme.get('in')}:{str(scheme.get('name')).lower()}")
    return frozenset(found)
