"""Request a list of a running server page by page, and complete the beginning of an id."""

from collections.abc import Mapping
from typing import Any

from toolgate.cli.api_client import call_api, encode_query, fail

# The server allows no more on one page.
_PAGE = 100
# A server that always says that there is more must not hold the command forever.
_MAX_PAGES = 1000


def list_pages(
    url: str, key: str | None, path: str, query: Mapping[str, Any], limit: int = 10_000
) -> tuple[list[Mapping[str, Any]], bool]:
    """Return up to `limit` entries of a list, and whether there are more; parameters that are None are left out.

    A page may be short or empty and still be followed by others.
    """
    given = {name: value for name, value in query.items() if value is not None}
    listed: list[Mapping[str, Any]] = []
    cursor: dict[str, str] = {}
    for _ in range(_MAX_PAGES):
        size = {"limit": min(_PAGE, limit - len(listed))}
        page = call_api(url, key, "GET", f"{path}?{encode_query({**given, **cursor, **size})}")
        data = page.get("data")
        listed += [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
        last = page.get("last_id") or (listed[-1].get("id") if listed else None)
        if not page.get("has_more") or last is None or len(listed) >= limit:
            return listed, bool(page.get("has_more"))
        cursor = {"after": str(last)}
    return listed, True


def begins_with(id: str, start: str, prefix: str) -> bool:
    """Return whether an id begins so, with or without the prefix that all ids of its kind share."""
    # Compared behind the prefix: as the beginning of whole ids, `m` would be that of every `mcpr_…`.
    return id.removeprefix(prefix).startswith(start.removeprefix(prefix))


def id_of(url: str, key: str | None, path: str, start: str, noun: str, prefix: str = "", limit: int = 300) -> str:
    """Return the newest id that begins so; several end the command, and if there is none the server decides."""
    listed, _ = list_pages(url, key, path, {}, limit)
    ids = [str(one.get("id")) for one in listed]
    found = [id for id in ids if start and begins_with(id, start, prefix)]
    if start in found or not found:
        return start
    if len(found) > 1:
        fail(f"{start} is the beginning of {len(found)} {noun}: {', '.join(found[:5])}")
    return found[0]
