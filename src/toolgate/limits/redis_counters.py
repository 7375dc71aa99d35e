"""Share counters between nodes in Redis or Valkey; without it each node counts for itself.

One script reserves and one settles, so that check and count are atomic, and all nodes use the clock of the Redis server.
The windows are those of `sliding_window.py`: a hash of slots with their sum, from which old slots are removed one by one.
A running request is a member of a sorted set, with the time at which it expires if its node died.

When Redis does not reply in time, requests do not wait: for a second everything is counted here, then Redis is tried
again. Meanwhile each node alone keeps to the limit, so that all together grant at most the limit times their number.
Reservations that could not be settled meanwhile are settled when Redis replies again.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from itertools import islice

from toolgate.conversation.random_ids import random_suffix
from toolgate.limits.counters import (
    Counters,
    LimitName,
    LimitState,
    LocalCounters,
    RateLimitReservation,
    RateLimitResult,
)
from toolgate.limits.policy import KeyLimits
from toolgate.limits.redis_script_runner import MOST, LuaScript, RedisScripts

# Seconds that a reply may take; with everything else a request stays under 0.2.
TIMEOUT = 0.15

# Seconds for which Redis is not used after it failed: in an outage, few requests wait for the timeout.
PAUSE = 1.0

# Seconds after which the reservation of a node that died expires.
LEASE = 900

# Reservations that wait for Redis to be settled; those beyond expire.
_MOST_UNSETTLED = 10_000

# What the first number of the script's reply means.
_REFUSALS: tuple[LimitName | None, ...] = (None, "concurrency", "requests", "tokens")

# A window lasts a minute, and its last slot may be a minute ahead after the clock was set back.
_MAX_MILLIS = 130_000

_MAX_COUNT = 2**53  # numbers of Lua are doubles, which count exactly up to here

# The beginning of both scripts. They use the clock of Redis, so that the clocks of the nodes need not agree.

_WINDOW = """
local time = redis.call('TIME')
local seconds, micros = tonumber(time[1]), tonumber(time[2])
-- A slot is a tenth of a second; a window has 600 of them.
local now = seconds * 10 + math.floor(micros / 100000)
local into = micros % 100000

-- Remove the slots that are older than a minute; after a jump of the clock, or if another program has changed it,
-- the window starts anew: a script that goes through slots without end would block Redis.
local function slide(key)
  local seen = redis.call('HMGET', key, 'first', 'last', 'sum')
  local first, last, sum = tonumber(seen[1]), tonumber(seen[2]), tonumber(seen[3])
  local known = first and last and sum
  if not known or now - last > 600 or last - now > 600 or first > last or last - first > 1200 then
    redis.call('DEL', key)
    return {first = now, last = now, sum = 0, slot = now}
  end
  while first < now - 600 and first <= last do
    sum = sum - tonumber(redis.call('HGET', key, first) or 0)
    redis.call('HDEL', key, first)
    first = first + 1
  end
  return {first = first, last = last, sum = sum, slot = math.max(now, last)}
end

local function keep(key, window)
  redis.call('HSET', key, 'first', window.first, 'last', window.last, 'sum', window.sum)
  redis.call('EXPIRE', key, 120)
end

local function add(key, window, amount)
  redis.call('HINCRBY', key, window.slot, amount)
  window.sum, window.last = window.sum + amount, window.slot
end

-- Milliseconds until a slot leaves the window.
local function millis(slot)
  return math.ceil((slot + 601 - now) * 100 - into / 1000)
end

-- Milliseconds until enough slots have left the window for the amount to fit.
local function fits_in(key, window, amount, limit)
  local excess = window.sum + amount - limit
  for slot = window.first, window.last do
    excess = excess - tonumber(redis.call('HGET', key, slot) or 0)
    if excess <= 0 then return millis(slot) end
  end
  return 60000
end
"""

_RESERVE = (
    _WINDOW
    + """
local most, most_tokens, most_running = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local amount, id, lease = math.min(tonumber(ARGV[4]), most_tokens), ARGV[5], tonumber(ARGV[6])
-- The requests of nodes that died.
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', seconds)
local none = {sum = 0, slot = 0}
local requests = most > 0 and slide(KEYS[1]) or none
local tokens = most_tokens > 0 and slide(KEYS[2]) or none
local refused, wait = 0, 0
if most_running > 0 and redis.call('ZCARD', KEYS[3]) >= most_running then
  refused, wait = 1, 1000
elseif most > 0 and requests.sum >= most then
  refused, wait = 2, fits_in(KEYS[1], requests, 1, most)
elseif most_tokens > 0 and (tokens.sum + amount > most_tokens or tokens.sum >= most_tokens) then
  refused, wait = 3, fits_in(KEYS[2], tokens, math.max(amount, 1), most_tokens)
else
  redis.call('ZADD', KEYS[3], seconds + lease, id)
  redis.call('EXPIRE', KEYS[3], lease)
  if most > 0 then add(KEYS[1], requests, 1) end
  if most_tokens > 0 then add(KEYS[2], tokens, amount) end
end
if most > 0 then keep(KEYS[1], requests) end
if most_tokens > 0 then keep(KEYS[2], tokens) end
local function reset(window) return window.sum > 0 and millis(window.last) or 0 end
return {refused, wait, requests.sum, reset(requests), tokens.sum, reset(tokens), tokens.slot, amount}
"""
)

_SETTLE = (
    _WINDOW
    + """
local id, slot, difference = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- A reservation is removed once: what was settled before is not counted again.
if id ~= '' and redis.call('ZREM', KEYS[2], id) == 0 then return 0 end
if difference == 0 then return 0 end
local window = slide(KEYS[1])
if difference > 0 then
  add(KEYS[1], window, difference)
