"""Steps, and the history_of that they add up to."""

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, Text, ToolCall, ToolResult
from toolgate.runs.step_records import (
    CallFinishedStep,
    CallRerunApprovedStep,
    CallStartedStep,
    ModelAnswerStep,
    Step,
    decode_steps,
    encode_step,
    finished_frames,
    history_of,
)

FIRST, SECOND = (ToolCall(f"call_{number}", "book", "{}", "gateway") for number in (1, 2))
ANSWER = Message("assistant", (Text("Go."), FIRST, SECOND))


def result(call: ToolCall, text: str = "done") -> ToolResult:
    return ToolResult(call.id, (Text(text),), False, call.name)


def test_stored_steps_are_decoded_and_a_missing_one_is_skipped() -> None:
    steps: list[Step] = [
        ModelAnswerStep(ANSWER, Usage(1, 2), 7),
        CallStartedStep("call_1"),
        CallRerunApprovedStep("call_1"),
        CallFinishedStep(result(FIRST)),
    ]
    texts = [encode_step(step) for step in steps]
    assert decode_steps([texts[0], "", *texts[1:]]) == steps


def test_results_are_in_the_order_of_their_calls() -> None:
    known = history_of([ModelAnswerStep(ANSWER), CallFinishedStep(result(SECOND)), CallFinishedStep(result(FIRST))])
    assert known.messages == (ANSWER, Message("tool", (result(FIRST),)), Message("tool", (result(SECOND),)))


def test_a_call_counts_as_started_until_it_ends_or_is_to_be_repeated() -> None:
    """fault: K-B"""
    assert history_of([ModelAnswerStep(ANSWER), CallStartedStep("call_1"), CallStartedStep("call_2")]).started == {
        "call_1",
        "call_2",
    }
    assert (
        history_of([ModelAnswerStep(ANSWER), CallStartedStep("call_1"), CallFinishedStep(result(FIRST))]).started
        == frozenset()
    )
    assert (
        history_of([ModelAnswerStep(ANSWER), CallStartedStep("call_1"), CallRerunApprovedStep("call_1")]).started
        == frozenset()
    )
    assert history_of(
        [ModelAnswerStep(ANSWER), CallStartedStep("call_1"), CallRerunApprovedStep("call_1"), CallStartedStep("call_1")]
    ).started == {"call_1"}


def test_usage_is_summed_over_answers_that_report_it() -> None:
    """fault: K-E"""
    steps = [ModelAnswerStep(ANSWER, Usage(1, 2)), ModelAnswerStep(ANSWER, None), ModelAnswerStep(ANSWER, Usage(3, 4))]
    assert history_of(steps).usage == Usage(4, 6)


def test_frames_up_to_the_last_finished_answer_are_valid() -> None:
    assert (
        finished_frames(
            [ModelAnswerStep(ANSWER, frames=4), CallFinishedStep(result(FIRST)), ModelAnswerStep(ANSWER, frames=9)]
        )
        == 9
    )
    assert finished_frames([]) == 0
