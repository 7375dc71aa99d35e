"""Log lines: one event, one line, one write.

A line never breaks out of itself: JSON lines are pure ASCII, readable lines have every control and direction character
escaped. It never holds a secret, for the redactor has the last word. It never holds anybody up: what cannot be written
at once is dropped and counted. A line is at most what a pipe takes in one piece, so that lines do not mix.
"""

import json
import os
import re
import select
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from toolgate.telemetry.redact import Redactor

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
LogForm: TypeAlias = Literal["json", "text"]

LONGEST_FIELD = 2048
LONGEST_LINE = 4096  # PIPE_BUF on Linux: a pipe that can take anything can take this much
_LONGEST_LOOK = 4 * LONGEST_FIELD  # what is looked through for secrets; the rest is cut off anyway
_MOST_ITEMS = 32
_PLAIN = frozenset((str, int, float, bool, type(None)))
_WORDY = frozenset((str, list))
_FRAMES = 12
_RANK = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31"}
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_QUOTED = re.compile(r"[\s\"=\\]|^$")


class Log:
    """Writes lines of at least `level` to a file descriptor; `dropped` counts those it could not write."""

    def __init__(
        self,
        level: Level = "info",
        form: LogForm = "json",
        redact: Redactor | None = None,
        fd: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.dropped = 0
        self.level = level
        self.redact = redact or Redactor()
        self._fd = fd
        self._clock = clock
        self._render = _json_line if form == "json" else _text_line
        self._untold = 0
        self._second = -1
        self._stamp = ""

    @property
    def level(self) -> Level:
        """The least level that is written; it may be changed at any time."""
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self._level = level
        self._rank = _RANK[level]

    def writes(self, level: Level) -> bool:
        """Whether lines of this level are written at all."""
        return _RANK[level] >= self._rank

    def write(self, level: Level, event: str, ours: Mapping[str, Any], said: Mapping[str, Any] | None = None) -> None:
        """One line, unless the level is too low; this never raises and never waits.

        `ours` holds numbers, our own words and names of the configuration; `said` is what others said, which is
        looked through for secrets and cut where it is long. What is not surely ours belongs there.
        """
        if _RANK[level] < self._rank:
            return
        if self._untold:
            ours = {**ours, "lines_dropped_before": self._untold}
        self._put(self._line(level, event, ours, said))

    def debug(self, event: str, **fields: Any) -> None:
        """A line for whoever looks closely."""
        self.write("debug", event, {}, fields)

    def info(self, event: str, **fields: Any) -> None:
        """A line about something that went as it should."""
        self.write("info", event, {}, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """A line about something that an operator may want to mend."""
        self.write("warning", event, {}, fields)

    def error(self, event: str, **fields: Any) -> None:
        """A line about something that an operator must mend."""
        self.write("error", event, {}, fields)

    def crash(self, event: str, error: BaseException, **fields: Any) -> None:
        """A line about a defect: what was raised and where, without the values of any variable."""
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        raised = {"raised": type(error).__name__, "error": str(error), "where": where}
        self.write("error", event, {}, {**fields, **raised})

    def _line(self, level: Level, event: str, ours: Mapping[str, Any], said: Mapping[str, Any] | None) -> bytes:
        whole = {"time": self._time(), "level": level, "event": event, **ours}
        if said:
            whole |= self._safe(said)
        line = self._render(whole)
        for longest in (256, 48):
            if len(line) <= LONGEST_LINE:
                return line
            line = self._render({name: _cut(value, longest) for name, value in whole.items()})
        return line if len(line) <= LONGEST_LINE else self._render({**_head(whole), "cut": "too many fields"})

    def _safe(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields without secrets and none too long; the names of fields are our own words."""
        tidy = {name: value if type(value) in _PLAIN else _tidy(value) for name, value in fields.items()}
        texts = [value if type(value) is str else " ".join(value) for value in tidy.values() if type(value) in _WORDY]
        text = "\n".join(texts)
        if self.redact.suspects(text):
            tidy = {name: _each(self.redact, value) for name, value in tidy.items()}
        if len(text) > LONGEST_FIELD:
            tidy = {name: _cut(value, LONGEST_FIELD) for name, value in tidy.items()}
        return tidy

    def _time(self) -> str:
        now = self._clock()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((now - second) * 1000):03d}Z"

    def _put(self, line: bytes) -> None:
        try:
            if _is_writable(self._fd):
                os.write(self._fd, line)
                self._untold = 0
                return
        except OSError:
            pass  # the disk is full or nobody reads: counted like any other drop
        self.dropped += 1
        self._untold += 1


def _is_writable(fd: int) -> bool:
    """Whether a write would not wait; the descriptor's own flags are shared with other processes and stay as they are."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _tidy(value: Any) -> Any:
    """The value as plain text or a list of texts, as much of it as could be shown."""
    if isinstance(value, (list, tuple)):
        items = [str(item)[:_LONGEST_LOOK] for item in value[:_MOST_ITEMS]]
        return items if len(value) <= _MOST_ITEMS else [*items, f"… ({len(value)} in all)"]
    return str(value)


def _each(change: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return change(value[:_LONGEST_LOOK])
    return [change(item) for item in value] if isinstance(value, list) else value


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, list):
        return [_cut(item, longest // 4) for item in value]
    if not isinstance(value, str) or len(value) <= longest:
        return value
    return f"{value[:longest]}… ({len(value)} characters)"


def _head(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in ("time", "level", "event")}


def _json_line(fields: dict[str, Any]) -> bytes:
    try:
        line = msgspec.json.encode(fields)
    except UnicodeError:  # half a surrogate pair
        line = b"\xff"
    if not line.isascii():
        line = json.dumps(fields, separators=(",", ":")).encode()
    if b"\x7f" in line:
        line = line.replace(b"\x7f", b"\\u007f")
    return line + b"\n"


def _text_line(fields: dict[str, Any]) -> bytes:
    rest = dict(fields)
    stamp, level, event = rest.pop("time")[11:23], rest.pop("level"), rest.pop("event")
    said = [f"{name}={_plain(value)}" for name, value in rest.items() if value not in (None, "", [])]
    head = f"{stamp} \x1b[{_COLOURS[level]}m{level:<7}\x1b[0m {_escape(event)}"
    return (" ".join([head, *said]) + "\n").encode()


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_plain(item) for item in value)
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return _escape(json.dumps(text, ensure_ascii=False) if _QUOTED.search(text) else text)


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
