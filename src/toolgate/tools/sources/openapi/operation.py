"""Turn one operation of a document into a tool: its input schema, and how arguments become a request. Sends nothing.

Parameters and the fields of a JSON body stand side by side in one object. A parameter that carries a credential is no
argument: the operator's headers provide it, and a model never sees it.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.tools.egress import EgressRequest
from toolgate.tools.schema_check import MAX_BYTES, ToolSchemaValidator
from toolgate.tools.sources.openapi.encode_body import OpenApiRequestBody, chosen
from toolgate.tools.sources.openapi.encode_parameters import (
    STYLES,
    OperationParameter,
    Where,
    headers_with,
    path_with,
    query_with,
)
from toolgate.tools.sources.openapi.reference import DocumentReferences, UnusableOperation, listed, mapped
from toolgate.tools.sources.openapi.schema import MAX_NODES, OpenApiSchemaTranslator
from toolgate.tools.tool import Annotations, ServerToolDefinition

METHODS = ("get", "head", "post", "put", "patch", "delete")
# How many subschemas a model is shown: the first number that keeps the input schema within its limit.
_NODE_LIMITS = (MAX_NODES, 500, 100)
_MAX_TEXT = 2000
_MAX_PATH = 2000
_MAX_PARAMETERS = 500
_MAX_TAGS = 50
_MAX_TAG = 100
_MAX_NAME = 256
# The characters of a header's name (RFC 9110, token).
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLACEHOLDER = re.compile(r"\{([^{}/]+)\}")
# Headers that the client sets itself or that carry credentials: no document can make them arguments.
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


class OpenApiOperation(Struct, frozen=True):
    """The spec of a tool, and how its arguments become a request."""

    spec: ServerToolDefinition
    method: str
    base: str
    path: str
    parameters: tuple[OperationParameter, ...]
    body: OpenApiRequestBody | None

    def compose(self, arguments: Mapping[str, Any]) -> EgressRequest:
        """Make the request, without credentials."""
        given = [one for one in self.parameters if arguments.get(one.argument) is not None]
        # All of the path's: where one is null, its placeholder would be sent.
        path = path_with(self.path, [one for one in self.parameters if one.where == "path"], arguments)
        query = query_with([one for one in given if one.where == "query"], arguments)
        headers = headers_with([one for one in given if one.where in ("header", "cookie")], arguments)
        body = None if self.body is None else self.body.write(arguments)
        if self.body is not None and body is not None:
            headers["Content-Type"] = self.body.media_type
        url = f"{self.base}{path}{f'?{query}' if query else ''}"
        return EgressRequest(url, self.method.upper(), headers, body or b"")


class OperationLocation(Struct, frozen=True):
    """An operation in the document."""

    method: str
    path: str
    item: Mapping[str, Any]
    node: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Method and path, as people write them."""
        return f"{self.method.upper()} {self.path}"

    @property
    def id(self) -> str:
        """The beginning of the document's id of the operation, or one made of method and path."""
        # Cut before anything looks at it: many paths may refer to one operation with an id of megabytes.
        id = self.node.get("operationId")
        id = id[:_MAX_PATH] if isinstance(id, str) else ""
        return id if id.strip() else f"{self.method}_{self.path}"


def found_in(references: DocumentReferences) -> Iterator[OperationLocation]:
    """Iterate over the operations of the document, in its order."""
    for path, node in references.section("paths").items():
        try:
            item = references.follow(node)
        except UnusableOperation:
            continue
        for method in METHODS:
            if isinstance(item.get(method), dict):
                yield OperationLocation(method, path, item, item[method])