else
  -- Returned to the slot in which it was reserved, unless that has left the window.
  local held = tonumber(redis.call('HGET', KEYS[1], slot) or 0)
  local returned = math.min(held, -difference)
  if returned == 0 then return 0 end
  redis.call('HINCRBY', KEYS[1], slot, -returned)
  window.sum = window.sum - returned
end
keep(KEYS[1], window)
return 1
"""
)


class RedisCounters:
    """Counters in Redis, with others as a fallback."""

    def __init__(
        self,
        url: str,
        fallback: Counters | None = None,
        *,
        timeout: float = TIMEOUT,
        pause: float = PAUSE,
        on_error: Callable[[str], None] = lambda _: None,
        on_recovery: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_error` is called once per outage, and `on_recovery` at its end; ValueError without the package `redis`."""
        self._fallback = fallback or LocalCounters()
        scripts = (LuaScript(_RESERVE, 8), LuaScript(_SETTLE, 1))
        self._scripts = RedisScripts(
            url, scripts, timeout=timeout, pause=pause, on_error=on_error, on_recovery=on_recovery
        )
        self._pause = pause
        self._settling: set[asyncio.Task[None]] = set()
        self._unsettled: dict[str, tuple[RateLimitReservation, int]] = {}
        self._settling_again: asyncio.Task[None] | None = None

    async def reserve(self, key: str, limits: KeyLimits, tokens: int) -> RateLimitResult:
        """Reserve one request and so many tokens, if every limit allows."""
        if self._scripts.paused:
            return await self._fallback.reserve(key, limits, tokens)
        reservation = RateLimitReservation(key, 0, id=random_suffix(24))
        maxima = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
        try:
            reply = await self._scripts.run(0, _names(key), [*maxima, tokens, reservation.id, LEASE])
        except asyncio.CancelledError:
            self._settle_later(reservation, 0)  # the script may have run
            raise
        if reply is None or not _is_plausible(reply, tokens):
            self._settle_later(reservation, 0)  # the script may have run, or Redis runs it when it goes on
            return await self._fallback.reserve(key, limits, tokens)
        refused, wait, requests, requests_reset, used, used_reset, slot, amount = reply
        states = (
            _state(limits.requests_per_minute, requests, requests_reset),
            _state(limits.tokens_per_minute, used, used_reset),
        )
        if refused:
            return RateLimitResult(None, _REFUSALS[refused], wait / 1000, *states)
        reservation.tokens, reservation.slot = amount, slot if limits.tokens_per_minute else -1
        return RateLimitResult(reservation, None, 0.0, *states)

    def settle(self, reservation: RateLimitReservation, tokens: int) -> None:
        """End a reservation whose request used so many tokens; a second time does nothing."""
        if not reservation.id:  # made by the fallback, while Redis was away
            self._fallback.settle(reservation, tokens)
        elif not reservation.settled:
            reservation.settled = True
            self._settle_later(reservation, tokens - reservation.tokens if reservation.slot >= 0 else 0)

    def charge(self, key: str, tokens: int) -> None:
        """Count tokens that were used without a reservation."""
        self._settle_later(RateLimitReservation(key, 0), tokens)

    async def aclose(self) -> None:
        """Finish settling and close the connections; what Redis did not settle expires."""
        if self._settling:
            await asyncio.wait(self._settling)
        if self._settling_again is not None:
            self._settling_again.cancel()
            await asyncio.wait({self._settling_again})
        await self._scripts.aclose()
        await self._fallback.aclose()

    def _settle_later(self, reservation: RateLimitReservation, difference: int) -> None:
        """Settle in a task: a cancelled request could not wait for it."""
        task = asyncio.get_running_loop().create_task(self._settle(reservation, difference))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, reservation: RateLimitReservation, difference: int) -> None:
        """Settle, or keep a reservation to settle it when Redis replies again: it would count until it expires."""
        _, tokens, running = _names(reservation.key)
        id = reservation.id
        if await self._scripts.run(1, [tokens, running], [id, reservation.slot, difference]) is not None:
            self._unsettled.pop(id, None)
        # Tokens without a reservation have no id by which Redis would know that they were counted.
        elif id and len(self._unsettled) < _MOST_UNSETTLED:
            self._unsettled[id] = (reservation, difference)
            if self._settling_again is None or self._settling_again.done():
                self._settling_again = asyncio.get_running_loop().create_task(self._settle_again())

    async def _settle_again(self) -> None:
        while self._unsettled:
            await asyncio.sleep(self._pause)
            some = list(islice(self._unsettled.values(), MOST))
            await asyncio.gather(*[self._settle(*one) for one in some])


def _names(key: str) -> tuple[str, str, str]:
    """Return the names of a key's counters: a digest, since a key's name may be any text, in braces for one cluster node."""
    digest = sha256(key.encode()).hexdigest()[:32]
    return tuple(f"toolgate:{{{digest}}}:{what}" for what in ("requests", "tokens", "running"))  # type: ignore[return-value]  # three


def _is_plausible(reply: list[int], tokens: int) -> bool:
    """Whether the script can have returned these numbers: what is stored in Redis, others can have changed."""
    refused, wait, requests, requests_reset, used, used_reset, slot, amount = reply
    return (
        refused in range(len(_REFUSALS))
        and all(0 <= millis <= _MAX_MILLIS for millis in (wait, requests_reset, used_reset))
        and all(0 <= number <= _MAX_COUNT for number in (requests, used, slot))
        and 0 <= amount <= tokens
    )


def _state(limit: int, used: int, reset: int) -> LimitState | None:
    return LimitState(limit, max(0, limit - used), reset / 1000) if limit else None
