"""Limits of keys over HTTP: who is refused, in which words, and what is given back (spec: E5, C7; fault: M3, M4, L2)."""

import asyncio
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.limits.limited_server import ANSWER, PRICE, limited_server
from tests.limits.test_local_budgets import FakeSpendingStore
from toolgate.auth import authenticator
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.http.asgi_types import Message
from toolgate.http.exchange import HttpExchange
from toolgate.http.request_cycle import RESPONSE
from toolgate.limits import KeyBudget, KeyLimits, LocalBudgets, LocalCounters
from toolgate.limits.admission import AdmissionControl
from toolgate.telemetry.request_log import RequestRecord

CHAT = PATHS["openai_chat"]
SCOPE: dict[str, Any] = {"method": "POST", "path": CHAT, "headers": [], "extensions": {RESPONSE: None}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
async def test_one_request_too_many_is_refused_in_the_dialect_of_its_path(client: str, stream: bool) -> None:
    async with limited_server([ANSWER] * 3, {"ann": KeyLimits(requests_per_minute=2)}) as server:
        received = [await server.ask(PATHS[client], body(client, "m", stream)) for _ in range(3)]
        assert [one.status for one in received] == [200, 200, 429]
        last = received[-1]
        assert 55 <= int(last.headers["retry-after"]) <= 61
        assert b"limit of 2 requests per minute is reached" in last.body
        if client == "anthropic":
            assert last.json["error"]["type"] == "rate_limit_error"
            assert [one.headers["anthropic-ratelimit-requests-remaining"] for one in received] == ["1", "0", "0"]
            assert last.headers["anthropic-ratelimit-requests-limit"] == "2"
            datetime.fromisoformat(last.headers["anthropic-ratelimit-requests-reset"])
        else:
            assert [one.headers["x-ratelimit-remaining-requests"] for one in received] == ["1", "0", "0"]
            assert last.headers["x-ratelimit-limit-requests"] == "2"
            assert re.fullmatch(r"(\d+m)?\d+m?s", last.headers["x-ratelimit-reset-requests"])
        assert len(server.model.requests) == 2


async def test_other_keys_and_keys_without_limits_are_not_touched() -> None:
    """(fault: L2)"""
    async with limited_server([ANSWER] * 9, {"ann": KeyLimits(requests_per_minute=1)}) as server:
        for status in (200, 429, 429):
            assert (await server.ask(CHAT, body("openai_chat", "m", False))).status == status
        for _ in range(5):
            received = await server.ask(CHAT, body("openai_chat", "m", False), who="bob")
            assert received.status == 200
            assert not [name for name in received.headers if "ratelimit" in name]


async def test_tokens_are_counted_as_the_model_used_them() -> None:
    limits = KeyLimits(tokens_per_minute=1_000_000)
    async with limited_server([ANSWER] * 9, {"ann": limits}) as server:
        received = [await server.ask(CHAT, body("openai_chat", "m", stream)) for stream in (False, True, False)]
        assert [one.status for one in received] == [200, 200, 429]
        assert b"limit of 1000000 tokens per minute" in received[2].body
        remaining = [int(one.headers["x-ratelimit-remaining-tokens"]) for one in received]
        assert 990_000 < remaining[0] < 1_000_000
        assert 490_000 < remaining[1] < 500_000
        assert remaining[2] == 0


async def test_a_request_that_failed_gives_its_tokens_back() -> None:
    """(fault: M3)"""
    limits = KeyLimits(tokens_per_minute=2500)  # room for one reservation
    async with limited_server([UpstreamUnavailable("gone")] * 3, {"ann": limits}) as server:
        for _ in range(3):
            received = await server.ask(CHAT, body("openai_chat", "m", False, "x" * 4000))
            assert received.status == 502


async def test_a_stream_whose_client_left_gives_back_its_place_and_what_it_did_not_use() -> None:
    """(fault: M3)"""
    go_on = asyncio.Event()
    limits = KeyLimits(tokens_per_minute=1500, concurrency=1)
    async with limited_server(["Hello there, how are you?"] * 2, {"ann": limits}, pace=go_on.wait) as server:
        async with HttpConnection(server.url) as caller:
            await caller.post(CHAT, body("openai_chat", "m", True), "authorization: Bearer ann-key")
            await caller.head()
            refused = await server.ask(CHAT, body("openai_chat", "m", True))
            assert refused.status == 429
            assert b"limit of 1 requests at a time" in refused.body
            assert refused.headers["retry-after"] == "1"
        await asyncio.wait_for(server.counters.settled.wait(), 30)
        go_on.set()
        assert (await server.ask(CHAT, body("openai_chat", "m", True))).status == 200


async def test_a_thousand_streams_of_one_key_are_its_own_affair() -> None:
    """A hundred stand for them. (fault: L2)"""
    go_on = asyncio.Event()
    async with limited_server([ANSWER] * 20, {"ann": KeyLimits(concurrency=10)}, pace=go_on.wait) as server:
        asked = [asyncio.create_task(server.ask(CHAT, body("openai_chat", "m", True))) for _ in range(100)]
        refused = 0
        for next_one in asyncio.as_completed(asked):
            refused += (await next_one).status == 429
            if refused == 90:
                break
        other = asyncio.create_task(server.ask(CHAT, body("openai_chat", "m", True), who="bob"))
        go_on.set()
        assert (await other).status == 200
        assert sorted(one.status for one in await asyncio.gather(*asked)) == [200] * 10 + [429] * 90


async def test_a_used_up_budget_gives_an_error_that_no_client_retries(tmp_path: Path) -> None:
    limits = {"ann": KeyLimits(budget=KeyBudget(1.0, "total"))}
    async with limited_server([ANSWER] * 9, limits, path=tmp_path / "t.db") as server:
        received = [await server.ask(CHAT, body("openai_chat", "m", stream)) for stream in (False, True, False)]
        assert [one.status for one in received] == [200, 200, 429]
        assert received[2].json["error"]["code"] == "insufficient_quota"
        assert "budget of 1 altogether is used up" in received[2].json["error"]["message"]
        assert received[2].headers["x-should-retry"] == "false"
        assert server.budgets.spent("ann", "total") == pytest.approx(1.2)
    async with limited_server([], limits, path=tmp_path / "t.db") as again:  # it survives a restart
        received = [await again.ask(CHAT, body("openai_chat", "m", False))]
        assert received[0].status == 429


async def test_streams_at_once_pass_a_budget_by_one_at_most() -> None:
    """(fault: M4)"""
    limits = {"ann": KeyLimits(budget=KeyBudget(1.5, "month"))}
    async with limited_server([ANSWER] * 60, limits) as server:
        assert (await server.ask(CHAT, body("openai_chat", "m", False))).status == 200
        asked = [server.ask(CHAT, body("openai_chat", "m", True)) for _ in range(50)]
        statuses = [one.status for one in await asyncio.gather(*asked)]
        assert 200 in statuses
        assert 429 in statuses
        assert server.budgets.spent("ann", "month") <= 1.5 + 0.6


async def test_a_budget_that_is_reserved_by_running_requests_is_worth_a_retry() -> None:
    go_on, asked = asyncio.Event(), asyncio.Event()
    limits = {"ann": KeyLimits(budget=KeyBudget(0.001, "day"))}

    def begin(_: ModelRequest) -> ModelResponse:
        asked.set()
        return ANSWER

    async with limited_server([begin], limits, pace=go_on.wait) as server:
        first = asyncio.create_task(server.ask(CHAT, body("openai_chat", "m", True)))
        await asked.wait()
        second = await server.ask(CHAT, body("openai_chat", "m", False))
        assert (second.status, second.headers["retry-after"]) == (429, "1")
        assert b"reserved for running requests" in second.body
        go_on.set()
        assert (await first).status == 200
        third = await server.ask(CHAT, body("openai_chat", "m", False))
        assert b"for today is used up" in third.body
        assert 0 < int(third.headers["retry-after"]) <= 86_400


async def test_a_refused_request_reserves_nothing_of_the_budget() -> None:
    limits = {"ann": KeyLimits(requests_per_minute=1, budget=KeyBudget(1.0))}
    async with limited_server([ANSWER], limits) as server:
        for status in (200, 429, 429):
            assert (await server.ask(CHAT, body("openai_chat", "m", False))).status == status
        assert server.budgets._reserved["ann"] == (0, 0.0)


async def test_what_goes_on_in_the_background_is_counted_at_its_end() -> None:
    budgets, counters = LocalBudgets(FakeSpendingStore(), every=60), LocalCounters()
    limits = AdmissionControl({"ann": KeyLimits(tokens_per_minute=10)}, counters, budgets, lambda _: PRICE)
    limits.charge(RequestRecord("1", caller="ann", model="m", usage=Usage(1_000_000, 0)))
    limits.charge(RequestRecord("2", caller="ann", model="m"))
    limits.charge(RequestRecord("3", caller="bob", model="m", usage=Usage(1_000_000, 0)))
    assert (budgets.spent("ann", "total"), budgets.spent("bob", "total")) == (1.0, 0.0)
    assert (await counters.reserve("ann", KeyLimits(tokens_per_minute=10), 1)).refused == "tokens"
    await budgets.aclose()


BOUNDS: dict[str, dict[str, Any]] = {
    "openai_chat": {"max_completion_tokens": 150_000},
    "openai_responses": {"max_output_tokens": 150_000},
    "anthropic": {"max_tokens": 150_000},
    "ollama": {"options": {"num_predict": 150_000}},
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_what_a_request_may_write_is_held_back_while_it_runs(client: str) -> None:
    """Of ten at once, each of which may cost 0.3, a budget of 1 has room for three. (fault: M4)"""
    go, dear = asyncio.Event(), ModelResponse((Text("Long."),), "stop", Usage(0, 150_000))
    async with limited_server([dear] * 10, {"ann": KeyLimits(budget=KeyBudget(1.0))}, pace=go.wait) as server:
        payload = body(client, "m", True, **BOUNDS[client])
        asked = [asyncio.create_task(server.ask(PATHS[client], payload)) for _ in range(10)]
        waiting = set(asked)
        while len(waiting) > 3:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        go.set()
        statuses = sorted([(await one).status for one in asked])
        assert statuses == [200] * 3 + [429] * 7
        assert server.budgets.spent("ann", "month") == pytest.approx(0.9)


HIDING: dict[str, Any] = {
    "a float": '"max_tokens":150000.0',
    "a wrong type in another API's field": '"max_tokens":150000,"options":[]',
    "a wrong type in another API's limit": '"max_tokens":150000,"max_output_tokens":"x"',
    "a float beside it": '"max_tokens":150000,"n":1.0',
    "half a surrogate pair": '"max_tokens":150000,"user":"\\ud83d"',
}


@pytest.mark.parametrize("how", HIDING)
async def test_nothing_hides_what_a_request_may_write(how: str) -> None:
    """A field that was not as expected made the reservation that of a request without limits. (fault: M4)"""
    go, dear = asyncio.Event(), ModelResponse((Text("Long."),), "stop", Usage(0, 150_000))
    async with (
        limited_server([dear] * 10, {"ann": KeyLimits(budget=KeyBudget(1.0))}, pace=go.wait) as server,
        asyncio.timeout(60),
    ):
        payload = json.dumps(body("openai_chat", "m", True))[:-1] + f",{HIDING[how]}}}"
        asked = [asyncio.create_task(server.ask(CHAT, payload.encode())) for _ in range(10)]
        waiting = set(asked)
        while len(waiting) > 3:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        go.set()
        assert sorted([(await one).status for one in asked]) == [200] * 3 + [429] * 7


@pytest.mark.parametrize("more", [{"max_tokens": 10**400}, {"max_tokens": 10**9, "n": 10**300}])
async def test_a_limit_beyond_any_number_is_no_crash(more: dict[str, Any]) -> None:
    """The first request of a budget is admitted, whatever it may cost."""
    async with limited_server([ANSWER], {"ann": KeyLimits(budget=KeyBudget(1.0))}) as server:
        assert (await server.ask(CHAT, body("openai_chat", "m", False, **more))).status in (200, 400)


async def test_limits_may_be_taken_away_while_a_body_comes() -> None:
    async with limited_server([ANSWER] * 2, {"ann": KeyLimits(tokens_per_minute=1_000_000)}) as server:
        payload = json.dumps(body("openai_chat", "m", False)).encode()
        host = server.url.removeprefix("http://")
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer ann-key\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        )
        async with HttpConnection(server.url) as caller:
            caller.writer.write(head.encode() + payload[:10])
            await caller.writer.drain()
            assert (
                await server.ask(CHAT, body("openai_chat", "m", False), who="bob")
            ).status == 200  # the head is read
            server.admission.set_limits({})
            caller.writer.write(payload[10:])
            assert (await caller.response()).status == 200


async def test_tokens_that_a_request_may_write_count_from_its_beginning() -> None:
    """(fault: M4)"""
    go = asyncio.Event()
    async with limited_server([ANSWER] * 3, {"ann": KeyLimits(tokens_per_minute=10_000)}, pace=go.wait) as server:
        payload = body("openai_chat", "m", True, max_tokens=4_900)
        async with HttpConnection(server.url) as one, HttpConnection(server.url) as two:
            for caller in (one, two):
                await caller.post(CHAT, payload, "authorization: Bearer ann-key")
                assert (await caller.head())[0] == 200
            assert (await server.ask(CHAT, payload)).status == 429


async def test_admins_see_keys_with_limits_and_spending_but_never_a_key() -> None:
    limits = {"ann": KeyLimits(requests_per_minute=5, budget=KeyBudget(10.0, "day"))}
    async with limited_server([ANSWER], limits) as server:
        await server.ask(CHAT, body("openai_chat", "m", False))
        received = await server.get("/v1/keys")
        shown = {one["name"]: one for one in received.json["data"]}
        assert shown["ann"]["requests_per_minute"] == 5
        assert shown["ann"]["budget"] == {"amount": 10.0, "period": "day"}
        assert shown["ann"]["spent"] == {"day": 0.6, "month": 0.6, "total": 0.6}
        assert shown["bob"]["budget"] is None
        assert shown["root"]["scopes"] == ["chat", "tools", "admin"]
        assert b"-key" not in received.body
        assert b"sha256" not in received.body
        assert (await server.get("/v1/keys", "ann")).status == 403


async def test_tokens_of_a_run_of_many_steps_count_while_it_runs() -> None:
    """A run with tools asks the model again and again: what it used is known before it is over."""
    counters, limits = LocalCounters(), {"ann": KeyLimits(tokens_per_minute=10_000)}
    left: list[int] = []

    async def remaining() -> int:
        seen = await counters.reserve("ann", limits["ann"], 0)
        assert seen.reservation is not None
        assert seen.tokens is not None
        counters.settle(seen.reservation, 0)
        return seen.tokens.remaining

    async def handle(call: AdmittedHttpRequest) -> None:
        for _ in range(3):
            call.record.tally.add(Usage(800, 200))
            left.append(await remaining())
        call.record.usage = call.record.tally.usage

    kept = AdmissionControl(limits, counters, LocalBudgets(FakeSpendingStore()), lambda model: PRICE)
    (limited,) = kept.wrap([HttpRoute("POST", CHAT, handle, OPENAI_CHAT.server)])
    exchange = HttpExchange({**SCOPE, "headers": [(b"content-length", b"0")]}, _nothing_sent, _nothing_taken)
    exchange._peeked = b""
    caller = authenticator.Caller("ann", frozenset({"chat"}))
    await limited.handler(AdmittedHttpRequest(exchange, caller, RequestRecord("r1"), {}))
    assert left == [9_000, 8_000, 7_000]
    assert await remaining() == 7_000


async def _nothing_sent() -> Message:
    raise AssertionError("the body is there already")


async def _nothing_taken(message: Message) -> None:
    raise AssertionError("nothing is answered")
