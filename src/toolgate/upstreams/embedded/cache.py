"""The folder in which weights are kept, one for each user: what is there, and that it is what it says it is.

Knows nothing of where weights come from.
"""

import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

from toolgate.upstreams.embedded.errors import Abandoned
from toolgate.upstreams.embedded.weights import KNOWN, Weights

MAGIC = b"GGUF"
_POLL = 0.2
_CHUNK = 4 * 1024 * 1024
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class BadWeights(Exception):
    """A file is not what it should be; the text says what is wrong."""


class Stamp(Struct, frozen=True):
    """That a file was hashed, and what it looked like then: while it looks the same it is not hashed again."""

    sha256: str
    size: int
    modified: int


class Held(Struct, frozen=True):
    """Weights that are here."""

    name: str
    path: Path
    size: int


class Cache:
    """The weights on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, weights: Weights) -> Path:
        """Where these weights are, or will be."""
        return self.folder / weights.file

    def find(self, weights: Weights) -> Path | None:
        """These weights, if they are here and are what they should be; anything else under their name is removed."""
        path = self.path(weights)
        if not path.is_file():
            return None
        try:
            self._vouch(path, weights)
        except BadWeights:
            path.unlink()
            return None
        return path

    def take(self, path: Path, weights: Weights) -> Path:
        """Move a complete file into its place, at once and only if it is the right one."""
        self._vouch(path, weights)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(path, self.path(weights))
        os.replace(_stamp_of(path), _stamp_of(self.path(weights)))
        return self.path(weights)

    def add(self, source: Path, name: str | None = None) -> Held:
        """Keep a copy of any GGUF file; known weights are recognised by their digest, others go by their own name."""
        check_magic(source)
        stamp = _hashed(source)
        known = next((one for one in KNOWN.values() if (one.size, one.sha256) == (stamp.size, stamp.sha256)), None)
        chosen = known.name if known else name or source.stem.lower().replace(" ", "-")
        if not _NAME.fullmatch(chosen) or (known is None and chosen in KNOWN):
            raise BadWeights(f"{chosen!r} cannot be the name; choose another of letters, digits, dots and dashes.")
        target = self.path(known) if known else self.folder / f"{chosen}.gguf"
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = target.with_name(f"{target.name}.adding.part")
        shutil.copyfile(source, waiting)
        os.replace(waiting, target)
        _keep(target, stamp.sha256)
        return Held(chosen, target, stamp.size)

    def named(self, name: str) -> Path | None:
        """Weights of the user's own that were added under this name."""
        path = self.folder / f"{name}.gguf"
        return path if _NAME.fullmatch(name) and path.is_file() else None

    def held(self) -> list[Held]:
        """All that is here."""
        known: Mapping[str, str] = {one.file: one.name for one in KNOWN.values()}
        found = sorted(self.folder.glob("*.gguf")) if self.folder.is_dir() else []
        return [Held(known.get(path.name, path.stem), path, path.stat().st_size) for path in found]

    @contextmanager
    def alone(self, weights: Weights, abandoned: threading.Event) -> Iterator[None]:
        """Meanwhile no other process fetches these weights; wait for one that does, unless we are abandoned."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{weights.file}.lock").open("w") as lock:
            while not _locked(lock):
                if abandoned.wait(_POLL):
                    raise Abandoned
            yield

    def _vouch(self, path: Path, weights: Weights) -> None:
        size = path.stat().st_size
        if size != weights.size:
            raise BadWeights(f"{path.name} has {size:,} bytes where {weights.size:,} were expected.")
        stamp = _stamped(path) or _hashed(path)
        if stamp.sha256 != weights.sha256:
            _stamp_of(path).unlink(missing_ok=True)
            raise BadWeights(f"{path.name} has the SHA-256 {stamp.sha256} where {weights.sha256} was expected.")
        _keep(path, stamp.sha256)


def default_folder(environment: Mapping[str, str]) -> Path:
    """The user's own cache folder."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "toolgate" / "models"


def check_magic(path: Path) -> None:
    """BadWeights unless the file begins as a GGUF file does."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise BadWeights(f"{path} cannot be read: {error.strerror}.") from None
    if start != MAGIC:
        raise BadWeights(f"{path} is not a GGUF file.")


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _hashed(path: Path) -> Stamp:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    status = path.stat()
    return Stamp(digest.hexdigest(), status.st_size, status.st_mtime_ns)


def _stamp_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.stamp")


def _stamped(path: Path) -> Stamp | None:
    """What is known of the file, if it has not been touched since."""
    status = path.stat()
    with suppress(OSError, msgspec.DecodeError):
        stamp = msgspec.json.decode(_stamp_of(path).read_bytes(), type=Stamp)
        if (stamp.size, stamp.modified) == (status.st_size, status.st_mtime_ns):
            return stamp
    return None


def _keep(path: Path, sha256: str) -> None:
    status = path.stat()
    _stamp_of(path).write_bytes(msgspec.json.encode(Stamp(sha256, status.st_size, status.st_mtime_ns)))
