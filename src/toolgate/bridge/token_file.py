"""Keep the token of the bridge in a file that only its owner can read.

A program that can read the file runs as the same user as the gateway, so that an editor proves by it that it may join. The
token stays the same over restarts; deleting the file while the gateway is stopped makes a new one.
"""

import os
import re
import secrets
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TOOLGATE_BRIDGE_TOKEN_FILE"
_TOKEN = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES = 1024


def token_path(env: Mapping[str, str]) -> Path:
    """Return where the token is: by the variable, else in the user's folder for state."""
    if named := env.get(VARIABLE):
        return Path(named)
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "toolgate" / "bridge.token"
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "toolgate" / "bridge.token"


def load_token(path: Path) -> str:
    """Read the token, or make the file; OSError if it cannot be made, or if others could read or replace it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        # Workers start at the same time: the file appears complete, and only the first of them makes it.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            if not path.exists():
                _link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError:
        if not path.exists():  # a folder that is read-only will do if the token is there
            raise
    return _read(path)


def _link(fresh: Path, path: Path) -> None:
    # Unlike a rename, a link replaces no token that another worker has made since.
    try:
        os.link(fresh, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        fresh.rename(path)


def _read(path: Path) -> str:
    # Owner and mode are checked on the open file: the path could lead to another one a moment later.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if os.name == "posix" and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
            raise PermissionError(f"{path} must belong to this user and have the mode 0600")
        token = file.read(_MAX_BYTES).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{path} holds no token: delete it, and a new one is made")
    return token
