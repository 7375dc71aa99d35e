"""Choose the items that a fork copies of a run, with the edits of its client. Pure.

The items of a run are in the order of its steps, so that those up to the last call of a step belong to this step and to
those before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Conflict, InvalidRequest
from toolgate.conversation.random_ids import random_suffix
from toolgate.dialects.openai_responses.shared_codec import SERVER_LABEL, call_item_id
from toolgate.runs.timeline_recorder import TimelineCallEntry, TimelineEntry, TimelineStepEntry

# The code of the error for a run whose content is not stored.
NOT_STORED = "not_stored"


class ForkQuery(Struct, frozen=True):
    """What a client wants of a fork: the last step to copy, and its changes."""

    step: int = 0
    model: str | None = None
    results: Mapping[str, str] = {}
    message: str | None = None
    instructions: str | None = None


class CopiedSteps(Struct, frozen=True):
    """The items of the copied steps, and their entries in the timeline."""

    items: list[Any]
    entries: list[TimelineEntry]


def copy_steps(items: Sequence[Any], entries: Sequence[TimelineEntry], query: ForkQuery) -> CopiedSteps:
    """Return the steps up to the one that is asked for; all their calls must have a result, their own or an edited one."""
    calls = {one.call: one for one in entries if isinstance(one, TimelineCallEntry) and one.step <= query.step}
    _check_step(entries, calls, query)
    if unknown := [call for call in query.results if call not in calls]:
        raise InvalidRequest(
            f"results names the call {unknown[0][:100]!r}, which is not one of the copied steps.",
            param="results",
            code="unknown_call",
        )
    # The items of a call: its `mcp_call`, and its `mcp_approval_request` if a person was asked.
    by_item = {call_item_id("mcp_call", call): call for call in calls}
    by_item |= {one.approval: one.call for one in calls.values() if one.approval}
    ids = {call: f"call_{random_suffix()}" for call in query.results}
    copied: dict[str, int] = {}  # where the item with the result of a call is in `kept`
    kept: list[Any] = []
    for item in items:
        call = by_item.get(item.get("id", "")) if type(item) is dict else None
        edited = None if call is None else _edited(item, call, query.results, ids)
        if edited is not None and call in copied:
            kept[copied[call]] = edited  # a question to a person stands before the call that it was about
            continue
        kept.append(item if edited is None else edited)
        if call is None:
            continue
        ended = item.get("type") == "mcp_call" and (item.get("output") is not None or item.get("error") is not None)
        if edited is not None or ended:
            copied[call] = len(kept) - 1
    if missing := [call for call in calls if call not in copied]:
        raise Conflict(
            f"The call {missing[0][:100]!r} of {calls[missing[0]].tool} has no result that is stored, so that the run "
            f"cannot be continued after step {query.step}: give one in results, or take an earlier step.",
            code=NOT_STORED,
        )
    # What follows the last copied call belongs to later steps.
    end = max(copied.values(), default=-1) + 1
    # What was cut off and made again is not copied: neither the step nor the attempt at a call.
    done = [
        one
        for one in entries
        if one.step <= query.step
        and (one.outcome == "tool_calls" if isinstance(one, TimelineStepEntry) else calls[one.call] is one)
    ]
    return CopiedSteps(kept[:end], [_copied_entry(one, ids) for one in done])


def edit_message(input: Sequence[Any], text: str | None) -> list[Any]:
    """Return the input with this text in place of that of the last message of the user; its images and files stay."""
    if text is None:
        return list(input)
    for place in range(len(input) - 1, -1, -1):
        match input[place]:
            case {"role": "user", "content": content}:
                parts = content if type(content) is list else []
                kept = [
                    part for part in parts if type(part) is not dict or part.get("type") not in ("input_text", "text")
                ]
                edited = {**input[place], "content": [{"type": "input_text", "text": text}, *kept]}
                return [*input[:place], edited, *input[place + 1 :]]
    raise InvalidRequest("The run has no message of the user that could be edited.", param="message")


def next_choice(choice: Any, step: int) -> Any:
    """Return the tool choice with which a run goes on: a call that was demanded has been made in the first step."""
    match choice:
        case "required" | {"type": "function" | "custom" | "mcp"} | {"mode": "required"} if step:
            return "auto"
        case _:
            return choice


def _check_step(entries: Sequence[TimelineEntry], calls: Mapping[str, TimelineCallEntry], query: ForkQuery) -> None:
    if query.step == 0:
        return
    steps = {one.step for one in entries if isinstance(one, TimelineStepEntry)}
    if query.step not in steps:
        raise InvalidRequest(
            f"The run has no step {query.step}; it has {max(steps, default=0)}.", param="step", code="invalid_value"
        )
    if not any(one.step == query.step for one in calls.values()):
        raise InvalidRequest(
            f"Step {query.step} called no tool of the server, so that there is nothing to continue after it: take the "
            "step before, or continue the response with previous_response_id.",
            param="step",
            code="invalid_value",
        )


def _edited(item: Mapping[str, Any], call: str, results: Mapping[str, str], ids: Mapping[str, str]) -> Any | None:
    """Return the item of a call with its edited result, under a new id: stored results are found by their call's id."""
    if call not in results:
        return None
    fields = {"server_label": SERVER_LABEL, "name": item.get("name"), "arguments": item.get("arguments")}
    return {
        "id": call_item_id("mcp_call", ids[call]),
        "type": "mcp_call",
        "status": "completed",
        **fields,
        "output": results[call],
        "error": None,
    }


def _copied_entry(entry: TimelineEntry, ids: Mapping[str, str]) -> TimelineEntry:
    if isinstance(entry, TimelineStepEntry):
        return replace(entry, copied=True)
    if entry.call not in ids:
        return replace(entry, copied=True)
    return replace(entry, copied=True, call=ids[entry.call], outcome="completed")
