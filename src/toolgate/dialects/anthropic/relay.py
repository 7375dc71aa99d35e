"""Messages to Messages: events pass as they came, and only what breaks clients is mended.

Mended are a missing or second `message_start`, usage without the counts that SDKs demand, empty text blocks, starts and
stops said twice or not at all, the numbers of blocks, blocks that are open side by side, characters that are cut in two,
thinking sent into a block of text, inputs that come whole in the start of a call or quoted twice, ids that clients refuse,
a stop reason that forgets the calls, and a missing `message_stop`. A call whose arguments turn out to be no JSON object
ends the stream with an error. Unknown fields, blocks and events stay as they are.
"""

import re
from typing import Any

from toolgate.conversation import ids
from toolgate.conversation.arguments import ArgumentStream, as_object, as_text, is_object, settled
from toolgate.conversation.errors import Garbled, ToolgateError
from toolgate.conversation.events import FinishReason, ModelResponse, Usage
from toolgate.conversation.message import Part
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.stock import names_of
from toolgate.conversation.surrogates import SurrogateJoiner
from toolgate.dialects.anthropic.server import encode_stream_error, unusable_arguments
from toolgate.dialects.anthropic.stream import object_of, read_event
from toolgate.dialects.anthropic.words import (
    ID_PATTERN,
    event_bytes,
    is_official,
    read_reason,
    read_usage,
    write_message,
    write_reason,
    write_usage,
)
from toolgate.dialects.dialect import PassedText, Reply
from toolgate.wire.frames import Frame

_ID = re.compile(ID_PATTERN)
_OF_A_BLOCK = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
_KINDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class _Block:
    """A block that is open: its number for the client, once it has one, and what was held back."""

    __slots__ = ("arguments", "given_id", "input", "kind", "number", "pairs", "start")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.kind: str = start["content_block"]["type"]
        self.given_id = start["content_block"].get("id")
        self.number: int | None = None
        self.input: Any = None
        self.arguments = ArgumentStream()
        self.pairs = SurrogateJoiner()

    def is_open_call(self) -> bool:
        """Whether arguments may still come for it."""
        return self.kind == "tool_use" and not is_object(settled("".join(self.arguments.pieces) or "?"))


