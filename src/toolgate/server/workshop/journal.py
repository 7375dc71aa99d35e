"""The memory of runs with server tools: what a client does not see is found again when it comes back.

In a dialect that has no words for the server's calls, a client that returns with the results of its own tools sends back
only its part of the turn: the whole turn is put in its place. A run that was cut off, or waits for a person, goes on when
the very same request comes again; what it had done is not done twice.

What a client wants nothing stored of (`store: false`) is stored encrypted, under secrets that are derived from the request
itself, or from the id of the call that the client comes back with: who has only the database cannot read it.

A client that leaves may ask again before we have noticed. So a request that is just being answered for the same caller waits
until it is certain that the first one's client is still there, if anything is at stake.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Overloaded
from toolgate.conversation.events import Usage
from toolgate.conversation.history import unanswered
from toolgate.conversation.ids import mint
from toolgate.conversation.message import Message, Part, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.engine.rounds import Past
from toolgate.storage.rounds import MOST_BYTES, KeptRounds, RoundStore
from toolgate.storage.sealing import derived, new_secret

RESUMABLE_SECONDS = 3600.0
"""For how long the same request goes on with a run that broke off; later it is a new one."""


DEPARTURE_SECONDS = 2.0
"""Within this time it is noticed that a client has left."""


class RunKey(Struct, frozen=True):
    """The digest of the request that began a run; `secret` opens what is stored of one that is private."""

    text: str
    secret: bytes | None = None


class Memory:
    """Remembers runs for their callers."""

    def __init__(self, store: RoundStore) -> None:
        self._store = store
        self._live: dict[tuple[str, str], RunJournal] = {}

    async def begin(
        self, owner: str, key: RunKey, request: ModelRequest, native: bool, run: str = ""
    ) -> tuple["RunJournal", Past]:
        """A journal for the run of this key, and what an earlier attempt did, if there was one.

        `run` is the name by which a new run asks for consent; one that goes on has that of its first attempt.
        A run of this key that is live is left alone: this one is another.
        """
        if (earlier := self._live.get((owner, key.text))) is not None:
            await earlier.overtaken()
        if (owner, key.text) in self._live:
            key = replace(key, text=f"{key.text}+{mint()}")
            return RunJournal(self._store, self._live, owner, key, request.messages, native, run), Past()
        # The key is taken before anything is awaited: of two that come back, one goes on.
        journal = RunJournal(self._store, self._live, owner, key, request.messages, native, run)
        try:
            pending = {_began_key(call): call.id for call in unanswered(request.messages)}
            secrets = {key.text: key.secret} if key.secret is not None else {}
            kept = await self._store.find(owner, [key.text, *pending], within=RESUMABLE_SECONDS, secrets=secrets)
            strange = await self._strange(owner, unanswered(request.messages)) if native and pending else frozenset()
        except BaseException:
            journal.close()
            raise
        attempt = kept.pop(key.text, None)
        if attempt is None:
            attempt = KeptRounds(())
        else:
            journal.resume(attempt)
        started = attempt.started | {pending[began] for began in kept}
        return journal, Past(attempt.messages, started, strange - started)

    async def _strange(self, owner: str, calls: Sequence[ToolCall]) -> frozenset[str]:
        """Those of the calls that no run of ours made for this caller."""
        keys = {call.id: _asked_key(call.approval) if call.approval else _ran_key(call.id) for call in calls}
        kept = await self._store.find(owner, keys.values())
        return frozenset([id for id, key in keys.items() if key not in kept])

    async def restored(self, owner: str, request: ModelRequest, native: bool, has_ids: bool) -> ModelRequest:
        """The request with all that its client did not see or could not keep."""
        if native:
            kept = await self._store.find(owner, _run_keys(request.messages), most=MOST_BYTES)
            return replace(request, messages=tuple(_in_full(request.messages, kept))) if kept else request
        turns = _turns(request.messages, has_ids)
        private = {number: _private_key(calls) for number, calls in turns.calls.items()} if has_ids else {}
        secrets = {key: _secret(turns.calls[number]) for number, key in private.items()}
        keys = [*turns.keys.values(), *private.values()]
        kept = await self._store.find(owner, keys, secrets=secrets, most=MOST_BYTES)
        found = {
            number: kept[key].messages
            for number, key in [*turns.keys.items(), *private.items()]
            if key in kept and kept[key].messages
        }
        return replace(request, messages=tuple(_with_turns(request.messages, found))) if found else request


class RunJournal:
    """The journal of one run."""

    def __init__(
        self,
        store: RoundStore,
        live: "dict[tuple[str, str], RunJournal]",
        owner: str,
        key: RunKey,
        asked: Sequence[Message],
        native: bool,
        run: str = "",
    ) -> None:
        self.run = run
        """The name by which it asks for consent."""
        self.resumed = False
        """Whether it goes on with what an earlier attempt had begun."""
        self._asked = asked
        self._native = native
        self._store = store
        self._live = live
        self._owner = owner
        self._key = key.text
        self._opening = key.secret
        self._secret = new_secret() if key.secret is not None else None
        self._turn = mint()
        self._written = 0  # so many messages are stored already
        self._kept = False
        self._is_finished = False
        self._begun: list[str] = []
        self._over = asyncio.Event()
        self._is_overtaken = False
        live[owner, key.text] = self

    def resume(self, attempt: KeptRounds) -> None:
        """Go on with what an earlier attempt had begun."""
        self.resumed = self._kept = True
        self.run = attempt.run or self.run
        self._turn, self._secret = attempt.turn, attempt.secret
        self._written = len(attempt.messages)

    async def overtaken(self) -> None:
        """The same request has come again: if anything is at stake, wait for the end of this run, as long as may be."""
        self._is_overtaken = True
        if self._kept:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), DEPARTURE_SECONDS)

    async def progressed(self, messages: Sequence[Message]) -> None:
        """Keep what the run did so far, for the same request to go on from."""
        self._kept = True
        await self._append([self._key], messages)

    async def answered(self, message: Message, usage: Usage | None) -> None:
        """Nothing is lost yet: the same request would get another answer."""

    async def ended(self, result: ToolResult) -> None:
        """It is kept with the others of its round."""

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        """Keep that a harmful call is about to run; a dialect that shows it may send it back before it has a result."""
        if repeatable:
            return
        if self._is_overtaken:
            await asyncio.sleep(DEPARTURE_SECONDS)  # if the client has left, this is where we are told
        await self._store.start(self._owner, self._key, call.id)
        if self._native:
            self._begun.append(_began_key(call))
            await self._store.keep(self._owner, self._begun[-1:], ())

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], asked: Sequence[str] = ()
    ) -> None:
        """Keep the turn for when the client comes back; the attempt stays until the client has heard of its end."""
        keys, secrets = [], {}
        if returned and self._secret is None:
            keys += [_call_key(returned), _spoken_key(_spoken(self._asked), returned)]
        elif returned:
            keys += [_private_key(returned)]
            secrets[keys[0]] = _secret(returned)
        keys += [*dict.fromkeys(_run_keys(messages)), *map(_asked_key, asked)] if self._native else []
        keys += [self._key] if self._kept else []
        if keys:
            await self._append(keys, messages, secrets)
        self._is_finished = True

    async def _append(
        self, keys: Sequence[str], messages: Sequence[Message], secrets: Mapping[str, bytes] | None = None
    ) -> None:
        """Store the messages that are not stored yet, and let the keys lead to all of them."""
        new, known = messages[self._written :], dict(secrets or {})
        if self._opening is not None:
            known[self._key] = self._opening
        await self._store.keep(
            self._owner, keys, new, run=self.run, turn=self._turn, secret=self._secret, secrets=known
        )
        self._written = len(messages)

    async def told(self) -> None:
        """The client has heard the end: from now on the same request is another."""
        if self._kept and self._is_finished:
            with suppress(Overloaded):  # at worst the same answer is told again within the hour
                await self._store.keep(self._owner, (), (), forget=[self._key, *self._begun])

    def close(self) -> None:
        """The run has ended, one way or another."""
        self._live.pop((self._owner, self._key), None)
        self._over.set()


def request_key(*words: bytes, private: bool = False) -> RunKey:
    """The key of a run: the digest of the request that began it."""
    whole = b"\0".join(words)
    return RunKey("run:" + hashlib.sha256(whole).hexdigest(), derived("run", whole) if private else None)


def _began_key(call: ToolCall) -> str:
    """The key under which it is known that this very call has begun."""
    said = f"{call.id}\0{call.name}\0".encode("utf-8", "replace") + _canonical(call.arguments)
    return f"began:{hashlib.sha256(said).hexdigest()}"


def _ran_key(id: str) -> str:
    """The key under which a call of ours is known, be it run or waiting."""
    return f"ran:{id}"


def _asked_key(approval: str) -> str:
    """The key under which it is known that this approval was asked for; not every dialect repeats the call's id."""
    return f"asked:{approval}"