class OperationReader:
    """Turns the operations of one service into tools; `credentials` are the names of its headers, in lower case."""

    def __init__(
        self,
        service: str,
        references: DocumentReferences,
        base: str,
        credentials: frozenset[str],
        schemas: ToolSchemaValidator,
    ) -> None:
        self._service = service
        self._references = references
        self._base = base.rstrip("/")
        # With the parameters that the document's security schemes use for keys, as `where:name`.
        keys: set[str] = set()
        for node in references.section("components", "securitySchemes").values():
            with suppress(UnusableOperation):
                scheme = references.follow(node)
                if scheme.get("type") == "apiKey":
                    keys.add(f"{scheme.get('in')}:{str(scheme.get('name')).lower()}")
        self._credentials = credentials | keys
        self._check = schemas
        self._taken: set[str] = set()

    def read(self, found: OperationLocation) -> OpenApiOperation:
        """Turn the operation into a tool; UnusableOperation if it cannot be one."""
        if not found.path.startswith("/") or re.search(r"[?#\\\s]", found.path):
            raise UnusableOperation("its path is malformed")
        if len(found.path) > _MAX_PATH:
            raise UnusableOperation(f"its path is longer than {_MAX_PATH} characters")
        if len(str(found.node.get("operationId", ""))) > _MAX_PATH:
            raise UnusableOperation(f"its operationId is longer than {_MAX_PATH} characters")
        for nodes in _NODE_LIMITS:
            arguments = _Arguments(OpenApiSchemaTranslator(self._references, nodes))
            parameters = tuple(self._parameters(found, arguments))
            body = self._body(found.node, arguments)
            schema = arguments.schema()
            if len(msgspec.json.encode(schema)) <= MAX_BYTES:
                break
        if (problem := self._check.problem(schema)) is not None:
            raise UnusableOperation(f"its input schema {problem}")
        return OpenApiOperation(self._spec(found, schema), found.method, self._base, found.path, parameters, body)

    def _spec(self, found: OperationLocation, schema: Mapping[str, Any]) -> ServerToolDefinition:
        node = found.node
        whole = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{self._service}_{found.id}").strip("_")
        whole = re.sub(r"__+", "_", whole)
        name, count = _shortened(whole, whole), 1
        while name in self._taken:
            count += 1
            name = _shortened(f"{whole}_{count}", whole)
        self._taken.add(name)
        tags = [tag for tag in listed(node.get("tags")) if isinstance(tag, str)]
        if len(tags) > _MAX_TAGS or any(len(tag) > _MAX_TAG for tag in tags):
            raise UnusableOperation(f"it has more than {_MAX_TAGS} tags, or one with more than {_MAX_TAG} characters")
        texts = [_beginning(node.get(key)) for key in ("summary", "description")]
        summary = " ".join(texts[0].split())[:_MAX_TEXT]
        description = "\n".join(dict.fromkeys(filter(None, texts))) or found.label
        description = description if len(description) <= _MAX_TEXT else f"{description[:_MAX_TEXT]}…"
        return ServerToolDefinition(
            name=name,
            description=f"Deprecated. {description}" if node.get("deprecated") is True else description,
            source=f"http/{self._service}",
            input_schema=schema,
            origin=found.id,
            target=f"{found.method.upper()} {self._base}{found.path}",
            display_name=str(summary or found.label)[:100],
            user_description=f"{summary} ({found.label})" if summary else found.label,
            tags=tuple(dict.fromkeys(("http", self._service, *tags))),
            annotations=_ANNOTATIONS.get(found.method, Annotations()),
        )

    def _parameters(self, found: OperationLocation, arguments: "_Arguments") -> Iterator[OperationParameter]:
        declared: dict[tuple[str, str], Mapping[str, Any]] = {}
        for holder in (found.item, found.node):
            if len(listed(holder.get("parameters"))) > _MAX_PARAMETERS:
                raise UnusableOperation(f"it has more than {_MAX_PARAMETERS} parameters")
            for node in listed(holder.get("parameters")):
                one = self._references.follow(node)
                declared[str(one.get("in")), str(one.get("name"))] = one
        # Some documents forget to declare a parameter that stands in the path.
        for name in _PLACEHOLDER.findall(found.path):
            declared.setdefault(("path", name), {"name": name, "in": "path", "schema": {"type": "string"}})
        # Those of the path first: the first of two parameters of one name keeps it as its argument.
        for (where, name), node in sorted(declared.items(), key=lambda item: item[0][0] != "path"):
            lowered = name.lower()
            is_reserved = where == "header" and (lowered in self._credentials or bool(_RESERVED.fullmatch(name)))
            match where:
                case "path" | "query" | "header" | "cookie":
                    if not is_reserved and f"{where}:{lowered}" not in self._credentials:
                        yield self._parameter(where, name, node, arguments)

    def _parameter(
        self, where: Where, name: str, node: Mapping[str, Any], arguments: "_Arguments"
    ) -> OperationParameter:
        if where == "header" and not _TOKEN.fullmatch(name):
            raise UnusableOperation(f"its header {name[:50]!r} has a name that HTTP does not allow")
        style = str(node.get("style") or STYLES[where][0])
        if style not in STYLES[where]:
            raise UnusableOperation(f"its parameter {name[:50]!r} is written in the style {style[:30]!r}")
        # A parameter with `content` instead of `schema` is written as JSON.
        content = node.get("content")
        holder = next(iter(map(mapped, content.values())), {}) if isinstance(content, dict) else node
        required = where == "path" or node.get("required") is True
        argument = arguments.add(name, holder.get("schema", True), required, where, node)
        explode = node.get("explode", style == "form") is True
        return OperationParameter(name, argument, where, style, explode, as_json=isinstance(content, dict))

    def _body(self, node: Mapping[str, Any], arguments: "_Arguments") -> OpenApiRequestBody | None:
        if node.get("requestBody") is None:
            return None
        declared = self._references.follow(node["requestBody"])
        content = mapped(declared.get("content"))
        media_type, form = chosen(content)
        media = mapped(content[media_type])
        sent_type = "application/json" if "*" in media_type else media_type
        required, schema = declared.get("required") is True, media.get("schema", {})
        # The fields of an object become arguments of their own. Not if a name is taken, nor if an optional body has
        # required fields: they would be required in every call.
        flat = arguments.translation.flat(schema) if form != "text" and isinstance(schema, dict) else None
        if flat is None or any(arguments.clashes(name) for name in flat[0]) or (flat[1] and not required):
            schema = {"type": "string"} if form == "text" else schema
            whole = arguments.add("body", schema, required, "request", declared)
            return OpenApiRequestBody(sent_type, form, whole=whole)
        fields = {arguments.add(name, one, name in flat[1], "body", {}): name for name, one in flat[0].items()}
        return OpenApiRequestBody(sent_type, form, fields, required=required)


