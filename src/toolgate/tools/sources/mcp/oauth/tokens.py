"""What is kept of a login between two starts: tokens, and who we are to the authorization server that gave them."""

import asyncio
import os
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct


class Client(Struct, frozen=True):
    """Who we are to one authorization server; good with that one alone."""

    issuer: str
    id: str
    secret: str | None = None


class Token(Struct, frozen=True):
    """An access token; `expires` is in seconds since 1970, None if nobody said."""

    access: str
    expires: float | None = None
    refresh: str | None = None
    scope: str | None = None


class Kept(Struct, frozen=True):
    """All that a login left behind; `server` is the address that the token is for."""

    server: str
    resource: str
    token_endpoint: str
    client: Client
    token: Token
    auth_methods: tuple[str, ...] = ()


class Tokens(Protocol):
    """Keeps logins by the server's configured name."""

    async def load(self, name: str) -> Kept | None:
        """What was kept, or None."""

    async def save(self, name: str, kept: Kept) -> None:
        """Keep it; what was there is replaced."""

    async def forget(self, name: str) -> None:
        """Keep it no longer."""


class TokenFile:
    """A JSON file that only its owner can read; it is replaced whole, so that a crash leaves the old or the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()

    async def load(self, name: str) -> Kept | None:
        """What was kept, or None; a file that cannot be read counts as empty."""
        return (await asyncio.to_thread(self._read)).get(name)

    async def save(self, name: str, kept: Kept) -> None:
        """Keep it; what was there is replaced."""
        async with self._turn:
            await asyncio.to_thread(self._write, name, kept)

    async def forget(self, name: str) -> None:
        """Keep it no longer."""
        async with self._turn:
            await asyncio.to_thread(self._write, name, None)

    def _read(self) -> dict[str, Kept]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Kept])
        except (OSError, msgspec.MsgspecError, RecursionError):
            return {}

    def _write(self, name: str, kept: Kept | None) -> None:
        everything = self._read()
        everything.pop(name, None)
        if kept is not None:
            everything[name] = kept
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(everything))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