def _call_key(calls: Sequence[ToolCall]) -> str:
    """The key of a turn by the first of the client's calls in it."""
    return f"call:{calls[0].id}"


def _private_key(calls: Sequence[ToolCall]) -> str:
    """The key of a private turn: the id of the client's call opens it, so that only its digest is stored."""
    return f"call:{hashlib.sha256(calls[0].id.encode('utf-8', 'replace')).hexdigest()}"


def _secret(calls: Sequence[ToolCall]) -> bytes:
    """The secret that opens a private turn."""
    return derived("call", calls[0].id.encode("utf-8", "replace"))


def _spoken_key(spoken: "hashlib._Hash", calls: Sequence[ToolCall]) -> str:
    """The key of a turn where calls have no ids: what users have said up to it, and what the calls say."""
    whole = spoken.copy()
    whole.update(msgspec.json.encode([(call.name, _canonical(call.arguments)) for call in calls]))
    return f"turn:{whole.hexdigest()}"


def _spoken(messages: Sequence[Message]) -> "hashlib._Hash":
    spoken = hashlib.sha256()
    for message in messages:
        _hear(spoken, message)
    return spoken


def _hear(spoken: "hashlib._Hash", message: Message) -> None:
    if message.role == "user":
        spoken.update(b"%b\0" % plain_text(message.parts).encode("utf-8", "replace"))


