"""Connect to PostgreSQL with timeouts on every wait, and with the same values as SQLite.

Knows the driver and nothing of tables.
"""

import re
import select
from functools import cache
from time import monotonic
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

_T = TypeVar("_T")

_MARKS = re.compile(r"'[^']*'|\?|(?<!:):([a-z_]+)|%")
_SETTINGS = """
SET statement_timeout = '{limit}ms'; SET lock_timeout = '{limit}ms';
SET idle_in_transaction_session_timeout = '{idle}ms'
"""
"""The last, because a node that is put to sleep must not hold its locks until it wakes."""

_DEFAULTS: dict[str, str | int] = {"connect_timeout": 3, "fallback_application_name": "toolgate"}


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements end or fail in time, even if the server does not answer at all."""

    timeout: float | None = None

    def wait(self, gen: PQGen[_T], *args: Any, **options: Any) -> _T:
        """Return the result of the driver's generator, within the timeout."""
        return super().wait(self._bounded(gen), *args, **options)

    def _bounded(self, gen: PQGen[_T]) -> PQGen[_T]:
        """The server ends what takes too long by itself; one that does not is not there."""
        until = None if self.timeout is None else monotonic() + 1.2 * self.timeout
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and until is not None and monotonic() > until:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("no answer in time")
                wanted = gen.send(ready)
        except StopIteration as end:
            return cast(_T, end.value)

    def is_well(self) -> bool:
        """Return whether the connection is open as far as is known without a query."""
        if self.closed or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        events = select.poll()
        events.register(self.pgconn.socket, select.POLLIN)
        return not events.poll(0)

    def leave(self) -> None:
        """Roll back an open transaction, or close."""
        try:
            match self.pgconn.transaction_status:
                case TransactionStatus.INTRANS | TransactionStatus.INERROR:
                    self.execute("ROLLBACK", prepare=False)
                case TransactionStatus.ACTIVE | TransactionStatus.UNKNOWN:
                    self.close()
        except psycopg.Error:
            self.close()


def connect(url: str, timeout: float) -> PostgresConnection:
    """Return a new connection, on which each statement is prepared once."""
    given = conninfo_to_dict(url)
    missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
    wire = PostgresConnection.connect(make_conninfo(url, **missing), autocommit=True, prepare_threshold=0)
    wire.prepared_max = 500
    limit = round(timeout * 1000)
    try:
        wire.execute(_SETTINGS.format(limit=limit, idle=2 * limit), prepare=False)
    except psycopg.Error:
        wire.close()
        raise
    for kind, dumper in ((str, _Text), (int, Int8Dumper), (bool, _Truth)):
        wire.adapters.register_dumper(kind, dumper)
    wire.adapters.register_loader("text", _Loaded)
    wire.adapters.register_loader("text", _LoadedBinary)
    return wire


@cache
def translated(sql: str) -> str:
    """Return the statement with the driver's placeholders: `?` is `%s`, `:name` is `%(name)s`; quoted text stays."""
    return _MARKS.sub(_mark, sql)


def _mark(found: re.Match[str]) -> str:
    match found[0]:
        case "?":
            return "%s"
        case name if name[0] == ":":
            return f"%({found[1]})s"
        case other:
            return other.replace("%", "%%")


_ESCAPE = "\x1a"
"""PostgreSQL keeps no NUL in texts, and names come from strangers: NUL is written as this and 0, this as itself and 1."""


class _Text(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        if "\0" in obj or _ESCAPE in obj:
            obj = obj.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
        return super().dump(obj)


class _Loaded(TextLoader):
    def load(self, data: Any) -> Any:
        text = super().load(data)
        if isinstance(text, str) and _ESCAPE in text:
            return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
        return text


class _LoadedBinary(_Loaded):
    format = TextBinaryLoader.format


class _Truth(Int8Dumper):
    """Booleans are 0 and 1 in the common schema."""

    def dump(self, obj: Any) -> Any:
        return super().dump(int(obj))
