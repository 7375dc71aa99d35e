"""Queues and slots in which callers take turns."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.scheduling import FairQueue, FairSlots, QueueFull

KEYS = st.sampled_from("abcd")


@given(st.lists(KEYS, max_size=40))
def test_each_entry_waits_for_at_most_one_entry_of_every_other_caller(keys: list[str]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number, key in enumerate(keys):
        queue.put(key, (key, number))
    served = [queue.take() for _ in keys]
    assert sorted(served, key=lambda entry: entry[1]) == [(key, number) for number, key in enumerate(keys)]
    before: Counter[str] = Counter()
    for key, _ in served:
        assert all(count <= before[key] + 1 for other, count in before.items() if other != key)
        before[key] += 1
    for key in set(keys):
        assert [number for owner, number in served if owner == key] == sorted(
            number for owner, number in served if owner == key
        )


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "discard", "evict"]), KEYS), max_size=60))
def test_no_entry_is_lost_or_served_twice(steps: list[tuple[str, str]]) -> None:
    queue: FairQueue[int] = FairQueue()
    there: dict[int, str] = {}
    for number, (step, key) in enumerate(steps):
        match step:
            case "put":
                queue.put(key, number)
                there[number] = key
            case "take" if there:
                del there[queue.take()]
            case "discard" if there:
                entry = min(there)
                assert queue.discard(there.pop(entry), entry)
            case "evict":
                lengths = Counter(there.values())
                gone = queue.evict_for(key)
                if gone is None:
                    assert max(lengths.values(), default=0) < lengths[key] + 2
                else:
                    assert lengths[there.pop(gone)] == max(lengths.values())
        assert len(queue) == len(there)
    with pytest.raises(IndexError):
        FairQueue[int]().take()


async def test_a_full_queue_evicts_an_entry_for_a_caller_with_fewer() -> None:
    slots = FairSlots(1, waiting=3)
    assert slots.try_acquire()
    flood = [asyncio.ensure_future(slots.wait("flood")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await slots.wait("flood")
    other = asyncio.ensure_future(slots.wait("other"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(flood[2].exception(), QueueFull)
    slots.release()
    slots.release()
    await asyncio.gather(flood[0], other)
    assert (slots.busy, slots.waiting) == (1, 1)


async def test_a_waiter_cancelled_as_its_turn_comes_passes_the_slot_on() -> None:
    slots = FairSlots(1)
    assert slots.try_acquire()
    leaving, staying = [asyncio.ensure_future(slots.wait(key)) for key in "ab"]
    await asyncio.sleep(0)
    slots.release()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await staying
    slots.release()
    assert (slots.busy, slots.waiting) == (0, 0)
