"""Adding up what several processes count (D4)."""

from toolgate.conversation.events import Usage
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.summing import Sum


def counted(seconds: float, model: str = "m", streams: int = 1) -> str:
    metrics = Metrics(["m", 'a "b\\ c'], ["u"])
    served = metrics.served("openai_chat", model)
    served.statuses[200] += 1
    served.latency.add(seconds)
    served.spend(Usage(10, 5))
    metrics.count_attempt("u", "ok")
    metrics.streams_open = streams
    return metrics.render().decode()


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_one_text_comes_out_as_it_went_in() -> None:
    text, total = counted(0.3, 'a "b\\ c'), Sum()
    total.add(text)
    assert total.text() == text


def test_counters_histograms_and_gauges_are_added() -> None:
    total = Sum()
    total.add(counted(0.3))
    total.add(counted(7))
    found = samples(total.text())
    labels = 'dialect="openai_chat",model="m"'
    assert found[f'toolgate_requests_total{{{labels},status="200"}}'] == 2
    assert found[f'toolgate_request_seconds_bucket{{{labels},le="0.5"}}'] == 1
    assert found[f'toolgate_request_seconds_bucket{{{labels},le="+Inf"}}'] == 2
    assert found[f"toolgate_request_seconds_sum{{{labels}}}"] == 7.3
    assert found["toolgate_streams_open"] == 2


def test_who_is_gone_has_counted_and_uses_nothing() -> None:
    total = Sum()
    total.add(counted(0.3))
    total.add(counted(0.3, streams=5), gauges=False)
    found = samples(total.text())
    assert found['toolgate_upstream_attempts_total{upstream="u",outcome="ok"}'] == 2
    assert found["toolgate_streams_open"] == 1


def test_all_together_began_when_the_first_did() -> None:
    early, late = counted(1), counted(1)
    total = Sum()
    total.add(late)
    total.add(early)
    began = "process_start_time_seconds"
    assert samples(total.text())[began] == min(samples(early)[began], samples(late)[began])
