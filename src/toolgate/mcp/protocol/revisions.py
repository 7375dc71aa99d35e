"""The revisions of MCP that are supported, and how they differ.

Up to 2025-11-25 a client opens with the `initialize` handshake and may get a session. Since 2026-07-28 the protocol is
stateless: every request carries its revision and the client's capabilities in `_meta`. Revisions are dates and sort as such.
"""

from typing import Literal, TypeAlias, get_args

from toolgate import __version__

STATELESS = "2026-07-28"
WITH_HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
LATEST_WITH_HANDSHAKE = WITH_HANDSHAKE[0]
# The protocol prescribes it for an HTTP client without a session that names no revision: the last one without the header.
DEFAULT_OVER_HTTP = "2025-03-26"

# `clientInfo` of our client and `serverInfo` of our server.
IMPLEMENTATION = {"name": "toolgate", "title": "Toolgate", "version": __version__}

Level: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LEVELS: tuple[Level, ...] = get_args(Level)

_PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = _PREFIX + "protocolVersion"
CLIENT_INFO_KEY = _PREFIX + "clientInfo"
CAPABILITIES_KEY = _PREFIX + "clientCapabilities"
LEVEL_KEY = _PREFIX + "logLevel"
SERVER_INFO_KEY = _PREFIX + "serverInfo"
SUBSCRIPTION_KEY = _PREFIX + "subscriptionId"

LIST_CHANGED = "notifications/tools/list_changed"
CANCELLED = "notifications/cancelled"


def negotiate(requested: str) -> str:
    """Choose the revision that `initialize` responds with: the client's if supported, else the latest with a handshake."""
    return requested if requested in WITH_HANDSHAKE else LATEST_WITH_HANDSHAKE


def has_batches(revision: str) -> bool:
    """Return whether several messages may be sent in one array; 2025-06-18 removed that."""
    return revision < "2025-06-18"


def has_links(revision: str) -> bool:
    """Return whether a tool's result may hold links to resources."""
    return revision >= "2025-06-18"


def has_audio(revision: str) -> bool:
    """Return whether a tool's result may hold audio."""
    return revision >= "2025-03-26"


def has_any_structure(revision: str) -> bool:
    """Return whether structured results and output schemas may be other than objects."""
    return revision >= STATELESS
