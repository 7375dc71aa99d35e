"""The line that says what is being waited for survives an interrupt at any moment (spec: E2)."""

import io
import threading

import pytest

from tests.cli.chat.test_markdown import COLORED
from toolgate.cli.chat.status_line import StatusLine


def test_an_interrupt_while_the_line_appears_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    line = StatusLine(io.StringIO(), COLORED)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            line.show("waiting for echo")
    line.hide()
    line.show("waiting for echo again")
    line.hide()
    assert "status-line" not in [thread.name for thread in threading.enumerate()]
