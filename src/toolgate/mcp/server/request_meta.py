"""Check what a stateless request carries in `_meta`: its revision, the client's capabilities and its log level.

Pure; it must not know what methods mean.
"""

from msgspec import Struct

from toolgate.mcp.protocol.jsonrpc import (
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    RpcNotification,
    RpcRequest,
    RpcRequestRefused,
)
from toolgate.mcp.protocol.revisions import CAPABILITIES_KEY, LEVEL_KEY, LEVELS, STATELESS, VERSION_KEY, Level

_STATELESS_METHODS = frozenset(("server/discover", "subscriptions/listen"))


class RequestMeta(Struct, frozen=True):
    """The revision of a request and the lowest log level that its client receives, None for no log messages."""

    revision: str
    level: Level | None


def is_stateless(message: RpcRequest | RpcNotification | None, header: str | None) -> bool:
    """Return whether the rules of 2026-07-28 hold for a message; `header` is the revision that its transport names."""
    if header == STATELESS:
        return True
    return isinstance(message, RpcRequest) and (VERSION_KEY in message.meta or message.method in _STATELESS_METHODS)


def require_meta(request: RpcRequest) -> None:
    """Raise RpcRequestRefused if the revision or the capabilities are missing."""
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in request.meta]
    if missing:
        raise RpcRequestRefused(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}.", id=request.id)


def read_meta(request: RpcRequest) -> RequestMeta:
    """Read the `_meta` of a request; RpcRequestRefused if it is incomplete, malformed or of an unsupported revision."""
    require_meta(request)
    meta = request.meta
    version, level = meta[VERSION_KEY], meta.get(LEVEL_KEY)
    if not isinstance(version, str):
        raise RpcRequestRefused(INVALID_PARAMS, f"{VERSION_KEY} must be a string.", id=request.id)
    if version != STATELESS:  # the data has the revisions that the client may try instead
        data = {"supported": [STATELESS], "requested": version}
        raise RpcRequestRefused(UNSUPPORTED_VERSION, "Unsupported protocol version", data, request.id)
    if not isinstance(meta[CAPABILITIES_KEY], dict):
        raise RpcRequestRefused(INVALID_PARAMS, f"{CAPABILITIES_KEY} must be an object.", id=request.id)
    if level is not None and level not in LEVELS:
        raise RpcRequestRefused(INVALID_PARAMS, f"{LEVEL_KEY} must be one of {', '.join(LEVELS)}.", id=request.id)
    return RequestMeta(version, level)
