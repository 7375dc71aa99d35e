"""Keeping plain chats: who wants which kept, and keeping them when they were told.

A chat is written behind its answer and may be lost; one that a client asked to `store`, and whose id it therefore knows, is
on the disk before the client hears that its answer is complete. A chat that failed is not kept.
"""

import asyncio
import time

from msgspec.structs import replace

from toolgate.config.settings import KeptChats
from toolgate.conversation.ids import mint
from toolgate.conversation.message import Message
from toolgate.dialects.openai_chat.requests import uses_legacy_functions
from toolgate.dialects.openai_chat.words import NAME as CHAT
from toolgate.engine.offload import LARGE
from toolgate.server.app import Call
from toolgate.server.endpoints import Question
from toolgate.server.records.heard import history, read_stream, read_whole
from toolgate.server.records.rows import About, rows
from toolgate.server.records.writer import MIB, Writer
from toolgate.storage.chats import ChatStore, Said
from toolgate.storage.database import Connection

_LARGEST = 32 * MIB
_DONE = b"data: [DONE]\n\n"
_NOT_STORED = "store: this server keeps no chats of this key"


class Chats:
    """Keeps chats as the configuration and the key of whoever speaks have it."""

    def __init__(self, store: ChatStore, writer: Writer) -> None:
        self.kept: KeptChats = "asked"
        self._store = store
        self._writer = writer

    def prepared(self, call: Call, question: Question) -> "tuple[Question, ChatKeeper | None]":
        """The question, and whoever keeps its answer if it is to be kept."""
        extra, wish = question.request.extra, call.caller.keep_chats
        lasting = self.kept == "all" if wish is None else wish
        if not lasting and not extra:
            return question, None
        asked = extra.get(CHAT, {}).get("store") is True
        if asked and not lasting and (wish is False or self.kept == "none"):
            request = replace(question.request, warnings=(*question.request.warnings, _NOT_STORED))
            return replace(question, request=request), None
        if not lasting and not asked:
            return question, None
        return question, ChatKeeper(self._store, self._writer, call, question, lasting, asked)


class ChatKeeper:
    """Keeps one answer with what it answered."""

    def __init__(
        self, store: ChatStore, writer: Writer, call: Call, question: Question, lasting: bool, asked: bool
    ) -> None:
        self._store = store
        self._writer = writer
        self._owner = call.caller.name
        self._question = question
        self._lasting = lasting
        self._asked = asked
        self._pieces: list[bytes] = []
        self._size = call.exchange.received  # the question is held, too, until it is written
        self._said: Said | None = None
        self._chat = f"chat_{mint()}"
        self._is_kept = False

    async def before_chunk(self, chunk: bytes) -> None:
        """Frames are about to go out; behind the last of them the client may ask for the answer."""
        self._hear(chunk)
        if self._asked and chunk.endswith(_DONE):
            await self._keep_now()

    async def before_whole(self, body: bytes) -> None:
        """A whole answer is about to go out."""
        self._hear(body)
        if self._asked:
            await self._keep_now()

    def told(self) -> None:
        """The answer went out; unless it failed or is kept already, it is now to be kept."""
        if self._is_kept or self._question.record.error is not None:
            return
        if self._size > _LARGEST:
            self._writer.lose("chat", "it is too large")
        else:
            self._writer.put("chat", self._write, self._size)

    def _hear(self, piece: bytes) -> None:
        """Collect it, unless it grows too large."""
        self._size += len(piece)
        if self._size <= _LARGEST:
            self._pieces.append(piece)

    async def _keep_now(self) -> None:
        if self._size > _LARGEST:
            return
        await self._store.keep(self._read() if self._size <= LARGE else await asyncio.to_thread(self._read))
        self._is_kept = True

    def _write(self, db: Connection) -> None:
        self._store.keeping(self._read())(db)

    def _read(self) -> Said:
        """What was said; in a thread of the storage unless the client waits for it."""
        if self._said is None:
            self._said = self._reading()
        return self._said

    def _reading(self) -> Said:
        question = self._question
        request, reply, now = question.request, question.reply, time.time()
        response = (read_stream if request.stream else read_whole)(question.dialect, request, self._pieces)
        record = question.record
        told = About(record.request_id, now, uses_legacy_functions(request))
        answer = Message("assistant", response.parts)
        past = history(request.messages, answer, told)
        more = replace(told, model=reply.model, finish_reason=response.reason, usage=response.usage or record.usage)
        return Said(
            chat=self._chat,
            owner=self._owner,
            model=reply.model,
            dialect=question.dialect.name,
            created=now,
            heads=past.heads,
            messages=past.rows,
            answer=rows([answer], more)[0],
            digest=past.digest,
            system_digest=past.system_digest,
            lasting=self._lasting,
            completion=(response.id or reply.id) if self._asked else None,  # the id that the client was told
            metadata=_metadata(question),
        )


def _metadata(question: Question) -> dict[str, str]:
    """What the client notes about the answer, as far as it is made of words."""
    noted = question.request.extra.get(CHAT, {}).get("metadata")
    return {name: value for name, value in noted.items() if type(value) is str} if type(noted) is dict else {}
