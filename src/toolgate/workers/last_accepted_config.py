"""Keep the text of the configuration that workers serve, for workers that are started later.

The file may have changed since: it may be half written, or its reload may have been refused. Knows bytes; it must not
know what they mean.
"""

import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import IO

from toolgate.config.stable_read import read_file

_MAX_TEXTS = 8  # that were read and may yet be accepted


class LastAcceptedConfigText:
    """The last text that a worker has accepted; before that, the text that was read first."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read: dict[str, bytes] = {}  # by digest, the one that was read last at the end
        self.text = self.read()

    def read(self) -> bytes | None:
        """Read the file up to the longest allowed size; None if it is missing, unreadable or no regular file."""
        try:
            if self._path is None:
                return None
            text = read_file(self._path, regular=True)
        except OSError:
            return None
        # Workers accept a text some time after it was read: until then the former one is in force, and meanwhile another
        # may be read, which they refuse.
        digest = digest_of(text)
        self._read.pop(digest, None)
        self._read[digest] = text
        if len(self._read) > _MAX_TEXTS:
            del self._read[next(iter(self._read))]
        return text

    def accept(self, digest: str) -> None:
        """Note that a worker serves the text of this digest; none that was read before the one in force is accepted."""
        if digest not in self._read:
            return
        self.text = self._read[digest]
        while (oldest := next(iter(self._read))) != digest:
            del self._read[oldest]


def digest_of(text: bytes) -> str:
    """Return the digest that identifies a text."""
    return sha256(text).hexdigest()


def open_text(text: bytes) -> IO[bytes]:
    """Write the text to an unnamed file that a process can inherit; `read_text` reads it."""
    # Not through a pipe, which holds 64 KiB, and not by a path, whose file may change.
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("configuration"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - its owner closes it
    file.write(text)
    file.flush()
    return file


def read_text(descriptor: int) -> bytes | None:
    """Read the text of an inherited file and close it; None for a negative descriptor."""
    if descriptor < 0:
        return None
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
