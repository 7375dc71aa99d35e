"""Record what runs do as timelines: every step and every call with its start, its end and its outcome.

A run on this node changes its timeline in memory, at no cost to requests without server tools. What has changed is written
together a moment later, and subscribers are notified. A run that is resumed, here or on another node, continues the stored
timeline: a step or tool that ran when its process died is closed as cut off, a call whose tool had not been started goes
on in its entry. No content of steps or calls is recorded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.change_notifications.notifier import ChangeNotifier, wait_for
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.conversation.surrogates import encode_repaired
from toolgate.engine.ports import CallOutcome
from toolgate.storage.responses import Write
from toolgate.storage.run_records import RunKind, RunRecord, RunRecordStore
from toolgate.storage.runs import State

StepOutcome: TypeAlias = Literal["running", "tool_calls", "answer", "failed"]

# Entries of one timeline; a longer run is still counted.
MOST_ENTRIES = 2000

_MOST_OFFERED = 40
_MOST_TOOLS = 50
_MOST_NAME = 128
# The changes of a step and its calls become one write.
_FLUSH_SECONDS = 0.2
# A fraction of the store's `STALE_SECONDS`, after which another node takes a run for cut off.
_BEAT_SECONDS = 5.0
_SWEEP_SECONDS = 30.0


class TimelineStepEntry(Struct, omit_defaults=True, tag_field="type", tag="step"):
    """One answer of the model; `offered` are the server's tools where they differ from those of the step before."""

    step: int
    started: float
    ended: float | None = None
    outcome: StepOutcome = "running"
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    offered: tuple[str, ...] | None = None
    copied: bool = False


class TimelineCallEntry(Struct, omit_defaults=True, tag_field="type", tag="call"):
    """One attempt at a call of a server tool; `approval` is the question to a person that it waits or waited for.

    `started` is when the call was taken up, `tool_started` when its tool was started: after the approval, if it needs one.
    """

    step: int
    call: str
    tool: str
    started: float
    ended: float | None = None
    outcome: CallOutcome = "running"
    source: str | None = None
    approval: str | None = None
    copied: bool = False
    tool_started: float | None = None


TimelineEntry: TypeAlias = TimelineStepEntry | TimelineCallEntry

_decoder = msgspec.json.Decoder(TimelineEntry)


def encode_entry(entry: TimelineEntry) -> str:
    """Return the entry as it is stored."""
    return encode_repaired(entry).decode()


def decode_entries(stored: Iterable[str]) -> list[TimelineEntry]:
    """Return stored entries."""
    return [_decoder.decode(text) for text in stored]


