"""A line that says what is being waited for, and for how long, until text takes its place."""

import threading
import time
from typing import TextIO

from toolgate.cli.chat.style import TerminalStyle, terminal_width
from toolgate.cli.chat.terminal_text import clip

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_EVERY = 0.1
# Seconds before the line appears: a fast answer needs none.
_DELAY = 0.2


class StatusLine:
    """Draws the line from a thread; every other output must hide it first. A dumb terminal shows none."""

    def __init__(self, stream: TextIO, style: TerminalStyle) -> None:
        self._stream = stream
        self._style = style
        self._frames = _FRAMES if style.symbols["bullet"] != "*" else "|/-\\"
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._text = ""
        self._drawn = False

    def show(self, text: str) -> None:
        """Say what is being waited for."""
        if not self._style.movable:
            return
        with self._lock:
            self._text = text
        if self._thread is None:
            self._stopped = threading.Event()
            self._thread = threading.Thread(target=self._draw, args=(self._stopped,), daemon=True, name="status-line")
            self._thread.start()

    def hide(self) -> None:
        """Remove the line."""
        if self._thread is None:
            return
        self._stopped.set()
        if self._thread.is_alive():  # Ctrl-C may have come before it was started
            self._thread.join()
        self._thread = None
        if self._drawn:
            # To the first column, and erase to the end of the line.
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._drawn = False

    def _draw(self, stopped: threading.Event) -> None:
        started = time.monotonic()
        frame = 0
        if stopped.wait(_DELAY):
            return
        while True:
            with self._lock:
                text = self._text
            seconds = int(time.monotonic() - started)
            line = f"{self._frames[frame % len(self._frames)]} {text}{f' {seconds} s' if seconds else ''}"
            # One column is left free: at the right edge some terminals begin a new line, which would not be erased.
            self._stream.write(f"\r\x1b[K{self._style.paint(clip(line, terminal_width() - 1), 'dim')}")
            self._stream.flush()
            self._drawn = True
            frame += 1
            if stopped.wait(_EVERY):
                return
