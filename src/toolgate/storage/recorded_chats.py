"""Store chats, each message once, however often a client sends its history again.

A chat is found by the digest of its messages, and continued there; a request that continues an earlier point starts a chat
of its own. A completion is one answer in a chat that its client may name. An owner finds only its own.
The content of messages is not read here, nor are digests made.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from toolgate.storage.database import Database, SqlConnection
from toolgate.storage.responses import Write
from toolgate.storage.sql_engine import fitting

_CONTENT = ("content", "content_json", "tool_calls", "function_call")


class StoredMessage(Struct, frozen=True):
    """One message; what is not plain text is JSON, `request` the id of the request that brought it."""

    role: str
    content: str | None
    content_json: str | None
    tool_calls: str | None
    tool_call_id: str | None
    name: str | None
    function_call: str | None
    model: str | None
    finish_reason: str | None
    usage: str | None
    request: str
    created: float
    place: int = 0

    @property
    def size(self) -> int:
        """How many characters it holds."""
        return sum([len(getattr(self, name) or "") for name in _CONTENT])


class StoredChat(Struct, frozen=True):
    """A chat without its messages; `messages` is how many there are."""

    id: str
    owner: str
    model: str
    dialect: str
    created: float
    updated: float
    messages: int


class CompletionPlaceInChat(Struct, frozen=True):
    """An answer that its client wants stored, with its place in its chat."""

    id: str
    owner: str
    chat: str
    place: int
    model: str
    created: float
    metadata: dict[str, str]


class ChatContinuationCandidate(Struct, frozen=True):
    """A point in a history at which a chat may have ended: its digests, and the messages after it."""

    digest: str
    system_digest: str
    system: tuple[StoredMessage, ...]
    behind: tuple[StoredMessage, ...]


class StoredChatExchange(Struct, frozen=True):
    """One request and its answer: the points from which its history may be known, latest first, and all of it.

    It is `lasting` when it is stored whether or not its client names it; `completion` is the id by which it may.
    """

    chat: str
    owner: str
    model: str
    dialect: str
    created: float
    heads: tuple[ChatContinuationCandidate, ...]
    messages: tuple[StoredMessage, ...]
    answer: StoredMessage
    digest: str
    system_digest: str
    lasting: bool
    completion: str | None = None
    metadata: dict[str, str] = {}


class PageRequest(Struct, frozen=True):
    """Which page of a list is read."""

    after: str | None = None
    limit: int = 20
    newest_first: bool = True


_Row = TypeVar("_Row", bound=Struct)
_CHAT = ", ".join(StoredChat.__struct_fields__)
_MESSAGE = ", ".join(StoredMessage.__struct_fields__)
_SIZE = " + ".join([f"COALESCE(LENGTH({name}), 0)" for name in _CONTENT])
_COMPLETION = ", ".join(CompletionPlaceInChat.__struct_fields__)
# Its digests are empty until `_CONTINUE` sets them, in the same transaction.
_NEW = "INSERT INTO chats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD = f"INSERT INTO chat_messages (chat, {_MESSAGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
# A chat that is to last stays so, also when a request that need not last continues it.
_CONTINUE = """
UPDATE chats SET updated = ?, model = ?, messages = ?, digest = ?, system_digest = ?,
    lasting = CASE WHEN lasting = 1 THEN 1 ELSE ? END
WHERE id = ?
"""
# The id may be an upstream's, and not all of them make a new one each time: the last to have it keeps it.
_NAME = """
INSERT INTO completions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, id) DO UPDATE
SET chat = excluded.chat, place = excluded.place, model = excluded.model, created = excluded.created,
    metadata = excluded.metadata
