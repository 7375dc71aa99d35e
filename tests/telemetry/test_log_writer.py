"""Every event is one log line, whatever its fields contain, and logging never blocks (E6, fault: O1, O2, O3)."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from toolgate.telemetry.log_writer import LONGEST_LINE, Logger
from toolgate.telemetry.redaction import Redactor

SECRET = "sk-canary-0123456789abcdef"


class Pipe:
    """A pipe to log into, and what was read from it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def take(self) -> bytes:
        taken = b""
        try:
            while piece := os.read(self.reading, 1 << 20):
                taken += piece
        except BlockingIOError:
            pass
        return taken

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.take().splitlines()]

    def fill(self) -> None:
        os.set_blocking(self.writing, False)
        try:
            while os.write(self.writing, b"x" * 4096):
                pass
        except BlockingIOError:
            os.set_blocking(self.writing, True)

    def close(self) -> None:
        for fd in (self.reading, self.writing):
            with contextlib.suppress(OSError):  # a test closed it
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_a_line_is_json_with_time_level_and_event(pipe: Pipe) -> None:
    Logger(fd=pipe.writing, clock=lambda: 1_700_000_000.25).info("started", port=8080, name="é")
    raw = pipe.take()
    assert raw.endswith(b"\n")
    assert raw.isascii()
    assert json.loads(raw) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "event": "started",
        "port": 8080,
        "name": "é",
    }


def test_lines_below_the_level_are_not_written_and_the_level_may_change(pipe: Pipe) -> None:
    log = Logger("warning", fd=pipe.writing)
    for write in (log.debug, log.info, log.warning, log.error):
        write("x")
    log.level = "debug"
    log.debug("y")
    assert [line["level"] for line in pipe.lines()] == ["warning", "error", "debug"]


NASTY = [
    "a\nb",
    "a\r\nb",
    "\x1b[31mred\x1b[0m",
    "\x00\x07\x7f\x9b",
    "\u202eevil\u202c\u2066x\u2069",
    "\u200b\u2028\u2029\ufeff",
    '","level":"error","x":"',
    "\ud800 half a pair",
    "\U000e0041 tag",
    "x" * 10_000_000,
]


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("value", NASTY, ids=range(len(NASTY)))
def test_a_field_cannot_start_another_line(pipe: Pipe, form: Any, value: str) -> None:
    log = Logger(form=form, fd=pipe.writing)
    started = time.process_time()
    log.info("event", field=value, items=[value, value])
    assert time.process_time() - started < 0.5
    raw = pipe.take()
    assert raw.count(b"\n") == 1
    assert len(raw) <= LONGEST_LINE
    text = raw.decode()[:-1]
    if form == "text":  # our own colours are the only escapes
        text = text.replace("\x1b[32m", "").replace("\x1b[0m", "", 1)
    assert text.isprintable()


def test_a_json_line_decodes_to_what_was_logged(pipe: Pipe) -> None:
    log = Logger(fd=pipe.writing)
    for value in NASTY[:-1]:
        log.info("event", field=value)
    assert [line["field"] for line in pipe.lines()] == NASTY[:-1]


def test_a_readable_line_is_readable(pipe: Pipe) -> None:
    log = Logger(form="text", fd=pipe.writing, clock=lambda: 1_700_000_000.25)
    log.warning(
        "request", status=502, seconds=0.123456, model="gpt", error='it said "no"', nothing=None, tools=["a", "b"]
    )
    assert pipe.take().decode() == (
        "22:13:20.250 \x1b[33mwarning\x1b[0m request status=502 seconds=0.1235 model=gpt "
        'error="it said \\"no\\"" tools=a,b\n'
    )


def test_long_fields_are_cut_with_a_note(pipe: Pipe) -> None:
    Logger(fd=pipe.writing).info("x", field="a" * 3000, many=list(range(100)))
    (line,) = pipe.lines()
    assert line["field"] == "a" * 2048 + "… (3000 characters)"
    assert line["many"][-1] == "… (100 in all)"