class RunTimeline:
    """The timeline of one run on this node (`toolgate.engine.ports.RunObserver`)."""

    def __init__(
        self,
        record: RunRecord,
        entries: Iterable[TimelineEntry],
        clock: Callable[[], float],
        on_change: Callable[["RunTimeline"], None],
    ) -> None:
        self.entries = list(entries)
        self.dirty: set[int] = set()
        self.state: State = "running"
        self.ended: float | None = None
        self.error: str | None = None
        self.cost = record.cost
        self.response = record.response
        self._record = record
        self._clock = clock
        self._on_change = on_change
        self._started = record.started or clock()
        self._step = max([one.step for one in self.entries], default=0)
        self._calls = record.calls
        self._tools: dict[str, None] = dict.fromkeys(msgspec.json.decode(record.tools) if record.tools else ())
        self._input, self._output = record.input_tokens, record.output_tokens
        self._offered: tuple[str, ...] | None = None
        # The last attempt of each call wins: a call that is run again has several entries.
        self._places = {one.call: place for place, one in enumerate(self.entries) if isinstance(one, TimelineCallEntry)}
        self._interrupted_step = self._close_open()

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._record.id

    @property
    def kind(self) -> RunKind:
        """Whether the run is made in the background."""
        return self._record.kind

    def record(self) -> RunRecord:
        """Return the run as it is now."""
        return msgspec.structs.replace(
            self._record,
            state=self.state,
            started=self._started,
            ended=self.ended,
            steps=self._step,
            calls=self._calls,
            tools=msgspec.json.encode(list(self._tools)).decode() if self._tools else None,
            input_tokens=self._input,
            output_tokens=self._output,
            cost=self.cost,
            error=self.error,
            response=self.response,
        )

    def step_started(self, offered: Sequence[str]) -> None:
        """Record that the model is asked; a step that was cut off is made again under its number."""
        if not self._interrupted_step:
            self._step += 1
        self._interrupted_step = False
        names = tuple([name[:_MOST_NAME] for name in offered[:_MOST_OFFERED]])
        self._add(
            TimelineStepEntry(
                self._step,
                self._clock(),
                model=self._record.model,
                offered=None if names == self._offered else names,
            )
        )
        self._offered = names

    def step_ended(self, usage: Usage | None, calls: bool) -> None:
        """Record the end of the model's answer, and whether it calls tools."""
        if usage is not None:
            self._input += usage.input
            self._output += usage.output
        place = self._find(lambda one: isinstance(one, TimelineStepEntry) and one.outcome == "running")
        if place is not None:
            entry = self.entries[place]
            assert isinstance(entry, TimelineStepEntry)
            entry.ended = self._clock()
            entry.outcome = "tool_calls" if calls else "answer"
            if usage is not None:
                entry.input_tokens, entry.output_tokens = usage.input, usage.output
        self._changed(place)

    def call_started(self, call: ToolCall) -> None:
        """Record that a call is worked on; one that was taken up before and whose tool was not started goes on."""
        entry = self._last_attempt(call.id)
        if entry is None or not _is_open(entry):
            if len(self._tools) < _MOST_TOOLS:
                self._tools[call.name[:_MOST_NAME]] = None
            self._add(TimelineCallEntry(self._step, call.id, call.name[:_MOST_NAME], self._clock()))

    def call_refused(self, call: ToolCall, outcome: CallOutcome) -> None:
        """Record that a call is not run; one that was interrupted has an entry already, and no end that is known."""
        entry = self._last_attempt(call.id)
        if outcome != "unknown" or entry is None or _is_open(entry):
            self.call_started(call)
            self.call_ended(call.id, outcome)
            if outcome == "unknown" and (entry := self._last_attempt(call.id)) is not None:
                entry.ended = None

    def call_waiting(self, call: str, approval: str) -> None:
        """Record that a call waits for a person: to be run, or to be run again after an interrupted attempt."""
        entry = self._last_attempt(call)
        if entry is not None and not _is_open(entry):
            entry = TimelineCallEntry(entry.step, call, entry.tool, self._clock())
            self._add(entry)
        if entry is not None:
            entry.outcome, entry.approval = "waiting", approval
            self.state = "waiting"
            self._changed(self._places[call])

    def call_decided(self, call: str) -> None:
        """Record that a person has decided about a call."""
        entry = self._last_attempt(call)
        if entry is not None and entry.outcome == "waiting":
            entry.outcome = "running"
            self.state = "running" if self._find(_waits) is None else "waiting"
            self._changed(self._places[call])

    def tool_started(self, call: str) -> None:
        """Record that the tool of a call is started now."""
        self._calls += 1
        self.call_decided(call)
        if (entry := self._last_attempt(call)) is not None:
            entry.tool_started = self._clock()
            self._changed(self._places[call])

    def call_ended(self, call: str, outcome: CallOutcome, source: str | None = None) -> None:
        """Record how a call ended; the first outcome counts, which is the most exact one.

        A call that is cancelled before its tool was started stays open: it ends with the run, or another node takes it up.
        """
        entry = self._last_attempt(call)
        if entry is None:
            return
        entry.source = source or entry.source
        taken_up_again = outcome == "waiting" or (outcome == "cancelled" and entry.tool_started is None)
        if _is_open(entry) and not taken_up_again:
            self._calls += outcome == "completed" and entry.tool_started is None  # from a cache, or of a virtual tool
            entry.outcome, entry.ended = outcome, self._clock()
        self._changed(self._places[call])

    def reconcile(self, messages: Iterable[Message], started: Collection[str] = ()) -> None:
        """Add what earlier attempts are known to have finished or started, where the timeline was not written in time."""
        steps = [message for message in messages if message.role == "assistant"]
        results = {p.call_id: p for m in messages for p in m.parts if isinstance(p, ToolResult)}
        now = self._clock()
        known = {one.step: place for place, one in enumerate(self.entries) if isinstance(one, TimelineStepEntry)}
        first = (self._record.forked_step or 0) + 1  # a fork begins with copied steps, which the messages do not have
        for number, message in enumerate(steps, first):
            calls = [part for part in message.parts if isinstance(part, ToolCall) and part.executor == "gateway"]
            if number not in known:
                self._step = max(self._step, number)
                self._add(TimelineStepEntry(number, now, now, "tool_calls", self._record.model))
            else:
                entry = self.entries[known[number]]
                if isinstance(entry, TimelineStepEntry) and entry.outcome not in ("tool_calls", "answer"):
                    entry.outcome = "tool_calls"
                    self._changed(known[number])
            for call in calls:
                if (result := results.get(call.id)) is not None:
                    self._reconcile_call(number, call, "failed" if result.is_error else "completed", now)
                elif call.id in started:
                    self._reconcile_call(number, call, "unknown", None)
        self._interrupted_step = self._step >= first + len(steps)

    def _reconcile_call(self, step: int, call: ToolCall, outcome: CallOutcome, ended: float | None) -> None:
        """Correct the last attempt at a call, whose end or start was not written; where there is no entry, add it."""
        entry = self._last_attempt(call.id)
        if entry is None:
            self._calls += 1
            self._tools[call.name[:_MOST_NAME]] = None
            self._add(TimelineCallEntry(step, call.id, call.name[:_MOST_NAME], self._clock(), ended, outcome))
        elif _is_open(entry) or entry.outcome == "unknown":
            self._calls += entry.tool_started is None and _is_open(entry)
            entry.outcome = outcome
            self._changed(self._places[call.id])

    def end(self, state: State, error: str | None, usage: Usage | None, cost: float) -> None:
        """Record the end of the run; a step that is still open has ended with it."""
        if state == "completed" and self._find(_waits) is not None:
            state = "incomplete"  # it has ended with a question to a person
        self.state, self.error, self.cost, self.ended = state, error, cost, self._clock()
        if usage is not None:
            self._input, self._output = usage.input, usage.output
        good = state in ("completed", "incomplete")
        for place, entry in enumerate(self.entries):
            if isinstance(entry, TimelineStepEntry) and entry.outcome == "running":
                entry.outcome, entry.ended = ("answer" if good else "failed"), self.ended
                if usage is not None and self._step == 1:  # else it is not known which step used how much
                    entry.input_tokens, entry.output_tokens = usage.input, usage.output
                self.dirty.add(place)
            elif isinstance(entry, TimelineCallEntry) and (entry.outcome == "running" or (_waits(entry) and not good)):
                entry.outcome, entry.ended = "cancelled", self.ended
                self.dirty.add(place)
        self._changed(None)

    def _close_open(self) -> bool:
        """Close what ran in an earlier attempt as cut off; return whether the model must be asked again for a step."""
        interrupted = False
        for place, entry in enumerate(self.entries):
            if isinstance(entry, TimelineStepEntry) and entry.outcome == "running":
                entry.outcome = "failed"
                interrupted = True
                self.dirty.add(place)
            elif isinstance(entry, TimelineCallEntry) and entry.outcome == "running" and entry.tool_started is not None:
                entry.outcome = "unknown"
                self.dirty.add(place)
        return interrupted

    def _last_attempt(self, call: str) -> TimelineCallEntry | None:
        place = self._places.get(call)
        entry = None if place is None else self.entries[place]
        return entry if isinstance(entry, TimelineCallEntry) else None

    def _find(self, fits: Callable[[TimelineEntry], bool]) -> int | None:
        """Return the place of the last entry that fits."""
        for place in range(len(self.entries) - 1, -1, -1):
            if fits(self.entries[place]):
                return place
        return None

    def _add(self, entry: TimelineEntry) -> None:
        if len(self.entries) < MOST_ENTRIES:  # the numbers of steps and calls go on to grow
            self.entries.append(entry)
            if isinstance(entry, TimelineCallEntry):
                self._places[entry.call] = len(self.entries) - 1
            self._changed(len(self.entries) - 1)
        else:
            self._changed(None)

    def _changed(self, place: int | None) -> None:
        if place is not None:
            self.dirty.add(place)
        self._on_change(self)


