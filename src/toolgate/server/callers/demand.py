"""A file beside the configuration that says: keys were demanded here. It outlives a configuration that was cut off.

The database remembers the same, but the setting that says where the database is may be lost with the keys.
Knows one path. It must not know keys.
"""

from contextlib import suppress
from pathlib import Path

SUFFIX = ".keys-required"
"""What is added to the configuration's name."""

_TEXT = """\
The configuration beside this file had keys. While this file is here, Toolgate lets nobody in without a key.
To serve without keys, write `server: {open: true}` into the configuration: this file then goes away by itself.
"""


class DemandFile:
    """Says whether keys were demanded; a folder that cannot be written to leaves that to the database."""

    def __init__(self, config: Path | None) -> None:
        """`config` is the configuration's file, None for the built-in one."""
        self._path = config.with_name(config.name + SUFFIX) if config is not None else None

    @property
    def exists(self) -> bool:
        """Whether keys were demanded; so they were if that cannot be found out."""
        try:
            return self._path is not None and self._path.exists()
        except OSError:
            return True

    def write(self, demanded: bool) -> None:
        """Remember that keys are demanded, or no longer."""
        if self._path is None or demanded == self.exists:
            return
        with suppress(OSError):
            if demanded:
                self._path.write_text(_TEXT, "utf-8")
            else:
                self._path.unlink()