def test_a_line_with_many_long_fields_still_fits_in_one_piece(pipe: Pipe) -> None:
    Logger(fd=pipe.writing).info("x", **{f"field{number}": "é" * 2000 for number in range(12)})
    (line,) = pipe.lines()
    assert len(line) == 15
    Logger(fd=pipe.writing).info("x", **{f"field{number}": "é" * 2000 for number in range(200)})
    (line,) = pipe.lines()
    assert line["cut"] == "too many fields"


def test_values_of_other_types_are_written_as_text(pipe: Pipe) -> None:
    class Strange:
        def __str__(self) -> str:
            return f"strange {SECRET}"

    Logger(fd=pipe.writing).info("x", a=Strange(), b=b"\xff", c=(Strange(), 1), d={"k": SECRET}, e=float("inf"))
    raw = pipe.take()
    assert b"canary" not in raw
    assert json.loads(raw)["a"] == "strange sk-…cdef"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_is_written(pipe: Pipe, form: Any) -> None:
    log = Logger(form=form, fd=pipe.writing, redact=Redactor(["known-canary-value-1234"]))
    log.error(
        "x", error=f"Bearer {SECRET}", items=["known-canary-value-1234"], url="https://u:canary@h/?api_key=canary99"
    )
    log.error("x", padded="x" * 2040 + " known-canary-value-1234")
    try:
        raise ValueError(f"could not use {SECRET}")
    except ValueError as error:
        log.crash("crash", error, id="known-canary-value-1234")
    assert b"canary" not in pipe.take()


def test_a_crash_is_logged_with_its_place_and_without_variables(pipe: Pipe) -> None:
    def fails() -> None:
        variable = "canary"
        raise RuntimeError(f"oh no, {len(variable)}")

    try:
        fails()
    except RuntimeError as error:
        Logger(fd=pipe.writing).crash("crash", error, id="r1")
    (line,) = pipe.lines()
    assert (line["raised"], line["error"], line["id"]) == ("RuntimeError", "oh no, 6", "r1")
    assert line["where"][-1].startswith("test_log_writer.py:")
    assert line["where"][-1].endswith(" fails")
    assert "canary" not in json.dumps(line)


class TestUnwritableLines:
    """fault: O3."""

    def test_a_full_pipe_blocks_nothing_and_the_next_line_counts_the_drops(self, pipe: Pipe) -> None:
        log = Logger(fd=pipe.writing)
        pipe.fill()
        for _ in range(3):
            log.info("lost")
        assert log.dropped == 3
        pipe.take()
        log.info("back")
        log.info("again")
        first, second = pipe.lines()
        assert (first["event"], first["lines_dropped_before"]) == ("back", 3)
        assert "lines_dropped_before" not in second
        assert log.dropped == 3

    def test_a_closed_reader_raises_nothing(self, pipe: Pipe) -> None:
        os.close(pipe.reading)
        log = Logger(fd=pipe.writing)
        log.info("lost")
        assert log.dropped == 1

    def test_a_closed_descriptor_raises_nothing(self, pipe: Pipe) -> None:
        pipe.close()
        log = Logger(fd=pipe.writing)
        log.info("lost")
        assert log.dropped == 1

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_a_full_disk_raises_nothing(self) -> None:
        fd = os.open("/dev/full", os.O_WRONLY)
        log = Logger(fd=fd)
        log.info("lost")
        os.close(fd)
        assert log.dropped == 1

    def test_the_flags_of_the_descriptor_are_unchanged(self, pipe: Pipe) -> None:
        Logger(fd=pipe.writing).info("x")
        assert os.get_blocking(pipe.writing)


def test_a_line_costs_little() -> None:
    fd = os.open(os.devnull, os.O_WRONLY)
    log = Logger(fd=fd, redact=Redactor([f"secret-number-{n}" for n in range(8)]))
    fields = {"id": "r" * 20, "status": 200, "endpoint": "/v1/chat/completions", "caller": "me", "seconds": 0.0123}
    times = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(2000):
            log.write("info", "request", fields)
        times.append((time.process_time() - started) / 2000)
    os.close(fd)
    assert min(times) < 50e-6  # 4 µs on an idle machine
