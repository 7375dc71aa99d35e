"""What the chat keeps in the user's state folder: the last response of each server, and the questions that were asked.

Both may hold private text, so that only the user can read them. A folder that cannot be written costs the memory, not
the chat.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MAX_HISTORY = 1000
_MAX_SERVERS = 50


class LastChatResponse(NamedTuple):
    """The end of a conversation."""

    id: str
    model: str | None


class ChatStateFiles:
    """Files in one folder, by default `toolgate` in the user's state folder."""

    def __init__(self, folder: Path) -> None:
        self._last = folder / "chats.json"
        self._history = folder / "chat-history"

    def last(self, url: str) -> LastChatResponse | None:
        """Return the last response of a conversation with this server."""
        match self._read().get(url):
            case {"response": str(id), **rest}:
                model = rest.get("model")
                return LastChatResponse(id, model if isinstance(model, str) else None)
        return None

    def keep(self, url: str, last: LastChatResponse) -> None:
        """Store the last response, for `--continue`."""
        others = {one: value for one, value in self._read().items() if one != url}
        # The server comes last, so that the oldest ones are dropped first.
        newest = dict(list(others.items())[-_MAX_SERVERS:])
        newest[url] = {"response": last.id, "model": last.model}
        with suppress(OSError):
            self._write(self._last, json.dumps(newest, indent=2) + "\n")

    def questions(self) -> list[str]:
        """Return the questions of earlier chats, oldest first."""
        try:
            lines = self._history.read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
        kept = [value for line in lines[-MAX_HISTORY:] if isinstance(value := _decode(line), str)]
        # At twice the length, so that the file is not written anew with every chat.
        if len(lines) > 2 * MAX_HISTORY:
            with suppress(OSError):
                self._write(self._history, "".join([json.dumps(one) + "\n" for one in kept]))
        return kept

    def add_question(self, text: str) -> None:
        """Store a question, one a line, whatever it holds."""
        with suppress(OSError):
            self._make_folder()
            # Appended and not rewritten, because several chats may be open.
            handle = os.open(self._history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")

    def _read(self) -> dict[str, Any]:
        try:
            value = _decode(self._last.read_text("utf-8", "replace"))
        except OSError:
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, path: Path, text: str) -> None:
        """Replace a file at once, so that two chats never leave half a file."""
        self._make_folder()
        # Each process has its own file beside it; the last one to rename wins.
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)

    def _make_folder(self) -> None:
        self._last.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's state folder for this program, as the XDG rules name it."""
    # The XDG rules demand that relative paths are ignored.
    base = environ.get("XDG_STATE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "toolgate"
