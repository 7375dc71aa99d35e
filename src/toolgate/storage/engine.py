"""What a store sees of a database, and what a database engine must be able to do.

Stores write one SQL for all engines: placeholders are `?` or `:name`, truth is 0 and 1, and what may be NULL on its own
is written `CAST(? AS TEXT) IS NULL`, because PostgreSQL wants to know the type of everything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from toolgate.conversation.errors import GatewayFault, Overloaded

_T = TypeVar("_T")

PATIENCE = 5.0
"""Seconds that a request waits for a lock, a connection or an answer before it hears that the storage is not there."""

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """What a statement found or did."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Sequence[Any] | None: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection, for as long as a piece of work lasts."""

    def execute(self, sql: str, values: Values = ..., /) -> Cursor:
        """Run one statement."""

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Cursor:
        """Run one statement for each row of values."""


Work: TypeAlias = Callable[[Connection], _T]
"""Depends on nothing but the database: a transaction that lost against another is run again from its beginning."""


class Engine(Protocol):
    """Runs work in the calling thread; whatever is the matter with the database is `Overloaded`."""

    threads: int
    words: dict[str, str]
    """The words of the schema that this engine spells differently."""

    def do(self, work: Work[_T]) -> _T:
        """What the work reads; each statement stands for itself."""

    def change(self, work: Work[_T]) -> _T:
        """The work as one transaction, as if no other ran at the same time."""

    def alone(self, work: Work[_T]) -> _T:
        """The work as one transaction that waits, however long, until no other node is in one of these."""

    def has_table(self, db: Connection, name: str) -> bool:
        """Whether there is a table of this name."""

    def check(self) -> list[str]:
        """What is damaged, in words for a person."""

    def was_made(self, number: str) -> bool:
        """Whether the change of this number was made; Overloaded as long as nobody can say."""

    def close(self) -> None:
        """Give everything back; nothing runs any more."""


class Duplicate(GatewayFault):
    """A row with this key is there already."""

    code = "storage_duplicate"


class Unsettled(Overloaded):
    """The database was lost while it committed, and could not yet be asked whether it had; see `Database.was_made`."""

    code = "storage_unavailable"

    def __init__(self, number: str) -> None:
        super().__init__(
            "The storage is not available: it broke off, and it is not known whether it kept the last change.",
            retry_after=5,
        )
        self.number = number


def batches(values: Sequence[_T], size: int = 500) -> Iterator[Sequence[_T]]:
    """The values, so many at a time: a statement takes a limited number of parameters, in PostgreSQL 65,535."""
    return (values[start : start + size] for start in range(0, len(values), size))


def placeholders(values: Sequence[Any]) -> str:
    """A `?` for each value, for `IN (…)`."""
    return ", ".join("?" * len(values))


PAGE_BYTES = 16 * 1024 * 1024
"""Of a page of a list: one that would be larger is shorter than was asked for."""


def fitting(sizes: Iterable[int]) -> int:
    """How many of the first rows a page may hold; always one."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > PAGE_BYTES:
            break
        count += 1
    return count


def unavailable(why: str) -> Overloaded:
    """What a caller hears while the database is not there."""
    return Overloaded(f"The storage is not available: {why}.", code="storage_unavailable", retry_after=5)
