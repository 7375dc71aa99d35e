"""Usage for every step (spec: U9)."""

from tests.typed import given, of
from tests.upstreams.wrapping import REQUEST, Always, RelayableAnswer, leave, read, relayable
from toolgate.conversation.events import ModelResponse, StepEnd, Usage
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.testing import ScriptedModel
from toolgate.upstreams import token_counting_offline
from toolgate.upstreams.wrappers import ConcurrencyLimitedModel, UsageCountingModel


async def test_a_step_without_usage_gets_an_estimate() -> None:
    parts: list[Part] = [
        Reasoning("Let me see."),
        Text("It is noon."),
        ToolCall("call_1", "get_time", '{"zone":"UTC"}'),
    ]
    events = await read(await UsageCountingModel(ScriptedModel([parts])).ask(REQUEST))
    usage = given(of(StepEnd, events[-1]).usage)
    assert usage.estimated
    assert usage.input == token_counting_offline.count_request(REQUEST)
    written = ("Let me see.", "It is noon.", "get_time", '{"zone":"UTC"}')
    assert usage.output == sum(map(token_counting_offline.count, written)) + 7
    assert usage.reasoning == token_counting_offline.count("Let me see.")
    assert events[-1] == StepEnd("tool_calls", usage)


async def test_reported_usage_is_kept() -> None:
    text = ModelResponse((Text("hi"),), "stop", Usage(3, 1))
    end = (await read(await UsageCountingModel(ScriptedModel([text])).ask(REQUEST)))[-1]
    assert of(StepEnd, end).usage == Usage(3, 1)


async def test_everything_before_the_end_passes_as_it_came() -> None:
    plain = await read(await ScriptedModel(["some words"]).ask(REQUEST))
    assert (await read(await UsageCountingModel(ScriptedModel(["some words"])).ask(REQUEST)))[:-1] == plain[:-1]


async def test_a_relayed_answer_is_left_alone() -> None:
    answer = await UsageCountingModel(Always(RelayableAnswer())).ask(REQUEST)
    assert answer.dialect == "some_dialect"
    relayed = relayable(answer).relay_stream("reply")
    assert [frame async for frame in relayed] == [b"one", b"two"]
    assert relayed.relay.usage == Usage(1, 2)


async def test_a_reader_that_leaves_closes_the_streams_below() -> None:
    limited = ConcurrencyLimitedModel(ScriptedModel(["some words"]), concurrent=1)
    reading = (await UsageCountingModel(limited).ask(REQUEST)).events()
    await anext(reading)
    assert limited.busy == 1
    await leave(reading)
    assert limited.busy == 0
