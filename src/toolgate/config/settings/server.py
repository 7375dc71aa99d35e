"""The settings of the server itself: its address, request limits, client keys and log."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Struct

from toolgate.config.settings.field import KIB, MIB, about
from toolgate.config.settings.secret import Secret

Scope: TypeAlias = Literal["chat", "tools", "admin", "bridge"]
BudgetPeriod: TypeAlias = Literal["day", "month", "total"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "json", "text"]


class RequestLimitSettings(Struct, frozen=True, kw_only=True):
    """Limits on what a client may send and how long it may take."""

    head_bytes: Annotated[int, about("Most bytes of a request's first line and headers together.", ge=1 * KIB)] = (
        32 * KIB
    )
    headers: Annotated[int, about("Most headers of a request.", ge=8)] = 100
    url_bytes: Annotated[int, about("Most bytes of a request's path and query.", ge=256)] = 8 * KIB
    head_seconds: Annotated[float, about("Seconds in which a client must have sent the headers.", gt=0)] = 10.0
    body_bytes: Annotated[int, about("Most bytes of a request's body.", ge=1 * KIB)] = 10 * MIB
    body_idle_seconds: Annotated[
        float, about("Seconds without a byte after which an unfinished body is refused.", gt=0)
    ] = 30.0
    body_seconds: Annotated[float, about("Seconds in which a client must have sent the body.", gt=0)] = 120.0
    keep_alive_seconds: Annotated[
        float, about("Seconds after which a connection without requests is closed.", gt=0)
    ] = 75.0
    write_stall_seconds: Annotated[
        float, about("Seconds without reading after which a client is disconnected.", gt=0)
    ] = 30.0
    connections: Annotated[int, about("Most connections open at the same time, per worker.", ge=1)] = 4096
    pipelined: Annotated[
        int, about("Most requests that a client may send on one connection before the first is answered.", ge=1)
    ] = 32
    websockets: Annotated[int, about("Most WebSockets open at the same time; 0 turns WebSockets off.", ge=0)] = 1024
    websockets_per_key: Annotated[int, about("Most WebSockets that one key may have open at the same time.", ge=1)] = (
        128
    )


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The address of the server, and which clients are let in."""

    host: Annotated[
        str, about("Address to listen on. Any address but loopback needs a key in `keys`.", min_length=1)
    ] = "127.0.0.1"
    port: Annotated[int, about("Port to listen on; 0 takes a free one.", ge=0, le=65535)] = 8080
    workers: Annotated[int, about("Number of server processes; 0 starts one for each processor.", ge=0, le=256)] = 1
    open: Annotated[
        bool,
        about("Serve programs on this machine without a key while there are no keys, even if there were keys before."),
    ] = False
    hosts: Annotated[
        tuple[str, ...],
        about(
            "Values of the Host header that are served. An empty list means any value if there are keys, and only"
            " this machine's names if not."
        ),
    ] = ()
    origins: Annotated[
        tuple[str, ...], about("Web origins whose pages may call the server, such as https://app.example.org.")
    ] = ()
    drain_seconds: Annotated[
        float, about("Seconds for which open answers may go on after the server was told to stop.", ge=0)
    ] = 30.0
    keepalive_seconds: Annotated[
        float, about("Seconds of silence after which a comment is sent on a stream to keep it open.", gt=0)
    ] = 15.0
    first_event_wait: Annotated[
        float, about("Seconds for which a stream waits for the first event, which decides the status code.", ge=0)
    ] = 10.0
    limits: Annotated[RequestLimitSettings, about("Limits on what a client may send and how long it may take.")] = (
        RequestLimitSettings()
    )


class KeyBudgetSettings(Struct, frozen=True, kw_only=True):
    """What a key may spend."""

    amount: Annotated[
        float, about("The amount, in the currency of the models' prices. Models without a `price` cost nothing.", gt=0)
    ]
    period: Annotated[BudgetPeriod, about("The period: a `day` or `month` of UTC, or `total`.")] = "month"


class KeySettings(Struct, frozen=True, kw_only=True):
    """A key that clients present."""

    name: Annotated[str, about("The name of the key, for logs and records. What a key makes belongs to its name.")]
    key: Annotated[Secret, about("The key itself, best as ${VARIABLE}, or its digest as sha256:<64 hex digits>.")]
    scopes: Annotated[
        tuple[Scope, ...],
        about(
            "What the key may do: `chat` (use models), `tools` (list tools, answer its own approvals, use /mcp),"
            " `admin` (manage keys, register and accept tools), `bridge` (join as an editor that lends models and tools)."
        ),
    ] = ("chat",)
    models: Annotated[
        tuple[str, ...],
        about("The models that it may use, by name, alias or a pattern such as gpt-*; an empty list means all."),
    ] = ()
    tools: Annotated[
        tuple[str, ...],
        about("The server tools that it may use: names, patterns, source/name or tag:…; an empty list means all."),
    ] = ()
    blocked_tools: Annotated[
        tuple[str, ...], about("The server tools that it may not use, written in the same way.")
    ] = ()
    requests_per_minute: Annotated[int, about("Most requests in any sixty seconds; 0 means no limit.", ge=0)] = 0
    tokens_per_minute: Annotated[
        int, about("Most input and output tokens in any sixty seconds; 0 means no limit.", ge=0)
    ] = 0
    concurrency: Annotated[int, about("Most requests at the same time; 0 means no limit.", ge=0)] = 0
    budget: Annotated[
        KeyBudgetSettings | None, about("What the key may spend. It counts only models that have a `price`.")
    ] = None
    keep_chats: Annotated[
        bool | None, about("Whether all chats of this key are kept, or none; by default `records.chats` decides.")
    ] = None


class LogSettings(Struct, frozen=True, kw_only=True):
    """The log."""

    level: Annotated[LogLevel, about("The lowest level that is logged.")] = "info"
    format: Annotated[LogFormat, about("`json`, `text`, or `auto`: text on a terminal, JSON elsewhere.")] = "auto"