class MessagesRelay:
    """Passes a message stream on."""

    def __init__(self, request: ModelRequest, reply: Reply) -> None:
        self.done = False
        self.names = CallNames(names_of(request.tools))
        self.usage: Usage | None = None
        self._reply = reply
        self._began = False
        self._blocks: dict[Any, _Block] = {}
        self._count = 0
        self._current: Any = None  # the index of the call for whose end others wait
        self._waiting: dict[Any, list[dict[str, Any]]] = {}  # events of blocks that began amid a call, by their index
        self._ids: set[str] = set()
        self._reason: FinishReason | None = None
        self._unusable: str | None = None  # the tool of a call whose arguments are no object
        self._passed = PassedText()
        self._held: dict[str, Any] | None = None  # a message_delta for want of usage

    @property
    def reason(self) -> FinishReason | None:
        """Why the answer ended, once it has."""
        return self._reason

    @property
    def calls(self) -> int:
        """How many calls it holds so far."""
        return len(self._ids)

    @property
    def lacks_usage(self) -> bool:
        """Whether the answer is complete without usage."""
        return self.done and self.usage is None

    def received(self) -> list[Part]:
        """The texts of all blocks so far."""
        return self._passed.parts()

    def feed(self, frame: Frame) -> bytes:
        """The event as the client should see it."""
        event = None if self.done else read_event(frame)
        if event is None:
            return b""
        match event["type"]:
            case "content_block_delta" if not self._waiting:
                return self._begin() + self._delta(event)
            case kind if kind in _OF_A_BLOCK:
                return self._begin() + self._block_event(event)
            case "message_start":
                return self._begin(event)
            case "message_delta":
                return self._begin() + self._close_all() + self._message_delta(event)
            case "message_stop":
                return self._begin() + self._finish()
            case _:
                return event_bytes(event)

    def error(self, error: ToolgateError) -> bytes:
        """The error as an event; nothing follows it."""
        return encode_stream_error(error, self._reply.request_id)

    def end(self) -> bytes:
        """What is left to say."""
        if self.done:
            return b""
        if self._reason is None:
            raise Garbled("The upstream's stream ended before the answer was complete.")
        return self._finish()

    def _begin(self, event: dict[str, Any] | None = None) -> bytes:
        if self._began:
            return b""
        self._began = True
        event = event or {"type": "message_start"}
        said = event.get("message") or {}
        self.usage = read_usage(said.get("usage"))
        usage = {**write_usage(self.usage or Usage()), **_said(said.get("usage"))}
        plain = write_message(self._reply, [], None, None, Usage())
        message = {**plain, **_said(said), "content": [], "stop_reason": None, "usage": usage}
        return event_bytes({**event, "message": message})

    def _block_event(self, event: dict[str, Any]) -> bytes:
        """The event if it is this block's turn: clients read one block at a time, while calls may come side by side."""
        index = event.get("index")
        if not self._waiting:
            if event["type"] != "content_block_start" or not self._is_amid_call(index):
                return self._of_block(event)
        elif index == self._current:
            told = self._of_block(event)
            return told + self._next_blocks() if index not in self._blocks else told
        self._waiting.setdefault(index, []).append(event)
        return b""

    def _is_amid_call(self, beginning: Any) -> bool:
        """Whether the block that begins must wait for the end of a call."""
        found = [index for index, block in self._blocks.items() if index != beginning and block.is_open_call()]
        self._current = found[0] if found else None
        return bool(found)

    def _next_blocks(self) -> bytes:
        """The blocks that waited, up to one for whose end the others have to wait on."""
        told = b""
        while self._waiting:
            self._current = next(iter(self._waiting))
            told += b"".join([self._of_block(event) for event in self._waiting.pop(self._current)])
            if self._current in self._blocks and self._blocks[self._current].is_open_call():
                break
        return told

    def _of_block(self, event: dict[str, Any]) -> bytes:
        match event["type"]:
            case "content_block_delta":
                return self._delta(event)
            case "content_block_start":
                return self._start(event)
            case _:
                return self._stop(event.get("index"))

    def _start(self, event: dict[str, Any]) -> bytes:
        index, value = event.get("index"), object_of(event, "content_block")
        kind = str(value.get("type"))
        before = self._blocks.get(index)
        if before is not None and before.kind == kind and before.given_id == value.get("id"):
            return b""
        closed = self._close_open()
        block = self._blocks[index] = _Block(
            {**event, "content_block": {**_EMPTY.get(kind, {}), **value, "type": kind}}
        )
        if kind == "tool_use":
            self._mend_call(block)
        self._keep(value, index)
        if kind == "text" and not value.get("text"):
            return closed  # it begins with its first words, or not at all
        return closed + self._open(block)

    def _mend_call(self, block: _Block) -> None:
        value = block.start["content_block"]
        if not value.get("name"):
            raise Garbled("The upstream sent a tool call without a name.")
        value["name"] = self.names.correct(as_text(value["name"]))
        block.input = value.get("input")
        value |= {"id": self._fitting_id(as_text(value.get("id"))), "input": {}}

    def _fitting_id(self, given: str) -> str:
        id = mended_id(given, self._ids)
        self._ids.add(id)
        return id

    def _open(self, block: _Block) -> bytes:
        block.number = self._count
        self._count += 1
        return event_bytes({**block.start, "index": block.number})

    def _delta(self, event: dict[str, Any]) -> bytes:
        delta = object_of(event, "delta")
        index, kind = event.get("index"), _KINDS.get(delta.get("type", ""))
        block = self._blocks.get(index)
        if kind == "text" and not delta.get("text"):
            return b""
        before = b""
        if block is None or (kind is not None and block.kind != kind and block.kind in _EMPTY):
            if kind is None:
                return self._stray(delta)
            before = self._start_anew(index, kind)
            block = self._blocks[index]
        if block.number is None:
            before += self._open(block)
        if "partial_json" in delta:
            delta["partial_json"] = block.arguments.feed(as_text(delta["partial_json"]))
            if not delta["partial_json"]:
                return before
        elif kind is not None and type(text := delta.get(kind)) is str and text:
            delta[kind] = block.pairs.feed(text)
            if not delta[kind] and delta.keys() == {"type", kind}:
                return before
        self._keep(delta, index)
        event["index"] = block.number
        return before + event_bytes(event)

    def _keep(self, value: dict[str, Any], index: Any) -> None:
        """Keep the text of a delta, or of a block's start, for counting."""
        passed = self._passed
        match value:
            case {"type": "text_delta" | "text", "text": str(text)}:
                passed.text.append(text)
            case {"type": "input_json_delta", "partial_json": str(text)}:
                passed.calls.setdefault((index, len(self._ids)), [""]).append(text)
            case {"type": "tool_use", "name": name}:
                passed.calls[index, len(self._ids)] = [as_text(name)]
            case {"type": "thinking_delta" | "thinking", "thinking": str(text)}:
                passed.thoughts.append(text)

    def _start_anew(self, index: Any, kind: str) -> bytes:
        closed = self._close_open()
        self._blocks[index] = _Block(
            {"type": "content_block_start", "index": index, "content_block": dict(_EMPTY[kind])}
        )
        return closed

    def _stray(self, delta: dict[str, Any]) -> bytes:
        """A delta for a block that is not open: arguments are missed by somebody, anything else by nobody."""
        if str(delta.get("partial_json") or "").strip():
            raise Garbled("The upstream sent arguments for a tool call that it never began.")
        return b""

    def _stop(self, index: Any) -> bytes:
        block = self._blocks.pop(index, None)
        if block is None or block.number is None:
            return b""
        return self._rest_of(block) + event_bytes({"type": "content_block_stop", "index": block.number})

    def _rest_of(self, block: _Block) -> bytes:
        """What was held back of a block, which ends."""
        if block.kind in _EMPTY:
            kind = f"{block.kind}_delta"
            return self._last_delta(block, kind, block.kind, block.pairs.end())
        if not block.arguments.pieces and block.input:
            block.arguments.feed(as_text(block.input))
            text = settled("".join(block.arguments.pieces))
        else:
            text = block.arguments.end() if block.arguments.pieces else ""
        if (
            block.kind == "tool_use"
            and block.arguments.pieces
            and not is_object(settled("".join(block.arguments.pieces)))
        ):
            self._unusable = block.start["content_block"]["name"]
        return self._last_delta(block, "input_json_delta", "partial_json", text)

    def _last_delta(self, block: _Block, kind: str, field: str, text: str) -> bytes:
        delta = {"type": kind, field: text}
        event = {"type": "content_block_delta", "index": block.number, "delta": delta}
        return event_bytes(event) if text else b""

    def _close_open(self) -> bytes:
        return b"".join([self._stop(index) for index in list(self._blocks)])

    def _close_all(self) -> bytes:
        """End the open block and those that waited for it."""
        told = b""
        while self._waiting:
            told += self._close_open() + self._next_blocks()
        return told + self._close_open()

    def _message_delta(self, event: dict[str, Any]) -> bytes:
        delta = dict(event.get("delta") or {})
        self.usage = read_usage(event.get("usage"), self.usage)
        word = delta.get("stop_reason")
        if type(word) is str:
            self._reason, delta["stop_reason"] = mended_reason(word, bool(self._ids), delta.get("stop_sequence"))
        if self._unusable is not None and self._reason in ("stop", "tool_calls"):
            raise unusable_arguments(self._unusable)
        if self.usage is None:
            self._held = {**event, "delta": delta}
            return b""
        return event_bytes({**event, "delta": delta, "usage": {**write_usage(self.usage), **_said(event.get("usage"))}})

    def _finish(self) -> bytes:
        self.done = True
        closed = self._close_all()
        if self._reason is None:  # a message_stop that no reason preceded
            closed += self._message_delta({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
        return closed if self.usage is None else closed + event_bytes({"type": "message_stop"})

    def end_with(self, usage: Usage) -> bytes:
        """The last events, with this usage."""
        self.usage = usage
        last = {**(self._held or {"type": "message_delta", "delta": {}}), "usage": write_usage(usage)}
        return event_bytes(last) + event_bytes({"type": "message_stop"})


def _said(value: Any) -> dict[str, Any]:
    """What an object says, without the fields that it leaves open."""
    return {name: held for name, held in value.items() if held is not None} if type(value) is dict else {}


def mended_id(given: str, used: set[str]) -> str:
    """The id if clients accept it and it is new, else another from which the upstream's own is found again."""
    if _ID.fullmatch(given) and given not in used:
        return given
    return ids.portable(given) if given and given not in used else ids.new_call_id()


def mended_reason(word: str, called: bool, stop_sequence: Any) -> tuple[FinishReason, str]:
    """The finish reason and its word, told by what the answer holds."""
    reason = read_reason(word)
    if reason == "stop" and called:
        return "tool_calls", write_reason("tool_calls")
    if reason == "tool_calls" and not called:
        return "stop", write_reason("stop")
    return reason, word if is_official(word) else write_reason(reason, stop_sequence)


def mend_response(body: dict[str, Any], response: ModelResponse, reply: Reply) -> dict[str, Any]:
    """A whole answer as it came, with empty texts left out and calls, reason and usage mended."""
    used: set[str] = set()
    content = [_mended(block, used) for block in body["content"] if not _is_empty_text(block)]
    plain = write_message(reply, content, None, None, response.usage or Usage())
    usage = {**plain["usage"], **_said(body.get("usage"))}
    stop_sequence = body.get("stop_sequence")
    _, word = mended_reason(as_text(body.get("stop_reason")) or "end_turn", bool(used), stop_sequence)
    fixed = {"content": content, "type": "message", "role": "assistant", "stop_reason": word, "usage": usage}
    return {**plain, **{name: held for name, held in body.items() if held is not None or name not in plain}, **fixed}


def _is_empty_text(block: Any) -> bool:
    return type(block) is dict and block.get("type") == "text" and not block.get("text")


def _mended(block: Any, used: set[str]) -> Any:
    if type(block) is not dict or block.get("type") != "tool_use":
        return block
    id = mended_id(as_text(block.get("id")), used)
    used.add(id)
    given = block.get("input")
    return {**block, "id": id, "input": given if type(given) is dict else as_object(as_text(given))}
