"""Usage for every step (requirement U9)."""

from tests.upstreams.wrapping import REQUEST, Always, RelayableAnswer, read
from toolgate.conversation.events import ModelResponse, StepEnd, Usage
from toolgate.conversation.message import Reasoning, Text, ToolCall
from toolgate.testing import ScriptedModel
from toolgate.upstreams import tokens
from toolgate.upstreams.wrappers import Counted, Limited


async def test_a_step_without_usage_gets_an_estimate():
    parts = [Reasoning("Let me see."), Text("It is noon."), ToolCall("call_1", "get_time", '{"zone":"UTC"}')]
    events = await read(await Counted(ScriptedModel([parts])).ask(REQUEST))
    usage = events[-1].usage
    assert usage.estimated
    assert usage.input == tokens.count_request(REQUEST)
    written = ("Let me see.", "It is noon.", "get_time", '{"zone":"UTC"}')
    assert usage.output == sum(map(tokens.count, written)) + 7
    assert usage.reasoning == tokens.count("Let me see.")
    assert events[-1] == StepEnd("tool_calls", usage)


async def test_what_the_upstream_says_stands():
    said = ModelResponse((Text("hi"),), "stop", Usage(3, 1))
    assert (await read(await Counted(ScriptedModel([said])).ask(REQUEST)))[-1].usage == Usage(3, 1)


async def test_everything_before_the_end_passes_as_it_came():
    plain = await read(await ScriptedModel(["some words"]).ask(REQUEST))
    assert (await read(await Counted(ScriptedModel(["some words"])).ask(REQUEST)))[:-1] == plain[:-1]


async def test_a_relayed_answer_is_left_alone():
    answer = await Counted(Always(RelayableAnswer())).ask(REQUEST)
    assert answer.dialect == "some_dialect"
    retold = answer.retell("reply")
    assert [frame async for frame in retold] == [b"one", b"two"]
    assert retold.relay.usage == Usage(1, 2)


async def test_a_reader_who_leaves_frees_what_is_under_it():
    limited = Limited(ScriptedModel(["some words"]), concurrent=1)
    reading = (await Counted(limited).ask(REQUEST)).events()
    await anext(reading)
    assert limited.busy == 1
    await reading.aclose()
    assert limited.busy == 0
