"""The record of one request as it is stored, and which of them are read."""

from msgspec import Struct

from toolgate.storage.keyset_page import Place, TimeRange


class StoredRequest(Struct, frozen=True, array_like=True):
    """One request; `created` is when it arrived, in seconds since 1970, `tools` and `warnings` are JSON.

    A text that a request does not have is empty, because Python's sqlite3 looks for an adapter of every None, which takes
    longer than to store a text. Rows of earlier versions have None there.
    """

    id: str
    owner: str
    created: float
    method: str
    path: str
    dialect: str
    upstream: str
    upstream_dialect: str
    model: str
    stream: int
    status: int
    finish_reason: str | None
    code: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    estimated: int
    cost: float
    first_token_ms: float | None
    total_ms: float
    tools: str | None = ""
    warnings: str | None = ""
    run: str | None = ""

    @property
    def place(self) -> Place:
        """Where the request stands in lists."""
        return self.created, self.id


# The texts that are empty where a request has none.
ABSENT_TEXTS = ("dialect", "upstream", "upstream_dialect", "model", "finish_reason", "code", "error", "run")


class StatusRange(Struct, frozen=True):
    """The statuses from one to another, both included."""

    first: int
    last: int


# The statuses of all requests that failed.
FAILED = (400, 999)


class RequestFilter(Struct, frozen=True):
    """Which requests are read; None means any. `text` is a part of the model, the error or the id, in any case."""

    owner: str | None = None
    model: str | None = None
    dialect: str | None = None
    statuses: StatusRange | None = None
    text: str | None = None
    times: TimeRange = TimeRange()


class RequestPage(Struct, frozen=True):
    """The requests of a page, and the place of the last request that was looked at, if there may be more."""

    requests: list[StoredRequest]
    last: Place | None = None
