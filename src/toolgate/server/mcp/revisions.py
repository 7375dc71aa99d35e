"""The revisions of the protocol that are spoken here, and in what they differ.

Up to 2025-11-25 a client introduces itself once, by `initialize`, and may have a session. From 2026-07-28 on every
request says for itself which revision it speaks and what its client can. Revisions are dates and sort as such.
"""

from typing import Literal, TypeAlias, get_args

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
LATEST_LEGACY = LEGACY[0]
UNSAID = "2025-03-26"
"""What an HTTP client speaks that neither introduced itself nor names a revision."""

Level: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LEVELS: tuple[Level, ...] = get_args(Level)

PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = PREFIX + "protocolVersion"
CAPABILITIES_KEY = PREFIX + "clientCapabilities"
LEVEL_KEY = PREFIX + "logLevel"
SERVER_KEY = PREFIX + "serverInfo"
SUBSCRIPTION_KEY = PREFIX + "subscriptionId"


def negotiated(asked: str) -> str:
    """What `initialize` settles on: the client's revision if we speak it, else the newest that has `initialize`."""
    return asked if asked in LEGACY else LATEST_LEGACY


def has_batches(revision: str) -> bool:
    """Several messages in one; 2025-06-18 did away with it."""
    return revision < "2025-06-18"


def has_links(revision: str) -> bool:
    """Links to resources in a tool's result."""
    return revision >= "2025-06-18"


def has_audio(revision: str) -> bool:
    """Sound in a tool's result."""
    return revision >= "2025-03-26"


def has_any_structure(revision: str) -> bool:
    """Structured results, and their schemas, that are no objects."""
    return revision >= MODERN
