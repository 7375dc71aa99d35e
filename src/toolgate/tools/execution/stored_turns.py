"""Store runs with server tools, so that what a client does not see of them is found again when it comes back.

Where a dialect has no form for the server's calls, a client that returns with the results of its own tools sends back only
its part of the turn: the whole turn replaces it. A run that was cut off, or waits for an approval, is resumed when the very
same request comes again; what it had done is not done twice.

What a client wants not to be stored (`store: false`) is stored encrypted, under secrets that are derived from the request
itself, or from the id of the call that the client comes back with: the database alone is not enough to read it.

A client that leaves may ask again before that is noticed. So a request that repeats one that is being answered waits until
it is certain that the first one's client is still there, if anything is at stake.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.conversation.events import Usage
from toolgate.conversation.history import split_at_waiting_calls, unanswered_calls
from toolgate.conversation.message import Message, Part, ToolCall, ToolResult, plain_text
from toolgate.conversation.random_ids import random_suffix
from toolgate.conversation.request import ModelRequest
from toolgate.engine.tool_loop import EarlierAttempts
from toolgate.storage.hidden_turns import MOST_BYTES, HiddenTurn, HiddenTurnStore
from toolgate.storage.row_encryption import derive_secret, new_secret

# How long the same request resumes a run that was cut off; later it is a new run.
RESUMABLE_SECONDS = 3600.0
# How long it takes at most to notice that a client has left.
DEPARTURE_SECONDS = 2.0


class RunRequestDigest(Struct, frozen=True):
    """The digest of the request that started a run; `secret` decrypts what is stored of a private one."""

    text: str
    secret: bytes | None = None


class HiddenTurnRestorer:
    """Stores and finds the runs of callers."""

    def __init__(self, store: HiddenTurnStore) -> None:
        self._store = store
        self._live: dict[tuple[str, str], StoredRunJournal] = {}

    async def begin(
        self, owner: str, key: RunRequestDigest, request: ModelRequest, native: bool, run: str = ""
    ) -> tuple["StoredRunJournal", EarlierAttempts]:
        """Return a journal for the run of this key, and the history of an earlier attempt, if there was one.

        `run` is the id under which a new run asks for approvals; one that is resumed has that of its first attempt.
        A run of this key that is live is left alone: this one is another.
        """
        if (earlier := self._live.get((owner, key.text))) is not None:
            await earlier.wait_for_end()
        if (owner, key.text) in self._live:
            key = replace(key, text=f"{key.text}+{random_suffix()}")
            return StoredRunJournal(
                self._store, self._live, owner, key, request.messages, native, run
            ), EarlierAttempts()
        # The key is taken before anything is awaited: of two requests that come back, one resumes the run.
        journal = StoredRunJournal(self._store, self._live, owner, key, request.messages, native, run)
        try:
            waiting = unanswered_calls(split_at_waiting_calls(request)[0])
            pending = {_started_key(call): call.id for call in waiting}
            secrets = {key.text: key.secret} if key.secret is not None else {}
            stored = await self._store.find(owner, [key.text, *pending], within=RESUMABLE_SECONDS, secrets=secrets)
            unknown: frozenset[str] = frozenset()
            if native and pending:
                # A client may invent calls of ours and send them back as waiting: only those that a run of ours made
                # for this caller are run.
                made = {
                    call.id: _approval_key(call.approval) if call.approval else _ran_key(call.id) for call in waiting
                }
                known = await self._store.find(owner, made.values())
                unknown = frozenset([id for id, made_key in made.items() if made_key not in known])
        except BaseException:
            journal.close()
            raise
        earlier_turn = stored.pop(key.text, None)
        if earlier_turn is None:
            earlier_turn = HiddenTurn(())
        else:
            journal.resume(earlier_turn)
        started = earlier_turn.started | {pending[key] for key in stored}
        return journal, EarlierAttempts(earlier_turn.messages, started, unknown - started)

    async def restore(self, owner: str, request: ModelRequest, native: bool, has_ids: bool) -> ModelRequest:
        """Return the request with all that its client did not see or could not keep."""
        if native:
            stored = await self._store.find(owner, _run_keys(request.messages), most=MOST_BYTES)
            return replace(request, messages=tuple(_complete_parts(request.messages, stored))) if stored else request
        # The turns with calls of the client, by the number of the message.
        calls: dict[int, list[ToolCall]] = {}
        keys: dict[int, str] = {}
        digest = hashlib.sha256()
        for number, message in enumerate(request.messages):
            _add_user_text(digest, message)
            if own := _calls(message):
                calls[number] = own
                keys[number] = _call_key(own) if has_ids else _text_key(digest, own)
        # Which turns are private is not known here. The id of a call is the only key of a private one.
        private = {number: _private_key(own) for number, own in calls.items()} if has_ids else {}
        secrets = {key: _secret(calls[number]) for number, key in private.items()}
        stored = await self._store.find(owner, [*keys.values(), *private.values()], secrets=secrets, most=MOST_BYTES)
        found = {
            number: stored[key].messages
            for number, key in [*keys.items(), *private.items()]
            if key in stored and stored[key].messages
        }
        if not found:
            return request
        messages: list[Message] = []
        for number, message in enumerate(request.messages):
            messages += _with_client_ids(found[number], calls[number]) if number in found else (message,)
        return replace(request, messages=tuple(messages))


class StoredRunJournal:
    """The journal of one run, in the database (`toolgate.engine.ports.RunJournal`)."""

    def __init__(
        self,
        store: HiddenTurnStore,
        live: "dict[tuple[str, str], StoredRunJournal]",
        owner: str,
        key: RunRequestDigest,
        messages: Sequence[Message],
        native: bool,
        run: str = "",
    ) -> None:
        self.run = run  # the id under which it asks for approvals
        self.resumed = False  # whether it continues what an earlier attempt had started
        self._messages = messages
        self._native = native
        self._store = store
        self._live = live
        self._owner = owner
        self._key = key.text
        self._key_secret = key.secret
        self._secret = new_secret() if key.secret is not None else None
        self._turn = random_suffix()
        self._written = 0  # so many messages are stored already
        self._has_stored = False
        self._is_finished = False
        self._started_keys: list[str] = []
        self._ended = asyncio.Event()
        self._is_repeated = False
        live[owner, key.text] = self

    def resume(self, earlier_turn: HiddenTurn) -> None:
        """Continue what an earlier attempt had started."""
        self.resumed = self._has_stored = True
        self.run = earlier_turn.run or self.run
        self._turn, self._secret = earlier_turn.turn, earlier_turn.secret
        self._written = len(earlier_turn.messages)

    async def wait_for_end(self) -> None:
        """Note that the same request has come again, and if anything is at stake, wait a while for the end of this run."""
        self._is_repeated = True
        if self._has_stored:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), DEPARTURE_SECONDS)

    async def progressed(self, messages: Sequence[Message]) -> None:
        """Store what the run did so far, for the same request to continue."""
        self._has_stored = True
        await self._append([self._key], messages)

    async def answered(self, message: Message, usage: Usage | None, by_model: Mapping[str, Usage]) -> None:
        """Store nothing: the same request would get another answer."""

    async def ended(self, result: ToolResult) -> None:
        """Store nothing: the result is stored with the others of its step."""

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        """Store that a call is about to run that may do harm; its client may send it back before it has a result."""
        if repeatable:
            return
        if self._is_repeated:
            await asyncio.sleep(DEPARTURE_SECONDS)  # if the client has left, this is cancelled
        await self._store.start(self._owner, self._key, call.id)
        if self._native:
            self._started_keys.append(_started_key(call))
            await self._store.keep(self._owner, self._started_keys[-1:], ())

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], approvals: Sequence[str] = ()
    ) -> None:
        """Store the turn for when the client comes back; the attempt stays until the client has received its end."""
        # A client that comes back sends the calls that it was given: these lead to the turn. Which dialect it comes
        # back in is not known, so that there is a key for one with ids and one for one without.
        keys, secrets = [], {}
        if returned and self._secret is None:
            digest = hashlib.sha256()
            for message in self._messages:
                _add_user_text(digest, message)
            keys += [_call_key(returned), _text_key(digest, returned)]
        elif returned:
            keys += [_private_key(returned)]
            secrets[keys[0]] = _secret(returned)
        keys += [*dict.fromkeys(_run_keys(messages)), *map(_approval_key, approvals)] if self._native else []
        keys += [self._key] if self._has_stored else []
        if keys:
            await self._append(keys, messages, secrets)
        self._is_finished = True

    async def _append(
        self, keys: Sequence[str], messages: Sequence[Message], secrets: Mapping[str, bytes] | None = None
    ) -> None:
        """Store the messages that are not stored yet, and let these keys find all of them."""
        new, known = messages[self._written :], dict(secrets or {})
        if self._key_secret is not None:
            known[self._key] = self._key_secret
        await self._store.keep(
            self._owner, keys, new, run=self.run, turn=self._turn, secret=self._secret, secrets=known
        )
        self._written = len(messages)

    async def delivered(self) -> None:
        """Forget the attempt: the client has received its end, and the same request is a new run from now on."""
        if self._has_stored and self._is_finished:
            with suppress(GatewayOverloaded):  # at worst the same answer is sent again within the hour
                await self._store.keep(self._owner, (), (), forget=[self._key, *self._started_keys])

    def close(self) -> None:
        """Note that the run has ended, in whatever way."""
        self._live.pop((self._owner, self._key), None)
        self._ended.set()


def request_key(*parts: bytes, private: bool = False) -> RunRequestDigest:
    """Return the key of a run: the digest of the request that started it."""
    whole = b"\0".join(parts)
    return RunRequestDigest(
        "run:" + hashlib.sha256(whole).hexdigest(), derive_secret("run", whole) if private else None
    )


def _started_key(call: ToolCall) -> str:
    """Return the key under which it is stored that this very call has started."""
    # Name and arguments are in it because clients choose ids: another call under the same id has not started.
    identity = f"{call.id}\0{call.name}\0".encode("utf-8", "replace") + _canonical(call.arguments)
    return f"began:{hashlib.sha256(identity).hexdigest()}"


def _ran_key(id: str) -> str:
    """Return the key of a call of ours, be it run or waiting."""
    return f"ran:{id}"


def _approval_key(approval: str) -> str:
    """Return the key of an approval that was asked for; not every dialect repeats the call's id."""
    return f"asked:{approval}"


