"""Resolve a `$ref` inside a document. Only the document itself is searched: nothing is opened or fetched."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from toolgate.tools.sources.openapi.bounded_yaml import OpenApiDocumentError

_MAX_CHAIN = 16
_MAX_POINTER = 2000


class UnusableOperation(Exception):
    """One operation cannot be a tool; the message completes "… is left out: "."""


def mapped(value: Any) -> Mapping[str, Any]:
    """Return the value if it is an object, else an empty one: a document may contain anything anywhere."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> Sequence[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


class DocumentReferences:
    """Resolves the references of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def target(self, pointer: str) -> Any:
        """Return the value that a local reference points to."""
        if not pointer.startswith("#/"):
            raise UnusableOperation(f"its reference {pointer[:100]!r} leads out of the document")
        if len(pointer) > _MAX_POINTER:
            raise UnusableOperation(f"its reference {pointer[:100]!r} is longer than {_MAX_POINTER} characters")
        here: Any = self._document
        for step in pointer[2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            # Nine digits at most: Python refuses to convert thousands of them.
            if isinstance(here, list) and name.isdecimal() and int(name[:9]) < len(here):
                here = here[int(name[:9])]
            elif isinstance(here, dict) and name in here:
                here = here[name]
            else:
                raise UnusableOperation(f"its reference {pointer[:100]!r} leads nowhere")
        return here

    def follow(self, node: Any) -> Mapping[str, Any]:
        """Return the object that a node is or refers to."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, dict):
                raise UnusableOperation("something that should be an object is not")
            if "$ref" not in node:
                return node
            node = self.target(str(node["$ref"]))
        raise UnusableOperation("its references form a cycle")

    def section(self, *names: str) -> Mapping[str, Any]:
        """Return a section of the document, empty if it is missing."""
        here: Any = self._document
        for name in names:
            here = here.get(name) if isinstance(here, dict) else None
        if here is not None and not isinstance(here, dict):
            raise OpenApiDocumentError(f"its {'.'.join(names)} is not an object")
        return here or {}
