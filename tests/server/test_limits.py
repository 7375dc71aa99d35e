"""Limits of keys over HTTP: who is refused, in which words, and what is given back (E5, C7; fault: M3, M4, L2)."""

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.limits.test_purse import Notes
from tests.server.limited import ANSWER, PRICE, open_gate
from tests.server.talk import CLIENTS, PATHS, Caller, body
from toolgate.conversation.errors import Unavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.limits import Budget, KeyLimits, LocalCounters, Purse
from toolgate.server.app import Call, Endpoint
from toolgate.server.callers import auth
from toolgate.server.callers.limits import Limits
from toolgate.server.edge.answer import ANSWER as ANSWER_OF_THE_EDGE
from toolgate.server.exchange import Exchange, Message
from toolgate.telemetry.traced import RequestRecord

CHAT = PATHS["openai_chat"]
SCOPE: dict[str, Any] = {"method": "POST", "path": CHAT, "headers": [], "extensions": {ANSWER_OF_THE_EDGE: None}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
async def test_one_request_too_many_is_refused_in_the_words_of_the_dialect(client: str, stream: bool) -> None:
    async with open_gate([ANSWER] * 3, {"ann": KeyLimits(requests_per_minute=2)}) as gate:
        heard = [await gate.ask(PATHS[client], body(client, "m", stream)) for _ in range(3)]
        assert [one.status for one in heard] == [200, 200, 429]
        last = heard[-1]
        assert 55 <= int(last.headers["retry-after"]) <= 61
        assert b"limit of 2 requests per minute is reached" in last.body
        if client == "anthropic":
            assert last.json["error"]["type"] == "rate_limit_error"
            assert [one.headers["anthropic-ratelimit-requests-remaining"] for one in heard] == ["1", "0", "0"]
            assert last.headers["anthropic-ratelimit-requests-limit"] == "2"
            datetime.fromisoformat(last.headers["anthropic-ratelimit-requests-reset"])
        else:
            assert [one.headers["x-ratelimit-remaining-requests"] for one in heard] == ["1", "0", "0"]
            assert last.headers["x-ratelimit-limit-requests"] == "2"
            assert re.fullmatch(r"(\d+m)?\d+m?s", last.headers["x-ratelimit-reset-requests"])
        assert len(gate.model.requests) == 2


async def test_other_keys_and_keys_without_limits_are_not_touched() -> None:
    """(fault: L2)"""
    async with open_gate([ANSWER] * 9, {"ann": KeyLimits(requests_per_minute=1)}) as gate:
        for status in (200, 429, 429):
            assert (await gate.ask(CHAT, body("openai_chat", "m", False))).status == status
        for _ in range(5):
            heard = await gate.ask(CHAT, body("openai_chat", "m", False), who="bob")
            assert heard.status == 200
            assert not [name for name in heard.headers if "ratelimit" in name]


async def test_tokens_are_counted_as_the_model_used_them() -> None:
    limits = KeyLimits(tokens_per_minute=1_000_000)
    async with open_gate([ANSWER] * 9, {"ann": limits}) as gate:
        heard = [await gate.ask(CHAT, body("openai_chat", "m", stream)) for stream in (False, True, False)]
        assert [one.status for one in heard] == [200, 200, 429]
        assert b"limit of 1000000 tokens per minute" in heard[2].body
        remaining = [int(one.headers["x-ratelimit-remaining-tokens"]) for one in heard]
        assert 990_000 < remaining[0] < 1_000_000
        assert 490_000 < remaining[1] < 500_000
        assert remaining[2] == 0


async def test_a_request_that_failed_gives_its_tokens_back() -> None:
    """(fault: M3)"""
    limits = KeyLimits(tokens_per_minute=2500)  # room for one reservation
    async with open_gate([Unavailable("gone")] * 3, {"ann": limits}) as gate:
        for _ in range(3):
            heard = await gate.ask(CHAT, body("openai_chat", "m", False, "x" * 4000))
            assert heard.status == 502


async def test_a_stream_whose_client_left_gives_back_its_place_and_what_it_did_not_use() -> None:
    """(fault: M3)"""
    go_on = asyncio.Event()
    limits = KeyLimits(tokens_per_minute=1500, concurrency=1)
    async with open_gate(["Hello there, how are you?"] * 2, {"ann": limits}, pace=go_on.wait) as gate:
        async with Caller(gate.url) as caller:
            await caller.post(CHAT, body("openai_chat", "m", True), "authorization: Bearer ann-key")
            await caller.head()
            refused = await gate.ask(CHAT, body("openai_chat", "m", True))
            assert refused.status == 429
            assert b"limit of 1 requests at a time" in refused.body
            assert refused.headers["retry-after"] == "1"
        await asyncio.wait_for(gate.counters.settled.wait(), 5)
        go_on.set()
        assert (await gate.ask(CHAT, body("openai_chat", "m", True))).status == 200


async def test_a_thousand_streams_of_one_key_are_its_own_affair() -> None:
    """A hundred stand for them. (fault: L2)"""
    go_on = asyncio.Event()
    async with open_gate([ANSWER] * 20, {"ann": KeyLimits(concurrency=10)}, pace=go_on.wait) as gate:
        asked = [asyncio.create_task(gate.ask(CHAT, body("openai_chat", "m", True))) for _ in range(100)]
        refused = 0
        for next_one in asyncio.as_completed(asked):
            refused += (await next_one).status == 429
            if refused == 90:
                break
        other = asyncio.create_task(gate.ask(CHAT, body("openai_chat", "m", True), who="bob"))
        go_on.set()
        assert (await other).status == 200
        assert sorted(one.status for one in await asyncio.gather(*asked)) == [200] * 10 + [429] * 90


async def test_a_budget_ends_with_words_that_no_client_retries(tmp_path: Path) -> None:
    limits = {"ann": KeyLimits(budget=Budget(1.0, "total"))}
    async with open_gate([ANSWER] * 9, limits, path=tmp_path / "t.db") as gate:
        heard = [await gate.ask(CHAT, body("openai_chat", "m", stream)) for stream in (False, True, False)]
        assert [one.status for one in heard] == [200, 200, 429]
        assert heard[2].json["error"]["code"] == "insufficient_quota"
        assert "budget of 1 altogether is used up" in heard[2].json["error"]["message"]
        assert heard[2].headers["x-should-retry"] == "false"
        assert gate.purse.spent("ann", "total") == pytest.approx(1.2)
    async with open_gate([], limits, path=tmp_path / "t.db") as again:  # it survives a restart
        heard = [await again.ask(CHAT, body("openai_chat", "m", False))]
        assert heard[0].status == 429


async def test_streams_at_once_pass_a_budget_by_one_at_most() -> None:
    """(fault: M4)"""
    limits = {"ann": KeyLimits(budget=Budget(1.5, "month"))}
    async with open_gate([ANSWER] * 60, limits) as gate:
        assert (await gate.ask(CHAT, body("openai_chat", "m", False))).status == 200
        asked = [gate.ask(CHAT, body("openai_chat", "m", True)) for _ in range(50)]
        statuses = [one.status for one in await asyncio.gather(*asked)]
        assert 200 in statuses
        assert 429 in statuses
        assert gate.purse.spent("ann", "month") <= 1.5 + 0.6


async def test_what_is_held_by_others_is_waited_for() -> None:
    go_on, asked = asyncio.Event(), asyncio.Event()
    limits = {"ann": KeyLimits(budget=Budget(0.001, "day"))}

    def begin(_: ModelRequest) -> ModelResponse:
        asked.set()
        return ANSWER

    async with open_gate([begin], limits, pace=go_on.wait) as gate:
        first = asyncio.create_task(gate.ask(CHAT, body("openai_chat", "m", True)))
        await asked.wait()
        second = await gate.ask(CHAT, body("openai_chat", "m", False))
        assert (second.status, second.headers["retry-after"]) == (429, "1")
        assert b"held by requests under way" in second.body
        go_on.set()
        assert (await first).status == 200
        third = await gate.ask(CHAT, body("openai_chat", "m", False))
        assert b"for today is used up" in third.body
        assert 0 < int(third.headers["retry-after"]) <= 86_400


async def test_a_refusal_holds_back_nothing_of_the_budget() -> None:
    limits = {"ann": KeyLimits(requests_per_minute=1, budget=Budget(1.0))}
    async with open_gate([ANSWER], limits) as gate:
        for status in (200, 429, 429):
            assert (await gate.ask(CHAT, body("openai_chat", "m", False))).status == status
        assert gate.purse._held["ann"] == (0, 0.0)


async def test_what_goes_on_in_the_background_is_counted_at_its_end() -> None:
    purse, counters = Purse(Notes(), every=60), LocalCounters()
    limits = Limits({"ann": KeyLimits(tokens_per_minute=10)}, counters, purse, lambda _: PRICE)
    limits.charge(RequestRecord("1", caller="ann", model="m", usage=Usage(1_000_000, 0)))
    limits.charge(RequestRecord("2", caller="ann", model="m"))
    limits.charge(RequestRecord("3", caller="bob", model="m", usage=Usage(1_000_000, 0)))
    assert (purse.spent("ann", "total"), purse.spent("bob", "total")) == (1.0, 0.0)
    assert (await counters.take("ann", KeyLimits(tokens_per_minute=10), 1)).refused == "tokens"
    await purse.aclose()


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
    async with open_gate([dear] * 10, {"ann": KeyLimits(budget=Budget(1.0))}, pace=go.wait) as gate:
        payload = body(client, "m", True, **BOUNDS[client])
        asked = [asyncio.create_task(gate.ask(PATHS[client], payload)) for _ in range(10)]
        waiting = set(asked)
        while len(waiting) > 3:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        go.set()
        statuses = sorted([(await one).status for one in asked])
        assert statuses == [200] * 3 + [429] * 7
        assert gate.purse.spent("ann", "month") == pytest.approx(0.9)


async def test_tokens_that_a_request_may_write_count_from_its_beginning() -> None:
    """(fault: M4)"""
    go = asyncio.Event()
    async with open_gate([ANSWER] * 3, {"ann": KeyLimits(tokens_per_minute=10_000)}, pace=go.wait) as gate:
        payload = body("openai_chat", "m", True, max_tokens=4_900)
        async with Caller(gate.url) as one, Caller(gate.url) as two:
            for caller in (one, two):
                await caller.post(CHAT, payload, "authorization: Bearer ann-key")
                assert (await caller.head())[0] == 200
            assert (await gate.ask(CHAT, payload)).status == 429


async def test_admins_see_keys_with_limits_and_spending_but_never_a_key() -> None:
    limits = {"ann": KeyLimits(requests_per_minute=5, budget=Budget(10.0, "day"))}
    async with open_gate([ANSWER], limits) as gate:
        await gate.ask(CHAT, body("openai_chat", "m", False))
        heard = await gate.get("/v1/keys")
        shown = {one["name"]: one for one in heard.json["data"]}
        assert shown["ann"]["requests_per_minute"] == 5
        assert shown["ann"]["budget"] == {"amount": 10.0, "period": "day"}
        assert shown["ann"]["spent"] == {"day": 0.6, "month": 0.6, "total": 0.6}
        assert shown["bob"]["budget"] is None
        assert shown["root"]["scopes"] == ["chat", "tools", "admin"]
        assert b"-key" not in heard.body
        assert b"sha256" not in heard.body
        assert (await gate.get("/v1/keys", "ann")).status == 403


async def test_tokens_of_a_run_of_many_steps_count_while_it_runs() -> None:
    """A run with tools asks the model again and again: what it used is known before it is over."""
    counters, limits = LocalCounters(), {"ann": KeyLimits(tokens_per_minute=10_000)}
    left: list[int] = []

    async def remaining() -> int:
        seen = await counters.take("ann", limits["ann"], 0)
        assert seen.hold is not None
        assert seen.tokens is not None
        counters.settle(seen.hold, 0)
        return seen.tokens.remaining

    async def handle(call: Call) -> None:
        for _ in range(3):
            call.record.tally.add(Usage(800, 200))
            left.append(await remaining())
        call.record.usage = call.record.tally.usage

    kept = Limits(limits, counters, Purse(Notes()), lambda model: PRICE)
    (limited,) = kept.around([Endpoint("POST", CHAT, handle, OPENAI_CHAT.server)])
    exchange = Exchange({**SCOPE, "headers": [(b"content-length", b"0")]}, _nothing_sent, _nothing_taken)
    exchange._peeked = b""
    caller = auth.Caller("ann", frozenset({"chat"}))
    await limited.handler(Call(exchange, caller, RequestRecord("r1")))
    assert left == [9_000, 8_000, 7_000]
    assert await remaining() == 7_000


async def _nothing_sent() -> Message:
    raise AssertionError("the body is there already")


async def _nothing_taken(message: Message) -> None:
    raise AssertionError("nothing is answered")
