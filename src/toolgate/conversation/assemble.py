"""Fragments as upstreams send them, told as well-formed events.

Upstreams interleave parallel calls, split names, repeat ids or leave them out, quote arguments twice and put blanks
around them. Every decoder hands its fragments to an `Assembler`, which keeps the grammar of `events.py`: one part open
at a time, every part closed by its whole value. The first part in the queue is open and told as it comes; later ones
wait for it.

A fragment costs O(1): fragments are collected in lists and joined once, and the arguments of a call are parsed only
when a later part waits for it to be complete.
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Literal, TypeVar

from toolgate.conversation.arguments import ArgumentStream, is_object, settled
from toolgate.conversation.errors import Garbled
from toolgate.conversation.events import Delta, FinishReason, PartEnd, PartStart, StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.ids import new_call_id, portable
from toolgate.conversation.message import NO_EXTRA, Executor, Extra, Part, Reasoning, Refusal, Seal, Text, ToolCall
from toolgate.conversation.surrogates import SurrogateJoiner

SpokenKind = Literal["text", "reasoning", "refusal"]


class _Spoken:
    """Text, reasoning or a refusal being written."""

    __slots__ = ("extra", "fragments", "kind", "logprobs", "over", "pairs", "seal")

    def __init__(self, kind: SpokenKind, seal: Seal | None = None) -> None:
        self.kind = kind
        self.fragments: list[str] = []
        self.pairs = SurrogateJoiner()
        self.seal = seal
        self.extra: Extra = NO_EXTRA
        self.logprobs: list[Mapping[str, Any]] = []
        self.over = False  # nothing more belongs to it, though it waits for its turn to be told

    def part(self, text: str) -> Part:
        match self.kind:
            case "text":
                return Text(text, self.extra, tuple(self.logprobs)) if self.logprobs else Text(text, self.extra)
            case "reasoning":
                return Reasoning(text, self.seal, self.extra)
            case "refusal":
                return Refusal(text, self.extra)


class _Call:
    """A call being written."""

    __slots__ = (
        "arguments",
        "checked",
        "closed",
        "executor",
        "extra",
        "freeform",
        "given_id",
        "id",
        "name",
        "over",
        "size",
        "started",
        "waiting",
    )

    def __init__(self, freeform: bool, executor: Executor, extra: Extra) -> None:
        self.given_id: str | None = None
        self.id = ""
        self.name = ""
        self.arguments = ArgumentStream()
        self.waiting: list[str] = []  # what is certain of the arguments and not told yet
        self.started = False
        self.closed = False  # it was told as a whole
        self.size = self.checked = 0  # characters of the arguments, now and when they were last found incomplete
        self.over = False  # nothing more belongs to it, though it may wait for its turn to be told
        self.freeform = freeform
        self.executor = executor
        self.extra = extra

    def feed(self, fragment: str) -> None:
        self.size += len(fragment)
        if self.freeform:
            self.arguments.pieces.append(fragment)
        self.waiting.append(fragment if self.freeform else self.arguments.feed(fragment))

    def take(self) -> str:
        text, self.waiting = "".join(self.waiting), []
        return text

    def opening(self) -> ToolCall:
        return ToolCall(self.id, self.name, "", self.executor, self.freeform, extra=self.extra)

    def whole(self, cut: bool) -> ToolCall:
        text = "".join(self.arguments.pieces)
        arguments = text if self.freeform else settled(text)
        complete = not cut or (bool(text.strip()) and not self.freeform and is_object(arguments))
        told = arguments if complete else text  # what is cut off before it began is not an empty object
        return ToolCall(self.id, self.name, told, self.executor, self.freeform, complete, self.extra)

    def is_complete(self) -> bool:
        if self.over:
            return True
        if not self.started or self.freeform:
            return False
        if _SHORT < self.size < self.checked + self.checked // 8:  # what is long is not read again for every piece
            return False
        self.checked = self.size
        return is_object(settled("".join(self.arguments.pieces) or "?"))


MAX_PARTS = 8192
"""How many parts an answer may have: each takes time when a whole answer is written, and no model makes so many."""
MAX_NAME = 1024
_SHORT = 1024


def check_name(name: str) -> None:
    """Refuse the name of a tool that grows without end."""
    if len(name) > MAX_NAME:
        raise Garbled(f"The upstream called a tool whose name is longer than {MAX_NAME} characters.")


_P = TypeVar("_P", bound="_Spoken | _Call | Part")


class Assembler:
    """Collects what one step of a model says; `events` is what became certain since it was last taken.

    `tools` are the names on offer: they tell a name that comes in pieces from one that is repeated.
    """

    def __init__(self, tools: Collection[str] = (), new_id: Callable[[], str] = new_call_id) -> None:
        self.events: list[StepEvent] = []
        self.called = False
        self._tools = tools
        self._new_id = new_id
        self._queue: deque[_Spoken | _Call | Part] = deque()
        self._calls: dict[Hashable, _Call] = {}
        self._used_ids: set[str] = set()
        self._parts = 0
        self._started = False

    def take(self) -> list[StepEvent]:
        """The events since the last time."""
        events, self.events = self.events, []
        return events

    def start(self, id: str | None = None, model: str | None = None, usage: Usage | None = None) -> None:
        """The step begins; a second beginning is ignored."""
        if not self._started:
            self._started = True
            self.events.append(StepStart(id, model, usage))

    def text(self, fragment: str) -> None:
        """More text."""
        self._speak("text", fragment)

    def reasoning(self, fragment: str) -> None:
        """More reasoning."""
        self._speak("reasoning", fragment)

    def refusal(self, fragment: str) -> None:
        """More of a refusal."""
        self._speak("refusal", fragment)

    def seal(self, seal: Seal) -> None:
        """The seal of the reasoning being written, or of reasoning that is not shown at all."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Spoken) and last.kind == "reasoning" and not last.over:
            last.seal = seal
        else:
            self._append(_Spoken("reasoning", seal))

    def annotate(self, extra: Extra) -> None:
        """What else the dialect said of the text or reasoning being written."""
        if self._queue and isinstance(last := self._queue[-1], _Spoken):
            last.extra = extra

    def logprobs(self, entries: Any, whole: bool = False) -> None:
        """The log probabilities of what was written last of a text; `whole` are those of all of it."""
        last = self._queue[-1] if self._queue else None
        if type(entries) is not list or not isinstance(last, _Spoken) or last.kind != "text":
            return
        given: list[Mapping[str, Any]] = [entry for entry in entries if type(entry) is dict]
        if whole:
            last.logprobs = given
        else:
            last.logprobs += given

    def end_part(self) -> None:
        """The part written last is over: what follows is another, even of the same kind."""
        if not self._queue or not isinstance(last := self._queue[-1], _Spoken):
            return
        last.over = True
        self._close_what_is_over()

    def whole(self, part: Part) -> None:
        """A part that came in one piece."""
        self.called = self.called or isinstance(part, ToolCall)
        self._append(part)

    def call(
        self,
        key: Hashable,
        *,
        id: str | None = None,
        name: str | None = None,
        arguments: str = "",
        freeform: bool = False,
        executor: Executor = "client",
        extra: Extra = NO_EXTRA,
    ) -> None:
        """More of the call known by `key`: its id, its name or a piece of it, argument text."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._append(_Call(freeform, executor, extra))
            self.called = self.called or executor == "client"
        if extra:
            call.extra = extra
        if id and call.given_id is None:
            call.given_id = id
        if name and not call.started:
            self._name(call, name)
        if arguments:
            self._argue(call, arguments)
        elif call.name in self._tools:
            self._start_call(call)

    def end_call(self, key: Hashable) -> None:
        """The call is over: nothing more will be said of it."""
        call = self._calls.get(key)
        if call is not None:
            call.over = True
            self._close_what_is_over()

    def flush(self, cut: bool = False) -> None:
        """Close every part; with `cut`, the model was stopped, so a call that is not whole JSON is told as incomplete."""
        while self._queue:
            self._close_head(cut)

    def end(
        self,
        reason: FinishReason,
        usage: Usage | None = None,
        stop_sequence: str | None = None,
        extra: Extra = NO_EXTRA,
    ) -> None:
        """The step is over; whether it called tools is told by what it did, not by the upstream's word for it."""
        self.start()
        self.flush(cut=reason in ("length", "content_filter"))
        if reason == "stop" and self.called:
            reason = "tool_calls"
        elif reason == "tool_calls" and not self.called:
            reason = "stop"
        self.events.append(StepEnd(reason, usage, stop_sequence, extra))

    def _speak(self, kind: SpokenKind, fragment: str) -> None:
        if not fragment:
            return
        if type(fragment) is not str:  # before it is told: what is told must be counted and joined later
            raise Garbled(f"The upstream sent {kind} that is no string.")
        queue = self._queue
        last = queue[-1] if queue else None
        if not isinstance(last, _Spoken) or last.kind != kind or last.over:
            last = self._append(_Spoken(kind))
        fragment = last.pairs.feed(fragment)
        if not fragment:
            return
        last.fragments.append(fragment)
        if last is queue[0]:
            self.events.append(Delta(fragment))

    def _append(self, part: _P) -> _P:
        self.start()
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Garbled(f"The upstream's answer has more than {MAX_PARTS} texts, thoughts and calls.")
        self._queue.append(part)
        if len(self._queue) == 1:
            self._open_head()
        self._advance()
        return part

    def _name(self, call: _Call, name: str) -> None:
        if call.name in self._tools or name == call.name:
            return
        call.name += name
        check_name(call.name)

    def _argue(self, call: _Call, fragment: str) -> None:
        first = bool(self._queue) and self._queue[0] is call
        if call.closed:
            self._refuse_afterthought(call, fragment)
            return
        call.feed(fragment)
        if not first:
            return
        self._start_call(call)
        self._tell_arguments(call)
        if len(self._queue) > 1 and fragment.rstrip().endswith("}"):
            self._advance()

    def _tell_arguments(self, call: _Call) -> None:
        if call.started and (text := call.take()):
            self.events.append(Delta(text))

    def _refuse_afterthought(self, call: _Call, fragment: str) -> None:
        if fragment.strip() and fragment.strip() != settled("".join(call.arguments.pieces)):
            raise Garbled("The upstream sent more arguments for a tool call that was already complete.")

    def _start_call(self, call: _Call) -> None:
        if call.started or not call.name or not self._queue or self._queue[0] is not call:
            return
        call.started = True
        call.id = self._unique(call.given_id)
        self.events.append(PartStart(call.opening()))

    def _unique(self, given: str | None) -> str:
        id = portable(given) if given else self._new_id()
        if id in self._used_ids:
            id = self._new_id()
        self._used_ids.add(id)
        return id

    def _advance(self) -> None:
        """Close the open part while it is complete and another waits."""
        while len(self._queue) > 1:
            head = self._queue[0]
            if isinstance(head, _Call) and not head.is_complete():
                return
            self._close_head(cut=False)

    def _close_what_is_over(self) -> None:
        """Close the open part if nothing more belongs to it, and those that waited behind it likewise."""
        while self._queue and isinstance(head := self._queue[0], (_Spoken, _Call)) and head.over:
            self._close_head(cut=False)

    def _open_head(self) -> None:
        """Tell what is already known of the part that is now first."""
        match self._queue[0]:
            case _Call() as call:
                if call.arguments.pieces or call.name in self._tools:
                    self._start_call(call)
                self._tell_arguments(call)
            case _Spoken() as spoken:
                self.events.append(PartStart(spoken.part("")))
                self.events += [Delta(fragment) for fragment in spoken.fragments]
            case part:
                self.events.append(PartStart(part))

    def _close_head(self, cut: bool) -> None:
        match self._queue[0]:
            case _Call() as call:
                self._close_call(call, cut)
            case _Spoken() as spoken:
                if rest := spoken.pairs.end():
                    spoken.fragments.append(rest)
                    self.events.append(Delta(rest))
                self.events.append(PartEnd(spoken.part("".join(spoken.fragments))))
            case part:
                self.events.append(PartEnd(part))
        self._queue.popleft()
        if self._queue:
            self._open_head()

    def _close_call(self, call: _Call, cut: bool) -> None:
        if not call.name:
            raise Garbled("The upstream sent a tool call without a name.")
        self._start_call(call)
        if not call.freeform:
            call.waiting.append(call.arguments.end(cut))
        self._tell_arguments(call)
        self.events.append(PartEnd(call.whole(cut)))
        call.closed = True