"""


class ChatStore:
    """Stores chats; every query names their owner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keeping(self, exchange: StoredChatExchange) -> Write:
        """Return the write that stores the exchange in the chat that it continues, or in a new one."""
        return lambda db: _keep(db, exchange)

    async def keep(self, exchange: StoredChatExchange) -> None:
        """Store the exchange; once this returns it survives a crash."""
        await self._database.change(lambda db: _keep(db, exchange))

    async def chats(self, owner: str, cursor: PageRequest) -> list[StoredChat] | None:
        """Return a page of chats, in the order of their creation; None if the cursor names none of them."""
        return await self._database.read(lambda db: _page(db, "chats", _CHAT, StoredChat, owner, cursor))

    async def chat(self, owner: str, id: str) -> StoredChat | None:
        """Return the chat of this id, if this owner has one."""
        text = f"SELECT {_CHAT} FROM chats WHERE id = ? AND owner = ?"  # noqa: S608 - constants
        rows = await self._database.read(lambda db: db.execute(text, (id, owner)).fetchall())
        return _struct(rows[0], StoredChat) if rows else None

    async def messages(
        self, chat: str, behind: int | None, limit: int, *, newest_first: bool = False, before: int | None = None
    ) -> tuple[list[StoredMessage], bool]:
        """Return at most so many messages after a place in this order, fewer if they are large, and whether there are more.

        `before` leaves out those from that place on.
        """
        beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
        conditions, values = ["chat = ?"], [chat]
        bounds = [(f"place {beyond} ?", behind), ("place < ?", before)]
        conditions += [condition for condition, value in bounds if value is not None]
        numbers = [value for _, value in bounds if value is not None]
        part = f"FROM chat_messages WHERE {' AND '.join(conditions)} ORDER BY place {order} LIMIT ?"

        def read(db: SqlConnection) -> tuple[list[StoredMessage], bool]:
            # Measured by the database before any content is read; one more than asked for shows whether there are more.
            sizes = [row[0] for row in db.execute(f"SELECT {_SIZE} {part}", (*values, *numbers, limit + 1)).fetchall()]
            count = fitting(sizes[:limit])
            rows = db.execute(f"SELECT {_MESSAGE} {part}", (*values, *numbers, count)).fetchall()
            return [_struct(row, StoredMessage) for row in rows], len(sizes) > count

        return await self._database.read(read)

    async def message(self, chat: str, place: int) -> StoredMessage | None:
        """Return the message at this place."""
        found, _ = await self.messages(chat, place - 1, 1, before=place + 1)
        return found[0] if found else None

    async def delete(self, owner: str, id: str) -> bool:
        """Delete a chat, its messages and its completions; false if this owner has none of this id."""

        def forget(db: SqlConnection) -> bool:
            if db.execute("DELETE FROM chats WHERE id = ? AND owner = ?", (id, owner)).rowcount == 0:
                return False
            forget_chat(db, id)
            return True

        return await self._database.change(forget)

    async def completions(self, owner: str, cursor: PageRequest) -> list[CompletionPlaceInChat] | None:
        """Return a page of completions; None if the cursor names none of them."""
        return await self._database.read(
            lambda db: _page(db, "completions", _COMPLETION, CompletionPlaceInChat, owner, cursor)
        )

    async def completion(self, owner: str, id: str) -> CompletionPlaceInChat | None:
        """Return the completion of this id, if this owner has one."""
        text = f"SELECT {_COMPLETION} FROM completions WHERE id = ? AND owner = ?"  # noqa: S608 - constants
        rows = await self._database.read(lambda db: db.execute(text, (id, owner)).fetchall())
        return _struct(rows[0], CompletionPlaceInChat) if rows else None

    async def note(self, owner: str, id: str, metadata: dict[str, str]) -> bool:
        """Change the metadata of a completion; false if this owner has none of this id."""
        row = (_json(metadata), id, owner)
        update = "UPDATE completions SET metadata = ? WHERE id = ? AND owner = ?"
        return await self._database.change(lambda db: db.execute(update, row).rowcount == 1)

    async def delete_completion(self, owner: str, id: str) -> bool:
        """Delete a completion and what is stored for its sake alone; false if this owner has none of this id."""

        def forget(db: SqlConnection) -> bool:
            found = db.execute("SELECT chat FROM completions WHERE id = ? AND owner = ?", (id, owner)).fetchone()
            if found is None:
                return False
            db.execute("DELETE FROM completions WHERE id = ? AND owner = ?", (id, owner))
            _trim_chat(db, found[0])
            return True

        return await self._database.change(forget)


def forget_chat(db: SqlConnection, id: str) -> None:
    """Delete all that belongs to a chat."""
    db.execute("DELETE FROM chat_messages WHERE chat = ?", (id,))
    db.execute("DELETE FROM completions WHERE chat = ?", (id,))


