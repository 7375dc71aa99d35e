"""Slots that callers share: the one who holds the fewest goes first, and one slot is kept for a caller who holds none."""

import asyncio

from toolgate.scheduling import FairSemaphore


class Shares:
    """Callers who want slots, and the order in which they got them."""

    def __init__(self, slots: int) -> None:
        self.slots = FairSemaphore(slots)
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def want(self, callers: str) -> None:
        """Each letter is a caller who wants one slot."""
        self.tasks += [asyncio.create_task(self._take(caller)) for caller in callers]
        await asyncio.sleep(0)

    async def release(self, callers: str) -> str:
        """Give slots back; who got them."""
        before = len(self.order)
        for caller in callers:
            self.slots.release(caller)
        for _ in range(3):
            await asyncio.sleep(0)
        return "".join(self.order[before:])

    async def _take(self, caller: str) -> None:
        await self.slots.acquire(caller)
        self.order.append(caller)


async def test_one_slot_more_goes_to_a_caller_who_has_none() -> None:
    shares = Shares(2)
    await shares.want("aaaa")
    assert shares.order == ["a", "a"]
    await shares.want("bb")
    assert shares.order == ["a", "a", "b"]
    await shares.want("c")
    assert shares.order == ["a", "a", "b"]
    assert await shares.release("b") == "c"
    assert await shares.release("c") == "b"
    assert await shares.release("ba") == "a"
    assert await shares.release("aa") == "a"


async def test_callers_take_turns_however_many_calls_each_has_waiting() -> None:
    shares = Shares(3)
    await shares.want("a" * 20)
    await shares.want("bbbbcccc")
    for number in range(12):  # calls end in the order in which they began
        await shares.release(shares.order[number])
    assert "".join(shares.order) == "aaabcabcabcabca"


async def test_a_turn_that_is_cancelled_as_it_comes_is_passed_on() -> None:
    shares = Shares(1)
    await shares.want("aaa")
    first, waiting, last = shares.tasks
    shares.slots.release("a")
    waiting.cancel()
    await asyncio.wait({waiting})
    await asyncio.wait({last}, timeout=30)
    assert last.done()
    assert first.done()
    shares.slots.release("a")
    await shares.want("a")
    assert shares.order == ["a", "a", "a"]
