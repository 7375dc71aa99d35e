"""An answer handed on by wrappers stays relayable, and its end is heard once."""

import asyncio

import pytest

from tests.upstreams.wrapping import REQUEST, RelayableAnswer, read
from toolgate.conversation.errors import Garbled, Unavailable
from toolgate.conversation.events import StepEnd, StepStart
from toolgate.conversation.message import Text
from toolgate.testing import ScriptedModel, scripted_answer
from toolgate.upstreams.wrappers.answers import noted, watched


def heard(answer):
    endings = []
    return watched(answer, endings.append), endings


async def test_reading_to_the_end_is_heard_once_also_when_the_answer_is_closed_afterwards():
    answer, endings = heard(await ScriptedModel(["Hello there."]).ask(REQUEST))
    assert len(await read(answer)) > 4
    await answer.aclose()
    assert endings == ["read"]


async def test_closing_early_is_heard_as_leaving():
    inner = scripted_answer([StepStart(), StepEnd("stop")])
    answer, endings = heard(inner)
    await anext(answer.events())
    await answer.aclose()
    assert endings == ["left"]
    assert inner.closed


async def test_closing_the_iterator_alone_is_heard_as_leaving_and_closes_what_is_under_it():
    ended = []

    class Owner(RelayableAnswer):
        async def events(self):
            try:
                yield [StepStart()]
            finally:
                ended.append("closed")

    answer, endings = heard(Owner())
    reading = answer.events()
    await anext(reading)
    await reading.aclose()
    assert endings == ["left"]
    assert ended == ["closed"]


async def test_an_answer_that_breaks_off_is_heard_with_its_fault():
    fault = Garbled("cut short")
    answer, endings = heard(await ScriptedModel([[Text("half"), fault]]).ask(REQUEST))
    with pytest.raises(Garbled):
        await read(answer)
    await answer.aclose()
    assert endings == [fault]


async def test_a_fault_that_closing_causes_in_the_reader_counts_as_leaving():
    gate = asyncio.Event()

    class Torn(RelayableAnswer):
        async def events(self):
            await gate.wait()
            raise Garbled("given up")
            yield

        async def aclose(self):
            gate.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    answer, endings = heard(Torn())
    reading = asyncio.create_task(read(answer))
    await asyncio.sleep(0)
    await answer.aclose()
    with pytest.raises(Garbled):
        await reading
    assert endings == ["left"]


async def test_a_cancelled_reader_is_heard_as_such():
    answer, endings = heard(await ScriptedModel(["a b c"], pace=asyncio.Event().wait).ask(REQUEST))
    reading = asyncio.create_task(read(answer))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [type(ending) for ending in endings] == [asyncio.CancelledError]


async def test_several_listeners_share_one_watcher():
    first, endings = heard(await ScriptedModel(["hi"]).ask(REQUEST))
    second = watched(first, endings.append)
    assert second is first
    await read(second)
    assert endings == ["read", "read"]


async def test_a_watched_answer_is_retold_frame_by_frame_and_its_end_is_heard():
    answer, endings = heard(RelayableAnswer())
    assert (answer.dialect, answer.upstream, answer.warnings) == ("some_dialect", "relayed", ("said elsewhere",))
    retold = answer.retell("reply")
    assert [frame async for frame in retold] == [b"one", b"two"]
    assert retold.relay.usage.output == 2
    assert endings == ["read"]


async def test_a_retold_answer_that_breaks_off_is_heard_with_its_fault():
    fault = Unavailable("gone")
    answer, endings = heard(RelayableAnswer(frames=(b"one", fault)))
    with pytest.raises(Unavailable):
        [frame async for frame in answer.retell("reply")]
    assert endings == [fault]


def test_a_whole_answer_is_read_by_being_retold():
    answer, endings = heard(RelayableAnswer())
    assert answer.retell_whole("reply")[0] == b"for reply"
    assert endings == ["read"]
    broken, endings = heard(RelayableAnswer(body=Garbled("no choices")))
    with pytest.raises(Garbled):
        broken.retell_whole("reply")
    assert [type(ending) for ending in endings] == [Garbled]


async def test_a_note_is_added_behind_the_warnings_and_changes_nothing_else():
    inner = RelayableAnswer()
    answer = noted(noted(inner, "first"), "second")
    assert answer.warnings == ("said elsewhere", "first", "second")
    assert inner.warnings == ("said elsewhere",)
    assert [frame async for frame in answer.retell("reply")] == [b"one", b"two"]
    await answer.aclose()
    assert inner.closed
