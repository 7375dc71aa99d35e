"""Asking upstreams whether they are there, all at once."""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from msgspec import Struct

from toolgate.cli.client import Refused, get_json
from toolgate.config import Upstream
from toolgate.dialects.dialect import Dialect

_LISTS = {"ollama": "/api/tags"}
_USUAL_LIST = "/models"


class Probed(Struct, frozen=True):
    """What came of asking one upstream."""

    ok: bool
    said: str


def probe_all(upstreams: Iterable[Upstream]) -> dict[str, Probed]:
    """Every upstream asked for the list of its models, by name."""
    asked = list(upstreams)
    with ThreadPoolExecutor(max_workers=16) as pool:
        return dict(zip([one.name for one in asked], pool.map(probe, asked), strict=True))


def probe(upstream: Upstream) -> Probed:
    """One upstream asked for the list of its models, with the headers that requests would carry."""
    dialect: Dialect = import_module(f"toolgate.dialects.{upstream.dialect}").DIALECT
    headers = dialect.upstream.headers(upstream.api_key.reveal() if upstream.api_key else None)
    headers |= {name: value.reveal() for name, value in upstream.headers.items()}
    started = time.perf_counter()
    try:
        answer = get_json(upstream.base_url + _LISTS.get(upstream.dialect, _USUAL_LIST), headers)
    except Refused as refused:
        return Probed(False, str(refused))
    took = (time.perf_counter() - started) * 1000
    found = (
        next((len(value) for value in answer.values() if isinstance(value, list)), 0) if isinstance(answer, dict) else 0
    )
    return Probed(True, f"{found} models, {took:.0f} ms")
