"""What Ollama says of the models it has: the shapes of `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

Editors pick their models by these: VS Code asks for the version, the tags and then each model's card, leaves out a model
without a list of capabilities, and reads the window from the key that the architecture names.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from toolgate.dialects.ollama.words import write_date

VERSION = "0.12.0"
"""The version that we claim to be; editors refuse anything older than 0.6.4."""

_ARCHITECTURE = "toolgate"


class Card(Struct, frozen=True):
    """What a model's listing is made of; `capabilities` are Ollama's words: completion, tools, vision, thinking."""

    name: str
    context_length: int
    capabilities: tuple[str, ...] = ("completion",)
    family: str = _ARCHITECTURE
    parameter_size: str = ""
    modified: int = 0


def version() -> dict[str, Any]:
    """The answer of `/api/version`."""
    return {"version": VERSION}


def tags(cards: Iterable[Card]) -> dict[str, Any]:
    """The answer of `/api/tags`."""
    return {
        "models": [
            {**_identity(card), "modified_at": write_date(card.modified), "capabilities": list(card.capabilities)}
            for card in cards
        ]
    }


def show(card: Card) -> dict[str, Any]:
    """The answer of `/api/show`."""
    return {
        "license": "",
        "modelfile": f"FROM {card.name}\n",
        "parameters": "",
        "template": "{{ .Prompt }}",
        "details": _details(card),
        "model_info": {
            "general.architecture": _ARCHITECTURE,
            "general.basename": card.name,
            f"{_ARCHITECTURE}.context_length": card.context_length,
        },
        "capabilities": list(card.capabilities),
        "modified_at": write_date(card.modified),
    }


def ps(cards: Iterable[Card], expires: int) -> dict[str, Any]:
    """The answer of `/api/ps`: the models in memory, until the given second."""
    return {
        "models": [
            {
                **_identity(card),
                "expires_at": write_date(expires),
                "size_vram": 0,
                "context_length": card.context_length,
            }
            for card in cards
        ]
    }


def _identity(card: Card) -> dict[str, Any]:
    digest = hashlib.sha256(card.name.encode("utf-8", "replace")).hexdigest()
    return {"name": card.name, "model": card.name, "size": 0, "digest": digest, "details": _details(card)}


def _details(card: Card) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.family,
        "families": [card.family],
        "parameter_size": card.parameter_size,
        "quantization_level": "",
    }
