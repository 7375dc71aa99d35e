"""What a power cut leaves of a SQLite database: its file and its log, and of the log nothing that was not synced.

The shared memory beside them is gone. What lies in the log behind the last commit may be there, in part, or be rubbish;
so may every page of the file that the log holds anew, since it may just have been copied there.
"""

import ctypes
import os
import random
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from toolgate.storage.sqlite import SqliteEngine

_HEAD, _FRAME = 32, 24
_CACHESTAT = 451


class Image(Struct, frozen=True):
    """A database file and its log at one moment."""

    file: bytes
    log: bytes

    def lay(self, folder: Path, name: str = "left.db") -> Path:
        """Write it where it can be opened."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}*"):
            old.unlink()
        (folder / name).write_bytes(self.file)
        (folder / f"{name}-wal").write_bytes(self.log)
        return folder / name


def image(path: Path) -> Image:
    """The database as it is now, while nobody writes."""
    log = log_of(path)
    return Image(path.read_bytes(), log.read_bytes() if log.exists() else b"")


def log_of(path: Path) -> Path:
    """The log beside a database file."""
    return path.with_name(path.name + "-wal")


def ruins(found: Image, chance: random.Random) -> Iterator[Image]:
    """What a power cut may leave of it."""
    ends = frames(found.log)
    last = max([end for end, _, commits in ends if commits], default=0)
    yield found
    yield from [replace(found, log=found.log[:end]) for end, _, _ in ends if end >= last]
    behind = len(found.log) - last
    yield replace(found, log=found.log[:last] + chance.randbytes(behind + 9000))
    yield replace(found, log=found.log[: last + behind // 2] + bytes(behind - behind // 2 + 5000))
    yield replace(found, file=_half_copied(found, last, chance), log=found.log[:last] + chance.randbytes(behind))


def frames(log: bytes) -> list[tuple[int, int, bool]]:
    """Where each frame ends, which page it holds and whether it commits, as far as the log is of one piece."""
    found: list[tuple[int, int, bool]] = []
    if len(log) < _HEAD:
        return found
    page_bytes = struct.unpack_from(">I", log, 8)[0]
    start = _HEAD
    while start + _FRAME + page_bytes <= len(log) and log[start + 8 : start + 16] == log[16:24]:
        page, pages = struct.unpack_from(">II", log, start)
        start += _FRAME + page_bytes
        found.append((start, page, pages != 0))
    return found


def _half_copied(found: Image, last: int, chance: random.Random) -> bytes:
    """The file, with rubbish for the pages that the log holds; the first is one sector of importance, written as a whole."""
    file = bytearray(found.file)
    page_bytes = struct.unpack_from(">H", file, 16)[0]
    for page in {page for end, page, _ in frames(found.log) if end <= last and page > 1}:
        if page * page_bytes <= len(file):
            file[(page - 1) * page_bytes : page * page_bytes] = chance.randbytes(page_bytes)
    return bytes(file)


def count(path: Path, query: str, *values: str) -> int:
    """What a query counts, after the whole file was found to be in order, as a server would open it."""
    with closing(SqliteEngine(path, 5.0)) as engine:
        assert engine.check() == []
        return int(engine.read(lambda db: db.execute(query, values).fetchone()[0]))


class _Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Cached(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "under_way", "evicted", "recently")]


def unsynced(path: Path) -> int | None:
    """How many pages of a file only the memory has; None where the kernel cannot say."""
    system, emitted = ctypes.CDLL(None, use_errno=True), _Cached()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        asked = ctypes.byref(_Range(0, 0))
        if system.syscall(_CACHESTAT, descriptor, asked, ctypes.byref(emitted), 0) != 0:
            return None
        return int(emitted.dirty + emitted.under_way)
    finally:
        os.close(descriptor)
