"""Counters that several nodes share, in Redis or Valkey; without it each node counts for itself.

One script takes and one settles, so that nothing comes between looking and counting, and the server's clock is everybody's.
The windows are those of `window.py`: a hash of slots with their sum, from which old slots are taken off one by one.
A request's hold is a member of a sorted set, which names the time at which it is let go if its node died.

When Redis does not answer in time, nobody waits for it: for a second all is counted here, then it is tried again. What
one node grants is then still bounded by the limit, what all grant by the limit times the nodes.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256

from toolgate.conversation import ids
from toolgate.limits.counters import Counters, Hold, LocalCounters, Meter, Taken, Which
from toolgate.limits.policy import KeyLimits
from toolgate.limits.scripts import Scripts

PATIENCE = 0.15
"""Seconds that an answer may take; with what else a request needs it stays under 0.2."""

APART = 1.0
"""Seconds for which Redis is left alone after it failed."""

LEASE = 900
"""Seconds after which the hold of a node that died is let go."""

_WHICH: tuple[Which | None, ...] = (None, "concurrency", "requests", "tokens")

_WINDOW = """
local time = redis.call('TIME')
local seconds, micros = tonumber(time[1]), tonumber(time[2])
local now = seconds * 10 + math.floor(micros / 100000)
local into = micros % 100000

local function slide(key)
  local seen = redis.call('HMGET', key, 'first', 'last', 'sum')
  local first, last, sum = tonumber(seen[1]), tonumber(seen[2]), tonumber(seen[3])
  if not first or now - last > 600 or last - now > 600 then
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

local function millis(slot)
  return math.ceil((slot + 601 - now) * 100 - into / 1000)
end

local function fits_in(key, window, amount, limit)
  local excess = window.sum + amount - limit
  for slot = window.first, window.last do
    excess = excess - tonumber(redis.call('HGET', key, slot) or 0)
    if excess <= 0 then return millis(slot) end
  end
  return 60000
end
"""

_TAKE = (
    _WINDOW
    + """
local most, most_tokens, most_running = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local amount, id, lease = math.min(tonumber(ARGV[4]), most_tokens), ARGV[5], tonumber(ARGV[6])
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
if id ~= '' and redis.call('ZREM', KEYS[2], id) == 0 then return 0 end
if difference == 0 then return 0 end
local window = slide(KEYS[1])
if difference > 0 then
  add(KEYS[1], window, difference)
else
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


class SharedCounters:
    """Counters in Redis, with others behind them for when it is gone."""

    def __init__(
        self,
        url: str,
        behind: Counters | None = None,
        *,
        patience: float = PATIENCE,
        apart: float = APART,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_trouble` hears once of each time that Redis is left alone; ValueError without the package `redis`."""
        self._behind = behind or LocalCounters()
        self._scripts = Scripts(url, (_TAKE, _SETTLE), patience=patience, apart=apart, on_trouble=on_trouble)
        self._settling: set[asyncio.Task[None]] = set()

    async def take(self, key: str, limits: KeyLimits, tokens: int) -> Taken:
        """Take one request and so many tokens, if every limit allows."""
        hold = Hold(key, 0, id=ids.mint(24))
        most = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency)
        try:
            said = await self._scripts.run(0, _names(key), [*most, tokens, hold.id, LEASE])
        except asyncio.CancelledError:
            self._later(hold, 0)  # it may have been taken
            raise
        if said is None:
            return await self._behind.take(key, limits, tokens)
        return _taken(said, hold, limits)

    def settle(self, hold: Hold, tokens: int) -> None:
        """The request is over and used so many tokens; a second time does nothing."""
        if not hold.id:
            self._behind.settle(hold, tokens)
        elif not hold.settled:
            hold.settled = True
            self._later(hold, tokens - hold.tokens if hold.slot >= 0 else 0)

    def charge(self, key: str, tokens: int) -> None:
        """Tokens were used by something that holds nothing."""
        self._later(Hold(key, 0), tokens)

    async def aclose(self) -> None:
        """Finish settling and close the connections."""
        if self._settling:
            await asyncio.wait(self._settling)
        await self._scripts.aclose()
        await self._behind.aclose()

    def _later(self, hold: Hold, difference: int) -> None:
        """Nobody waits for a settlement: it may be the last thing that a cancelled request does."""
        task = asyncio.get_running_loop().create_task(self._settle(hold, difference))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, hold: Hold, difference: int) -> None:
        _, tokens, running = _names(hold.key)
        await self._scripts.run(1, [tokens, running], [hold.id, hold.slot, difference])


def _names(key: str) -> tuple[str, str, str]:
    """Where a key's counts are: named by a digest, since a name may hold anything; in braces, for one node of a cluster."""
    digest = sha256(key.encode()).hexdigest()[:32]
    return tuple(f"toolgate:{{{digest}}}:{what}" for what in ("requests", "tokens", "running"))  # type: ignore[return-value]  # three


def _taken(said: list[int], hold: Hold, limits: KeyLimits) -> Taken:
    refused, wait, requests, requests_reset, tokens, tokens_reset, slot, amount = said
    meters = (
        _meter(limits.requests_per_minute, requests, requests_reset),
        _meter(limits.tokens_per_minute, tokens, tokens_reset),
    )
    if refused:
        return Taken(None, _WHICH[refused], wait / 1000, *meters)
    hold.tokens, hold.slot = amount, slot if limits.tokens_per_minute else -1
    return Taken(hold, None, 0.0, *meters)


def _meter(limit: int, used: int, reset: int) -> Meter | None:
    return Meter(limit, max(0, limit - used), reset / 1000) if limit else None
