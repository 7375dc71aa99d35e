"""Store plain chats: decide which are stored, collect what was sent, and write it.

A chat is written after its response was sent and may be lost. One that the client asked to `store`, so that the client
knows its id, is on the disk before the end of its response is sent. A chat that failed is not stored.
"""

import asyncio
import time

from msgspec.structs import replace

from toolgate.api.metadata import check_metadata
from toolgate.api.records.decode_sent import decode_stream, decode_whole, record_history
from toolgate.api.records.message_rows import StoredMessageMetadata, message_rows
from toolgate.api.records.write_queue import MIB, WriteQueue
from toolgate.api.response_writer import PreparedRequest
from toolgate.config.settings import KeptChats
from toolgate.conversation.message import Message
from toolgate.conversation.random_ids import random_suffix
from toolgate.dialects.openai_chat.requests import uses_legacy_functions
from toolgate.dialects.openai_chat.shared_codec import NAME as CHAT
from toolgate.engine.json_thread import LARGE_BODY
from toolgate.http.application import AdmittedHttpRequest
from toolgate.storage.recorded_chats import ChatStore, StoredChatExchange

_LARGEST = 32 * MIB  # of a request with its response: it stays in memory until it is written
_DONE = b"data: [DONE]\n\n"
_NOT_STORED = "store: this server keeps no chats of this key"


class ChatRecordingPolicy:
    """Chooses the chats that are stored, by the configuration and the caller's key."""

    def __init__(self, store: ChatStore, writer: WriteQueue, stored: KeptChats = "asked") -> None:
        self._store = store
        self._writer = writer
        self._stored = stored

    def configure(self, stored: KeptChats) -> None:
        """Store these chats from now on."""
        self._stored = stored

    def recorder_for(
        self, call: AdmittedHttpRequest, prepared: PreparedRequest
    ) -> "tuple[PreparedRequest, SingleChatRecorder | None]":
        """Return the request, and the recorder of its answer if that is to be stored."""
        extra, by_key = prepared.request.extra, call.caller.keep_chats
        always = self._stored == "all" if by_key is None else by_key
        if not always and not extra:  # the way of almost every request
            return prepared, None
        requested = extra.get(CHAT, {}).get("store") is True
        if requested and not always and (by_key is False or self._stored == "none"):
            request = replace(prepared.request, warnings=(*prepared.request.warnings, _NOT_STORED))
            return replace(prepared, request=request), None
        if not always and not requested:
            return prepared, None
        if requested:
            check_metadata(_noted(prepared))  # before the model is asked
        return prepared, SingleChatRecorder(self._store, self._writer, call, prepared, always, requested)


class SingleChatRecorder:
    """Stores one request with its response."""

    def __init__(
        self,
        store: ChatStore,
        writer: WriteQueue,
        call: AdmittedHttpRequest,
        prepared: PreparedRequest,
        always: bool,
        requested: bool,
    ) -> None:
        """`always` stores the chat for its list, `requested` the completion that the client asked to store."""
        self._store = store
        self._writer = writer
        self._owner = call.caller.name
        self._prepared = prepared
        self._always = always
        self._requested = requested
        self._chunks: list[bytes] = []
        self._size = call.exchange.received  # the request stays in memory, too, until it is written
        self._exchange: StoredChatExchange | None = None
        self._chat = f"chat_{random_suffix()}"
        self._is_stored = False

    async def before_chunk(self, chunk: bytes) -> None:
        """Collect a chunk; before the last one is sent, store what was requested: then the client may GET it."""
        self._collect(chunk)
        if self._requested and chunk.endswith(_DONE):
            await self._store_now()

    async def before_whole(self, body: bytes) -> None:
        """Collect a whole response, and store it if the client requested that."""
        self._collect(body)
        if self._requested:
            await self._store_now()

    def delivered(self) -> None:
        """Queue the chat to be written, unless the request failed or the chat is stored already."""
        if self._is_stored or self._prepared.record.error is not None:
            return
        if self._size > _LARGEST:
            self._writer.lose("chat", "it is too large")
        else:
            # Decoded by the database's thread when it is written: no client waits for it.
            owner = self._prepared.record.caller
            self._writer.put(owner, "chat", lambda db: self._store.keeping(self._decoded())(db), self._size)

    def _collect(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= _LARGEST:
            self._chunks.append(chunk)

    async def _store_now(self) -> None:
        if self._size > _LARGEST:
            return
        await self._store.keep(self._decoded() if self._size <= LARGE_BODY else await asyncio.to_thread(self._decoded))
        self._is_stored = True

    def _decoded(self) -> StoredChatExchange:
        """Decode the chunks to rows, once."""
        if self._exchange is not None:  # the write is tried again
            return self._exchange
        prepared = self._prepared
        request, metadata, record, now = prepared.request, prepared.metadata, prepared.record, time.time()
        response = (decode_stream if request.stream else decode_whole)(prepared.dialect, request, self._chunks)
        sent = StoredMessageMetadata(record.request_id, now, uses_legacy_functions(request))
        answer = Message("assistant", response.parts)
        past = record_history(request.messages, answer, sent)
        about = replace(sent, model=metadata.model, finish_reason=response.reason, usage=response.usage or record.usage)
        self._exchange = StoredChatExchange(
            chat=self._chat,
            owner=self._owner,
            model=metadata.model,
            dialect=prepared.dialect.name,
            created=now,
            heads=past.heads,
            messages=past.rows,
            answer=message_rows([answer], about)[0],
            digest=past.digest,
            system_digest=past.system_digest,
            lasting=self._always,
            completion=(response.id or metadata.id) if self._requested else None,  # the id that the client was sent
            metadata=_noted(prepared),
        )
        return self._exchange


def _noted(prepared: PreparedRequest) -> dict[str, str]:
    """Return the metadata that the client has sent; what is no text is left out."""
    noted = prepared.request.extra.get(CHAT, {}).get("metadata")
    return {name: text for name, text in noted.items() if type(text) is str} if type(noted) is dict else {}