class _Arguments:
    """Collects the arguments of a tool, each under a name that every upstream accepts."""

    def __init__(self, translation: OpenApiSchemaTranslator) -> None:
        self.translation = translation
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []

    def clashes(self, name: str) -> bool:
        """Whether another argument has the name already."""
        return _plain(name) in self._properties

    def add(self, name: str, node: Any, required: bool, where: str, about: Mapping[str, Any]) -> str:
        """Add an argument and return its name; a name that is taken gets a prefix for where the argument goes."""
        argument = _plain(name)
        if argument in self._properties:
            argument = _plain(f"{where}_{name}")
        while argument in self._properties:
            argument = f"{argument[:60]}_{len(self._properties)}"
        schema = self.translation.schema(node)
        description = about.get("description")
        if isinstance(schema, dict) and isinstance(description, str) and "description" not in schema:
            schema = {**schema, "description": description[:_MAX_TEXT]}
        self._properties[argument] = schema
        if required:
            self._required.append(argument)
        return argument

    def schema(self) -> dict[str, Any]:
        """Return the input schema of the tool."""
        schema: dict[str, Any] = {"type": "object", "properties": self._properties, "additionalProperties": False}
        self.translation.finish()
        if self._required:
            schema["required"] = self._required
        if self.translation.defs:
            schema["$defs"] = self.translation.defs
        return schema


def _beginning(text: Any) -> str:
    """Return the beginning of a text, or of a number that stands where a text should; else an empty text."""
    return str(text)[: 2 * _MAX_TEXT].strip() if isinstance(text, (str, int, float)) and text else ""


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name[:_MAX_NAME]).strip("_")[:64] or "value"


def _shortened(name: str, whole: str) -> str:
    """Shorten a name to 64 characters; a digest takes the place of what is cut off."""
    return name if len(name) <= 64 else f"{name[:55]}_{sha256(whole.encode() + name[-4:].encode()).hexdigest()[:8]}"
