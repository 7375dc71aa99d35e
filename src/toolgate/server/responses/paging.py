"""Lists that a client reads page by page: what its query says, and the page as it is told."""

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import parse_qs

from msgspec import Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.storage.conversations import Order

LONGEST_PAGE = 100


class Page(Struct, frozen=True):
    """Which part of a list is wanted: so many items in this order, behind the one named `after`."""

    order: Order = "desc"
    limit: int = 20
    after: str | None = None


def read_query(query: str) -> dict[str, str]:
    """The parameters of a query; of one that is said twice the last counts."""
    return {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}


def read_page(query: str) -> Page:
    """The page that a query asks for; what else it says, such as `include`, changes nothing: all is always told."""
    said = read_query(query)
    order = said.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc.", param="order")
    return Page(cast(Order, order), read_limit(said), said.get("after") or None)


def read_limit(said: dict[str, str]) -> int:
    """How many items a page may have."""
    limit = read_number(said, "limit", 20)
    if not 1 <= limit <= LONGEST_PAGE:
        raise InvalidRequest(f"limit must be from 1 to {LONGEST_PAGE}.", param="limit", code="invalid_value")
    return limit


def read_number(said: dict[str, str], name: str, default: int) -> int:
    """A whole number in a query."""
    value = said.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or len(value) > 12:
        raise InvalidRequest(f"{name} must be a whole number.", param=name, code="invalid_type")
    return int(value)


def cut(items: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """The page of a list that is all there, oldest first."""
    ordered = list(items if page.order == "asc" else reversed(items))
    if page.after is not None:
        place = next((place for place, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise unknown_cursor(page.after)
        ordered = ordered[place + 1 :]
    return listed(ordered[: page.limit + 1], page.limit)


def listed(items: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page as it is told; there is more when there is one item more than wanted."""
    shown = list(items[:limit])
    ends = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {
        "object": "list",
        "data": shown,
        "first_id": ends[0],
        "last_id": ends[1],
        "has_more": len(items) > limit,
    }


def unknown_cursor(after: str) -> InvalidRequest:
    """The complaint that `after` names nothing in the list."""
    return InvalidRequest(f"There is no item {after[:100]!r} in this list.", param="after", code="invalid_cursor")
