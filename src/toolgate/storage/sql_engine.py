"""Define what a store sees of a database, and what a database engine must provide.

Stores write one SQL for all engines: placeholders are `?` or `:name`, booleans are 0 and 1, and what may be NULL on its own
is written `CAST(? AS TEXT) IS NULL`, because PostgreSQL needs the type of everything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from toolgate.conversation.errors import GatewayOverloaded, InternalGatewayError

_T = TypeVar("_T")

# A request waits so long for a lock, a connection or an answer before it fails.
TIMEOUT_SECONDS = 5.0

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class SqlCursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Sequence[Any] | None: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """One connection, for as long as a piece of work lasts."""

    def execute(self, sql: str, values: Values = ..., /) -> SqlCursor:
        """Run one statement."""

    def executemany(self, sql: str, rows: Iterable[Any], /) -> SqlCursor:
        """Run one statement for each row of values."""


# Depends on nothing but the database: a transaction that fails against another is run again from its beginning.
Work: TypeAlias = Callable[[SqlConnection], _T]


class DatabaseWorkOutcome(Struct, frozen=True):
    """What a piece of work returned, or raised."""

    result: Any = None
    error: Exception | None = None


class SqlEngine(Protocol):
    """Runs work in the calling thread; errors of the database are raised as `GatewayOverloaded`."""

    threads: int
    # Seconds that a change waits for the locks of other processes, that work waits for a thread, and that the last commit
    # took.
    lock_seconds: float
    queue_seconds: float
    commit_seconds: float
    # The types of the schema that this engine names differently.
    type_names: dict[str, str]

    def read(self, work: Work[_T]) -> _T:
        """Return what the work reads; each statement is a transaction of its own."""

    def change(self, work: Work[_T]) -> _T:
        """Run the work as one serializable transaction."""

    def change_together(self, works: Iterator[Work[Any]]) -> list[DatabaseWorkOutcome]:
        """Run the first of these works, and as many more as fit into its transaction; return how each of them ended.

        Raises what kept the first from being begun.
        """

    def exclusively(self, work: Work[_T]) -> _T:
        """Run the work as one transaction that waits, however long, until no other node is in one of these."""

    def has_table(self, db: SqlConnection, name: str) -> bool:
        """Return whether there is a table of this name."""

    def check(self) -> list[str]:
        """Return what is damaged, in sentences for a person."""

    def was_committed(self, number: str) -> bool:
        """Return whether the change of this number was committed; GatewayOverloaded as long as that is not known."""

    def close(self) -> None:
        """Close all connections; nothing runs any more."""


class DuplicateRow(InternalGatewayError):
    """A row with this key exists already."""

    code = "storage_duplicate"


class CommitUncertain(GatewayOverloaded):
    """The database did not report the end of a change, which may still be made; see `Database.was_committed`."""

    code = "storage_unavailable"

    def __init__(
        self,
        number: str = "",
        *,
        why: str = "the connection was lost",
        outcome: Callable[[], DatabaseWorkOutcome | None] | None = None,
    ) -> None:
        """The database knows the change by its `number`, or this process by its `outcome`, which is None until it ends."""
        super().__init__(
            f"The storage is not available: {why}, and it is not known whether the last change was made.", retry_after=5
        )
        self.number = number
        self.outcome = outcome


def batches(values: Sequence[_T], size: int = 500) -> Iterator[Sequence[_T]]:
    """Return the values, so many at a time: a statement takes a limited number of parameters, in PostgreSQL 65,535."""
    return (values[start : start + size] for start in range(0, len(values), size))


def placeholders(values: Sequence[Any]) -> str:
    """Return a `?` for each value, for `IN (…)`."""
    return ", ".join("?" * len(values))


# A page of a list that would be larger has fewer rows than were asked for: clients decide how large a row is.
PAGE_BYTES = 8 * 1024 * 1024


def fitting(sizes: Iterable[int]) -> int:
    """Return how many of the first rows fit a page; at least one."""
    count = total = 0
    for size in sizes:
        total += size
        # The first row is always on the page, whatever its size, or the list would never get past it.
        if count and total > PAGE_BYTES:
            break
        count += 1
    return count


def unavailable(why: str) -> GatewayOverloaded:
    """Return the error of requests while the database cannot be used."""
    return GatewayOverloaded(f"The storage is not available: {why}.", code="storage_unavailable", retry_after=5)
