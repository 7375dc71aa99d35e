"""A model that only writes text calls tools."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_tool_loop import Box, Notes
from tests.text_tools.parsed import without_result_marks
from tests.typed import all_of, of
from tests.typed import given as present
from tests.upstreams.wrapping import Always, read
from toolgate.conversation.errors import EmptyModelAnswer, InvalidRequest, UpstreamUnavailable
from toolgate.conversation.events import (
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    StepEnd,
    StepEvent,
    StepStart,
    Usage,
)
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest, RequestSettings, StructuredOutputFormat, ToolChoice, ToolDef
from toolgate.engine.model_to_run_events import run_events
from toolgate.engine.tool_loop import ToolLoop
from toolgate.testing import ScriptedModel
from toolgate.text_tools.emulation.emulation_notes import EmulationNote
from toolgate.text_tools.emulation.fake_results import FakeResultFilter
from toolgate.text_tools.emulation.model import EmulatedModel, SystemToUserModel
from toolgate.text_tools.prompts import TextToolPromptRenderer
from toolgate.text_tools.syntaxes import syntaxes

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
PROMPTS = TextToolPromptRenderer()
PARIS = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
ROME = PARIS.replace("Paris", "Rome")
BROKEN = '<invoke name="get_weather">{"city": "Paris", ,}</invoke>'


def user(text: str = "How is the weather?") -> Message:
    return Message("user", (Text(text),))


def asking(
    *messages: Message,
    stream: bool = True,
    tools: tuple[ToolDef, ...] = TOOLS,
    choice: ToolChoice | None = None,
    **fields: Any,
) -> ModelRequest:
    return ModelRequest("m", messages or (user(),), tools, choice, stream=stream, **fields)


class EmulatedAnswer:
    """The answer of an emulated model, with the requests that reached the scripted one and the notes."""

    def __init__(
        self, events: list[StepEvent], model: ScriptedModel, notes: list[EmulationNote], warnings: tuple[str, ...]
    ) -> None:
        self.events = events
        self.response = fold(events)
        self.model = model
        self.notes = [note.kind for note in notes]
        self.warnings = warnings

    @property
    def summary(self) -> list[Any]:
        return [_summarize(part) for part in self.response.parts]

    def sent(self, number: int = 0) -> list[tuple[str, str]]:
        """Return the conversation that the model got, as role and text."""
        return [(message.role, plain_text(message.parts)) for message in self.model.requests[number].messages]


def _summarize(part: Part) -> Any:
    match part:
        case Text(text):
            return text
        case Reasoning(text):
            return ("reasoning", text)
        case ToolCall():
            return (part.name, json.loads(part.arguments)) if part.complete else (part.name, part.arguments, "cut")
    return part


async def ask(request: ModelRequest, *script: Any, **options: Any) -> EmulatedAnswer:
    notes: list[EmulationNote] = []
    model = ScriptedModel(script)
    answer = await EmulatedModel(model, prompts=PROMPTS, on_note=notes.append, **options).ask(request)
    events = await read(answer)
    return EmulatedAnswer(events, model, notes, answer.warnings)


both_ways = pytest.mark.parametrize("stream", [True, False])


@both_ways
async def test_a_call_in_the_text_is_a_call(stream: bool) -> None:
    """spec: T1, T3"""
    outcome = await ask(asking(stream=stream), f"Let me look.\n{PARIS}")
    assert [part.strip() if isinstance(part, str) else part for part in outcome.summary] == [
        "Let me look.",
        ("get_weather", {"city": "Paris"}),
    ]
    assert outcome.response.reason == "tool_calls"


@both_ways
async def test_the_prompt_describes_the_tools_and_the_request_has_none(stream: bool) -> None:
    request = asking(stream=stream, choice=ToolChoice("auto"), extra={"openai_chat": {"tool_choice": "x", "seed": 1}})
    outcome = await ask(request, "Hello.")
    sent = outcome.model.requests[0]
    assert sent.tools == ()
    assert sent.tool_choice is None
    assert sent.extra == {"openai_chat": {"seed": 1}}
    ((role, text),) = outcome.sent()
    assert role == "user"
    assert "get_weather" in text
    assert '<invoke name="get_weather">' in text
    assert text.endswith("How is the weather?")
    assert outcome.summary == ["Hello."]
    assert outcome.response.reason == "stop"


async def test_arguments_are_emitted_while_the_model_still_writes_the_call() -> None:
    """T3, field: F21, F30"""
    gate = asyncio.Event()
    pieces = ['<invoke name="get_weather"><parameter name="city">Par', "is</parameter></invoke>"]

    class Slow:
        upstream: str = "slow"
        dialect: str | None = None
        warnings: tuple[str, ...] = ()
        whole: bool = False

        async def events(self) -> AsyncGenerator[list[StepEvent], None]:
            yield [StepStart(), PartStart(Text(""))]
            yield [PartDelta(pieces[0])]
            await gate.wait()
            yield [PartDelta(pieces[1]), PartEnd(Text("".join(pieces))), StepEnd("stop")]

        async def aclose(self) -> None:
            pass

    answer = await EmulatedModel(Always(Slow()), prompts=PROMPTS).ask(asking())
    batches = answer.events()
    seen = []
    async for batch in batches:
        seen += batch
        if any(isinstance(event, PartDelta) for event in batch):
            break
    emitted = "".join(event.text for event in seen if isinstance(event, PartDelta))
    assert emitted.startswith('{"city":"P')
    assert not gate.is_set()
    gate.set()
    seen += [event async for batch in batches for event in batch]
    assert of(ToolCall, fold(seen).parts[0]).arguments == '{"city":"Paris"}'


async def test_calls_of_the_history_are_in_the_models_syntax_and_results_in_blocks() -> None:
    """T7, field: E41"""
    calls = (ToolCall("c1", "get_weather", '{"city":"Paris"}'), ToolCall("c2", "now", "{}"))
    results = (
        Message("tool", (ToolResult("c2", (Text("noon"),), name="now"),)),
        Message("tool", (ToolResult("c1", (Text("no such city"),), True),)),
    )
    outcome = await ask(asking(user(), Message("assistant", (Text("Let me look."), *calls)), *results), "Done.")
    (_, written), (role, emitted) = outcome.sent()[1:]
    assert written == f'Let me look.\n{PARIS}\n<invoke name="now">\n</invoke>'
    assert "Tool Call" not in written
    assert role == "user"
    assert without_result_marks(emitted) == (
        'Tool Call: get_weather({"city":"Paris"})\nResult [ERROR]\nno such city\n---\n'
        "Tool Call: now({})\nResult [SUCCESS]\nnoon"
    )


async def test_a_stale_result_is_left_out_with_a_warning() -> None:
    """spec: X7"""
    stale = Message("tool", (ToolResult("gone", (Text("old"),)),))
    outcome = await ask(asking(user(), stale, user("And now?")), "Hello.")
    assert "old" not in str(outcome.sent())
    assert any("gone" in warning for warning in outcome.warnings)


async def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter_one() -> None:
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
            outcome = await ask(asking(*turns[:count]), "x", inject=inject)
            again = await ask(asking(*turns[:count]), "x", inject=inject)
            assert outcome.sent() == again.sent()
            rendered.append(outcome.sent())
        for shorter, longer in itertools.pairwise(rendered):
            assert longer[: len(shorter)] == shorter


async def test_all_system_messages_stand_in_order_before_the_users_first_text() -> None:
    """spec: T1"""
    text = "<context>a</context>\n<userRequest>Hi</userRequest>\n"
    later = Message("system", (Text("Be brief."),))
    outcome = await ask(asking(Message("system", (Text("Be kind."),)), user(text), later, tools=()), "Hello.")
    ((role, written),) = outcome.sent()
    assert role == "user"
    assert written.startswith(
        "<system_context>\n[System message 1 of 2]\nBe kind.\n[System message 2 of 2]\nBe brief.\n"
    )
    assert written.endswith(text)


async def test_a_model_that_takes_system_messages_gets_the_tools_there() -> None:
    request = asking(Message("system", (Text("Be kind."),)), user())
    outcome = await ask(request, "Hello.", inject=False)
    (role, written), (_, asked) = outcome.sent()
    assert role == "system"
    assert written.startswith("Be kind.\n\n# Tools")
    assert asked == "How is the weather?"


async def test_a_request_that_is_only_text_reaches_the_model_as_it_is() -> None:
    request = asking(user(), user("Hello?"), tools=(), stream=False)
    outcome = await ask(request, "Hello.")
    assert outcome.model.requests[0] is request


@both_ways
async def test_a_text_without_thinking_keeps_its_log_probabilities(stream: bool) -> None:
    text = Text("Hello there.", {"openai_chat": {"annotations": []}}, ({"token": "Hello", "logprob": -0.5},))
    outcome = await ask(asking(user(), tools=(), stream=stream), [text])
    assert outcome.response.parts == (text,)


@both_ways
async def test_parallel_calls_and_text_between_them_stay_in_place(stream: bool) -> None:
    """field: F27"""
    outcome = await ask(asking(stream=stream), f"One.\n{PARIS}\nTwo.\n{ROME}")
    names = [part.strip() if isinstance(part, str) else part[1]["city"] for part in outcome.summary]
    assert names == ["One.", "Paris", "Two.", "Rome"]
    ids = [part.id for part in outcome.response.parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == 2


@both_ways
async def test_calls_after_the_first_are_cut_where_only_one_is_wanted(stream: bool) -> None:
    """spec: X5"""
    outcome = await ask(asking(stream=stream, choice=ToolChoice(parallel=False)), f"{PARIS}\n{ROME} and so on")
    assert outcome.summary == [("get_weather", {"city": "Paris"})]
    assert outcome.response.reason == "tool_calls"
    assert present(outcome.response.usage).estimated
    assert outcome.model.answers[0].closed
    assert outcome.sent()[0][1].endswith("Write at most one call.")
    assert "cut_calls" in outcome.notes


@both_ways
@pytest.mark.parametrize(
    "mark", ["Result [SUCCESS]\nsunny", 'Tool Call: get_weather({"city":"Paris"})\nResult [ERROR]\nx']
)
async def test_results_that_the_model_makes_up_are_cut_off(stream: bool, mark: str) -> None:
    outcome = await ask(asking(stream=stream), f"{PARIS}\n\n{mark}\n\nIt is sunny.")
    assert outcome.summary == [("get_weather", {"city": "Paris"})]
    assert "cut_results" in outcome.notes
    assert outcome.model.answers[0].closed


@both_ways
async def test_a_call_written_like_a_line_of_results_is_a_call(stream: bool) -> None:
    """field: E41"""
    outcome = await ask(asking(stream=stream), 'Let me see.\nTool Call: get_weather({"city": "Paris"})')
    assert outcome.summary == ["Let me see.\n", ("get_weather", {"city": "Paris"})]
    assert "repaired_call" in outcome.notes
    assert outcome.response.reason == "tool_calls"


async def test_made_up_results_in_the_format_of_the_models_training_are_cut_off() -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    outcome = await ask(asking(), f"{call}\n<tool_response>\nsunny\n</tool_response>\nIt is sunny.", syntax="hermes")
    assert outcome.summary == [("get_weather", {"city": "Paris"})]
    assert "cut_results" in outcome.notes


async def test_text_that_only_looks_like_results_is_text() -> None:
    written = "Tool Call: is what it says.\nTool Call: other({})\nResult [\nTool Call: now({}) is a line.\nResults"
    outcome = await ask(asking(), written)
    assert outcome.summary == [written]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_tag_of_results_is_made_up_behind_a_call_and_text_everywhere_else(size: int) -> None:
    """A small model wrote a call and, in the same answer, the tag that our prompts put around results."""
    written = "\n<output>\n70368744\n</output>"
    answering, after_call = FakeResultFilter(["f"]), FakeResultFilter(["f"])
    after_call.after_call = True
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert "".join([answering.feed(piece) for piece in pieces]) + answering.release() == written
    assert ("".join([after_call.feed(piece) for piece in pieces]) + after_call.release()).strip() == ""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_like_a_result_is_text_behind_text_and_a_made_up_result_behind_a_call(size: int) -> None:
    written = " A log:\nResult [SUCCESS]\nabc\nResult [ERROR]"
    quoting, after_call = FakeResultFilter(["f"]), FakeResultFilter(["f"])
    after_call.after_call = True
    pieces = [written[place : place + size] for place in range(0, len(written), size)]
    assert "".join([*map(quoting.feed, pieces), quoting.release()]) == written
    assert "".join([*map(after_call.feed, pieces), after_call.release()]) == " A log:\n"


@both_ways
async def test_an_answer_of_made_up_results_alone_is_asked_for_again(stream: bool) -> None:
    outcome = await ask(asking(stream=stream), "\nResult [SUCCESS]\nsunny", "It is sunny.")
    assert outcome.summary == ["It is sunny."]
    assert "cut_results" in outcome.notes


async def test_the_upstream_gets_stop_sequences_for_made_up_results() -> None:
    outcome = await ask(asking(settings=RequestSettings(stop=("A", "B", "C"))), "Hello.")
    assert outcome.model.requests[0].settings.stop == ("A", "B", "C", "\nResult [SUCCESS]\n<output ")
    outcome = await ask(asking(), "Hello.", syntax="react")
    made_up = [f"\nResult [{word}]\n<output " for word in ("SUCCESS", "ERROR")]
    assert outcome.model.requests[0].settings.stop == (*made_up, "\nObservation:")
    outcome = await ask(asking(), "Hello.", stops=False)
    assert outcome.model.requests[0].settings.stop == ()


async def test_a_stop_sequence_of_our_own_is_not_reported_to_the_client() -> None:
    response = ModelResponse((Text(PARIS),), "stop", stop_sequence="\nResult [SUCCESS]\n<output ")
    outcome = await ask(asking(), response)
    assert (outcome.response.stop_sequence, outcome.warnings) == (None, ())


async def test_an_answer_without_a_call_that_ended_at_a_stop_sequence_of_our_own_has_a_warning() -> None:
    response = ModelResponse((Text("I looked."),), "stop", stop_sequence="\nObservation:")
    outcome = await ask(asking(), response, syntax="react")
    assert (outcome.summary, outcome.response.stop_sequence) == (["I looked."], None)
    assert "'Observation:'" in outcome.warnings[0]


async def test_a_broken_call_is_asked_for_again_if_nothing_of_it_was_emitted() -> None:
    """spec: T6"""
    outcome = await ask(asking(stream=False), f"Wait.\n{BROKEN}", PARIS)
    assert outcome.summary == [("get_weather", {"city": "Paris"})]
    assert outcome.notes.count("asked_again") == 1
    conversation = outcome.sent(1)
    assert conversation[1] == ("assistant", f"Wait.\n{BROKEN}")
    assert conversation[2][0] == "user"
    assert "get_weather" in conversation[2][1]
    assert present(outcome.response.usage).estimated


async def test_a_call_that_stays_broken_is_plain_text_with_a_warning() -> None:
    """T6, field: F22"""
    outcome = await ask(asking(stream=False), BROKEN, BROKEN, BROKEN, reasks=2)
    assert outcome.summary == [BROKEN]
    assert outcome.response.reason == "stop"
    assert len(outcome.model.requests) == 3
    assert outcome.notes[-1] == "given_up"
    assert any("get_weather" in warning for warning in outcome.warnings)


async def test_a_broken_call_that_was_emitted_is_not_asked_for_again() -> None:
    outcome = await ask(asking(stream=True), BROKEN)
    (call,) = outcome.response.parts
    assert of(ToolCall, call).name == "get_weather"
    assert len(outcome.model.requests) == 1
    assert "broken_call" in outcome.notes


async def test_good_calls_beside_a_broken_one_stay_calls() -> None:
    outcome = await ask(asking(stream=False), f"{PARIS}\n{BROKEN}", reasks=0)
    assert outcome.summary[0] == ("get_weather", {"city": "Paris"})
    assert isinstance(outcome.summary[1], str)
    assert outcome.response.reason == "tool_calls"


async def test_a_call_of_an_unknown_tool_is_asked_for_again() -> None:
    outcome = await ask(asking(stream=False), '<invoke name="get_wether">\n</invoke>', PARIS)
    assert outcome.summary == [("get_weather", {"city": "Paris"})]
    assert "'get_wether'; there are: get_weather, now." in outcome.sent(1)[-1][1]
    outcome = await ask(asking(stream=False), 'You would write <invoke name="that">\n</invoke> and so on.')
    assert len(outcome.model.requests) == 1


@both_ways
async def test_a_required_call_is_asked_for_once_more(stream: bool) -> None:
    """spec: T6"""
    outcome = await ask(asking(stream=stream, choice=ToolChoice("required")), "I would rather not.", f"Well.\n{PARIS}")
    assert outcome.summary == ["Well.\n", ("get_weather", {"city": "Paris"})]
    assert outcome.sent(0)[-1][1].endswith("You must call a tool now.")
    assert "must call" in outcome.sent(1)[-1][1]
    starts = [event for event in outcome.events if isinstance(event, StepStart)]
    assert len(starts) == 1


async def test_reasoning_is_emitted_before_a_required_call() -> None:
    model = ScriptedModel([[Reasoning("One two three."), Text(f"Well. {PARIS}")]])
    answer = await EmulatedModel(model, prompts=PROMPTS).ask(asking(choice=ToolChoice("required")))
    batches = answer.events()
    emitted: list[StepEvent] = []
    while len(emitted) < 3:
        emitted += await anext(batches)
    assert [type(event) for event in emitted] == [StepStart, PartStart, PartDelta]
    assert not model.answers[0].complete
    emitted += [event async for batch in batches for event in batch]
    assert [type(part) for part in fold(emitted).parts] == [Reasoning, Text, ToolCall]


@both_ways
async def test_a_model_that_never_makes_the_required_call_ends_with_a_warning(stream: bool) -> None:
    outcome = await ask(asking(stream=stream, choice=ToolChoice("required", ("now",))), "No.", "No!", reasks=5)
    assert outcome.summary == ["No!"]
    assert outcome.response.reason == "stop"
    assert len(outcome.model.requests) == 2
    assert outcome.notes == ["choice_unmet", "asked_again", "choice_unmet", "given_up"]
    assert any("now" in warning for warning in outcome.warnings) or stream


@both_ways
async def test_a_named_tool_is_the_only_one_that_may_be_called(stream: bool) -> None:
    choice = ToolChoice("required", ("now",))
    outcome = await ask(asking(stream=stream, choice=choice), PARIS, '<invoke name="now">\n</invoke>')
    assert outcome.summary == [("now", {})]
    assert "forbidden_call" in outcome.notes
    assert "get_weather" not in outcome.sent(0)[0][1]


@both_ways
async def test_no_tool_is_called_if_the_choice_is_none(stream: bool) -> None:
    history = (
        user(),
        Message("assistant", (ToolCall("c1", "now", "{}"),)),
        Message("tool", (ToolResult("c1", (Text("noon"),)),)),
    )
    choice = ToolChoice("none")
    outcome = await ask(asking(*history, stream=stream, choice=choice), f"It is noon.\n{PARIS}")
    assert [part.strip() for part in outcome.summary] == ["It is noon."]
    assert outcome.response.reason == "stop"
    assert "Do not call any tool now" in outcome.sent()[-1][1]
    outcome = await ask(asking(*history, stream=stream, choice=choice), PARIS, "It is noon.")
    assert outcome.summary == ["It is noon."]
    assert "get_weather" not in (await ask(asking(choice=choice), "Hello.")).sent()[0][1]


@both_ways
async def test_a_final_answer_is_text_and_calls_beside_it_are_calls(stream: bool) -> None:
    """spec: T5"""
    answer = '<invoke name="final_answer"><parameter name="answer">Yes.</parameter></invoke>'
    outcome = await ask(asking(stream=stream), answer)
    assert outcome.summary == ["Yes."]
    assert outcome.response.reason == "stop"
    outcome = await ask(asking(stream=stream), f"<final_answer>Yes.</final_answer>\n{PARIS}")
    assert outcome.summary == ["Yes.", ("get_weather", {"city": "Paris"})]
    assert outcome.response.reason == "tool_calls"


@both_ways
async def test_reasoning_passes_through_whether_native_or_between_marks(stream: bool) -> None:
    response = ModelResponse((Reasoning("Hm."), Text(PARIS)), "stop", Usage(10, 5, reasoning=2))
    outcome = await ask(asking(stream=stream), response)
    assert outcome.summary == [("reasoning", "Hm."), ("get_weather", {"city": "Paris"})]
    assert outcome.response.usage == Usage(10, 5, reasoning=2)
    outcome = await ask(asking(stream=stream), f"<think>Hm.</think>\n\n{PARIS}")
    assert outcome.summary == [("reasoning", "Hm."), ("get_weather", {"city": "Paris"})]


async def test_usage_of_every_answer_is_counted() -> None:
    """spec: T9"""
    first = ModelResponse((Text(BROKEN),), "stop", Usage(10, 5))
    second = ModelResponse((Text(PARIS),), "stop", Usage(20, 7))
    outcome = await ask(asking(stream=False), first, second)
    assert outcome.response.usage == Usage(30, 12)
    outcome = await ask(asking(), "Hello there.")
    assert present(outcome.response.usage).input > 100
    assert present(outcome.response.usage).estimated


async def test_a_call_cut_off_by_the_limit_is_not_whole_and_not_asked_for_again() -> None:
    cut = ModelResponse((Text('<invoke name="get_weather"><parameter name="city">Par'),), "length")
    for stream in (True, False):
        outcome = await ask(asking(stream=stream), cut)
        assert outcome.response.reason == "length"
        assert [part.complete for part in all_of(ToolCall, outcome.response.parts)] == [False]


async def test_images_leave_a_placeholder_and_a_warning() -> None:
    message = Message("user", (Text("What is it?"), Media("image", "image/png", data="AA==", name="a.png")))
    outcome = await ask(asking(message), "A cat.")
    assert 'image "a.png" (image/png) left out' in outcome.sent()[0][1]
    assert outcome.warnings == ("image content was left out: the model reads text only",)
    outcome = await ask(asking(message), "A cat.", images=True)
    assert [type(part) for part in outcome.model.requests[0].messages[0].parts] == [Text, Media]
    assert outcome.warnings == ()


async def test_images_in_results_reach_a_model_that_sees_them() -> None:
    picture, sound = Media("image", "image/png", data="AA=="), Media("audio", "audio/wav", data="AA==")
    result = Message("tool", (ToolResult("c1", (Text("here"), picture, sound)),))
    history = (user(), Message("assistant", (ToolCall("c1", "now", "{}"),)), result)
    outcome = await ask(asking(*history), "A cat.", images=True)
    text, shown = outcome.model.requests[0].messages[-1].parts
    assert shown == picture
    assert "here\n[audio (audio/wav) left out" in of(Text, text).text
    assert outcome.warnings == ("audio content was left out: the model reads text only",)


async def test_freeform_tools_and_invalid_names_come_back_as_the_client_sent_them() -> None:
    tools = (ToolDef("apply.patch", "Patches.", kind="freeform"), ToolDef("web", kind="hosted"))
    outcome = await ask(asking(tools=tools), lambda request: _call_first(request, "*** Begin"))
    (call,) = outcome.response.parts
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments, call.freeform) == ("apply.patch", "*** Begin", True)
    assert any("web" in warning for warning in outcome.warnings)


def _call_first(request: ModelRequest, text: str) -> str:
    """A call of the one tool that the prompt describes."""
    prompt = plain_text(request.messages[0].parts)
    name = prompt.split("## ")[1].split("\n")[0]
    return f'<invoke name="{name}">\n<parameter name="input">{text}</parameter>\n</invoke>'


async def test_an_output_schema_goes_into_the_prompt_where_there_are_tools() -> None:
    settings = RequestSettings(output=StructuredOutputFormat({"type": "object", "title": "Wanted"}))
    outcome = await ask(asking(settings=settings), "{}")
    assert '"title":"Wanted"' in outcome.sent()[0][1]
    assert outcome.model.requests[0].settings.output is None
    outcome = await ask(asking(settings=settings, tools=()), "{}")
    assert outcome.model.requests[0].settings.output is settings.output


async def test_several_choices_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="n must be 1"):
        await ask(asking(settings=RequestSettings(choices=2)), "Hello.")


async def test_a_failure_while_asking_again_is_raised_by_ask_if_nothing_is_streamed() -> None:
    with pytest.raises(UpstreamUnavailable):
        await ask(asking(stream=False), BROKEN, UpstreamUnavailable("It is down."))


async def test_neighbouring_messages_of_one_role_are_one_turn() -> None:
    outcome = await ask(asking(user("One."), user("Two.")), "Hello.")
    ((_, text),) = outcome.sent()
    assert text.endswith("One.\n\nTwo.")


async def test_every_syntax_makes_the_round_trip() -> None:
    for name, syntax in syntaxes().items():
        call = ToolCall("c1", "get_weather", '{"city": "Paris", "days": 3}')
        written = syntax.render([call], {"get_weather": WEATHER})
        result = Message("tool", (ToolResult("c1", (Text("sunny"),)),))
        outcome = await ask(asking(user(), Message("assistant", (call,)), result), written, syntax=name)
        assert outcome.summary == [("get_weather", {"city": "Paris", "days": 3})], name
        assert outcome.sent()[1] == ("assistant", written.strip("\n")), name


async def test_a_model_with_tools_can_get_system_messages_in_the_users_text() -> None:
    """spec: T1"""
    model = ScriptedModel(["Hello."])
    request = asking(Message("system", (Text("Be kind."),)), user("<system_context>mine</system_context>"))
    await read(await SystemToUserModel(model, PROMPTS).ask(request))
    (message,) = model.requests[0].messages
    assert plain_text(message.parts).startswith("<system_context_2>\nBe kind.\n</system_context_2>")
    assert model.requests[0].tools == TOOLS


async def test_a_closed_answer_is_cancelled_at_the_upstream() -> None:
    model = ScriptedModel(["One two three four five."])
    answer = await EmulatedModel(model, prompts=PROMPTS).ask(asking())
    async for _ in answer.events():
        break
    await answer.aclose()
    assert model.answers[0].closed


@both_ways
async def test_server_tools_run_with_an_emulated_model(stream: bool) -> None:
    """spec: X2, U3"""
    clock = '<invoke name="clock">\n</invoke>'
    model = ScriptedModel([f"Let me see.\n{clock}", f"Once more.\n{clock}", PARIS])
    box = Box()
    run = await ToolLoop(EmulatedModel(model, prompts=PROMPTS), box, Notes()).ask(asking(stream=stream))
    response = fold(await read(run))
    assert len(box.ran) == 2
    theirs = [part for part in response.parts if isinstance(part, ToolCall) and part.executor == "client"]
    assert [(call.name, call.arguments) for call in theirs] == [("get_weather", '{"city":"Paris"}')]
    assert response.reason == "tool_calls"
    last = [(message.role, plain_text(message.parts)) for message in model.requests[-1].messages]
    assert [role for role, _ in last] == ["user", "assistant", "user", "assistant", "user"]
    assert without_result_marks(last[-1][1]) == "Tool Call: clock({})\nResult [SUCCESS]\nnoon"


scraps = st.lists(
    st.sampled_from(
        ["Tool Call: ", "now", "({})", "(", "\n", "Result [SUCCESS]", "Result [", "---", "\n\n", " \n", "word ", "T"]
    )
)


@given(scraps, st.lists(st.integers(1, 9), min_size=1))
def test_where_made_up_results_are_split_changes_nothing(pieces: list[str], sizes: list[int]) -> None:
    text = "".join(pieces)
    whole, split = FakeResultFilter({"now"}), FakeResultFilter({"now"})
    expected = whole.feed(text) + whole.release()
    written, position = "", 0
    for size in itertools.cycle(sizes):
        if position >= len(text):
            break
        written += split.feed(text[position : position + size])
        position += size
    assert written + split.release() == expected
    assert (split.cut, split.calls) == (whole.cut, whole.calls)
    if not whole.cut and not whole.calls:
        assert expected == text


async def test_a_long_answer_costs_no_more_for_its_length() -> None:
    """spec: N2: a piece costs the same however much went before it."""
    text = '<invoke name="get_weather"><parameter name="city">' + "word " * 20_000 + "</parameter></invoke>"
    outcome = await asyncio.wait_for(ask(asking(), text), 30)
    assert len(outcome.summary[0][1]["city"]) == 100_000


HALF = '<invoke name="get_weather">\n<parameter name="city">Par'
MADE_UP = "Result [SUCCESS]\nIt is sunny."


@both_ways
@pytest.mark.parametrize("empty", ["", " \n", MADE_UP, "<think>Hm.</think>"])
async def test_an_empty_answer_is_asked_for_again(stream: bool, empty: str) -> None:
    outcome = await ask(asking(stream=stream), empty, "It is sunny.")
    assert outcome.summary[-1] == "It is sunny."
    assert "asked_again" in outcome.notes
    assert "It is empty" in outcome.sent(1)[-1][1]


@both_ways
@pytest.mark.parametrize("choice", [None, ToolChoice("required"), ToolChoice("none")])
async def test_an_answer_that_stays_empty_is_a_failure(stream: bool, choice: ToolChoice | None) -> None:
    with pytest.raises(EmptyModelAnswer):
        await ask(asking(stream=stream, choice=choice), "", " ")


async def test_a_streamed_call_that_breaks_off_ends_its_run_with_length() -> None:
    answer = await EmulatedModel(ScriptedModel([HALF])).ask(asking())
    events = [event async for batch in run_events(answer) for event in batch]
    call = next(event.part for event in events if isinstance(event, PartEnd))
    assert not of(ToolCall, call).complete
    assert of(StepEnd, events[-2]).reason == of(RunEnd, events[-1]).reason == "length"


@both_ways
async def test_a_call_of_a_server_tool_that_breaks_off_is_written_again(stream: bool) -> None:
    box = Box()
    model = ScriptedModel(['<invoke name="clock"><parameter name="zone">C', '<invoke name="clock"></invoke>', "Noon."])
    request = asking(tools=(), stream=stream)
    answer = await ToolLoop(EmulatedModel(model), box, Notes()).ask(request)
    response = fold([event async for batch in answer.events() for event in batch])
    assert plain_text(response.parts).strip() == "Noon."
    assert len(box.ran) == 1
    assert len(model.requests) == 3
