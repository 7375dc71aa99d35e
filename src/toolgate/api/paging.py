"""Read the page that a query asks for, and build the list object that is returned."""

from collections.abc import Iterator, Sequence
from typing import Any, cast
from urllib.parse import parse_qs

from msgspec import Raw, Struct

from toolgate.conversation.errors import InvalidRequest
from toolgate.storage.conversations import Order
from toolgate.storage.sql_engine import fitting
from toolgate.wire.jsontext import encode

LONGEST_PAGE = 100


class PageQuery(Struct, frozen=True):
    """Which part of a list is requested: so many items in this order, after the item with the id `after`."""

    order: Order = "desc"
    limit: int = 20
    after: str | None = None


def read_query(query: str) -> dict[str, str]:
    """Return the parameters of a query; of one that occurs twice the last counts."""
    return {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}


def read_page(query: str) -> PageQuery:
    """Read the page from a query; other parameters, such as `include`, are ignored, since all is always included."""
    parameters = read_query(query)
    order = parameters.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc.", param="order")
    return PageQuery(cast(Order, order), read_limit(parameters), parameters.get("after") or None)


def read_limit(parameters: dict[str, str]) -> int:
    """Read how many items a page may have."""
    limit = read_number(parameters, "limit", 20)
    if not 1 <= limit <= LONGEST_PAGE:
        raise InvalidRequest(f"limit must be from 1 to {LONGEST_PAGE}.", param="limit", code="invalid_value")
    return limit


def read_cursor(parameters: dict[str, str]) -> tuple[str | None, bool]:
    """Read the id that a page lies behind, and whether towards the older ones: `after` it or `before` it."""
    after, before = parameters.get("after") or None, parameters.get("before") or None
    if after is not None and before is not None:
        raise InvalidRequest("after and before cannot be used together.", param="before", code="invalid_value")
    return after or before, before is None


def read_number(parameters: dict[str, str], name: str, default: int) -> int:
    """Read a whole number."""
    value = parameters.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or len(value) > 12:  # `int` raises for thousands of digits, SQL for more than 19
        raise InvalidRequest(f"{name} must be a whole number.", param=name, code="invalid_type")
    return int(value)


def slice_page(items: Sequence[dict[str, Any]], page: PageQuery) -> dict[str, Any]:
    """Return one page of a complete list whose oldest item comes first."""
    ordered = list(items if page.order == "asc" else reversed(items))
    if page.after is not None:
        place = next((place for place, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise unknown_cursor(page.after)
        ordered = ordered[place + 1 :]
    return list_page(ordered[: page.limit + 1], page.limit)


def list_page(
    items: Sequence[dict[str, Any]], limit: int, *, more: bool = False, backwards: bool = False
) -> dict[str, Any]:
    """Return a page as a list object with encoded items, at most `limit` and about `PAGE_BYTES`, but at least one.

    `has_more` is set when `items` holds more than fit, or `more` is set. `backwards` keeps the last items
    rather than the first.
    """
    fit = items[: -limit - 1 : -1] if backwards else items[:limit]
    texts: list[Raw] = []  # encoded once, for their sizes and for the page

    def sizes() -> Iterator[int]:
        for item in fit:
            texts.append(Raw(encode(item)))
            yield memoryview(texts[-1]).nbytes

    count = fitting(sizes())  # stops to encode as soon as the page is full
    step = -1 if backwards else 1
    return _list_object(fit[:count][::step], texts[:count][::step], has_more=more or len(items) > count)


def list_all(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a complete list as a list object."""
    return _list_object(items, items, has_more=False)


def _list_object(items: Sequence[dict[str, Any]], data: Sequence[Any], *, has_more: bool) -> dict[str, Any]:
    ends = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": data, "first_id": ends[0], "last_id": ends[1], "has_more": has_more}


def unknown_cursor(after: str) -> InvalidRequest:
    """Return the error for an `after` that is not in the list."""
    return InvalidRequest(f"There is no item {after[:100]!r} in this list.", param="after", code="invalid_cursor")
