"""Encode Ollama's model listings: the answers of `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

Editors select models by these: VS Code requests the version, the tags and then each model's details, ignores a model
without a list of capabilities, and reads the context window from a key that begins with the architecture.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from toolgate.dialects.ollama.shared_codec import write_date

# The version that we report; editors reject anything older than 0.6.4.
VERSION = "0.12.0"

_ARCHITECTURE = "toolgate"


class ModelCard(Struct, frozen=True):
    """What is listed of a model; `capabilities` are Ollama's values: completion, tools, vision, thinking."""

    name: str
    context_length: int
    capabilities: tuple[str, ...] = ("completion",)
    family: str = _ARCHITECTURE
    parameter_size: str = ""
    modified: int = 0


def version() -> dict[str, Any]:
    """Return the answer of `/api/version`."""
    return {"version": VERSION}


def tags(cards: Iterable[ModelCard]) -> dict[str, Any]:
    """Return the answer of `/api/tags`."""
    return {
        "models": [
            {**_identity(card), "modified_at": write_date(card.modified), "capabilities": list(card.capabilities)}
            for card in cards
        ]
    }


def show(card: ModelCard) -> dict[str, Any]:
    """Return the answer of `/api/show`."""
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


def ps(cards: Iterable[ModelCard], expires: int) -> dict[str, Any]:
    """Return the answer of `/api/ps`: the models in memory, until the given second."""
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


def _identity(card: ModelCard) -> dict[str, Any]:
    # There are no weights to hash. Clients only compare digests, and that of the name is stable.
    digest = hashlib.sha256(card.name.encode("utf-8", "replace")).hexdigest()
    return {"name": card.name, "model": card.name, "size": 0, "digest": digest, "details": _details(card)}


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.family,
        "families": [card.family],
        "parameter_size": card.parameter_size,
        "quantization_level": "",
    }
