"""Parse the bytes of a document into plain JSON values, within bounds. Knows nothing of OpenAPI.

YAML can repeat a value a billion times in a few lines: aliases are expanded here, and counted; merge keys, which the parser
would expand, are refused, and so are tags, which name other types than JSON's. Depth is checked before anything recursive
runs.
"""

import math
import re
from typing import Any, ClassVar

import msgspec
import yaml

MAX_JSON = 8 * 1024 * 1024
# Less than for JSON, because YAML takes much longer to parse.
MAX_YAML = 2 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 400_000
# Characters of a number in YAML: in base 60, as `1:30:00` is, it takes quadratic time, and in base 16 it has no limit.
_MAX_NUMBER = 400
_TAGS = "tag:yaml.org,2002:"
# Those that say what a value is anyway, or that it is text; the constructors of others raise errors of many kinds.
_PLAIN_TAGS = frozenset({"!", f"{_TAGS}str", f"{_TAGS}seq", f"{_TAGS}map"})
# A string, which is passed over with the brackets in it, or an opening or a closing bracket.
_LEVELS = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL)


class OpenApiDocumentError(Exception):
    """The document cannot be used; the message is for the operator."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # typed only where libyaml is
    """YAML with JSON's types: no dates, and no merging of mappings."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_short_number(self, node: yaml.ScalarNode) -> int:
        """Parse a whole number; an error of YAML if it is long."""
        if len(node.value) > _MAX_NUMBER:
            raise yaml.constructor.ConstructorError(
                problem=f"a number has more than {_MAX_NUMBER} characters", problem_mark=node.start_mark
            )
        return int(self.construct_yaml_int(node))


_Loader.add_constructor(f"{_TAGS}int", _Loader.construct_short_number)


def read_document(raw: bytes) -> dict[str, Any]:
    """Parse JSON or YAML into an object whose keys are all text."""
    beginning = raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    loaded = _json(raw) if beginning == b"{" else _yaml(raw)
    document = _JsonCopy().value(loaded, 0)
    if not isinstance(document, dict):
        raise OpenApiDocumentError("it is not an object")
    return document


def _json(raw: bytes) -> Any:
    if len(raw) > MAX_JSON:
        raise OpenApiDocumentError(f"it is larger than {MAX_JSON // 1024 // 1024} MiB")
    depth = 0
    for level in _LEVELS.finditer(raw):
        depth += bool(level[1]) - bool(level[2])
        if depth > MAX_DEPTH:
            raise OpenApiDocumentError(f"it is nested deeper than {MAX_DEPTH} levels")
    try:
        return msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(raw) <= MAX_YAML:  # YAML, too, may begin with a brace: `{openapi: 3.1.0}`
            return _yaml(raw)
        raise _syntax_error("JSON", error) from None


def _yaml(raw: bytes) -> Any:
    if len(raw) > MAX_YAML:
        raise OpenApiDocumentError(f"it is YAML larger than {MAX_YAML // 1024 // 1024} MiB; convert it to JSON")
    try:
        # Depth and size are checked before the document is built, which is done by recursion, in C.
        depth = 0
        for count, event in enumerate(yaml.parse(raw, Loader=_Loader)):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            tag = getattr(event, "tag", None)
            if tag is not None and tag not in _PLAIN_TAGS:
                raise OpenApiDocumentError(f"it uses the YAML tag {tag[:100]!r}, which is not read; leave it out")
            if depth > MAX_DEPTH:
                raise OpenApiDocumentError(f"it is nested deeper than {MAX_DEPTH} levels")
            if count > MAX_NODES:
                raise OpenApiDocumentError(f"it has more than {MAX_NODES} nodes")
        return yaml.load(raw, Loader=_Loader)  # noqa: S506  # a SafeLoader with less in it
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _syntax_error("YAML", error) from None


def _syntax_error(form: str, error: Exception) -> OpenApiDocumentError:
    return OpenApiDocumentError(f"it is not valid {form}: {' '.join(str(error).split())[:300]}")


class _JsonCopy:
    """Copies a value into JSON's types, with aliases expanded, and counts its nodes."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def value(self, value: Any, depth: int) -> Any:
        """Copy a value."""
        self._left -= 1
        if self._left < 0:
            raise OpenApiDocumentError(f"it has more than {MAX_NODES} nodes when its aliases are written out")
        if depth > MAX_DEPTH:
            raise OpenApiDocumentError(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
        if isinstance(value, dict):
            return {self._key(key): self.value(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, depth + 1) for one in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise OpenApiDocumentError("it contains a number that JSON cannot have")
        if value is None or isinstance(value, (str, int, float)):
            return value
        raise OpenApiDocumentError(f"it contains a {type(value).__name__}, which JSON cannot have")

    def _key(self, key: Any) -> str:
        if key == "<<":
            raise OpenApiDocumentError("it uses YAML merge keys (<<), which are not read; write the fields out")
        if isinstance(key, bool):  # YAML reads `on` and `yes` as true
            return "true" if key else "false"
        if isinstance(key, (str, int, float)):
            return str(key)
        raise OpenApiDocumentError("it has a key that is not text")