def _is_open(entry: TimelineCallEntry) -> bool:
    return entry.outcome in ("running", "waiting")


def _waits(entry: TimelineEntry) -> bool:
    return isinstance(entry, TimelineCallEntry) and entry.outcome == "waiting"


class EnqueueWrite(Protocol):
    """Queues a write that no client waits for."""

    def __call__(
        self,
        owner: str,
        kind: str,
        write: Write,
        size: int = 0,
        records: int = 1,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Queue the write for its owner; `written` is called when it is done."""


class RunTimelines:
    """The timelines of the runs on this node."""

    def __init__(
        self,
        store: RunRecordStore,
        put: EnqueueWrite,
        notifier: ChangeNotifier,
        cancel: Callable[[str], bool] = lambda run: False,
        report: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """`put` queues writes, `notifier` reports changes, `cancel` cancels the request of a foreground run here.

        `report` takes problems that are survived, in words for the log.
        """
        self.store = store
        self._put = put
        self._notifier = notifier
        self._cancel = cancel
        self._report = report
        self._live: dict[str, RunTimeline] = {}
        self._dirty: dict[str, RunTimeline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    def open(self) -> None:
        """Start to store for other nodes that the runs here are alive, and to find those of dead nodes."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def aclose(self) -> None:
        """Stop, and queue what is not written yet."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        self.flush()

    def begin(self, id: str, owner: str, model: str) -> RunTimeline:
        """Return the timeline of a new foreground run."""
        record = RunRecord(id, owner, "foreground", "running", model, self.store.clock())
        return self._open(record, ())

    async def resume(self, id: str, owner: str, model: str) -> RunTimeline:
        """Return the timeline of a foreground run that the same request resumes."""
        record = await self.store.find(id, owner)
        return self.begin(id, owner, model) if record is None else self._open(record, await self._stored(id))

    async def attach(self, id: str, owner: str, resumed: bool) -> RunTimeline | None:
        """Return the timeline of a background run that this node makes now; None if its record was deleted."""
        record = await self.store.find(id, owner)
        if record is None:
            return None
        return self._open(record, await self._stored(id) if resumed or record.forked_run else ())

    def detach(self, id: str) -> None:
        """Forget a background run: it has ended, or another node continues it."""
        self.flush()
        self._live.pop(id, None)
        self._notifier.publish(topic(id))

    def live(self, id: str) -> RunTimeline | None:
        """Return the timeline of a run that is made here."""
        return self._live.get(id)

    def end(
        self, id: str, state: State, error: str | None, usage: Usage | None, cost: float, response: str | None
    ) -> None:
        """Record the end of a run that is made here."""
        timeline = self._live.pop(id, None)
        if timeline is not None:
            timeline.response = response or timeline.response
            timeline.end(state, error, usage, cost)
            self.flush()

    async def fail(self, id: str, owner: str, error: str) -> None:
        """Record why a background run was ended without being made."""
        record = await self.store.find(id, owner)
        if record is not None:
            failed = msgspec.structs.replace(record, error=error)
            notify = partial(self._notifier.publish, topic(id))
            self._put(owner, "run", self.store.saving(failed, ()), 500, written=notify)

    async def cancel(self, id: str) -> None:
        """Cancel a foreground run on whichever node has it."""
        if not self._cancel(id) and await self.store.cancel(id):
            self._notifier.publish(CANCEL_TOPIC)

    def flush(self) -> None:
        """Queue what has changed to be written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changed, self._dirty = self._dirty, {}
        for timeline in changed.values():
            entries = [(place, encode_entry(timeline.entries[place])) for place in sorted(timeline.dirty)]
            timeline.dirty.clear()
            size = 500 + sum([len(entry) for _, entry in entries])
            notify = partial(self._notifier.publish, topic(timeline.id))
            record = timeline.record()
            self._put(record.owner, "run", self.store.saving(record, entries), size, written=notify)

    def _open(self, record: RunRecord, entries: Iterable[TimelineEntry]) -> RunTimeline:
        timeline = RunTimeline(record, entries, self.store.clock, self._changed)
        self._live[record.id] = timeline
        self._begun.set()
        self._changed(timeline)
        return timeline

    async def _stored(self, id: str) -> list[TimelineEntry]:
        return decode_entries(await self.store.entries(id))

    def _changed(self, timeline: RunTimeline) -> None:
        self._dirty[timeline.id] = timeline
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)

    async def _watch(self) -> None:
        """End the runs of dead nodes every half minute; while there are foreground runs here, look after these."""
        while True:
            await self._survive(self.store.end_cut_off(self._live.keys()))
            if not self._foreground():
                await wait_for(self._begun, _SWEEP_SECONDS)
            self._begun.clear()
            await self._keep_alive()

    async def _keep_alive(self) -> None:
        """Store that the foreground runs here are alive, and cancel those that another node has marked, for a while."""
        clock = asyncio.get_running_loop().time
        until, known = clock() + _SWEEP_SECONDS, set[str]()
        async with self._notifier.subscribe(CANCEL_TOPIC) as marked:
            # Not until there are none: on a busy node there are always some.
            while (runs := self._foreground()) and clock() < until:
                # A run that ends within seconds needs no beat, unless it may be the one that is to be cancelled.
                ids = [run.id for run in runs if marked.is_set() or run.id in known]
                known = {run.id for run in runs}
                marked.clear()
                if ids:
                    await self._survive(self._beat(ids))
                await wait_for(marked, _BEAT_SECONDS)

    async def _beat(self, ids: Sequence[str]) -> None:
        for id in await self.store.beat(ids):
            self._cancel(id)

    def _foreground(self) -> list[RunTimeline]:
        return [run for run in self._live.values() if run.kind == "foreground"]

    async def _survive(self, work: Awaitable[object]) -> None:
        """Report a failure, and leave the work to the next time."""
        try:
            await work
        except ToolgateError as error:
            self._report(error.message)


def topic(id: str) -> str:
    """Return the topic of notifications that a run has changed."""
    return f"run/{id}"


# The topic of notifications that a foreground run is to be cancelled.
CANCEL_TOPIC = "runs/cancel"
