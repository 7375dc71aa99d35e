"""What a `$ref` inside a document means. Only the document itself is looked into: nothing is opened, nothing fetched."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from toolgate.tools.sources.openapi.document import DocumentError

_LONGEST_CHAIN = 16


class Unusable(Exception):
    """One operation cannot be a tool; the message completes "… is left out: "."""


def mapped(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, an empty one otherwise: a document may hold anything anywhere."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> Sequence[Any]:
    """The value if it is a list, an empty one otherwise."""
    return value if isinstance(value, list) else ()


class References:
    """The document, as the place where references lead."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def target(self, pointer: str) -> Any:
        """What a local reference points to."""
        if not pointer.startswith("#/"):
            raise Unusable(f"its reference {pointer[:100]!r} leads out of the document")
        here: Any = self._document
        for step in pointer[2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(here, list) and name.isdecimal() and int(name[:9]) < len(here):
                here = here[int(name[:9])]
            elif isinstance(here, dict) and name in here:
                here = here[name]
            else:
                raise Unusable(f"its reference {pointer[:100]!r} leads nowhere")
        return here

    def follow(self, node: Any) -> Mapping[str, Any]:
        """The object that a node is or refers to."""
        for _ in range(_LONGEST_CHAIN):
            if not isinstance(node, dict):
                raise Unusable("something that should be an object is not")
            if "$ref" not in node:
                return node
            node = self.target(str(node["$ref"]))
        raise Unusable("its references go round in a circle")

    def section(self, *names: str) -> Mapping[str, Any]:
        """A part of the document, empty if it is not there."""
        here: Any = self._document
        for name in names:
            here = here.get(name) if isinstance(here, dict) else None
        if here is not None and not isinstance(here, dict):
            raise DocumentError(f"its {'.'.join(names)} is not an object")
        return here or {}
