"""Decide which of a server's tool definitions may be used: the first ones seen, and those accepted by a person since.

A model reads the descriptions, so a server that changes one afterwards could make the model do things. The first list of
a server counts as reviewed when it was configured. Knows no storage: it is given a port.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.mcp.client.definitions import McpToolDefinition
from toolgate.mcp.client.tool_names import sanitize

Trust: TypeAlias = Literal["pinned", "always", "ask_new"]


class AcceptedDefinitionStoreProtocol(Protocol):
    """Stores accepted definitions by source and tool."""

    async def load(self, source: str) -> Mapping[str, bytes] | None:
        """Return the accepted definitions by the server's own tool names, or None if this source was never seen."""

    async def save(self, source: str, definitions: Mapping[str, bytes]) -> None:
        """Store these in addition to those accepted before."""


class QuarantinedTool(Struct, frozen=True):
    """A tool that waits for a person: `old` is the accepted definition, None for a new tool; `digest` is of `new`."""

    name: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    digest: str


class DefinitionReviewResult(Struct, frozen=True):
    """The result of a review: tools to use, tools that wait for a person, and definitions to store as accepted."""

    accepted: tuple[McpToolDefinition, ...]
    quarantined: tuple[QuarantinedTool, ...]
    to_store: Mapping[str, bytes]


def review(
    definitions: Iterable[McpToolDefinition],
    stored: Mapping[str, bytes] | None,
    trust: Trust,
    ambiguous: Collection[str] = (),
) -> DefinitionReviewResult:
    """Compare the definitions of a server with the accepted ones.

    The public names of the tools in `ambiguous` look like another source's: only a person accepts those.
    """
    known = {} if stored is None else stored
    known_names = {sanitize(name).casefold() for name in known}
    accepted: list[McpToolDefinition] = []
    quarantined: list[QuarantinedTool] = []
    for tool in definitions:
        old = known.get(tool.name)
        # What an older version has stored lacks title, output schema and icon; it is replaced by `to_store` below.
        same = old in (tool.definition, tool.former_definition)
        # A new tool whose name looks like an accepted one's could be mistaken for it.
        harmless = old is None and trust == "pinned" and sanitize(tool.name).casefold() not in known_names
        # `stored` is None at the first list of a server, which the person has chosen to trust by configuring it.
        if same or (tool.name not in ambiguous and (harmless or stored is None or trust == "always")):
            accepted.append(tool)
        else:
            shown = None if old is None else _decode(old)
            quarantined.append(QuarantinedTool(tool.name, shown, _decode(tool.definition), digest(tool.definition)))
    to_store = {tool.name: tool.definition for tool in accepted if known.get(tool.name) != tool.definition}
    return DefinitionReviewResult(tuple(accepted), tuple(quarantined), to_store)


def digest(definition: bytes) -> str:
    """Return the SHA-256 of a definition in hex."""
    return hashlib.sha256(definition).hexdigest()


def _decode(definition: bytes) -> dict[str, Any]:
    return {name: value for name, value in msgspec.json.decode(definition).items() if value is not None}
