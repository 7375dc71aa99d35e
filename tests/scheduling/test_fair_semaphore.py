"""A free slot goes to the caller with the fewest, and one slot is reserved for a caller without any."""

import asyncio

from toolgate.scheduling import FairSemaphore


class Callers:
    """Callers who acquire slots, and the order in which they got them."""

    def __init__(self, slots: int) -> None:
        self.slots = FairSemaphore(slots)
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def acquire(self, names: str) -> None:
        """Acquire one slot for each letter, which names a caller."""
        self.tasks += [asyncio.create_task(self._take(caller)) for caller in names]
        await asyncio.sleep(0)

    async def release(self, names: str) -> str:
        """Release slots and return the callers who got them."""
        before = len(self.order)
        for caller in names:
            self.slots.release(caller)
        for _ in range(3):
            await asyncio.sleep(0)
        return "".join(self.order[before:])

    async def _take(self, caller: str) -> None:
        await self.slots.acquire(caller)
        self.order.append(caller)


async def test_one_more_slot_is_reserved_for_a_caller_without_any() -> None:
    callers = Callers(2)
    await callers.acquire("aaaa")
    assert callers.order == ["a", "a"]
    await callers.acquire("bb")
    assert callers.order == ["a", "a", "b"]
    await callers.acquire("c")
    assert callers.order == ["a", "a", "b"]
    assert await callers.release("b") == "c"
    assert await callers.release("c") == "b"
    assert await callers.release("ba") == "a"
    assert await callers.release("aa") == "a"


async def test_callers_take_turns_however_many_calls_each_has_waiting() -> None:
    callers = Callers(3)
    await callers.acquire("a" * 20)
    await callers.acquire("bbbbcccc")
    for number in range(12):  # calls end in the order in which they began
        await callers.release(callers.order[number])
    assert "".join(callers.order) == "aaabcabcabcabca"


async def test_a_slot_granted_to_a_cancelled_task_is_passed_on() -> None:
    callers = Callers(1)
    await callers.acquire("aaa")
    first, waiting, last = callers.tasks
    callers.slots.release("a")
    waiting.cancel()
    await asyncio.wait({waiting})
    await asyncio.wait({last}, timeout=30)
    assert last.done()
    assert first.done()
    callers.slots.release("a")
    await callers.acquire("a")
    assert callers.order == ["a", "a", "a"]
