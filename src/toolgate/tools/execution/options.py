"""Read the options for server tools of a request: fields of its body or, for clients that cannot add any, headers.

No dialect knows these fields: they are removed before a dialect decodes the body, and no upstream receives them.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest
from toolgate.tools.selection import NOTHING, ToolQuery, parse_tool_query, parse_tool_query_header

Execution: TypeAlias = Literal["none", "auto"]
Status: TypeAlias = Literal["off", "text", "events"]

# The fields of a body; `session` and `window` are headers alone.
FIELDS = frozenset(("tool_execution", "use_server_tools", "use_vscode_tools", "max_tool_rounds", "tool_status"))
_FIELD_OF_HEADER = {
    b"x-toolgate-tools": "use_server_tools",
    b"x-toolgate-tool-execution": "tool_execution",
    b"x-toolgate-max-tool-rounds": "max_tool_rounds",
    b"x-toolgate-tool-status": "tool_status",
    b"x-toolgate-session": "session",
    b"x-toolgate-window": "window",
}
_MOST_ROUNDS = 1000
_MOST_DIGITS = 12
_LONGEST_SESSION = 256


class RequestToolOptions(Struct, frozen=True):
    """Which server tools a request uses, whether they are executed here, and how that is shown to the client.

    `window` names the window of an editor whose tools are meant.
    """

    execution: Execution = "none"
    query: ToolQuery = NOTHING
    rounds: int | None = None
    status: Status = "off"
    session: str = ""
    window: str = ""


def read_tool_options(
    body: Any, headers: Mapping[bytes, bytes], default: RequestToolOptions | None = None
) -> tuple[Any, RequestToolOptions | None]:
    """Return the body without our fields, and the options; None when the request has none and there is no default."""
    values: dict[str, Any] = {}
    from_headers = not _FIELD_OF_HEADER.keys().isdisjoint(headers)
    if from_headers:
        values = _header_fields(headers)
    if type(body) is dict and not FIELDS.isdisjoint(body):
        # A field wins over its header: headers are often set once for a client, fields for one request.
        values |= {name: body[name] for name in FIELDS if name in body}
        body = {name: value for name, value in body.items() if name not in FIELDS}
    elif not from_headers:
        return body, default
    default = default or RequestToolOptions()
    query = default.query
    for name in ("use_vscode_tools", "use_server_tools"):  # the latter wins
        if (value := values.get(name)) is not None:
            query = parse_tool_query_header(value) if type(value) is str else parse_tool_query(value, name)
            query = replace(query, source="vscode") if name == "use_vscode_tools" else query
    session, window = values.get("session"), values.get("window")
    if type(session) is str and len(session) > _LONGEST_SESSION:
        raise InvalidRequest(
            f"x-toolgate-session may have at most {_LONGEST_SESSION} characters.", param="x-toolgate-session"
        )
    return body, RequestToolOptions(
        _one_of(values, "tool_execution", ("none", "auto"), default.execution),
        query,
        _rounds(values.get("max_tool_rounds"), default.rounds),
        _one_of(values, "tool_status", ("off", "text", "events"), default.status),
        session if type(session) is str else default.session,
        window if type(window) is str else default.window,
    )


def sent_tool_fields(body: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the fields with which a request chooses its server tools, from its body or else from its headers."""
    values = _header_fields(headers) | {name: body[name] for name in FIELDS if name in body}
    return {name: value for name, value in values.items() if name in FIELDS}


def _header_fields(headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    return {
        field: value.decode("latin-1").strip()
        for name, field in _FIELD_OF_HEADER.items()
        if (value := headers.get(name)) is not None
    }


def _one_of(values: dict[str, Any], name: str, allowed: tuple[str, ...], default: Any) -> Any:
    value = values.get(name)
    if value is None:
        return default
    if value not in allowed:
        raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}.", param=name)
    return value


def _rounds(value: Any, default: int | None) -> int | None:
    if value is None:
        return default
    # A header is always text; `int` fails for thousands of digits.
    if type(value) is str and value.isdecimal() and len(value) <= _MOST_DIGITS:
        value = int(value)
    if type(value) is not int or not 0 <= value <= _MOST_ROUNDS:
        raise InvalidRequest(
            f"max_tool_rounds must be a whole number from 0 (no limit) to {_MOST_ROUNDS}.", param="max_tool_rounds"
        )
    return value
