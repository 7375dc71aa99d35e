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

# A quoted text, which stays; `?`; `:name`, yet not the second colon of a cast such as `::text`; and `%`, which the driver
# would read as a placeholder.
_MARKS = re.compile(r"'[^']*'|\?|(?<!:):([a-z_]+)|%")
# The last, because a node that is put to sleep must not hold its locks until it wakes.
_SETTINGS = """
SET statement_timeout = '{limit}ms'; SET lock_timeout = '{limit}ms';
SET idle_in_transaction_session_timeout = '{idle}ms'
"""
_DEFAULTS: dict[str, str | int] = {"connect_timeout": 3, "fallback_application_name": "toolgate"}


class TimeLimitedPostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements end or fail in time, even if the server does not answer at all."""

    timeout: float | None = None

    def wait(self, gen: PQGen[_T], *args: Any, **options: Any) -> _T:
        """Return the result of the driver's generator, within the timeout."""
        return super().wait(self._bounded(gen), *args, **options)

    def _bounded(self, gen: PQGen[_T]) -> PQGen[_T]:
        # A statement that takes too long is ended by the server's own timeout. A server that does not even do that is not
        # there any more, and TCP would wait for it for minutes.
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
        # An idle server sends nothing: bytes that wait are its farewell, or the end of the connection.
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


def connect(url: str, timeout: float) -> TimeLimitedPostgresConnection:
    """Return a new connection, on which each statement is prepared once."""
    given = conninfo_to_dict(url)
    missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
    # With `autocommit` the driver sends no BEGIN of its own: a read is one round trip, and changes begin theirs themselves.
    wire = TimeLimitedPostgresConnection.connect(make_conninfo(url, **missing), autocommit=True, prepare_threshold=0)
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

    def mark(found: re.Match[str]) -> str:
        match found[0]:
            case "?":
                return "%s"
            case name if name[0] == ":":
                return f"%({found[1]})s"
            case other:
                return other.replace("%", "%%")

    return _MARKS.sub(mark, sql)


# PostgreSQL stores no NUL in texts, and names come from strangers: NUL is written as this and 0, this as itself and 1.
_ESCAPE = "\x1a"


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
