"""Match the tool results of a history to its calls by id, before a request is translated.

A result that answers no call is the client's mistake. A call without a result is not: clients lose results when a turn is
interrupted, and without an error result in its place the conversation could never continue.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from typing import TypeAlias

import msgspec

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Extra, Message, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest

NumberedMessage: TypeAlias = tuple[int, Message]

LOST_RESULT = "No result was recorded for this tool call: it was interrupted or its result was lost."


def match_results(
    request: ModelRequest, strict: bool = False, lenient: bool = False, resumable: bool = False
) -> ModelRequest:
    """Return the request with one result for every call, right behind the calls and in their order.

    `strict` rejects a call without a result; `lenient` drops a result without a call instead of rejecting it. In a
    `resumable` conversation the gateway's own calls at its end may still be waiting to be run.
    """
    # A conversation without calls is done here, before anything is copied.
    for message in request.messages:
        if message.role == "tool" or (message.role == "assistant" and _calls(message)):
            break
    else:
        return request
    warnings = list(request.warnings)
    turns = tuple(_join_turns(request.messages))
    waiting: set[str] = set()  # ids of calls that need no result yet
    if resumable:
        joined = tuple([message for _, message in turns])
        earlier, later = split_at_waiting_calls(msgspec.structs.replace(request, messages=joined))
        decided = {decision.approval for decision in request.decisions}
        # Where the client goes on behind its calls, only those wait that it has decided on.
        waiting = {call.id for call in unanswered_calls(earlier) if not later or call.approval in decided}
    messages = tuple(_with_results(turns, warnings, strict, lenient, waiting))
    if messages == request.messages and len(warnings) == len(request.warnings):
        return request
    return msgspec.structs.replace(request, messages=messages, warnings=tuple(warnings))


def _join_turns(messages: Iterable[Message]) -> Iterator[NumberedMessage]:
    """Join the messages that one turn of the model was split into, and number each by its place in the request.

    Some clients send a turn's text and each of its calls as separate messages, and a result put behind its call would
    then stand in the middle of the turn.
    """
    for role, group in groupby(enumerate(messages), key=lambda entry: entry[1].role):
        if role != "assistant":
            yield from group
            continue
        (number, first), *more = group
        if more:
            split = [first, *[message for _, message in more]]
            parts = tuple([part for message in split for part in message.parts])
            first = Message("assistant", parts, reduce(_merge_extra, [message.extra for message in split]))
        yield number, first


def _merge_extra(one: Extra, other: Extra) -> Extra:
    if not (one and other):
        return one or other
    return {dialect: {**one.get(dialect, {}), **other.get(dialect, {})} for dialect in {**one, **other}}


def unanswered_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the gateway's calls at the end of the conversation that have no result yet."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.role == "assistant":
            calls = [call for call in _calls(message) if call.executor == "gateway" and call.complete]
            return [call for call in calls if call.id not in answered]
        if message.role != "tool":
            return []
        answered |= {part.call_id for part in message.parts if isinstance(part, ToolResult)}
    return []


def split_at_waiting_calls(request: ModelRequest) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the history up to the gateway's calls that are still to be run, and what the client sent behind them.

    Calls wait at the end of the history. A client that answers approval requests and adds a message in one request has
    its calls run first, so that the model reads the message behind their results.
    """
    messages, end = request.messages, len(request.messages)
    if not request.decisions:
        return messages, ()
    while end and messages[end - 1].role in ("user", "system"):
        end -= 1
    decided = {decision.approval for decision in request.decisions}
    if any(call.approval in decided for call in unanswered_calls(messages[:end])):
        return messages[:end], messages[end:]
    return messages, ()


def _with_results(
    turns: tuple[NumberedMessage, ...], warnings: list[str], strict: bool, lenient: bool, waiting: Collection[str]
) -> Iterator[Message]:
    results = _results_by_call(turns, warnings, lenient)
    for number, message in turns:
        if message.role == "tool":
            continue
        yield message
        calls = _calls(message)
        for position, call in enumerate(calls):
            result = results.get((number, position))
            if result is None and call.id in waiting:
                continue
            if result is None:
                if strict:
                    raise InvalidRequest(f"The tool call {call.id!r} has no result.", param=f"messages[{number}]")
                if message is turns[-1][1]:
                    continue  # the conversation ends in a call: a prefill, or a turn that the caller completes
                warnings.append(f"tool call {call.id} had no result: an error result was supplied")
                result = Message("tool", (ToolResult(call.id, (Text(LOST_RESULT),), True, call.name),))
            yield result


def _results_by_call(
    turns: tuple[NumberedMessage, ...], warnings: list[str], lenient: bool
) -> dict[tuple[int, int], Message]:
    """Return the message that answers each call, addressed by the call's message and position in it.

    Ids may repeat in every round, so a result belongs to the nearest earlier call of that id.
    """
    latest: dict[str, tuple[int, int]] = {}
    names: dict[tuple[int, int], str] = {}
    answers: dict[tuple[int, int], Message] = {}
    for number, message in turns:
        for position, call in enumerate(_calls(message)):
            latest[call.id] = (number, position)
            names[(number, position)] = call.name
        if message.role != "tool":
            continue
        for part in message.parts:
            if not isinstance(part, ToolResult):
                continue
            address = latest.get(part.call_id)
            if address is None:
                if not lenient:
                    raise InvalidRequest(
                        f"The tool result for {part.call_id!r} matches no earlier tool call.",
                        param=f"messages[{number}].tool_call_id",
                        code="unknown_tool_call_id",
                    )
                warnings.append(f"a tool result for {part.call_id} matches no earlier call and was ignored")
                continue
            if address in answers:
                warnings.append(f"tool call {part.call_id} had several results: the last one was kept")
            part = part if part.name else msgspec.structs.replace(part, name=names[address])
            answers[address] = Message("tool", (part,), message.extra)
    return answers


def _calls(message: Message) -> list[ToolCall]:
    if message.role != "assistant":
        return []
    return [part for part in message.parts if isinstance(part, ToolCall) and part.executor != "provider"]