def _trim_chat(db: SqlConnection, id: str) -> None:
    """Delete what is stored of a chat for the sake of a completion that is gone."""
    lasting = db.execute("SELECT lasting FROM chats WHERE id = ?", (id,)).fetchone()
    if lasting is None or lasting[0]:
        return
    # The chat is stored for its completions alone: it ends with the last one that is left.
    last = db.execute("SELECT max(place) FROM completions WHERE chat = ?", (id,)).fetchone()[0]
    if last is None:
        db.execute("DELETE FROM chats WHERE id = ?", (id,))
        forget_chat(db, id)
    elif db.execute("DELETE FROM chat_messages WHERE chat = ? AND place > ?", (id, last)).rowcount:
        # Its end is another now, of which no digest is stored: it is not continued any more.
        db.execute("UPDATE chats SET messages = ?, digest = '' WHERE id = ?", (last + 1, id))


def _keep(db: SqlConnection, exchange: StoredChatExchange) -> None:
    chat, place, messages = _find_chat(db, exchange)
    rows = [(chat, *astuple(one)[:-1], place + number) for number, one in enumerate((*messages, exchange.answer))]
    db.executemany(_ADD, rows)
    last = place + len(messages)  # the place of the answer
    values = (
        exchange.created,
        exchange.model,
        last + 1,
        exchange.digest,
        exchange.system_digest,
        int(exchange.lasting),
        chat,
    )
    db.execute(_CONTINUE, values)
    if exchange.completion is not None:
        row = (
            exchange.completion,
            exchange.owner,
            chat,
            last,
            exchange.model,
            exchange.created,
            _json(exchange.metadata),
        )
        former = db.execute("SELECT chat FROM completions WHERE id = ? AND owner = ?", row[:2]).fetchone()
        db.execute(_NAME, row)
        if former is not None and former[0] != chat:
            _trim_chat(db, former[0])


def _find_chat(db: SqlConnection, exchange: StoredChatExchange) -> tuple[str, int, Sequence[StoredMessage]]:
    """Return the chat that the request continues, the place of its next message, and the messages that are new in it."""
    # Two chats may have the same history, such as a first "Hi": the one that was used last is continued.
    for head in exchange.heads:
        select = "SELECT id, messages, system_digest FROM chats WHERE owner = ? AND digest = ? ORDER BY updated DESC"
        found = db.execute(select, (exchange.owner, head.digest)).fetchone()
        if found is not None:
            # A system prompt that has changed is stored again where it starts to apply.
            system = () if found[2] == head.system_digest else head.system
            return found[0], found[1], (*system, *head.behind)
    row = (
        exchange.chat,
        exchange.owner,
        exchange.model,
        exchange.dialect,
        exchange.created,
        exchange.created,
        0,
        "",
        "",
        int(exchange.lasting),
    )
    db.execute(_NEW, row)
    return exchange.chat, 0, exchange.messages


def _page(
    db: SqlConnection, table: str, columns: str, kind: type[_Row], owner: str, cursor: PageRequest
) -> list[_Row] | None:
    beyond, order = ("<", "DESC") if cursor.newest_first else (">", "ASC")
    condition, values = "owner = ?", [owner]
    if cursor.after is not None:
        found = db.execute(f"SELECT created FROM {table} WHERE id = ? AND owner = ?", (cursor.after, owner)).fetchone()  # noqa: S608 - constants
        if found is None:
            return None
        condition += f" AND (created {beyond} ? OR (created = ? AND id {beyond} ?))"
        values += [found[0], found[0], cursor.after]
    text = f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY created {order}, id {order} LIMIT ?"  # noqa: S608 - constants
    return [_struct(row, kind) for row in db.execute(text, (*values, cursor.limit))]


def _struct(row: Sequence[Any], kind: type[_Row]) -> _Row:
    named = dict(zip(kind.__struct_fields__, row, strict=True))
    if "metadata" in named:
        named["metadata"] = msgspec.json.decode(named["metadata"])
    return msgspec.convert(named, kind)


def _json(value: dict[str, str]) -> str:
    return msgspec.json.encode(value).decode()
