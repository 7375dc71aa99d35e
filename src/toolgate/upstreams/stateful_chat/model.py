"""A model of a peer that stores the conversation itself: a stateless history comes in, one message is sent.

A conversation of the peer is stored under the digest of its content. A request whose history has this digest removes it
from storage, so that no other request continues it at the same time, and stores it under the new digest when the answer is
complete. After an answer that broke off or was cancelled the state of the conversation is unknown, so it is not stored
again; neither is it after a crash.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from toolgate.conversation.errors import GatewayOverloaded, InvalidUpstreamAnswer, UpstreamError
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import StepEvent, Usage
from toolgate.conversation.request import NO_SETTINGS, ModelRequest, RequestSettings
from toolgate.conversation.result_delimiters import new_secret
from toolgate.dialects.dialect import Quirks
from toolgate.engine.ports import ModelStream
from toolgate.upstreams.stateful_chat.connection import StatefulChatConnection
from toolgate.upstreams.stateful_chat.exchange import ConversationForgotten, StatefulChatExchange
from toolgate.upstreams.stateful_chat.frames import CreateStatefulChatConversationFrame, StatefulChatUserMessageFrame
from toolgate.upstreams.stateful_chat.history_turns import HistoryForStatefulChat, Replay, read_history
from toolgate.upstreams.stateful_chat.reconnect import ReconnectingStatefulChat
from toolgate.upstreams.tool_definition_rewrite import adapt

DIALECT = "peer"
_NO_QUIRKS = Quirks()
# `user` is read as the owner of conversations, and `adapt` refuses several choices.
_NOT_SAMPLING = {"user", "choices"}


class StatefulChatConversationStoreProtocol(Protocol):
    """Stores conversations by the digest of their content; it must be safe for many processes at once."""

    async def take(self, peer: str, owner: str, digest: str) -> str | None:
        """Remove and return a conversation of this digest, so that no other request gets it."""

    async def keep(self, peer: str, owner: str, digest: str, conversation: str) -> None:
        """Store a conversation under this digest."""


def user_of(request: ModelRequest) -> str:
    """Return the user that the request names, who owns its conversations."""
    return request.settings.user or ""


class StatefulChatModel:
    """One model of a peer; it writes text and calls no tools."""

    def __init__(
        self,
        peer: ReconnectingStatefulChat,
        model: str,
        conversations: StatefulChatConversationStoreProtocol,
        *,
        owner: Callable[[ModelRequest], str] = user_of,
        replay: Replay = str,
        note: Callable[[str, str], None] = lambda upstream, outcome: None,
    ) -> None:
        """`owner` returns whose conversations a request may continue.

        `replay` gives an answer of the model as a history replays it, for a wrapper that reads calls in it and writes them
        anew; applied twice it must change nothing more. `note` is called for every attempt, and of every answer whose
        conversation could not be remembered.
        """
        self._peer = peer
        self._model = model
        self._conversations = conversations
        self._owner = owner
        self._replay = replay
        self._note = note
        self._secret = new_secret()

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the answer once its first text has arrived."""
        adapted = adapt(request, DIALECT, _NO_QUIRKS)
        history = read_history(adapted.request, self._secret)
        try:
            conversation, exchange = await self._send_new(request, history)
        except UpstreamError as fault:
            self._note(self._peer.name, fault.code)
            raise
        self._note(self._peer.name, "ok")
        sampling = [name for name in RequestSettings.__struct_fields__ if name not in _NOT_SAMPLING]
        lost = [name for name in sampling if getattr(request.settings, name) != getattr(NO_SETTINGS, name)]
        if request.tools:
            lost.append("tools")
        unsupported = [f"{name} was dropped: the model's upstream takes text only" for name in lost]
        warnings = (*history.warnings, *unsupported, *adapted.dropped)

        async def remember(answer: str) -> None:
            digest = history.digest_after(answer, self._replay)
            try:
                await self._conversations.keep(self._storage_name, self._owner(request), digest, conversation)
            except GatewayOverloaded:  # the answer is good, and the next request sends the whole history
                self._note(self._peer.name, "storage_unavailable")

        return StatefulChatStream(self._peer.name, self._model, exchange, remember, warnings)

    async def _send_new(
        self, request: ModelRequest, history: HistoryForStatefulChat
    ) -> tuple[str, StatefulChatExchange]:
        """Return the conversation that this request continues, and the exchange in it."""
        connection = await self._peer.connection()  # before a conversation is taken, so that an outage costs none
        connection.check_size(history.new)  # before that, too: a message that is refused must not end a conversation
        known: str | None = None
        if history.earlier:
            digest = history.digest(self._replay)
            try:
                known = await self._conversations.take(self._storage_name, self._owner(request), digest)
            except GatewayOverloaded:  # then the whole history is sent
                self._note(self._peer.name, "storage_unavailable")
        if known is not None:
            try:
                return known, await _send_message(connection, known, history.new)
            except ConversationForgotten:
                pass  # nothing was sent yet: send the whole history, as to a new conversation
        opening = history.opening
        connection.check_size(opening)
        exchange = await connection.ask(lambda own: CreateStatefulChatConversationFrame(own, self._model))
        if exchange.conversation is None:
            exchange.cancel()
            raise InvalidUpstreamAnswer("The peer answered create_conversation without a conversation.")
        conversation = exchange.conversation
        try:
            return conversation, await _send_message(connection, conversation, opening)
        except ConversationForgotten as forgotten:
            raise InvalidUpstreamAnswer(
                f"The peer forgot a conversation that it had just created: {forgotten.message}"
            ) from None

    @property
    def _storage_name(self) -> str:
        return f"{self._peer.name}/{self._model}"


class StatefulChatStream:
    """An answer that streams in."""

    whole = False
    dialect: str | None = None

    def __init__(
        self,
        upstream: str,
        model: str,
        exchange: StatefulChatExchange,
        remember: "StatefulChatConversationSaver",
        warnings: tuple[str, ...],
    ) -> None:
        self.upstream = upstream
        self.warnings = warnings
        self._model = model
        self._exchange = exchange
        self._remember = remember

    @property
    def reported(self) -> Usage | None:
        """The usage that the peer has reported, which is charged even if the end of the answer is not read."""
        ending = self._exchange.ending
        if ending is None or (used := ending.usage) is None:
            return None
        return Usage(used.input, used.output)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events in batches, and store the conversation."""
        assembler, texts = EventAssembler(), list[str]()
        assembler.start(model=self._model)
        try:
            while pieces := await self._exchange.more():
                texts += pieces
                assembler.text("".join(pieces))
                yield assembler.take()
        finally:
            self._exchange.cancel()
        # Stored before the last event: a client that sends its next message at once must find it.
        ending = self._exchange.ending
        assert ending is not None  # or `more` had raised
        await self._remember("".join(texts))
        assembler.end(ending.reason, self.reported)
        yield assembler.take()

    async def aclose(self) -> None:
        """Close the stream; an unfinished answer is cancelled at the peer."""
        self._exchange.cancel()


class StatefulChatConversationSaver(Protocol):
    """Stores the conversation of a complete answer."""

    async def __call__(self, answer: str) -> None: ...


async def _send_message(connection: StatefulChatConnection, conversation: str, text: str) -> StatefulChatExchange:
    return await connection.ask(lambda own: StatefulChatUserMessageFrame(own, conversation, text))
