"""A model that only writes text, used as one that calls tools."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_rounds import Box, Notes
from tests.text.reading import unmarked
from tests.upstreams.wrapping import Always, read
from toolgate.conversation.errors import EmptyAnswer, InvalidRequest, Unavailable
from toolgate.conversation.events import Delta, ModelResponse, PartEnd, PartStart, StepEnd, StepStart, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Media, Message, Reasoning, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest, OutputFormat, Settings, ToolChoice, ToolDef
from toolgate.engine.loop import run
from toolgate.engine.rounds import WithTools
from toolgate.testing import ScriptedModel
from toolgate.text.prompts import Prompts
from toolgate.text.syntaxes import syntaxes
from toolgate.upstreams.emulated import Emulated, Injected
from toolgate.upstreams.emulation.imitation import Imitations

WEATHER = ToolDef(
    "get_weather",
    "Tells the weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
NOW = ToolDef("now", "Tells the time.", {"type": "object", "properties": {}})
TOOLS = (WEATHER, NOW)
PROMPTS = Prompts()
PARIS = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
ROME = PARIS.replace("Paris", "Rome")
BROKEN = '<invoke name="get_weather">{"city": "Paris", ,}</invoke>'


def user(text="How is the weather?"):
    return Message("user", (Text(text),))


def asking(*messages, stream=True, tools=TOOLS, choice=None, **fields):
    return ModelRequest("m", messages or (user(),), tools, choice, stream=stream, **fields)


class Heard:
    """What came of asking a scripted model: the parts, the end, the requests that reached it and the notes."""

    def __init__(self, events, model, notes, warnings):
        self.events = events
        self.response = fold(events)
        self.model = model
        self.notes = [note.kind for note in notes]
        self.warnings = warnings

    @property
    def told(self):
        return [_short(part) for part in self.response.parts]

    def asked(self, number=0):
        """The conversation that the model saw, as role and text."""
        return [(message.role, plain_text(message.parts)) for message in self.model.requests[number].messages]


def _short(part):
    match part:
        case Text(text):
            return text
        case Reasoning(text):
            return ("reasoning", text)
        case ToolCall():
            return (part.name, json.loads(part.arguments)) if part.complete else (part.name, part.arguments, "cut")
    return part


async def hear(request, *script, **options):
    notes = []
    model = ScriptedModel(script)
    answer = await Emulated(model, prompts=PROMPTS, noted=notes.append, **options).ask(request)
    events = await read(answer)
    return Heard(events, model, notes, answer.warnings)


both_ways = pytest.mark.parametrize("stream", [True, False])


@both_ways
async def test_a_call_in_the_text_is_a_call(stream):
    """T1, T3"""
    heard = await hear(asking(stream=stream), f"Let me look.\n{PARIS}")
    assert [part.strip() if isinstance(part, str) else part for part in heard.told] == [
        "Let me look.",
        ("get_weather", {"city": "Paris"}),
    ]
    assert heard.response.reason == "tool_calls"


@both_ways
async def test_the_model_hears_of_the_tools_in_words_and_of_none_in_the_request(stream):
    request = asking(stream=stream, choice=ToolChoice("auto"), extra={"openai_chat": {"tool_choice": "x", "seed": 1}})
    heard = await hear(request, "Hello.")
    sent = heard.model.requests[0]
    assert sent.tools == ()
    assert sent.tool_choice is None
    assert sent.extra == {"openai_chat": {"seed": 1}}
    ((role, text),) = heard.asked()
    assert role == "user"
    assert "get_weather" in text
    assert '<invoke name="get_weather">' in text
    assert text.endswith("How is the weather?")
    assert heard.told == ["Hello."]
    assert heard.response.reason == "stop"


async def test_arguments_are_told_while_the_model_still_writes_the_call():
    """T3, field: F21, F30"""
    gate = asyncio.Event()
    pieces = ['<invoke name="get_weather"><parameter name="city">Par', "is</parameter></invoke>"]

    class Slow:
        upstream, dialect, warnings, whole = "slow", None, (), False

        async def events(self):
            yield [StepStart(), PartStart(Text(""))]
            yield [Delta(pieces[0])]
            await gate.wait()
            yield [Delta(pieces[1]), PartEnd(Text("".join(pieces))), StepEnd("stop")]

        async def aclose(self):
            pass

    answer = await Emulated(Always(Slow()), prompts=PROMPTS).ask(asking())
    batches = answer.events()
    seen = []
    async for batch in batches:
        seen += batch
        if any(isinstance(event, Delta) for event in batch):
            break
    told = "".join(event.text for event in seen if isinstance(event, Delta))
    assert told.startswith('{"city":"P')
    assert not gate.is_set()
    gate.set()
    seen += [event async for batch in batches for event in batch]
    assert fold(seen).parts[0].arguments == '{"city":"Paris"}'


async def test_calls_and_results_of_the_history_become_the_models_own_words_and_blocks_of_results():
    """T7, field: E41"""
    calls = (ToolCall("c1", "get_weather", '{"city":"Paris"}'), ToolCall("c2", "now", "{}"))
    results = (
        Message("tool", (ToolResult("c2", (Text("noon"),), name="now"),)),
        Message("tool", (ToolResult("c1", (Text("no such city"),), True),)),
    )
    heard = await hear(asking(user(), Message("assistant", (Text("Let me look."), *calls)), *results), "Done.")
    (_, said), (role, told) = heard.asked()[1:]
    assert said == f'Let me look.\n{PARIS}\n<invoke name="now">\n</invoke>'
    assert "Tool Call" not in said
    assert role == "user"
    assert unmarked(told) == (
        'Tool Call: get_weather({"city":"Paris"})\nResult [ERROR]\nno such city\n---\n'
        "Tool Call: now({})\nResult [SUCCESS]\nnoon"
    )


async def test_a_stale_result_is_left_out_with_a_warning():
    """X7"""
    stale = Message("tool", (ToolResult("gone", (Text("old"),)),))
    heard = await hear(asking(user(), stale, user("And now?")), "Hello.")
    assert "old" not in str(heard.asked())
    assert any("gone" in warning for warning in heard.warnings)


async def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter_one():
    turns = [
        Message("system", (Text("Be kind."),)),
        user(),
        Message("assistant", (Text("Let me look."), ToolCall("c1", "get_weather", '{"city":"Paris"}'))),
        Message("tool", (ToolResult("c1", (Text("sunny"),)),)),
        Message("assistant", (Text("It is sunny."),)),
        user("And in Rome?"),
    ]
    for inject in (True, False):
        rendered = []
        for count in (2, 4, 6):
            heard = await hear(asking(*turns[:count]), "x", inject=inject)
            again = await hear(asking(*turns[:count]), "x", inject=inject)
            assert heard.asked() == again.asked()
            rendered.append(heard.asked())
        for shorter, longer in itertools.pairwise(rendered):
            assert longer[: len(shorter)] == shorter


async def test_all_system_messages_stand_before_the_first_words_of_the_user_in_order():
    """T1"""
    text = "<context>a</context>\n<userRequest>Hi</userRequest>\n"
    later = Message("system", (Text("Be brief."),))
    heard = await hear(asking(Message("system", (Text("Be kind."),)), user(text), later, tools=()), "Hello.")
    ((role, said),) = heard.asked()
    assert role == "user"
    assert said.startswith("<system_context>\n[System message 1 of 2]\nBe kind.\n[System message 2 of 2]\nBe brief.\n")
    assert said.endswith(text)


async def test_a_model_that_takes_system_messages_hears_of_the_tools_there():
    request = asking(Message("system", (Text("Be kind."),)), user())
    heard = await hear(request, "Hello.", inject=False)
    (role, said), (_, asked) = heard.asked()
    assert role == "system"
    assert said.startswith("Be kind.\n\n# Tools")
    assert asked == "How is the weather?"


async def test_a_request_that_is_only_text_reaches_the_model_as_it_is():
    request = asking(user(), user("Hello?"), tools=(), stream=False)
    heard = await hear(request, "Hello.")
    assert heard.model.requests[0] is request


@both_ways
async def test_parallel_calls_and_text_between_them_stay_in_place(stream):
    """field: F27"""
    heard = await hear(asking(stream=stream), f"One.\n{PARIS}\nTwo.\n{ROME}")
    names = [part.strip() if isinstance(part, str) else part[1]["city"] for part in heard.told]
    assert names == ["One.", "Paris", "Two.", "Rome"]
    ids = [part.id for part in heard.response.parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == 2


@both_ways
async def test_calls_after_the_first_are_cut_where_only_one_is_wanted(stream):
    """X5"""
    heard = await hear(asking(stream=stream, choice=ToolChoice(parallel=False)), f"{PARIS}\n{ROME} and so on")
    assert heard.told == [("get_weather", {"city": "Paris"})]
    assert heard.response.reason == "tool_calls"
    assert heard.response.usage.estimated
    assert heard.model.answers[0].closed
    assert heard.asked()[0][1].endswith("Write at most one call.")
    assert "cut_calls" in heard.notes


@both_ways
@pytest.mark.parametrize(
    "mark", ["Result [SUCCESS]\nsunny", 'Tool Call: get_weather({"city":"Paris"})\nResult [ERROR]\nx']
)
async def test_results_that_the_model_makes_up_are_cut_off(stream, mark):
    heard = await hear(asking(stream=stream), f"{PARIS}\n\n{mark}\n\nIt is sunny.")
    assert heard.told == [("get_weather", {"city": "Paris"})]
    assert "cut_results" in heard.notes
    assert heard.model.answers[0].closed


@both_ways
async def test_a_call_written_like_a_line_of_results_is_a_call(stream):
    """field: E41"""
    heard = await hear(asking(stream=stream), 'Let me see.\nTool Call: get_weather({"city": "Paris"})')
    assert heard.told == ["Let me see.\n", ("get_weather", {"city": "Paris"})]
    assert "repaired_call" in heard.notes
    assert heard.response.reason == "tool_calls"


async def test_results_in_the_manner_of_a_models_own_training_are_cut_off_too():
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    heard = await hear(asking(), f"{call}\n<tool_response>\nsunny\n</tool_response>\nIt is sunny.", syntax="hermes")
    assert heard.told == [("get_weather", {"city": "Paris"})]
    assert "cut_results" in heard.notes


async def test_words_that_only_look_like_results_are_text():
    said = "Tool Call: is what it says.\nTool Call: other({})\nResult [\nTool Call: now({}) is a line.\nResults"
    heard = await hear(asking(), said)
    assert heard.told == [said]


async def test_the_upstream_is_told_to_stop_where_results_would_begin():
    heard = await hear(asking(settings=Settings(stop=("A", "B", "C"))), "Hello.")
    assert heard.model.requests[0].settings.stop == ("A", "B", "C", "\nResult [SUCCESS]")
    heard = await hear(asking(), "Hello.", syntax="react")
    assert heard.model.requests[0].settings.stop == ("\nResult [SUCCESS]", "\nResult [ERROR]", "\nObservation:")
    heard = await hear(asking(), "Hello.", stops=False)
    assert heard.model.requests[0].settings.stop == ()


async def test_a_stop_of_our_own_is_not_the_clients_business():
    response = ModelResponse((Text(PARIS),), "stop", stop_sequence="\nResult [SUCCESS]")
    heard = await hear(asking(), response)
    assert heard.response.stop_sequence is None


async def test_a_broken_call_is_asked_for_again_while_nothing_of_it_was_told():
    """T6"""
    heard = await hear(asking(stream=False), f"Wait.\n{BROKEN}", PARIS)
    assert heard.told == [("get_weather", {"city": "Paris"})]
    assert heard.notes.count("asked_again") == 1
    conversation = heard.asked(1)
    assert conversation[1] == ("assistant", f"Wait.\n{BROKEN}")
    assert conversation[2][0] == "user"
    assert "get_weather" in conversation[2][1]
    assert heard.response.usage.estimated


async def test_a_call_that_stays_broken_is_plain_text_with_a_warning():
    """T6, field: F22"""
    heard = await hear(asking(stream=False), BROKEN, BROKEN, BROKEN, reasks=2)
    assert heard.told == [BROKEN]
    assert heard.response.reason == "stop"
    assert len(heard.model.requests) == 3
    assert heard.notes[-1] == "given_up"
    assert any("get_weather" in warning for warning in heard.warnings)


async def test_a_broken_call_that_was_told_is_not_asked_for_again():
    heard = await hear(asking(stream=True), BROKEN)
    (call,) = heard.response.parts
    assert call.name == "get_weather"
    assert len(heard.model.requests) == 1
    assert "broken_call" in heard.notes


async def test_good_calls_beside_a_broken_one_stay_calls():
    heard = await hear(asking(stream=False), f"{PARIS}\n{BROKEN}", reasks=0)
    assert heard.told[0] == ("get_weather", {"city": "Paris"})
    assert isinstance(heard.told[1], str)
    assert heard.response.reason == "tool_calls"


async def test_a_tool_that_is_not_there_is_asked_about_before_it_is_told():
    heard = await hear(asking(stream=False), '<invoke name="get_wether">\n</invoke>', PARIS)
    assert heard.told == [("get_weather", {"city": "Paris"})]
    assert "'get_wether'; there are: get_weather, now." in heard.asked(1)[-1][1]
    heard = await hear(asking(stream=False), 'You would write <invoke name="that">\n</invoke> and so on.')
    assert len(heard.model.requests) == 1


@both_ways
async def test_a_call_that_the_client_insists_on_is_asked_for_once_more(stream):
    """T6"""
    heard = await hear(asking(stream=stream, choice=ToolChoice("required")), "I would rather not.", f"Well.\n{PARIS}")
    assert heard.told == ["Well.\n", ("get_weather", {"city": "Paris"})]
    assert heard.asked(0)[-1][1].endswith("You must call a tool now.")
    assert "must call" in heard.asked(1)[-1][1]
    starts = [event for event in heard.events if isinstance(event, StepStart)]
    assert len(starts) == 1


async def test_reasoning_need_not_wait_for_a_call_that_must_come():
    model = ScriptedModel([[Reasoning("One two three."), Text(f"Well. {PARIS}")]])
    answer = await Emulated(model, prompts=PROMPTS).ask(asking(choice=ToolChoice("required")))
    batches = answer.events()
    told = []
    while len(told) < 3:
        told += await anext(batches)
    assert [type(event) for event in told] == [StepStart, PartStart, Delta]
    assert not model.answers[0].complete
    told += [event async for batch in batches for event in batch]
    assert [type(part) for part in fold(told).parts] == [Reasoning, Text, ToolCall]


@both_ways
async def test_a_model_that_never_calls_ends_honestly(stream):
    heard = await hear(asking(stream=stream, choice=ToolChoice("required", ("now",))), "No.", "No!", reasks=5)
    assert heard.told == ["No!"]
    assert heard.response.reason == "stop"
    assert len(heard.model.requests) == 2
    assert heard.notes == ["choice_unmet", "asked_again", "choice_unmet", "given_up"]
    assert any("now" in warning for warning in heard.warnings) or stream


@both_ways
async def test_a_named_tool_is_the_only_one_that_may_be_called(stream):
    choice = ToolChoice("required", ("now",))
    heard = await hear(asking(stream=stream, choice=choice), PARIS, '<invoke name="now">\n</invoke>')
    assert heard.told == [("now", {})]
    assert "forbidden_call" in heard.notes
    assert "get_weather" not in heard.asked(0)[0][1]


@both_ways
async def test_no_tool_is_called_where_none_may_be(stream):
    history = (
        user(),
        Message("assistant", (ToolCall("c1", "now", "{}"),)),
        Message("tool", (ToolResult("c1", (Text("noon"),)),)),
    )
    choice = ToolChoice("none")
    heard = await hear(asking(*history, stream=stream, choice=choice), f"It is noon.\n{PARIS}")
    assert [part.strip() for part in heard.told] == ["It is noon."]
    assert heard.response.reason == "stop"
    assert "Do not call any tool now" in heard.asked()[-1][1]
    heard = await hear(asking(*history, stream=stream, choice=choice), PARIS, "It is noon.")
    assert heard.told == ["It is noon."]
    assert "get_weather" not in (await hear(asking(choice=choice), "Hello.")).asked()[0][1]


@both_ways
async def test_a_final_answer_is_text_and_calls_beside_it_are_calls(stream):
    """T5"""
    answer = '<invoke name="final_answer"><parameter name="answer">Yes.</parameter></invoke>'
    heard = await hear(asking(stream=stream), answer)
    assert heard.told == ["Yes."]
    assert heard.response.reason == "stop"
    heard = await hear(asking(stream=stream), f"<final_answer>Yes.</final_answer>\n{PARIS}")
    assert heard.told == ["Yes.", ("get_weather", {"city": "Paris"})]
    assert heard.response.reason == "tool_calls"


@both_ways
async def test_reasoning_passes_through_whether_native_or_between_marks(stream):
    response = ModelResponse((Reasoning("Hm."), Text(PARIS)), "stop", Usage(10, 5, reasoning=2))
    heard = await hear(asking(stream=stream), response)
    assert heard.told == [("reasoning", "Hm."), ("get_weather", {"city": "Paris"})]
    assert heard.response.usage == Usage(10, 5, reasoning=2)
    heard = await hear(asking(stream=stream), f"<think>Hm.</think>\n\n{PARIS}")
    assert heard.told == [("reasoning", "Hm."), ("get_weather", {"city": "Paris"})]


async def test_usage_of_every_answer_is_counted():
    """T9"""
    first = ModelResponse((Text(BROKEN),), "stop", Usage(10, 5))
    second = ModelResponse((Text(PARIS),), "stop", Usage(20, 7))
    heard = await hear(asking(stream=False), first, second)
    assert heard.response.usage == Usage(30, 12)
    heard = await hear(asking(), "Hello there.")
    assert heard.response.usage.input > 100
    assert heard.response.usage.estimated


async def test_a_call_cut_off_by_the_limit_is_not_whole_and_not_asked_for_again():
    cut = ModelResponse((Text('<invoke name="get_weather"><parameter name="city">Par'),), "length")
    for stream in (True, False):
        heard = await hear(asking(stream=stream), cut)
        assert heard.response.reason == "length"
        assert [part.complete for part in heard.response.parts] == [False]


async def test_pictures_leave_a_visible_gap_and_a_warning():
    message = Message("user", (Text("What is it?"), Media("image", "image/png", data="AA==", name="a.png")))
    heard = await hear(asking(message), "A cat.")
    assert 'image "a.png" (image/png) left out' in heard.asked()[0][1]
    assert heard.warnings == ("image content was left out: the model reads text only",)
    heard = await hear(asking(message), "A cat.", images=True)
    assert [type(part) for part in heard.model.requests[0].messages[0].parts] == [Text, Media]
    assert heard.warnings == ()


async def test_pictures_in_results_reach_a_model_that_sees_them():
    picture, sound = Media("image", "image/png", data="AA=="), Media("audio", "audio/wav", data="AA==")
    result = Message("tool", (ToolResult("c1", (Text("here"), picture, sound)),))
    history = (user(), Message("assistant", (ToolCall("c1", "now", "{}"),)), result)
    heard = await hear(asking(*history), "A cat.", images=True)
    text, shown = heard.model.requests[0].messages[-1].parts
    assert shown == picture
    assert "here\n[audio (audio/wav) left out" in text.text
    assert heard.warnings == ("audio content was left out: the model reads text only",)


async def test_freeform_tools_and_awkward_names_come_back_as_the_client_knows_them():
    tools = (ToolDef("apply.patch", "Patches.", kind="freeform"), ToolDef("web", kind="hosted"))
    heard = await hear(asking(tools=tools), lambda request: _call_first(request, "*** Begin"))
    (call,) = heard.response.parts
    assert (call.name, call.arguments, call.freeform) == ("apply.patch", "*** Begin", True)
    assert any("web" in warning for warning in heard.warnings)


def _call_first(request, text):
    """A call of the one tool that the prompt describes."""
    prompt = plain_text(request.messages[0].parts)
    name = prompt.split("## ")[1].split("\n")[0]
    return f'<invoke name="{name}">\n<parameter name="input">{text}</parameter>\n</invoke>'


async def test_an_output_schema_goes_into_the_prompt_where_there_are_tools():
    settings = Settings(output=OutputFormat({"type": "object", "title": "Wanted"}))
    heard = await hear(asking(settings=settings), "{}")
    assert '"title":"Wanted"' in heard.asked()[0][1]
    assert heard.model.requests[0].settings.output is None
    heard = await hear(asking(settings=settings, tools=()), "{}")
    assert heard.model.requests[0].settings.output is settings.output


async def test_several_choices_are_refused():
    with pytest.raises(InvalidRequest, match="n must be 1"):
        await hear(asking(settings=Settings(choices=2)), "Hello.")


async def test_a_failure_while_asking_again_is_raised_by_ask_if_nothing_is_streamed():
    with pytest.raises(Unavailable):
        await hear(asking(stream=False), BROKEN, Unavailable("It is down."))


async def test_neighbouring_messages_of_one_role_are_one_turn():
    heard = await hear(asking(user("One."), user("Two.")), "Hello.")
    ((_, text),) = heard.asked()
    assert text.endswith("One.\n\nTwo.")


async def test_every_syntax_makes_the_round_trip():
    for name, syntax in syntaxes().items():
        call = ToolCall("c1", "get_weather", '{"city": "Paris", "days": 3}')
        written = syntax.render([call], {"get_weather": WEATHER})
        result = Message("tool", (ToolResult("c1", (Text("sunny"),)),))
        heard = await hear(asking(user(), Message("assistant", (call,)), result), written, syntax=name)
        assert heard.told == [("get_weather", {"city": "Paris", "days": 3})], name
        assert heard.asked()[1] == ("assistant", written.strip("\n")), name


async def test_a_model_with_tools_of_its_own_can_be_given_system_messages_by_the_user():
    """T1"""
    model = ScriptedModel(["Hello."])
    request = asking(Message("system", (Text("Be kind."),)), user("<system_context>mine</system_context>"))
    await read(await Injected(model, PROMPTS).ask(request))
    (message,) = model.requests[0].messages
    assert plain_text(message.parts).startswith("<system_context_2>\nBe kind.\n</system_context_2>")
    assert model.requests[0].tools == TOOLS


async def test_an_answer_that_is_left_is_cancelled_at_the_upstream():
    model = ScriptedModel(["One two three four five."])
    answer = await Emulated(model, prompts=PROMPTS).ask(asking())
    async for _ in answer.events():
        break
    await answer.aclose()
    assert model.answers[0].closed


@both_ways
async def test_the_servers_own_tools_run_on_top_of_it(stream):
    """X2, U3"""
    clock = '<invoke name="clock">\n</invoke>'
    model = ScriptedModel([f"Let me see.\n{clock}", f"Once more.\n{clock}", PARIS])
    box = Box()
    run = await WithTools(Emulated(model, prompts=PROMPTS), box, Notes()).ask(asking(stream=stream))
    response = fold(await read(run))
    assert len(box.ran) == 2
    theirs = [part for part in response.parts if isinstance(part, ToolCall) and part.executor == "client"]
    assert [(call.name, call.arguments) for call in theirs] == [("get_weather", '{"city":"Paris"}')]
    assert response.reason == "tool_calls"
    last = [(message.role, plain_text(message.parts)) for message in model.requests[-1].messages]
    assert [role for role, _ in last] == ["user", "assistant", "user", "assistant", "user"]
    assert unmarked(last[-1][1]) == "Tool Call: clock({})\nResult [SUCCESS]\nnoon"


scraps = st.lists(
    st.sampled_from(
        ["Tool Call: ", "now", "({})", "(", "\n", "Result [SUCCESS]", "Result [", "---", "\n\n", " \n", "word ", "T"]
    )
)


@given(scraps, st.lists(st.integers(1, 9), min_size=1))
def test_where_made_up_results_are_split_changes_nothing(pieces, sizes):
    text = "".join(pieces)
    whole, split = Imitations({"now"}), Imitations({"now"})
    expected = whole.feed(text) + whole.release()
    said, position = "", 0
    for size in itertools.cycle(sizes):
        if position >= len(text):
            break
        said += split.feed(text[position : position + size])
        position += size
    assert said + split.release() == expected
    assert (split.cut, split.calls) == (whole.cut, whole.calls)
    if not whole.cut and not whole.calls:
        assert expected == text


async def test_a_long_answer_costs_no_more_for_its_length():
    """N2: a piece costs the same however much went before it."""
    text = '<invoke name="get_weather"><parameter name="city">' + "word " * 20_000 + "</parameter></invoke>"
    heard = await asyncio.wait_for(hear(asking(), text), 20)
    assert len(heard.told[0][1]["city"]) == 100_000


HALF = '<invoke name="get_weather">\n<parameter name="city">Par'
MADE_UP = "Result [SUCCESS]\nIt is sunny."


@both_ways
@pytest.mark.parametrize("empty", ["", " \n", MADE_UP, "<think>Hm.</think>"])
async def test_an_empty_answer_is_asked_for_again(stream, empty):
    heard = await hear(asking(stream=stream), empty, "It is sunny.")
    assert heard.told[-1] == "It is sunny."
    assert "asked_again" in heard.notes
    assert "It is empty" in heard.asked(1)[-1][1]


@both_ways
@pytest.mark.parametrize("choice", [None, ToolChoice("required"), ToolChoice("none")])
async def test_an_answer_that_stays_empty_is_a_failure(stream, choice):
    with pytest.raises(EmptyAnswer):
        await hear(asking(stream=stream, choice=choice), "", " ")


async def test_a_streamed_call_that_breaks_off_ends_its_run_with_length():
    answer = await Emulated(ScriptedModel([HALF])).ask(asking())
    events = [event async for batch in run(answer) for event in batch]
    call = next(event.part for event in events if isinstance(event, PartEnd))
    assert not call.complete
    assert events[-2].reason == events[-1].reason == "length"


@both_ways
async def test_a_call_of_a_server_tool_that_breaks_off_is_written_again(stream):
    box = Box()
    model = ScriptedModel(['<invoke name="clock"><parameter name="zone">C', '<invoke name="clock"></invoke>', "Noon."])
    request = asking(tools=(), stream=stream)
    answer = await WithTools(Emulated(model), box, Notes()).ask(request)
    response = fold([event async for batch in answer.events() for event in batch])
    assert plain_text(response.parts).strip() == "Noon."
    assert len(box.ran) == 1
    assert len(model.requests) == 3
