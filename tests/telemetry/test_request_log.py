"""Every request writes one log line and is counted in the metrics (spec: E6)."""

import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from toolgate.conversation.errors import InternalGatewayError, InvalidRequest, UpstreamTimeout, UpstreamUnavailable
from toolgate.conversation.events import Usage
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import RequestRecord, Telemetry


class RecordedTelemetry:
    """A `Telemetry` whose log and metrics can be read back."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.telemetry = Telemetry(Logger(fd=self.writing), Metrics(["gpt"], ["openai"]))

    def line(self) -> dict[str, Any]:
        lines = os.read(self.reading, 65536).splitlines()
        assert len(lines) == 1
        found: dict[str, Any] = json.loads(lines[0])
        return found

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        families = text_string_to_metric_families(self.telemetry.render().decode())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, frozenset(labels.items())))


@pytest.fixture
def recorded() -> Iterator[RecordedTelemetry]:
    recorded = RecordedTelemetry()
    yield recorded
    os.close(recorded.reading)
    os.close(recorded.writing)


def record(**fields: Any) -> RequestRecord:
    given = {"endpoint": "/v1/chat/completions", "dialect": "openai_chat", "caller": "me", "model": "gpt"}
    return RequestRecord("r1", "POST", "/v1/chat/completions", **{**given, "upstream": "openai", **fields})


def test_an_answered_request_is_one_line_and_counted_once(recorded: RecordedTelemetry) -> None:
    served = record(stream=True, bytes_in=100, bytes_out=900)
    served.note_call("search")
    served.note_call("search")
    served.note_first_event()
    served.note_end("tool_calls", Usage(10, 5, 4, 2, 1))
    recorded.telemetry.finish(served)
    recorded.telemetry.finish(served)
    line = recorded.line()
    seconds, first = line.pop("seconds"), line.pop("first_event_seconds")
    assert 0 <= first <= seconds
    del line["time"]
    assert line == {
        "level": "info",
        "event": "request",
        "id": "r1",
        "status": 200,
        "endpoint": "/v1/chat/completions",
        "caller": "me",
        "model": "gpt",
        "upstream": "openai",
        "stream": True,
        "finish": "tool_calls",
        "input_tokens": 10,
        "output_tokens": 5,
        "calls": 2,
        "tools": ["search", "search"],
    }
    by = {"dialect": "openai_chat", "model": "gpt"}
    assert recorded.value("toolgate_requests_total", **by, status="200") == 1
    assert recorded.value("toolgate_request_seconds_count", **by) == 1
    assert recorded.value("toolgate_first_event_seconds_count", **by) == 1
    assert recorded.value("toolgate_tool_calls_total", **by) == 2
    assert recorded.value("toolgate_bytes_total", **by, direction="out") == 900
    tokens = {kind: recorded.value("toolgate_tokens_total", **by, kind=kind) for kind in Usage.__struct_fields__[:5]}
    assert tokens == {"input": 10, "output": 5, "cache_read": 4, "cache_write": 2, "reasoning": 1}


def test_the_first_event_counts_and_later_ones_do_not() -> None:
    served = record()
    served.note_first_event()
    first = served.first_event
    served.note_first_event()
    assert served.first_event == first is not None


def test_an_estimate_is_marked(recorded: RecordedTelemetry) -> None:
    recorded.telemetry.finish(record(usage=Usage(1, 2, estimated=True)))
    assert recorded.line()["estimated"] is True


@pytest.mark.parametrize(
    ("error", "level", "status"),
    [
        (InvalidRequest("bad", param="x"), "info", "400"),
        (UpstreamUnavailable("busy", status=503), "warning", "503"),
        (UpstreamTimeout("slow"), "warning", "504"),
        (InternalGatewayError("ours"), "error", "500"),
    ],
)
def test_a_failure_has_its_status_code_and_level(
    recorded: RecordedTelemetry, error: Any, level: str, status: str
) -> None:
    failed = record()
    failed.note_error(error)
    failed.note_error(InternalGatewayError("a consequence of the first"))
    recorded.telemetry.finish(failed)
    line = recorded.line()
    assert (line["level"], line["code"], line["error"]) == (level, error.code, error.message)
    assert recorded.value("toolgate_requests_total", dialect="openai_chat", model="gpt", status=status) == 1


def test_an_upstream_error_is_logged_without_its_secrets(recorded: RecordedTelemetry) -> None:
    fault = UpstreamUnavailable("Incorrect API key provided: sk-canary0123456789abcd")
    fault.upstream_status = 401
    failed = record(warnings=("dropped x; Bearer canary-canary-1234",))
    failed.note_error(fault)
    recorded.telemetry.finish(failed)
    line = recorded.line()
    assert line["upstream_status"] == 401
    assert "canary" not in json.dumps(line)
    assert line["warnings"] == ["dropped x; Bearer …1234"]


def test_a_client_that_disconnected_is_logged_as_info(recorded: RecordedTelemetry) -> None:
    left = record()
    left.note_client_left()
    recorded.telemetry.finish(left)
    line = recorded.line()
    assert (line["level"], line["status"], line["code"]) == ("info", 499, "client_left")


def test_an_error_before_the_client_disconnected_is_kept() -> None:
    failed = record()
    failed.note_error(UpstreamTimeout("slow"))
    failed.note_client_left()
    assert (failed.status, failed.code) == (504, "upstream_timeout")


def test_names_outside_the_configuration_are_counted_together(recorded: RecordedTelemetry) -> None:
    """fault: O2. A label takes few values, whatever clients send."""
    for number in range(500):
        nasty = RequestRecord("r", "GET", f"/x{number}", model=f'm{number}"}}\n#', status=404)
        recorded.telemetry.finish(nasty)
        os.read(recorded.reading, 65536)
        recorded.telemetry.metrics.count_attempt(f"upstream{number}", "ok")
    assert recorded.value("toolgate_requests_total", dialect="none", model="other", status="404") == 500
    assert recorded.value("toolgate_upstream_attempts_total", upstream="other", outcome="ok") == 500
    assert len(recorded.telemetry.render()) < 20_000


def test_a_request_for_no_model_is_counted_under_none(recorded: RecordedTelemetry) -> None:
    recorded.telemetry.finish(RequestRecord("r", "GET", "/sk-canary0123456789abcd"))
    line = recorded.line()
    assert line["path"] == "GET /sk-…abcd"
    assert recorded.value("toolgate_requests_total", dialect="none", model="none", status="200") == 1


def test_after_a_reload_new_names_are_labels_and_old_counts_stay(recorded: RecordedTelemetry) -> None:
    recorded.telemetry.finish(record())
    recorded.telemetry.set_label_names(["claude"], [])
    recorded.telemetry.finish(record(model="claude"))
    recorded.telemetry.finish(record(model="gpt"))
    by = {"dialect": "openai_chat", "status": "200"}
    counts = [recorded.value("toolgate_requests_total", model=model, **by) for model in ("gpt", "claude", "other")]
    assert counts == [1, 1, 1]


def test_attempts_streams_tools_and_drops_are_counted(recorded: RecordedTelemetry) -> None:
    telemetry = recorded.telemetry
    telemetry.metrics.count_attempt("openai", "ok")
    telemetry.metrics.count_attempt("openai", "upstream_timeout")
    telemetry.stream_opened()
    telemetry.stream_opened()
    telemetry.stream_closed()
    telemetry.tool_ran("search", 0.25, "ok", '{"q": "canary"}', "r1")
    telemetry.log.dropped = 7
    line = recorded.line()
    assert (line["event"], line["tool"], line["seconds"], line["arguments"]) == (
        "tool",
        "search",
        0.25,
        '{"q":"<6 characters>"}',
    )
    assert recorded.value("toolgate_upstream_attempts_total", upstream="openai", outcome="upstream_timeout") == 1
    assert recorded.value("toolgate_streams_open") == 1
    assert recorded.value("toolgate_tool_runs_total", outcome="ok") == 1
    assert recorded.value("toolgate_log_lines_dropped") == 7


def test_durations_are_counted_in_their_buckets(recorded: RecordedTelemetry) -> None:
    telemetry = recorded.telemetry = Telemetry(recorded.telemetry.log, Metrics(["gpt"]), clock=lambda: 100.0)
    for ago in (0.001, 0.005, 0.2, 1000.0):
        telemetry.finish(record(started=100.0 - ago))
        os.read(recorded.reading, 65536)
    by = {"dialect": "openai_chat", "model": "gpt"}
    buckets = {
        le: recorded.value("toolgate_request_seconds_bucket", le=le, **by) for le in ("0.01", "0.25", "300", "+Inf")
    }
    assert buckets == {"0.01": 2, "0.25": 3, "300": 3, "+Inf": 4}
    assert recorded.value("toolgate_request_seconds_sum", **by) == pytest.approx(1000.206)


def test_the_process_itself_is_measured(recorded: RecordedTelemetry) -> None:
    assert re.search(rb"^process_resident_memory_bytes \d", recorded.telemetry.render(), re.MULTILINE)


def test_a_crash_is_logged_with_its_request(recorded: RecordedTelemetry) -> None:
    recorded.telemetry.crashed(record(), RuntimeError("oh no"))
    line = recorded.line()
    assert (line["event"], line["id"], line["endpoint"], line["error"]) == (
        "crash",
        "r1",
        "/v1/chat/completions",
        "oh no",
    )


def test_a_request_costs_little() -> None:
    fd = os.open(os.devnull, os.O_WRONLY)
    telemetry = Telemetry(Logger(fd=fd), Metrics(["gpt"], ["openai"]))
    times = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(1000):
            served = record(usage=Usage(1, 2))
            served.note_first_event()
            telemetry.finish(served)
        times.append((time.process_time() - started) / 1000)
    os.close(fd)
    assert min(times) < 100e-6  # 10 µs on an idle machine


def test_a_name_with_odd_characters_is_a_label_like_any_other(recorded: RecordedTelemetry) -> None:
    odd = 'a"b\\c{}=,d'
    recorded.telemetry.set_label_names([odd], [])
    recorded.telemetry.finish(record(model=odd))
    assert recorded.value("toolgate_requests_total", dialect="openai_chat", model=odd, status="200") == 1
