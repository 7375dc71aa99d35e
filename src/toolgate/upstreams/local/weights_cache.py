"""Store weights in a folder of the user, and verify them by their digests.

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

import msgspec
from msgspec import Struct

from toolgate.upstreams.local.weights_catalog import KNOWN, DownloadAbandoned, Weights

MAGIC = b"GGUF"
_POLL = 0.2
_CHUNK = 4 * 1024 * 1024
# A name becomes a file name: no slash, and no dot in front.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class InvalidWeights(Exception):
    """A file is not the expected one; the text is the reason."""


class VerifiedHashStamp(Struct, frozen=True):
    """The size and times of a file when it was hashed: while they stay the same, it is not hashed again."""

    sha256: str
    size: int
    modified: int


class CachedWeights(Struct, frozen=True):
    """Weights in the cache."""

    name: str
    path: Path
    size: int


class WeightsCache:
    """The weights on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, weights: Weights) -> Path:
        """Return the path of these weights."""
        return self.folder / weights.file

    def find(self, weights: Weights) -> Path | None:
        """Return these weights if they are cached and valid; another file under their name is removed."""
        path = self.path(weights)
        if not path.is_file():
            return None
        try:
            self._verify(path, weights)
        except InvalidWeights:
            path.unlink()
            return None
        return path

    def take(self, path: Path, weights: Weights) -> Path:
        """Move a complete file to its path, atomically and only if its digest is right."""
        self._verify(path, weights)
        # On the disk before it has its name, or a power failure could leave a file of zeros with a valid stamp.
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(path, self.path(weights))
        os.replace(_stamp_path(path), _stamp_path(self.path(weights)))
        return self.path(weights)

    def add(self, source: Path, name: str | None = None) -> CachedWeights:
        """Copy any GGUF file into the cache; known weights are recognised by their digest, others keep their name."""
        check_magic(source)
        stamp = _hash(source)
        known = next((one for one in KNOWN.values() if (one.size, one.sha256) == (stamp.size, stamp.sha256)), None)
        chosen = known.name if known else name or source.stem.lower().replace(" ", "-")
        if not _NAME.fullmatch(chosen) or (known is None and chosen in KNOWN):
            raise InvalidWeights(f"{chosen!r} cannot be the name; choose another of letters, digits, dots and dashes.")
        target = self.path(known) if known else self.folder / f"{chosen}.gguf"
        self.folder.mkdir(parents=True, exist_ok=True)
        # Copied under another name, so that another process never loads half of it.
        waiting = target.with_name(f"{target.name}.adding.part")
        shutil.copyfile(source, waiting)
        os.replace(waiting, target)
        _write_stamp(target, stamp.sha256)
        return CachedWeights(chosen, target, stamp.size)

    def named(self, name: str) -> Path | None:
        """Return the user's own weights of this name."""
        path = self.folder / f"{name}.gguf"
        return path if _NAME.fullmatch(name) and path.is_file() else None

    def entries(self) -> list[CachedWeights]:
        """Return all cached weights."""
        known: Mapping[str, str] = {one.file: one.name for one in KNOWN.values()}
        found = sorted(self.folder.glob("*.gguf")) if self.folder.is_dir() else []
        return [CachedWeights(known.get(path.name, path.stem), path, path.stat().st_size) for path in found]

    @contextmanager
    def download_lock(self, weights: Weights, abandoned: threading.Event) -> Iterator[None]:
        """Hold the lock for downloading these weights; wait for another process that has it, unless abandoned."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{weights.file}.lock").open("w") as lock:
            # Polled and not blocking, so that a server can stop while it waits. The kernel releases the lock of a
            # process that dies.
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if abandoned.wait(_POLL):
                        raise DownloadAbandoned from None
            yield

    def _verify(self, path: Path, weights: Weights) -> None:
        status, stamp = path.stat(), None
        if status.st_size != weights.size:
            raise InvalidWeights(f"{path.name} has {status.st_size:,} bytes where {weights.size:,} were expected.")
        # Hashing a gigabyte takes seconds: the stamp beside the file counts while size and time are still the same.
        with suppress(OSError, msgspec.DecodeError):
            stamp = msgspec.json.decode(_stamp_path(path).read_bytes(), type=VerifiedHashStamp)
        if stamp is None or (stamp.size, stamp.modified) != (status.st_size, status.st_mtime_ns):
            stamp = _hash(path)
        if stamp.sha256 != weights.sha256:
            _stamp_path(path).unlink(missing_ok=True)
            raise InvalidWeights(f"{path.name} has the SHA-256 {stamp.sha256} where {weights.sha256} was expected.")
        _write_stamp(path, stamp.sha256)


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's cache folder."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "toolgate" / "models"


def check_magic(path: Path) -> None:
    """Raise InvalidWeights unless the file begins like a GGUF file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise InvalidWeights(f"{path} cannot be read: {error.strerror}.") from None
    if start != MAGIC:
        raise InvalidWeights(f"{path} is not a GGUF file.")


def _hash(path: Path) -> VerifiedHashStamp:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    status = path.stat()
    return VerifiedHashStamp(digest.hexdigest(), status.st_size, status.st_mtime_ns)


def _stamp_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.stamp")


def _write_stamp(path: Path, sha256: str) -> None:
    status = path.stat()
    _stamp_path(path).write_bytes(msgspec.json.encode(VerifiedHashStamp(sha256, status.st_size, status.st_mtime_ns)))
