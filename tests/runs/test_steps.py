"""Steps, and the past that they add up to."""

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, Text, ToolCall, ToolResult
from toolgate.runs.steps import Again, Answered, Ended, Intended, Step, past, read, told, write

FIRST, SECOND = (ToolCall(f"call_{number}", "book", "{}", "gateway") for number in (1, 2))
ANSWER = Message("assistant", (Text("Go."), FIRST, SECOND))


def result(call: ToolCall, text: str = "done") -> ToolResult:
    return ToolResult(call.id, (Text(text),), False, call.name)


def test_what_is_written_is_read_again_and_a_missing_step_is_passed_over() -> None:
    steps: list[Step] = [Answered(ANSWER, Usage(1, 2), 7), Intended("call_1"), Again("call_1"), Ended(result(FIRST))]
    texts = [write(step) for step in steps]
    assert read([texts[0], "", *texts[1:]]) == steps


def test_results_stand_in_the_order_of_their_calls() -> None:
    known = past([Answered(ANSWER), Ended(result(SECOND)), Ended(result(FIRST))])
    assert known.messages == (ANSWER, Message("tool", (result(FIRST),)), Message("tool", (result(SECOND),)))


def test_a_call_has_begun_from_its_intent_to_its_end_or_until_a_person_wants_it_again() -> None:
    """fault: K-B"""
    assert past([Answered(ANSWER), Intended("call_1"), Intended("call_2")]).started == {"call_1", "call_2"}
    assert past([Answered(ANSWER), Intended("call_1"), Ended(result(FIRST))]).started == frozenset()
    assert past([Answered(ANSWER), Intended("call_1"), Again("call_1")]).started == frozenset()
    assert past([Answered(ANSWER), Intended("call_1"), Again("call_1"), Intended("call_1")]).started == {"call_1"}


def test_usage_adds_up_and_an_answer_that_did_not_say_takes_nothing_away() -> None:
    """fault: K-E"""
    steps = [Answered(ANSWER, Usage(1, 2)), Answered(ANSWER, None), Answered(ANSWER, Usage(3, 4))]
    assert past(steps).usage == Usage(4, 6)


def test_what_was_told_up_to_the_last_finished_answer_holds() -> None:
    assert told([Answered(ANSWER, told=4), Ended(result(FIRST)), Answered(ANSWER, told=9)]) == 9
    assert told([]) == 0
