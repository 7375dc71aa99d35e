"""An upstream of all four dialects that behaves as each case says and remembers what it has reported to have used.

A case is recognised by its name in the request. Its behaviour says when usage is reported, how an answer ends, and after how
many frames of the last answer the upstream stands still until its connection is closed.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.upstreams.transport.faulty import Peer, chunk, head, reset, whole

INPUT, OUTPUT = 70_000, 30_000
"""What an answer reports; far more than anybody would count."""

TEXT = ("Well, ", "the sum ", "of both ", "is five.")
TOOL, ARGUMENTS = "add", '{"a":2,"b":3}'
_CASE = re.compile(rb"case-\d+")


@dataclass
class Case:
    """One request of a client: `stands_still` is the number of frames after which the last answer stops."""

    name: str
    client: str
    upstream: str
    stream: bool
    tools: bool
    usage: Literal["early", "late", "never"]
    ending: Literal["complete", "dies", "fails", "error first"]
    stands_still: int | None
    asked: int = 0
    reported: dict[int, tuple[int, int]] = field(default_factory=dict)
    paused: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def total(self) -> int:
        """All tokens that were reported so far."""
        return sum(map(sum, self.reported.values()))


class MeteredUpstream:
    """A script for `Faulty`."""

    def __init__(self, cases: list[Case]) -> None:
        self._cases = {case.name: case for case in cases}

    async def play(self, peer: Peer) -> None:
        """Answer the requests of one connection."""
        while (request := await peer.request()) is not None:
            found = _CASE.search(request.body)
            assert found is not None, request.body
            case = self._cases[found.group().decode()]
            case.asked += 1
            body = json.loads(request.body)
            if not await self._answer(peer, case, case.asked, body):
                return

    async def _answer(self, peer: Peer, case: Case, number: int, body: dict[str, Any]) -> bool:
        """Answer one request; whether the connection can be used again."""
        calling = case.tools and not _has_result(body)
        last = not calling
        if case.ending == "error first" and number == 1:
            case.reported[number] = (INPUT, OUTPUT)
            error = {"error": {"message": "busy"}, **_usage(case.upstream, INPUT, OUTPUT)}
            await peer.send(whole(json.dumps(error).encode()))
            return True
        if case.ending == "fails" and last:
            await peer.send(whole(b'{"error":{"message":"broken"}}', status="500 Oops"))
            return True
        frames = list(_frames(case, calling))
        if body.get("stream") is False or (not body.get("stream") and case.upstream != "ollama"):
            return await self._whole(peer, case, number, last, calling)
        await peer.send(head("transfer-encoding: chunked"))
        if last and case.ending == "dies":
            frames = frames[: len(frames) // 2]
        for place, (data, reported) in enumerate(frames):
            if last and place == case.stands_still:
                return await self._stand_still(peer, case)
            if reported is not None:
                case.reported[number] = reported
            await peer.send(chunk(data))
        if last and case.stands_still is not None:
            return await self._stand_still(peer, case)
        if last and case.ending == "dies":
            reset(peer.writer)
            return False
        await peer.send(chunk(b""))
        return True

    async def _whole(self, peer: Peer, case: Case, number: int, last: bool, calling: bool) -> bool:
        if last and case.stands_still is not None:
            return await self._stand_still(peer, case)
        body = json.dumps(_whole_body(case, calling)).encode()
        if last and case.ending == "dies":
            await peer.send(whole(body)[:-20])
            reset(peer.writer)
            return False
        if case.usage != "never":
            case.reported[number] = (INPUT, OUTPUT)
        await peer.send(whole(body))
        return True

    async def _stand_still(self, peer: Peer, case: Case) -> bool:
        case.paused.set()
        await peer.gone()
        return False


def _has_result(body: dict[str, Any]) -> bool:
    text = json.dumps(body)
    return '"function_call_output"' in text or '"tool_result"' in text or '"role": "tool"' in text


def _usage(dialect: str, given: int, made: int) -> dict[str, Any]:
    match dialect:
        case "openai_chat":
            return {"usage": {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}}
        case "ollama":
            return {"prompt_eval_count": given, "eval_count": made}
        case _:
            return {"usage": {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}}


def _whole_body(case: Case, calling: bool) -> dict[str, Any]:
    used = {} if case.usage == "never" else _usage(case.upstream, INPUT, OUTPUT)
    text = "" if calling else "".join(TEXT)
    function = {"name": TOOL, "arguments": ARGUMENTS}
    match case.upstream:
        case "openai_chat":
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if calling:
                message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calling else "stop"}
            return {"id": "x", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice], **used}
        case "openai_responses":
            item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", **function}
            output = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]}
            return {"id": "resp_x", "status": "completed", "output": [item if calling else output], **used}
        case "anthropic":
            block = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": json.loads(ARGUMENTS)}
            content = [block if calling else {"type": "text", "text": text}]
            reason = "tool_use" if calling else "end_turn"
            return {"id": "msg_1", "type": "message", "content": content, "stop_reason": reason, **used}
        case _:
            call = {"function": {"name": TOOL, "arguments": json.loads(ARGUMENTS)}}
            message = {"role": "assistant", "content": text, **({"tool_calls": [call]} if calling else {})}
            return {"model": "up", "message": message, "done": True, "done_reason": "stop", **used}


Frames = Iterator[tuple[bytes, tuple[int, int] | None]]


def _frames(case: Case, calling: bool) -> Frames:
    match case.upstream:
        case "openai_chat":
            return _chat(case, calling)
        case "openai_responses":
            return _responses(case, calling)
        case "anthropic":
            return _messages(case, calling)
        case _:
            return _lines(case, calling)


def _sse(event: dict[str, Any]) -> bytes:
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event)}\n\n".encode()


def _chat(case: Case, calling: bool) -> Frames:
    function = {"name": TOOL, "arguments": ARGUMENTS}
    call = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    deltas: list[dict[str, Any]] = [{"role": "assistant"}, *([call] if calling else [{"content": t} for t in TEXT]), {}]
    for made, delta in zip(itertools.count(1), deltas, strict=False):
        reason = None if delta else ("tool_calls" if calling else "stop")
        used = (INPUT, made) if case.usage == "early" else None
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        event = {"id": "x", "choices": [choice], **(_usage("openai_chat", *used) if used else {})}
        yield _sse(event), used
    if case.usage != "never":
        yield _sse({"id": "x", "choices": [], **_usage("openai_chat", INPUT, OUTPUT)}), (INPUT, OUTPUT)
    yield b"data: [DONE]\n\n", None


def _responses(case: Case, calling: bool) -> Frames:
    body = _whole_body(case, calling)
    item = body["output"][0]
    early = (INPUT, 1) if case.usage == "early" else None
    created = {"id": "resp_x", "status": "in_progress", **(_usage("openai_responses", *early) if early else {})}
    yield _sse({"type": "response.created", "response": created}), early
    opened = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
    yield _sse({"type": "response.output_item.added", "output_index": 0, "item": opened}), None
    kind = "function_call_arguments" if calling else "output_text"
    for text in [ARGUMENTS] if calling else TEXT:
        event = {"type": f"response.{kind}.delta", "item_id": item["id"], "output_index": 0, "delta": text}
        yield _sse(event), None
    yield _sse({"type": "response.output_item.done", "output_index": 0, "item": item}), None
    used = None if case.usage == "never" else (INPUT, OUTPUT)
    yield _sse({"type": "response.completed", "response": body}), used


def _messages(case: Case, calling: bool) -> Frames:
    body = _whole_body(case, calling)
    early = (INPUT, 1) if case.usage == "early" else None
    message = {"id": "msg_1", "type": "message", "content": [], **(_usage("anthropic", *early) if early else {})}
    yield _sse({"type": "message_start", "message": message}), early
    [block] = body["content"]
    opened = {**block, "input": {}} if calling else {"type": "text", "text": ""}
    yield _sse({"type": "content_block_start", "index": 0, "content_block": opened}), None
    for text in [ARGUMENTS] if calling else TEXT:
        delta = {"type": "input_json_delta", "partial_json": text} if calling else {"type": "text_delta", "text": text}
        yield _sse({"type": "content_block_delta", "index": 0, "delta": delta}), None
    yield _sse({"type": "content_block_stop", "index": 0}), None
    used = None if case.usage == "never" else (INPUT, OUTPUT)
    end = {"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}}
    yield _sse({**end, **(_usage("anthropic", *used) if used else {})}), used
    yield _sse({"type": "message_stop"}), None


def _lines(case: Case, calling: bool) -> Frames:
    body = _whole_body(case, calling)
    if calling:
        yield _line({**body, "done": False}), None
    else:
        for text in TEXT:
            yield _line({"model": "up", "message": {"role": "assistant", "content": text}, "done": False}), None
    used = None if case.usage == "never" else (INPUT, OUTPUT)
    yield _line({**body, "message": {"role": "assistant", "content": ""}}), used


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