def _call_key(calls: Sequence[ToolCall]) -> str:
    """Return the key of a turn by the first of the client's calls in it."""
    return f"call:{calls[0].id}"


def _private_key(calls: Sequence[ToolCall]) -> str:
    """Return the key of a private turn: the id of the client's call decrypts it, so that only its digest is stored."""
    return f"call:{hashlib.sha256(calls[0].id.encode('utf-8', 'replace')).hexdigest()}"


def _secret(calls: Sequence[ToolCall]) -> bytes:
    """Return the secret that decrypts a private turn."""
    return derive_secret("call", calls[0].id.encode("utf-8", "replace"))


def _text_key(digest: "hashlib._Hash", calls: Sequence[ToolCall]) -> str:
    """Return the key of a turn whose calls have no ids: the users' text before it, and the names and arguments."""
    whole = digest.copy()
    whole.update(msgspec.json.encode([(call.name, _canonical(call.arguments)) for call in calls]))
    return f"turn:{whole.hexdigest()}"


def _add_user_text(digest: "hashlib._Hash", message: Message) -> None:
    if message.role == "user":
        digest.update(b"%b\0" % plain_text(message.parts).encode("utf-8", "replace"))


def _canonical(arguments: str) -> bytes:
    # Clients parse arguments and encode them again, with other spaces and another order of keys.
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments.encode("utf-8", "replace")


