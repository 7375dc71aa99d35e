"""Write log lines: one event, one line, one `write`.

A value cannot start a new line or change how the line is displayed: JSON lines are pure ASCII, and text lines have every
control and direction character escaped. Secrets are redacted last of all. Logging never blocks: a line that cannot be
written at once is dropped and counted. A line is at most as long as a pipe writes in one piece, so lines do not mix.
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

from toolgate.telemetry.redaction import Redactor

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
LogForm: TypeAlias = Literal["json", "text"]

LONGEST_FIELD = 2048
LONGEST_LINE = 4096  # PIPE_BUF on Linux: a pipe that can take anything can take this much
_LONGEST_SEARCHED = 4 * LONGEST_FIELD  # what is searched for secrets; the rest is cut off anyway
_MAX_ITEMS = 32
_SCALARS = frozenset((str, int, float, bool, type(None)))
_TEXTS = frozenset((str, list))
_FRAMES = 12  # of a traceback, the innermost
_RANK = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31"}
# Control characters, which could move the cursor of a terminal or start a line, those that are invisible or change the
# direction of text, and halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_QUOTED = re.compile(r"[\s\"=\\]|^$")


class Logger:
    """Writes lines of at least `level` to a file descriptor; `dropped` counts the lines that could not be written."""

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
        self._dropped_since = 0
        self._second = -1
        self._stamp = ""

    @property
    def level(self) -> Level:
        """The lowest level that is written; it may be changed at any time."""
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self._level = level
        self._rank = _RANK[level]

    def configure(self, level: Level, redact: Redactor) -> None:
        """Write lines of at least this level from now on, without these secrets."""
        self.level, self.redact = level, redact

    def writes(self, level: Level) -> bool:
        """Return whether lines of this level are written at all."""
        return _RANK[level] >= self._rank

    def write(
        self, level: Level, event: str, trusted: Mapping[str, Any], untrusted: Mapping[str, Any] | None = None
    ) -> None:
        """Write one line, unless the level is too low; this never raises and never blocks.

        `trusted` holds numbers, fixed texts and names of the configuration. `untrusted` holds what clients, upstreams and
        tools have sent: it is searched for secrets and cut where it is long. In doubt a field is untrusted.
        """
        if _RANK[level] < self._rank:
            return
        if self._dropped_since:
            trusted = {**trusted, "lines_dropped_before": self._dropped_since}
        line = self._line(level, event, trusted, untrusted)
        try:
            # Whether a write would block is asked anew each time: O_NONBLOCK would also change what other processes that
            # share the descriptor do.
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                os.write(self._fd, line)
                self._dropped_since = 0
                return
        except OSError:
            pass  # the disk is full or the reader is gone: counted like any other drop
        self.dropped += 1
        self._dropped_since += 1

    def debug(self, event: str, **fields: Any) -> None:
        """Log something that helps to find a defect."""
        self.write("debug", event, {}, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log something that went as it should."""
        self.write("info", event, {}, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log something that an operator may want to fix."""
        self.write("warning", event, {}, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log something that an operator must fix."""
        self.write("error", event, {}, fields)

    def crash(self, event: str, error: BaseException, **fields: Any) -> None:
        """Log a defect: what was raised and where, without the values of any variable."""
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        raised = {"raised": type(error).__name__, "error": str(error), "where": where}
        self.write("error", event, {}, {**fields, **raised})

    def _line(self, level: Level, event: str, trusted: Mapping[str, Any], untrusted: Mapping[str, Any] | None) -> bytes:
        now = self._clock()
        second = int(now)
        if second != self._second:  # the date is formatted once a second
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        stamp = f"{self._stamp}.{int((now - second) * 1000):03d}Z"
        fields = {"time": stamp, "level": level, "event": event, **trusted}
        if untrusted:
            fields |= self._redacted(untrusted)
        line = self._render(fields)
        # Shortened field by field until it fits: the end of a line that is cut would not be JSON.
        for longest in (256, 48):
            if len(line) <= LONGEST_LINE:
                return line
            line = self._render({name: _cut(value, longest) for name, value in fields.items()})
        if len(line) <= LONGEST_LINE:
            return line
        return self._render({**{name: fields[name] for name in ("time", "level", "event")}, "cut": "too many fields"})

    def _redacted(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields without secrets and none too long; the names of fields are our own and not searched."""
        plain = {name: value if type(value) in _SCALARS else _plain_value(value) for name, value in fields.items()}
        texts = [value if type(value) is str else " ".join(value) for value in plain.values() if type(value) in _TEXTS]
        text = "\n".join(texts)
        if self.redact.suspects(text):  # one search for all fields, since most lines hold nothing to redact
            for name, value in plain.items():
                if isinstance(value, str):
                    plain[name] = self.redact(value[:_LONGEST_SEARCHED])
                elif isinstance(value, list):
                    plain[name] = [self.redact(item) for item in value]
        # After the secrets are found: of one that is cut in two neither half is recognised.
        if len(text) > LONGEST_FIELD:
            plain = {name: _cut(value, LONGEST_FIELD) for name, value in plain.items()}
        return plain


def _plain_value(value: Any) -> Any:
    """Return the value as a text or a list of texts, no more of it than is shown."""
    if isinstance(value, (list, tuple)):
        items = [str(item)[:_LONGEST_SEARCHED] for item in value[:_MAX_ITEMS]]
        return items if len(value) <= _MAX_ITEMS else [*items, f"… ({len(value)} in all)"]
    return str(value)


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, list):
        return [_cut(item, longest // 4) for item in value]
    if not isinstance(value, str) or len(value) <= longest:
        return value
    return f"{value[:longest]}… ({len(value)} characters)"


def _json_line(fields: dict[str, Any]) -> bytes:
    try:
        line = msgspec.json.encode(fields)
    except UnicodeError:  # half a surrogate pair
        line = b"\xff"  # not ASCII, so that the slower encoder below writes it as \udXXX
    if not line.isascii():
        line = json.dumps(fields, separators=(",", ":")).encode()
    if b"\x7f" in line:  # DEL, the one control character that JSON does not escape
        line = line.replace(b"\x7f", b"\\u007f")
    return line + b"\n"


def _text_line(fields: dict[str, Any]) -> bytes:
    rest = dict(fields)
    stamp, level, event = rest.pop("time")[11:23], rest.pop("level"), rest.pop("event")
    pairs = [f"{name}={_text_value(value)}" for name, value in rest.items() if value not in (None, "", [])]
    head = f"{stamp} \x1b[{_COLOURS[level]}m{level:<7}\x1b[0m {_escape(event)}"
    return (" ".join([head, *pairs]) + "\n").encode()


def _text_value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text_value(item) for item in value)
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return _escape(json.dumps(text, ensure_ascii=False) if _QUOTED.search(text) else text)


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
