"""Which of a server's definitions may be used: those that were there first, and those that a person accepted since.

A description is read by a model, so whoever changes it afterwards can make the model do things. The first list of a server
is taken as the one that was looked at when it was configured. Knows no storage: it is given one.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.tools.sources.mcp.naming import tidy
from toolgate.tools.sources.mcp.offers import Offer

Trust: TypeAlias = Literal["pinned", "always", "ask_new"]


class Pins(Protocol):
    """Keeps accepted definitions, by source and tool."""

    async def load(self, source: str) -> Mapping[str, bytes] | None:
        """The accepted definitions by the server's names for them, or None if this source was never seen."""

    async def save(self, source: str, definitions: Mapping[str, bytes]) -> None:
        """Accept these, besides what was accepted before; it lasts."""


class Quarantined(Struct, frozen=True):
    """A tool that waits for a person: `old` is what was accepted, None if it is new; `digest` is of the new one."""

    name: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    digest: str


class Judgement(Struct, frozen=True):
    """What becomes of a list: tools to use, tools that wait, and what is to be pinned now."""

    accepted: tuple[Offer, ...]
    waiting: tuple[Quarantined, ...]
    fresh: Mapping[str, bytes]


def judge(
    offers: Iterable[Offer], pins: Mapping[str, bytes] | None, trust: Trust, borrowed: Collection[str] = ()
) -> Judgement:
    """Compare what a server offers with what was accepted.

    The tools in `borrowed` go by names that look like another source's: only a person accepts those.
    """
    known = {} if pins is None else pins
    looks = {tidy(name).casefold() for name in known}
    accepted: list[Offer] = []
    waiting: list[Quarantined] = []
    for offer in offers:
        pinned = known.get(offer.name)
        same = pinned in (offer.definition, offer.former_definition)
        # A newcomer that looks like an accepted tool wants to be mistaken for it.
        welcome = pinned is None and trust == "pinned" and tidy(offer.name).casefold() not in looks
        if same or (offer.name not in borrowed and (welcome or pins is None or trust == "always")):
            accepted.append(offer)
        else:
            waiting.append(_quarantined(offer, pinned))
    fresh = {offer.name: offer.definition for offer in accepted if known.get(offer.name) != offer.definition}
    return Judgement(tuple(accepted), tuple(waiting), fresh)


def digest(definition: bytes) -> str:
    """A short name for exactly this definition."""
    return hashlib.sha256(definition).hexdigest()


def _quarantined(offer: Offer, pinned: bytes | None) -> Quarantined:
    old = None if pinned is None else _shown(pinned)
    return Quarantined(offer.name, old, _shown(offer.definition), digest(offer.definition))


def _shown(definition: bytes) -> dict[str, Any]:
    return {name: value for name, value in msgspec.json.decode(definition).items() if value is not None}