def _calls(message: Message) -> list[ToolCall]:
    if message.role != "assistant":
        return []
    return [part for part in message.parts if isinstance(part, ToolCall) and part.executor == "client"]


def _with_client_ids(turn: Sequence[Message], calls: Sequence[ToolCall]) -> Iterator[Message]:
    """Yield the turn, its client calls with the ids by which the client knows them."""
    # In Ollama a call needs no id: the request was decoded with ids of its own, to which its results refer.
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
    """Yield the keys of the calls that were run here; one that had waited for an approval is in earlier messages."""
    for message in messages:
        for part in message.parts:
            match part:
                case ToolCall(id=id, executor="gateway") | ToolResult(call_id=id):
                    yield _ran_key(id)


def _complete_parts(messages: Sequence[Message], stored: Mapping[str, HiddenTurn]) -> Iterator[Message]:
    """Yield the messages with our calls and results as they were.

    A dialect may have described a picture in text, some clients lose the arguments of calls that are not theirs, and one
    that was cut off sends a call without its result.
    """
    parts = [part for turn in stored.values() for message in turn.messages for part in message.parts]
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

    missing = [call.id for call in unanswered_calls(messages) if call.id in results]
    for message in messages:
        yield replace(message, parts=tuple([whole(part) for part in message.parts]))
    yield from [Message("tool", (results[id],)) for id in missing]
