"""The text of the configuration that workers have accepted: what a worker begins with that takes the place of another.

The file may have changed since: it may be half written, or a reload of it may have been refused. Knows bytes, not their
meaning.
"""

import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import IO

from toolgate.config.reading import LARGEST


class AcceptedConfig:
    """Remembers the last text that a worker has said to serve; until there is one, the text that was read first."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offered: dict[str, bytes] = {}
        self.text = self.read()

    def read(self) -> bytes | None:
        """What the file holds now, as far as one may be long; None if there is none or it cannot be read."""
        try:
            if self._path is None or not self._path.is_file():
                return None
            with self._path.open("rb") as file:
                text = file.read(LARGEST + 1)
        except OSError:
            return None
        self._offered = {digest_of(text): text}
        return text

    def accept(self, digest: str) -> None:
        """A worker serves the text of this digest; of those that were read only the last counts."""
        self.text = self._offered.get(digest, self.text)


def digest_of(text: bytes) -> str:
    """What stands for a text."""
    return sha256(text).hexdigest()


def open_text(text: bytes) -> IO[bytes]:
    """A file that holds the text, has no name and is read by `read_text`; a process can inherit it."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("configuration"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - its owner closes it
    file.write(text)
    file.flush()
    return file


def read_text(descriptor: int) -> bytes | None:
    """The text in a file that was inherited, which is then closed; None for a negative descriptor."""
    if descriptor < 0:
        return None
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
