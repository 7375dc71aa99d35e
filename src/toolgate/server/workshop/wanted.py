"""What a request says about the server's own tools, in fields of its body or, for clients that cannot add any, in headers.

No dialect knows these words: they are taken out before a dialect reads the body, and no upstream sees them.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.server.exchange import Exchange
from toolgate.tools.selection import NOTHING, Wish, read_wish, read_wish_header

Execution: TypeAlias = Literal["none", "auto"]
Status: TypeAlias = Literal["off", "text", "events"]

FIELDS = frozenset(("tool_execution", "use_server_tools", "use_vscode_tools", "max_tool_rounds", "tool_status"))
_HEADERS = {
    b"x-toolgate-tools": "use_server_tools",
    b"x-toolgate-tool-execution": "tool_execution",
    b"x-toolgate-max-tool-rounds": "max_tool_rounds",
    b"x-toolgate-tool-status": "tool_status",
    b"x-toolgate-session": "session",
}
_MOST_ROUNDS = 1000


class Wanted(Struct, frozen=True):
    """What the client wants of the server's tools: which, whether they are run here, and how that is shown."""

    execution: Execution = "none"
    wish: Wish = NOTHING
    rounds: int | None = None
    status: Status = "off"
    session: str = ""


def read_wanted(body: Any, exchange: Exchange, default: Wanted | None = None) -> tuple[Any, Wanted | None]:
    """The body without our words, and what they say; None when nothing is said and nothing is the default."""
    said: dict[str, Any] = {}
    from_headers = not _HEADERS.keys().isdisjoint(exchange.named)
    if from_headers:
        said = {word: value.strip() for name, word in _HEADERS.items() if (value := exchange.header(name)) is not None}
    if type(body) is dict and not FIELDS.isdisjoint(body):
        said |= {name: body[name] for name in FIELDS if name in body}
        body = {name: value for name, value in body.items() if name not in FIELDS}
    elif not from_headers:
        return body, default
    return body, _wanted(said, default or Wanted())


def _wanted(said: dict[str, Any], default: Wanted) -> Wanted:
    wish = default.wish
    for name in ("use_vscode_tools", "use_server_tools"):
        if (value := said.get(name)) is not None:
            wish = read_wish_header(value) if type(value) is str else read_wish(value, name)
    session = said.get("session")
    return Wanted(
        _one_of(said, "tool_execution", ("none", "auto"), default.execution),
        wish,
        _rounds(said.get("max_tool_rounds"), default.rounds),
        _one_of(said, "tool_status", ("off", "text", "events"), default.status),
        session if type(session) is str else default.session,
    )


def _one_of(said: dict[str, Any], name: str, words: tuple[str, ...], default: Any) -> Any:
    value = said.get(name)
    if value is None:
        return default
    if value not in words:
        raise InvalidRequest(f"{name} must be one of {', '.join(words)}.", param=name)
    return value


def _rounds(value: Any, default: int | None) -> int | None:
    if value is None:
        return default
    if type(value) is str and value.isdecimal():
        value = int(value)
    if type(value) is not int or not 0 <= value <= _MOST_ROUNDS:
        raise InvalidRequest(
            f"max_tool_rounds must be a whole number from 0 (no limit) to {_MOST_ROUNDS}.", param="max_tool_rounds"
        )
    return value
