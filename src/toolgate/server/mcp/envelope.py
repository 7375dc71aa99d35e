"""What every request of 2026-07-28 says about itself, and which requests are of that kind.

Pure; it must not know what a request asks for.
"""

from msgspec import Struct

from toolgate.server.mcp.jsonrpc import INVALID_PARAMS, UNSUPPORTED_VERSION, Message, Request, RpcError
from toolgate.server.mcp.revisions import CAPABILITIES_KEY, LEVEL_KEY, LEVELS, MODERN, VERSION_KEY, Level

_MODERN_METHODS = frozenset(("server/discover", "subscriptions/listen"))


class Envelope(Struct, frozen=True):
    """The revision a request speaks and the least important log message its client wants to see, None for none."""

    revision: str
    level: Level | None


def is_modern(message: Message, header: str | None) -> bool:
    """Whether the rules of 2026-07-28 hold for the message; `header` is the revision its transport names."""
    if header == MODERN:
        return True
    return isinstance(message, Request) and (VERSION_KEY in message.meta or message.method in _MODERN_METHODS)


def require(request: Request) -> None:
    """RpcError if the request does not say what it must."""
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in request.meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}.", id=request.id)


def read(request: Request) -> Envelope:
    """The envelope of a request; RpcError if it is incomplete or of a revision that is not spoken here."""
    require(request)
    meta = request.meta
    version, level = meta[VERSION_KEY], meta.get(LEVEL_KEY)
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"{VERSION_KEY} must be a string.", id=request.id)
    if version != MODERN:
        raise unsupported(version, request.id)
    if not isinstance(meta[CAPABILITIES_KEY], dict):
        raise RpcError(INVALID_PARAMS, f"{CAPABILITIES_KEY} must be an object.", id=request.id)
    if level is not None and level not in LEVELS:
        raise RpcError(INVALID_PARAMS, f"{LEVEL_KEY} must be one of {', '.join(LEVELS)}.", id=request.id)
    return Envelope(version, level)


def unsupported(version: str, id: str | int | None = None) -> RpcError:
    """The refusal that tells a client which revision to try instead."""
    data = {"supported": [MODERN], "requested": version}
    return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data, id)