def _canonical(arguments: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments.encode("utf-8", "replace")


def _calls(message: Message) -> list[ToolCall]:
    if message.role != "assistant":
        return []
    return [part for part in message.parts if isinstance(part, ToolCall) and part.executor == "client"]


class _Turns(Struct, frozen=True):
    """The turns that hold calls of the client: their keys and those calls, by the number of the message."""

    keys: dict[int, str]
    calls: dict[int, list[ToolCall]]


def _turns(messages: Sequence[Message], has_ids: bool) -> _Turns:
    turns, spoken = _Turns({}, {}), hashlib.sha256()
    for number, message in enumerate(messages):
        _hear(spoken, message)
        if calls := _calls(message):
            turns.keys[number] = _call_key(calls) if has_ids else _spoken_key(spoken, calls)
            turns.calls[number] = calls
    return turns


def _with_turns(messages: Sequence[Message], found: Mapping[int, Sequence[Message]]) -> Iterator[Message]:
    for number, message in enumerate(messages):
        if number in found:
            yield from _renamed(found[number], _calls(message))
        else:
            yield message


def _renamed(turn: Sequence[Message], calls: Sequence[ToolCall]) -> Iterator[Message]:
    """The turn with the client's calls under the ids by which the client knows them."""
    ids: dict[str, str] = {}
    for message in turn:
        ids |= dict(zip([call.id for call in _calls(message)], [call.id for call in calls], strict=False))
    for message in turn:
        parts = [
            replace(part, id=ids.get(part.id, part.id)) if isinstance(part, ToolCall) else part
            for part in message.parts
        ]
        yield replace(message, parts=tuple(parts))


def _run_keys(messages: Sequence[Message]) -> Iterator[str]:
    """The keys of the calls that were run here; one that had waited for a person stands before these messages."""
    for message in messages:
        for part in message.parts:
            match part:
                case ToolCall(id=id, executor="gateway") | ToolResult(call_id=id):
                    yield _ran_key(id)


def _in_full(messages: Sequence[Message], kept: Mapping[str, KeptRounds]) -> Iterator[Message]:
    """The messages with our calls and their results as they were: a dialect may tell a picture in words alone, some
    clients lose the arguments of calls that are not theirs, and one that was cut off sends a call without its result."""
    parts = [part for rounds in kept.values() for message in rounds.messages for part in message.parts]
    calls = {part.id: part for part in parts if isinstance(part, ToolCall) and part.executor == "gateway"}
    results = {part.call_id: part for part in parts if isinstance(part, ToolResult)}

    def whole(part: Part) -> Part:
        match part:
            case ToolCall(id=id, approval=approval) if id in calls:
                return replace(calls[id], approval=approval)
            case ToolResult(call_id=id) if id in results:
                return results[id]
            case _:
                return part

    lacking = [call.id for call in unanswered(messages) if call.id in results]
    for message in messages:
        yield replace(message, parts=tuple([whole(part) for part in message.parts]))
    yield from [Message("tool", (results[id],)) for id in lacking]
