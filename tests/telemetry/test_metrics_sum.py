"""The metrics of several processes are added up (spec: D4)."""

from toolgate.conversation.events import Usage
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.metrics_sum import MetricsSum


def rendered(seconds: float, model: str = "m", streams: int = 1) -> str:
    metrics = Metrics(["m", 'a "b\\ c'], ["u"])
    counters = metrics.of_model("openai_chat", model)
    counters.statuses[200] += 1
    counters.latency.add([seconds])
    counters.add_usage(Usage(10, 5))
    metrics.count_attempt("u", "ok")
    metrics.streams_open = streams
    return metrics.render().decode()


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_the_metrics_of_one_process_are_their_own_sum() -> None:
    text, total = rendered(0.3, 'a "b\\ c'), MetricsSum()
    total.add(text)
    assert total.text() == text


def test_counters_histograms_and_gauges_are_added() -> None:
    total = MetricsSum()
    total.add(rendered(0.3))
    total.add(rendered(7))
    found = samples(total.text())
    labels = 'dialect="openai_chat",model="m"'
    assert found[f'toolgate_requests_total{{{labels},status="200"}}'] == 2
    assert found[f'toolgate_request_seconds_bucket{{{labels},le="0.5"}}'] == 1
    assert found[f'toolgate_request_seconds_bucket{{{labels},le="+Inf"}}'] == 2
    assert found[f"toolgate_request_seconds_sum{{{labels}}}"] == 7.3
    assert found["toolgate_streams_open"] == 2


def test_an_exited_process_counts_in_totals_but_not_in_gauges() -> None:
    total = MetricsSum()
    total.add(rendered(0.3))
    total.add(rendered(0.3, streams=5), gauges=False)
    found = samples(total.text())
    assert found['toolgate_upstream_attempts_total{upstream="u",outcome="ok"}'] == 2
    assert found["toolgate_streams_open"] == 1


def test_the_start_time_is_that_of_the_first_process() -> None:
    early, late = rendered(1), rendered(1)
    total = MetricsSum()
    total.add(late)
    total.add(early)
    began = "process_start_time_seconds"
    assert samples(total.text())[began] == min(samples(early)[began], samples(late)[began])
