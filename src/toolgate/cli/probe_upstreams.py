"""Check whether upstreams answer, all at once, by requesting their lists of models with the standard library."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from importlib import import_module
from typing import Any

from msgspec import Struct

from toolgate.cli.api_client import MAX_ANSWER, decode_json, describe_status
from toolgate.config import UpstreamConfig
from toolgate.dialects.dialect import Dialect

SECONDS = 10.0
# Ollama's base URL has no version, and its own API another list.
_MODEL_LISTS = {"ollama": "/api/tags"}
_USUAL_MODEL_LIST = "/models"
# Of a stateful chat; a probe reads no frames.
_LARGEST_FRAME = 64 * 1024


class ProbeResult(Struct, frozen=True):
    """Whether an upstream answered, and a short report."""

    ok: bool
    report: str


class UpstreamProbeFailed(Exception):
    """There was no response, or not the expected one; the message says why."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key is for the configured host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def probe_all(upstreams: Iterable[UpstreamConfig]) -> dict[str, ProbeResult]:
    """Probe every upstream at the same time; results by name."""
    probed = list(upstreams)
    with ThreadPoolExecutor(max_workers=16) as pool:
        return dict(zip([one.name for one in probed], pool.map(probe, probed), strict=True))


def probe(upstream: UpstreamConfig) -> ProbeResult:
    """Request the list of models of one upstream, with the headers that requests would carry."""
    if upstream.dialect == "peer":
        return _probe_stateful_chat(upstream)
    dialect: Dialect = import_module(f"toolgate.dialects.{upstream.dialect}").DIALECT
    headers = dialect.upstream.headers(upstream.api_key.reveal() if upstream.api_key else None)
    headers |= {name: value.reveal() for name, value in upstream.headers.items()}
    started = time.perf_counter()
    try:
        answer = get_json(upstream.base_url + _MODEL_LISTS.get(upstream.dialect, _USUAL_MODEL_LIST), headers)
    except UpstreamProbeFailed as error:
        return ProbeResult(False, str(error))
    took = (time.perf_counter() - started) * 1000
    # {"data": […]} of OpenAI and Anthropic, {"models": […]} of Ollama.
    lists = [value for value in answer.values() if isinstance(value, list)] if isinstance(answer, dict) else []
    count = len(lists[0]) if lists else 0
    return ProbeResult(True, f"{count} {'model' if count == 1 else 'models'}, {took:.0f} ms")


def _probe_stateful_chat(upstream: UpstreamConfig) -> ProbeResult:
    """Open a WebSocket to a stateful chat, which has no list of models, and close it."""
    from toolgate.conversation.errors import ToolgateError
    from toolgate.upstreams.stateful_chat.websocket import StatefulChatUrl, open_websocket

    headers = {"authorization": f"Bearer {upstream.api_key.reveal()}"} if upstream.api_key else {}
    headers |= {name: value.reveal() for name, value in upstream.headers.items()}

    async def connect() -> None:
        socket = await open_websocket(StatefulChatUrl.of(upstream.base_url), headers, SECONDS, _LARGEST_FRAME)
        await socket.aclose()

    started = time.perf_counter()
    try:
        asyncio.run(connect())
    except ToolgateError as error:
        return ProbeResult(False, error.message)
    return ProbeResult(True, f"connected, {(time.perf_counter() - started) * 1000:.0f} ms")


def get_json(url: str, headers: Mapping[str, str], seconds: float = SECONDS) -> Any:
    """Send a GET request and decode its JSON response, or raise UpstreamProbeFailed."""
    if not url.startswith(("http://", "https://")):
        raise UpstreamProbeFailed("a URL must start with http:// or https://")
    request = urllib.request.Request(url, headers={"accept": "application/json", **headers})  # noqa: S310 - checked above
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=seconds) as response:
            return decode_json(response.read(MAX_ANSWER))
    # HTTPError is a URLError, so that it comes first.
    except urllib.error.HTTPError as error:
        raise UpstreamProbeFailed(describe_status(error.code)) from None
    except (urllib.error.URLError, OSError, HTTPException) as error:
        raise UpstreamProbeFailed(f"no answer ({getattr(error, 'reason', error)})") from None
    except ValueError:
        raise UpstreamProbeFailed("the answer is not JSON") from None
