"""Keep a file beside the configuration while keys are required, for a configuration that loses its keys by accident.

The database stores the same, but the setting with the place of the database may be lost with the keys.
Knows one path. It must not know keys.
"""

from contextlib import suppress
from pathlib import Path

SUFFIX = ".keys-required"  # appended to the name of the configuration's file

_TEXT = """\
The configuration beside this file had keys. While this file is here, Toolgate requires a key for every request.
To serve without keys, write `server: {open: true}` into the configuration: this file then goes away by itself.
"""


class KeysRequiredMarkerFile:
    """The file that marks that keys are required; where it cannot be written, the mark is in the database alone."""

    def __init__(self, config: Path | None) -> None:
        """`config` is the configuration's file, None for the built-in one."""
        self._path = config.with_name(config.name + SUFFIX) if config is not None else None

    @property
    def exists(self) -> bool:
        """Whether keys are required; true if that cannot be read."""
        try:
            return self._path is not None and self._path.exists()
        except OSError:
            return True

    def write(self, required: bool) -> None:
        """Store whether keys are required."""
        if self._path is None or required == self.exists:
            return
        with suppress(OSError):  # the folder may be read-only, as in a container
            if required:
                self._path.write_text(_TEXT, "utf-8")
            else:
                self._path.unlink()
