"""Describe runs as JSON: a run as it is listed, and its timeline with the content that its stored response holds. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.dialects.openai_responses.shared_codec import call_item_id
from toolgate.runs.timeline_recorder import TimelineCallEntry, TimelineEntry, TimelineStepEntry
from toolgate.storage.run_records import RunRecord

# Characters of a text, of arguments and of a result that a timeline shows; what is longer is marked.
MOST_TEXT = 16_000

# Characters of all texts that a timeline shows; where there are more, each is shown to an equal length.
MOST_CONTENT = 2_000_000

# States of runs that went to their end: on another node, their last entries may be written a moment later.
_GOOD = ("completed", "incomplete")


class RunTextsByStep(Struct, frozen=True):
    """What a run has written, by call and by step."""

    arguments: Mapping[str, str] = {}
    results: Mapping[str, str] = {}
    texts: Mapping[int, str] = {}

    @property
    def most_text(self) -> int:
        """Characters that are shown of each text."""
        lengths = [len(text) for texts in (self.arguments, self.results, self.texts) for text in texts.values()]
        fits = sum([min(length, MOST_TEXT) for length in lengths]) <= MOST_CONTENT
        return MOST_TEXT if fits else MOST_CONTENT // len(lengths)


NO_CONTENT = RunTextsByStep()


def run_object(run: RunRecord, *, can_fork: bool) -> dict[str, Any]:
    """Return a run as it is listed."""
    forked = None if run.forked_run is None else {"run": run.forked_run, "step": run.forked_step}
    return {
        "object": "run",
        "id": run.id,
        "kind": run.kind,
        "state": run.state,
        "model": run.model,
        "key": run.owner,
        "created": run.created,
        "started": run.started,
        "ended": run.ended,
        "steps": run.steps,
        "calls": run.calls,
        "tools": msgspec.json.decode(run.tools) if run.tools else [],
        "input_tokens": run.input_tokens,
        "output_tokens": run.output_tokens,
        "cost": round(run.cost, 8),
        "error": run.error,
        "response": run.response,
        "forked_from": forked,
        "can_cancel": not run.is_over,
        "can_fork": can_fork and run.response is not None and run.state != "queued",
    }


def timeline_object(
    run: RunRecord, entries: Sequence[TimelineEntry], content: RunTextsByStep = NO_CONTENT
) -> list[dict[str, Any]]:
    """Return the timeline of a run; what is still open although the run has failed was cut off.

    The result of a call is that of the last attempt at it.
    """
    offered: tuple[str, ...] = ()
    shown: list[dict[str, Any]] = []
    most = content.most_text
    last = {entry.call: entry for entry in entries if isinstance(entry, TimelineCallEntry)}
    for entry in entries:
        if isinstance(entry, TimelineStepEntry):
            # An entry names the offered tools only if they are others than those of the step before.
            offered = offered if entry.offered is None else entry.offered
            text = content.texts.get(entry.step) if entry.outcome != "failed" else None
            shown.append(_step_object(entry, offered, run) | _bounded("text", text, most))
        else:
            arguments = _bounded("arguments", content.arguments.get(entry.call), most)
            result = content.results.get(entry.call) if last[entry.call] is entry else None
            shown.append(_call_object(entry, run) | arguments | _bounded("result", result, most))
    return shown


def content_of(output: Sequence[Any], entries: Sequence[TimelineEntry]) -> RunTextsByStep:
    """Return the content of a run's steps and calls, from the output items of its response."""
    calls = {call_item_id("mcp_call", one.call): one for one in entries if isinstance(one, TimelineCallEntry)}
    asked = {one.approval: one for one in entries if isinstance(one, TimelineCallEntry) and one.approval}
    arguments: dict[str, str] = {}
    results: dict[str, str] = {}
    texts: dict[int, list[str]] = {}
    written: list[str] = []  # by the step whose calls follow
    for item in output:
        match item:
            case {"type": "mcp_call", "id": str(id), "arguments": str(text)} if id in calls:
                call = calls[id]
                arguments[call.call] = text
                if (result := result_text(item)) is not None:
                    results[call.call] = result
                texts.setdefault(call.step, []).extend(written)
                written = []
            # A call that still waits has no `mcp_call` yet.
            case {"type": "mcp_approval_request", "id": str(id), "arguments": str(text)} if id in asked:
                arguments[asked[id].call] = text
            case {"type": "message", "role": "assistant", "content": [*parts]}:
                written += [part["text"] for part in parts if type(part) is dict and type(part.get("text")) is str]
    if written:  # after the last call: the answer of the last step
        last = max([one.step for one in entries], default=1)
        texts.setdefault(last, []).extend(written)
    return RunTextsByStep(arguments, results, {step: "\n\n".join(some) for step, some in texts.items()})


def result_text(item: Mapping[str, Any]) -> str | None:
    """Return the result of a call that the server ran; None if it has none."""
    match item:
        case {"output": str(text)}:
            return text
        case {"error": {"content": [{"text": str(text)}, *_]}} | {"error": {"message": str(text)}}:
            return text
        case _:
            return None


def _step_object(entry: TimelineStepEntry, offered: Sequence[str], run: RunRecord) -> dict[str, Any]:
    outcome: str = entry.outcome
    if outcome == "running" and run.is_over:
        outcome = "answer" if run.state in _GOOD else "failed"
    return {
        "type": "step",
        "step": entry.step,
        "started": entry.started,
        "ended": entry.ended,
        "outcome": outcome,
        "model": entry.model,
        "input_tokens": entry.input_tokens,
        "output_tokens": entry.output_tokens,
        "offered": list(offered),
        "copied": entry.copied,
    }


def _call_object(entry: TimelineCallEntry, run: RunRecord) -> dict[str, Any]:
    outcome: str = entry.outcome
    # A tool that had started when its run was cut off may have taken effect; one that had not has done nothing.
    if run.is_over and outcome == "running" and (run.state in _GOOD or entry.tool_started is not None):
        outcome = "completed" if run.state in _GOOD else "unknown"
    elif run.is_over and outcome in ("running", "waiting") and run.state not in _GOOD:
        outcome = "cancelled"
    return {
        "type": "call",
        "step": entry.step,
        "call": entry.call,
        "tool": entry.tool,
        "source": entry.source,
        "started": entry.started,
        "tool_started": entry.tool_started,
        "ended": entry.ended,
        "outcome": outcome,
        "approval": entry.approval,
        "copied": entry.copied,
    }


def _bounded(name: str, text: str | None, most: int) -> dict[str, Any]:
    if text is None or len(text) <= most:
        return {name: text}
    return {name: text[:most], f"{name}_length": len(text)}
