"""Assemble the fragments that upstreams send into well-formed events.

Upstreams interleave parallel calls, split names, repeat ids or leave them out, quote arguments twice and put blanks
around them. Every decoder passes its fragments to an `EventAssembler`, which keeps the grammar of `events.py`: one part
open at a time, every part closed by its complete value. The first part in the queue is open and emitted as it arrives; later
ones wait for it.

A fragment costs O(1): fragments are collected in lists and joined once, and the arguments of a call are parsed only
when a later part waits for it to be complete.
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from toolgate.conversation.arguments import ArgumentTextNormalizer, is_object, normalize_arguments
from toolgate.conversation.call_ids import new_call_id, portable_id
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.events import (
    FinishReason,
    PartDelta,
    PartEnd,
    PartStart,
    StepEnd,
    StepEvent,
    StepStart,
    Usage,
)
from toolgate.conversation.message import (
    NO_EXTRA,
    Executor,
    Extra,
    Part,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
)
from toolgate.conversation.surrogates import SurrogateJoiner

TextKind = Literal["text", "reasoning", "refusal"]


class _OpenText:
    """Text, reasoning or a refusal that is being received."""

    __slots__ = ("extra", "fragments", "kind", "logprobs", "over", "signature", "surrogates")

    def __init__(self, kind: TextKind, signature: ReasoningSignature | None = None) -> None:
        self.kind = kind
        self.fragments: list[str] = []
        self.surrogates = SurrogateJoiner()
        self.signature = signature
        self.extra: Extra = NO_EXTRA
        self.logprobs: list[Mapping[str, Any]] = []
        self.over = False  # nothing more belongs to it, though it may still wait in the queue

    def part(self, text: str) -> Part:
        match self.kind:
            case "text":
                return Text(text, self.extra, tuple(self.logprobs)) if self.logprobs else Text(text, self.extra)
            case "reasoning":
                return Reasoning(text, self.signature, self.extra)
            case "refusal":
                return RefusalPart(text, self.extra)


class _OpenCall:
    """A tool call that is being received."""

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
        self.arguments = ArgumentTextNormalizer()
        self.waiting: list[str] = []  # argument text that is certain and not emitted yet
        self.started = False
        self.closed = False  # its `PartEnd` was emitted
        self.size = self.checked = 0  # characters of the arguments, now and when they were last found incomplete
        self.over = False  # nothing more belongs to it, though it may still wait in the queue
        self.freeform = freeform
        self.executor = executor
        self.extra = extra

    def feed(self, fragment: str) -> None:
        self.size += len(fragment)
        if self.freeform:
            self.arguments.fragments.append(fragment)
        self.waiting.append(fragment if self.freeform else self.arguments.feed(fragment))

    def take(self) -> str:
        text, self.waiting = "".join(self.waiting), []
        return text

    def opening(self) -> ToolCall:
        return ToolCall(self.id, self.name, "", self.executor, self.freeform, extra=self.extra)

    def whole(self, cut: bool) -> ToolCall:
        text = "".join(self.arguments.fragments)
        arguments = text if self.freeform else normalize_arguments(text)
        complete = not cut or (bool(text.strip()) and not self.freeform and is_object(arguments))
        if not complete:
            arguments = text  # arguments that were cut off before they began are not an empty object
        return ToolCall(self.id, self.name, arguments, self.executor, self.freeform, complete, self.extra)

    def is_complete(self) -> bool:
        if self.over:
            return True
        if not self.started or self.freeform:
            return False
        # Long arguments are parsed again only after they grew by an eighth, so that all checks together stay linear.
        if _SHORT < self.size < self.checked + self.checked // 8:
            return False
        self.checked = self.size
        # Without any fragment yet, "?" is no object, while the empty text would be normalized to one.
        return is_object(normalize_arguments("".join(self.arguments.fragments) or "?"))


# Parts of an answer: each takes time when a whole answer is encoded, and no model makes so many.
MAX_PARTS = 8192
# Characters of texts, thoughts and arguments that an answer may have, several times what any model writes. To decode or
# encode so many that JSON escapes is one call of C code that holds the interpreter for less than 50 ms.
MAX_CONTENT = 6 * 1024 * 1024
MAX_NAME = 1024
_SHORT = 1024  # characters of arguments that cost little to parse again with every fragment


def check_name_length(name: str) -> None:
    """Raise InvalidUpstreamAnswer for a tool name that grows without end."""
    if len(name) > MAX_NAME:
        raise InvalidUpstreamAnswer(f"The upstream called a tool whose name is longer than {MAX_NAME} characters.")


def check_content_length(parts: Iterable[Part]) -> None:
    """Raise InvalidUpstreamAnswer for an answer that came whole and is longer than a streamed one may be."""
    texts = [part.arguments if isinstance(part, ToolCall) else getattr(part, "text", "") for part in parts]
    if sum(map(len, texts)) > MAX_CONTENT:
        raise _too_long()


def _too_long() -> InvalidUpstreamAnswer:
    return InvalidUpstreamAnswer(f"The upstream's answer has more than {MAX_CONTENT} characters.")


_P = TypeVar("_P", bound="_OpenText | _OpenCall | Part")


class EventAssembler:
    """Assembles the fragments of one step; `events` are those that became certain since `take` was last called.

    `tools` are the names of the offered tools: by them a name that arrives in fragments differs from one that is repeated.
    """

    def __init__(self, tools: Collection[str] = (), new_id: Callable[[], str] = new_call_id) -> None:
        self.events: list[StepEvent] = []
        self.called = False
        self._tools = tools
        self._new_id = new_id
        self._queue: deque[_OpenText | _OpenCall | Part] = deque()
        self._calls: dict[Hashable, _OpenCall] = {}
        self._used_ids: set[str] = set()
        self._parts = 0
        self._content = 0  # characters received
        self._started = False

    @property
    def is_empty(self) -> bool:
        """Whether no part has begun."""
        return self._parts == 0

    def take(self) -> list[StepEvent]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def start(self, id: str | None = None, model: str | None = None, usage: Usage | None = None) -> None:
        """Emit `StepStart` once; later calls are ignored."""
        if not self._started:
            self._started = True
            self.events.append(StepStart(id, model, usage))

    def text(self, fragment: str, kind: TextKind = "text") -> None:
        """Add a fragment of text of this kind."""
        if not fragment:
            return
        if type(fragment) is not str:  # checked before it is emitted: emitted text is counted and joined later
            raise InvalidUpstreamAnswer(f"The upstream sent {kind} that is not a string.")
        queue = self._queue
        last = queue[-1] if queue else None
        if not isinstance(last, _OpenText) or last.kind != kind or last.over:
            last = self._append(_OpenText(kind))
        # Some upstreams cut an emoji in two: each half is a surrogate, which no client could decode.
        if last.surrogates.high or not fragment.isascii():
            fragment = last.surrogates.feed(fragment)
            if not fragment:
                return
        self._count(fragment)
        last.fragments.append(fragment)
        if last is queue[0]:
            self.events.append(PartDelta(fragment))

    def reasoning(self, fragment: str) -> None:
        """Add a fragment of reasoning."""
        self.text(fragment, "reasoning")

    def refusal(self, fragment: str) -> None:
        """Add a fragment of a refusal."""
        self.text(fragment, "refusal")

    def sign(self, signature: ReasoningSignature) -> None:
        """Set the signature of the open reasoning, or add reasoning that consists of a signature alone."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _OpenText) and last.kind == "reasoning" and not last.over:
            last.signature = signature
        else:
            self._append(_OpenText("reasoning", signature))

    def annotate(self, extra: Extra) -> None:
        """Set the dialect's other fields of the open text or reasoning."""
        if self._queue and isinstance(last := self._queue[-1], _OpenText):
            last.extra = extra

    def logprobs(self, entries: Any, whole: bool = False) -> None:
        """Add log probabilities of the open text; with `whole`, the entries replace those of all its fragments."""
        last = self._queue[-1] if self._queue else None
        if type(entries) is not list or not isinstance(last, _OpenText) or last.kind != "text":
            return
        given: list[Mapping[str, Any]] = [entry for entry in entries if type(entry) is dict]
        if whole:
            last.logprobs = given
        else:
            last.logprobs += given

    def end_part(self) -> None:
        """End the last text part: what follows is another part, even of the same kind."""
        if not self._queue or not isinstance(last := self._queue[-1], _OpenText):
            return
        last.over = True
        self._close_ended()

    def whole(self, part: Part) -> None:
        """Add a complete part."""
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
        """Add to the call known by `key`: its id, its name or a fragment of it, argument text."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._append(_OpenCall(freeform, executor, extra))
            self.called = self.called or executor == "client"
        if extra:
            call.extra = extra
        if id and call.given_id is None:
            call.given_id = id
        # Some upstreams split a name, others repeat it with every delta: once it is that of a tool, it is complete.
        if name and not call.started and call.name not in self._tools and name != call.name:
            call.name += name
            check_name_length(call.name)
        if not arguments:
            if call.name in self._tools:  # any other name is complete only when arguments follow it
                self._start_call(call)
            return
        if call.closed:
            # Some upstreams send the complete arguments once more behind their fragments.
            if arguments.strip() and arguments.strip() != normalize_arguments("".join(call.arguments.fragments)):
                raise InvalidUpstreamAnswer(
                    "The upstream sent more arguments for a tool call that was already complete."
                )
            return
        self._count(arguments)
        call.feed(arguments)
        if not self._queue or self._queue[0] is not call:
            return
        if not call.started:
            self._start_call(call)
        self._emit_arguments(call)
        if len(self._queue) > 1 and arguments.rstrip().endswith("}"):  # only then the arguments can be complete
            self._advance()

    def end_call(self, key: Hashable) -> None:
        """End the call known by `key`: no more of it follows."""
        call = self._calls.get(key)
        if call is not None:
            call.over = True
            self._close_ended()

    def flush(self, cut: bool = False) -> None:
        """Close every part; with `cut`, the model was stopped, so a call whose arguments are no JSON is incomplete."""
        while self._queue:
            self._close_head(cut)

    def end(
        self,
        reason: FinishReason,
        usage: Usage | None = None,
        stop_sequence: str | None = None,
        extra: Extra = NO_EXTRA,
    ) -> None:
        """Close every part and emit `StepEnd`; whether the step called tools is decided by its parts, not by `reason`."""
        self.start()
        self.flush(cut=reason in ("length", "content_filter"))
        # Many upstreams end an answer with calls with "stop", and some one without any with "tool_calls".
        if reason == "stop" and self.called:
            reason = "tool_calls"
        elif reason == "tool_calls" and not self.called:
            reason = "stop"
        self.events.append(StepEnd(reason, usage, stop_sequence, extra))

    def _append(self, part: _P) -> _P:
        self.start()
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidUpstreamAnswer(f"The upstream's answer has more than {MAX_PARTS} texts, thoughts and calls.")
        self._queue.append(part)
        if len(self._queue) == 1:
            self._open_head()
        self._advance()
        return part

    def _count(self, fragment: str) -> None:
        self._content += len(fragment)
        if self._content > MAX_CONTENT:
            raise _too_long()

    def _emit_arguments(self, call: _OpenCall) -> None:
        if call.started and (text := call.take()):
            self.events.append(PartDelta(text))

    def _start_call(self, call: _OpenCall) -> None:
        if call.started or not call.name or not self._queue or self._queue[0] is not call:
            return
        id = portable_id(call.given_id) if call.given_id else self._new_id()
        if id in self._used_ids:  # some models give every call of an answer the same id
            id = self._new_id()
        self._used_ids.add(id)
        call.id, call.started = id, True
        self.events.append(PartStart(call.opening()))

    def _advance(self) -> None:
        """Close the open part while it is complete and another waits."""
        while len(self._queue) > 1:
            head = self._queue[0]
            if isinstance(head, _OpenCall) and not head.is_complete():
                return
            self._close_head(cut=False)

    def _close_ended(self) -> None:
        """Close the open part if nothing more belongs to it, then those behind it likewise."""
        while self._queue and isinstance(head := self._queue[0], (_OpenText, _OpenCall)) and head.over:
            self._close_head(cut=False)

    def _open_head(self) -> None:
        """Emit what is already known of the part that is now first."""
        match self._queue[0]:
            case _OpenCall() as call:
                if call.arguments.fragments or call.name in self._tools:
                    self._start_call(call)
                self._emit_arguments(call)
            case _OpenText() as text:
                self.events.append(PartStart(text.part("")))
                self.events += [PartDelta(fragment) for fragment in text.fragments]
            case part:
                self.events.append(PartStart(part))

    def _close_head(self, cut: bool) -> None:
        match self._queue[0]:
            case _OpenCall() as call:
                if not call.name:
                    raise InvalidUpstreamAnswer("The upstream sent a tool call without a name.")
                self._start_call(call)
                if not call.freeform:
                    call.waiting.append(call.arguments.end(cut))
                self._emit_arguments(call)
                self.events.append(PartEnd(call.whole(cut)))
                call.closed = True
            case _OpenText() as text:
                if rest := text.surrogates.end():
                    text.fragments.append(rest)
                    self.events.append(PartDelta(rest))
                self.events.append(PartEnd(text.part("".join(text.fragments))))
            case part:
                self.events.append(PartEnd(part))
        self._queue.popleft()
        if self._queue:
            self._open_head()
