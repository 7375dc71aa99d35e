"""An answer handed on by wrappers stays relayable, and its end is heard once."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tests.upstreams.wrapping import REQUEST, RelayableAnswer, leave, read, relayable
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.message import Text
from toolgate.engine.ports import ModelStream
from toolgate.testing import ScriptedModel, scripted_answer
from toolgate.upstreams.wrapped_streams import StreamEnd, with_end_listener, with_warning


def response(answer: ModelStream) -> tuple[ModelStream, list[StreamEnd]]:
    endings: list[StreamEnd] = []
    return with_end_listener(answer, endings.append), endings


async def test_reading_to_the_end_is_noticed_once_also_when_the_answer_is_closed_afterwards() -> None:
    answer, endings = response(await ScriptedModel(["Hello there."]).ask(REQUEST))
    assert len(await read(answer)) > 4
    await answer.aclose()
    assert endings == ["read"]


async def test_closing_early_is_noticed_as_leaving() -> None:
    inner = scripted_answer([StepStart(), StepEnd("stop")])
    answer, endings = response(inner)
    await anext(answer.events())
    await answer.aclose()
    assert endings == ["left"]
    assert inner.closed


async def test_closing_the_iterator_alone_is_noticed_as_leaving_and_closes_what_is_under_it() -> None:
    ended = []

    class Owner(RelayableAnswer):
        async def events(self) -> AsyncGenerator[list[StepEvent], None]:
            try:
                yield [StepStart()]
            finally:
                ended.append("closed")

    answer, endings = response(Owner())
    reading = answer.events()
    await anext(reading)
    await leave(reading)
    assert endings == ["left"]
    assert ended == ["closed"]


async def test_an_answer_that_breaks_off_is_noticed_with_its_fault() -> None:
    fault = InvalidUpstreamAnswer("cut short")
    answer, endings = response(await ScriptedModel([[Text("half"), fault]]).ask(REQUEST))
    with pytest.raises(InvalidUpstreamAnswer):
        await read(answer)
    await answer.aclose()
    assert endings == [fault]


async def test_a_fault_that_closing_causes_in_the_reader_counts_as_leaving() -> None:
    gate = asyncio.Event()

    class Torn(RelayableAnswer):
        async def events(self) -> AsyncGenerator[list[StepEvent], None]:
            await gate.wait()
            raise InvalidUpstreamAnswer("given up")
            yield

        async def aclose(self) -> None:
            gate.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    answer, endings = response(Torn())
    reading = asyncio.create_task(read(answer))
    await asyncio.sleep(0)
    await answer.aclose()
    with pytest.raises(InvalidUpstreamAnswer):
        await reading
    assert endings == ["left"]


async def test_a_cancelled_reader_is_noticed_as_such() -> None:
    answer, endings = response(await ScriptedModel(["a b c"], pace=asyncio.Event().wait).ask(REQUEST))
    reading = asyncio.create_task(read(answer))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [type(ending) for ending in endings] == [asyncio.CancelledError]


async def test_several_listeners_share_one_watcher() -> None:
    first, endings = response(await ScriptedModel(["hi"]).ask(REQUEST))
    second = with_end_listener(first, endings.append)
    assert second is first
    await read(second)
    assert endings == ["read", "read"]


async def test_a_watched_answer_is_relayed_frame_by_frame_and_its_end_is_seen() -> None:
    answer, endings = response(RelayableAnswer())
    assert (answer.dialect, answer.upstream, answer.warnings) == ("some_dialect", "relayed", ("said elsewhere",))
    relayed = relayable(answer).relay_stream("reply")
    assert [frame async for frame in relayed] == [b"one", b"two"]
    assert relayed.relay.usage == Usage(1, 2)
    assert endings == ["read"]


async def test_a_relayed_answer_that_breaks_off_is_seen_with_its_fault() -> None:
    fault = UpstreamUnavailable("gone")
    answer, endings = response(RelayableAnswer(frames=(b"one", fault)))
    with pytest.raises(UpstreamUnavailable):
        [frame async for frame in relayable(answer).relay_stream("reply")]
    assert endings == [fault]


async def test_a_whole_answer_is_read_by_being_relayed() -> None:
    answer, endings = response(RelayableAnswer())
    assert (await relayable(answer).relay_whole("reply"))[0] == b"for reply"
    assert endings == ["read"]
    broken, endings = response(RelayableAnswer(body=InvalidUpstreamAnswer("no choices")))
    with pytest.raises(InvalidUpstreamAnswer):
        await relayable(broken).relay_whole("reply")
    assert [type(ending) for ending in endings] == [InvalidUpstreamAnswer]


async def test_a_note_is_added_behind_the_warnings_and_changes_nothing_else() -> None:
    inner = RelayableAnswer()
    answer = with_warning(with_warning(inner, "first"), "second")
    assert answer.warnings == ("said elsewhere", "first", "second")
    assert inner.warnings == ("said elsewhere",)
    assert [frame async for frame in relayable(answer).relay_stream("reply")] == [b"one", b"two"]
    await answer.aclose()
    assert inner.closed
