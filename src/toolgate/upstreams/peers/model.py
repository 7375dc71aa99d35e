"""A model behind a peer that keeps the conversation itself: a stateless history goes in, one message goes out.

A conversation of the peer is remembered under the digest of all that was said in it. A request whose history begins so
takes it: from that moment it is nobody else's, and it comes back under its new digest when the answer is complete. An
answer that breaks off or is left leaves it in a state that nobody knows, so it is not remembered again. Hence two requests
never speak in one conversation at the same time, and a process that dies leaves nothing behind that could mislead.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from toolgate.conversation.assemble import Assembler
from toolgate.conversation.errors import Garbled, Overloaded, UpstreamFault
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.request import NO_SETTINGS, ModelRequest, Settings
from toolgate.dialects.dialect import Quirks
from toolgate.engine.ports import Answer
from toolgate.upstreams.adapt import adapt
from toolgate.upstreams.peers.exchange import Exchange, Forgotten
from toolgate.upstreams.peers.frames import CreateConversation, Done, SendMessage
from toolgate.upstreams.peers.line import Line
from toolgate.upstreams.peers.peer import Peer
from toolgate.upstreams.peers.turns import Reading, Retell, read

DIALECT = "peer"
_NO_QUIRKS = Quirks()
_NOT_SAMPLING = {"user", "choices"}


class Conversations(Protocol):
    """Remembers conversations by what was said in them; it must be safe for many processes at once."""

    async def take(self, peer: str, owner: str, digest: str) -> str | None:
        """A conversation of this digest, which is forgotten by this: nobody else gets it."""

    async def keep(self, peer: str, owner: str, digest: str, conversation: str) -> None:
        """Remember a conversation under this digest."""


def user_of(request: ModelRequest) -> str:
    """The user that the request names, for want of a better owner: whoever names the same finds the same."""
    return request.settings.user or ""


class PeerModel:
    """One model of a peer; it writes text and calls no tools."""

    def __init__(
        self,
        peer: Peer,
        model: str,
        conversations: Conversations,
        *,
        owner: Callable[[ModelRequest], str] = user_of,
        retell: Retell = str,
        note: Callable[[str, str], None] = lambda upstream, outcome: None,
    ) -> None:
        """`owner` says whose conversations a request may continue.

        `retell` gives an answer of the model as a history replays it, for a wrapper that reads calls in it and writes them
        anew; applied twice it must change nothing more. `note` is told of every attempt, and of every answer whose
        conversation could not be remembered.
        """
        self._peer = peer
        self._model = model
        self._conversations = conversations
        self._owner = owner
        self._retell = retell
        self._note = note

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first word has arrived."""
        adapted = adapt(request, DIALECT, _NO_QUIRKS)
        reading = read(adapted.request)
        try:
            conversation, exchange = await self._asked(request, reading)
        except UpstreamFault as fault:
            self._note(self._peer.name, fault.code)
            raise
        self._note(self._peer.name, "ok")
        warnings = (*reading.warnings, *_unsaid(request), *adapted.dropped)

        async def remember(answer: str) -> None:
            await self._remember(request, reading.digest_after(answer, self._retell), conversation)

        return PeerAnswer(self._peer.name, self._model, exchange, remember, warnings)

    async def _asked(self, request: ModelRequest, reading: Reading) -> tuple[str, Exchange]:
        """The conversation that goes on with this request, and the exchange in it."""
        line = await self._peer.line()  # before a conversation is taken, so that an outage costs none
        line.check_size(reading.new)
        known = await self._known(request, reading)
        if known is not None:
            try:
                return known, await _said(line, known, reading.new)
            except Forgotten:
                pass  # nothing was told yet: it is told everything, as if it had never known
        opening = reading.opening
        line.check_size(opening)
        conversation = await self._created(line)
        try:
            return conversation, await _said(line, conversation, opening)
        except Forgotten as forgotten:
            raise Garbled(f"The peer forgot a conversation that it had just created: {forgotten.message}") from None

    async def _known(self, request: ModelRequest, reading: Reading) -> str | None:
        if not reading.said:
            return None
        try:
            return await self._conversations.take(self._place, self._owner(request), reading.digest(self._retell))
        except Overloaded:  # it can be told everything
            self._note(self._peer.name, "storage_unavailable")
            return None

    async def _remember(self, request: ModelRequest, digest: str, conversation: str) -> None:
        try:
            await self._conversations.keep(self._place, self._owner(request), digest, conversation)
        except Overloaded:  # the answer is good, and next time everything is told again
            self._note(self._peer.name, "storage_unavailable")

    @property
    def _place(self) -> str:
        return f"{self._peer.name}/{self._model}"

    async def _created(self, line: Line) -> str:
        exchange = await line.ask(lambda own: CreateConversation(own, self._model))
        if exchange.conversation is None:
            exchange.cancel()
            raise Garbled("The peer answered create_conversation without a conversation.")
        return exchange.conversation


class PeerAnswer:
    """An answer on its way in, word by word."""

    whole = False
    dialect: str | None = None

    def __init__(
        self,
        upstream: str,
        model: str,
        exchange: Exchange,
        remember: "Remember",
        warnings: tuple[str, ...],
    ) -> None:
        self.upstream = upstream
        self.warnings = warnings
        self._model = model
        self._exchange = exchange
        self._remember = remember

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events, in batches as they came; the conversation is remembered before the last one is told."""
        assembler, said = Assembler(), list[str]()
        assembler.start(model=self._model)
        try:
            while pieces := await self._exchange.more():
                said += pieces
                assembler.text("".join(pieces))
                yield assembler.take()
        finally:
            self._exchange.cancel()
        ending = self._exchange.ending
        assert ending is not None  # or `more` had raised
        await self._remember("".join(said))
        assembler.end(ending.reason, _usage(ending))
        yield assembler.take()

    async def aclose(self) -> None:
        """Stop listening; an unfinished answer is cancelled at the peer."""
        self._exchange.cancel()


class Remember(Protocol):
    """Keeps the conversation of an answer that is complete."""

    async def __call__(self, answer: str) -> None: ...


async def _said(line: Line, conversation: str, text: str) -> Exchange:
    return await line.ask(lambda own: SendMessage(own, conversation, text))


def _usage(ending: Done) -> Usage | None:
    return Usage(ending.usage.input, ending.usage.output) if ending.usage is not None else None


def _unsaid(request: ModelRequest) -> list[str]:
    """What a peer cannot be told."""
    asked = [name for name in Settings.__struct_fields__ if name not in _NOT_SAMPLING]
    names = [name for name in asked if getattr(request.settings, name) != getattr(NO_SETTINGS, name)]
    if request.tools:
        names.append("tools")
    return [f"{name} was dropped: the model's upstream takes text only" for name in names]
