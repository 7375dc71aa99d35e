"""Store logins between two starts: tokens, and our client at the authorization server that issued them."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

# Between two attempts to get a lock.
_LOCK_SECONDS = 0.05


class OAuthClient(Struct, frozen=True):
    """Our client at one authorization server, valid only there."""

    issuer: str
    id: str
    secret: str | None = None


class AccessToken(Struct, frozen=True):
    """An access token; `expires` is in seconds since 1970, None if it is unknown."""

    access: str
    expires: float | None = None
    refresh: str | None = None
    scope: str | None = None


class StoredLogin(Struct, frozen=True):
    """The result of a login; `server` is the URL that the token is for."""

    server: str
    resource: str
    token_endpoint: str
    client: OAuthClient
    token: AccessToken
    auth_methods: tuple[str, ...] = ()


class LoginStoreProtocol(Protocol):
    """Stores logins by the configured name of the server."""

    async def load(self, name: str) -> StoredLogin | None:
        """Return the login, or None."""

    async def save(self, name: str, login: StoredLogin) -> None:
        """Store a login in place of a former one."""

    async def forget(self, name: str) -> None:
        """Delete a login."""

    def renewing(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock for renewing this login, which one process has at a time."""


class LoginFile:
    """A JSON file that only its owner can read, replaced as a whole so that a crash leaves the old or the new one.

    Several workers may share it: lock files beside it let one at a time change it, and one at a time renew a login.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self, name: str) -> StoredLogin | None:
        """Return the login, or None; a file that cannot be read counts as empty."""
        try:
            return (await asyncio.to_thread(self._read)).get(name)
        except OSError:
            return None

    async def save(self, name: str, login: StoredLogin) -> None:
        """Store a login in place of a former one."""
        await asyncio.to_thread(self._write, name, login)

    async def forget(self, name: str) -> None:
        """Delete a login."""
        await asyncio.to_thread(self._write, name, None)

    @asynccontextmanager
    async def renewing(self, name: str) -> AsyncGenerator[None, None]:
        """Hold the lock of this login."""
        suffix = sha256(name.encode()).hexdigest()[:16]
        try:
            descriptor = self._open_lock(f"-{suffix}")
        except OSError:  # where nothing can be written, nothing is shared either
            yield
            return
        try:
            # Polled: another process may hold it while it waits for a server, and a thread that waits for a file lock
            # cannot be cancelled.
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, StoredLogin]:
        """Read all logins; a file that is missing or spoilt counts as empty, and OSError if it cannot be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, StoredLogin])
        except (FileNotFoundError, msgspec.MsgspecError, RecursionError):
            return {}

    def _write(self, name: str, login: StoredLogin | None) -> None:
        descriptor = self._open_lock("")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # so that no change of another process is lost
            logins = self._read()  # if that fails nothing is written, or the other logins would be lost
            logins.pop(name, None)
            if login is not None:
                logins[name] = login
            # File tools refuse every file whose name begins with this one's and a dash.
            temporary = self._path.with_name(f"{self._path.name}-{os.getpid()}")
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(logins))
                file.flush()
                os.fsync(file.fileno())  # else a power cut could leave the new name with no content
            temporary.replace(self._path)
        finally:
            os.close(descriptor)

    def _open_lock(self, suffix: str) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path.with_name(f"{self._path.name}-lock{suffix}"), os.O_RDWR | os.O_CREAT, 0o600)
