"""Runs whose server is killed, frozen or stopped at the worst moment: nothing is lost, nothing harmful is done twice."""

import signal
from pathlib import Path

import httpx
import pytest

from tests.runs.processes import WANTS, Server, calling, server, until
from toolgate.engine.tool_loop import INTERRUPTED_CALL

QUICK = {"runs": {"lease_seconds": 1, "look_seconds": 0.2}}
EVERYTHING_ALLOWED = {"approvals": {"default": "allow"}, "python": ["tools"]}


def accepted(running: Server) -> str:
    """The id of a background response that was just accepted."""
    with running.client() as client:
        return client.responses.create(model="m", input="Go.", background=True, extra_body=WANTS).id


@pytest.mark.parametrize(("word", "ran"), [("deny", 1), ("approve", 2)])
def test_a_person_decides_about_an_unsafe_call_that_was_cut_off(tmp_path: Path, word: str, ran: int) -> None:
    """spec: D3, E8; fault: K-B"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db", tools=EVERYTHING_ALLOWED) as killed:
        killed.play(calling("book"))
        killed.hold("book")
        killed.start()
        id = accepted(killed)
        until(lambda: killed.ran)
        until(lambda: [one for one in killed.calls(id) if one["tool_started"]])
        killed.kill()
        killed.let_go("book")
        killed.start()
        asked = killed.pending()
        assert killed.ran == ["book"]
        assert "may or may not have taken effect" in killed.approval(asked)["question"]
        [resumed] = until(lambda: killed.logged("run resumed"))
        [requested] = until(lambda: killed.logged("approval requested"))
        assert (resumed["level"], resumed["run"]) == ("info", id)
        assert (requested["level"], requested["tool"], requested["approval"]) == ("info", "book", asked)
        assert requested["answer"] == f"toolgate approvals approve {asked}"
        assert "Paris" not in str(requested)
        killed.answer(asked, word)
        response = killed.ended(id)
        run, (cut_off, decided) = killed.run(id), killed.calls(id)
    assert (cut_off["outcome"], cut_off["ended"], cut_off["result"], cut_off["approval"]) == ("unknown", *[None] * 3)
    assert (decided["outcome"], decided["approval"]) == ("denied" if word == "deny" else "completed", asked)
    assert decided["result"] == (INTERRUPTED_CALL if word == "deny" else "Paris is booked")
    assert (bool(decided["tool_started"]), bool(decided["ended"])) == (word == "approve", True)
    assert (run["calls"], run["steps"]) == (ran, 2)
    assert killed.ran == ["book"] * ran
    assert response.status == "completed"
    assert INTERRUPTED_CALL in str(response.output[1]) if word == "deny" else "Paris is booked" in response.output_text


def test_an_unsafe_call_that_was_cut_off_is_reported_without_ask_again(tmp_path: Path) -> None:
    """spec: D3; fault: K-B"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db", tools=EVERYTHING_ALLOWED, runs={"ask_again": False}) as killed:
        killed.play(calling("book"))
        killed.hold("book")
        killed.start()
        id = accepted(killed)
        until(lambda: killed.ran)
        killed.kill()
        killed.start()
        response = killed.ended(id)
        run, (cut_off,) = killed.run(id), killed.calls(id)
    assert (cut_off["outcome"], cut_off["ended"], cut_off["result"]) == ("unknown", None, INTERRUPTED_CALL)
    assert run["calls"] == 1
    assert killed.ran == ["book"]
    assert response.output_text.endswith(INTERRUPTED_CALL)


def test_an_idempotent_call_is_run_again_with_the_same_key_and_a_finished_one_is_not(tmp_path: Path) -> None:
    """spec: D3, E8; fault: K-C"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db") as killed:
        script = killed.play(calling("look_up", "put"))
        killed.hold("put")
        killed.start()
        id = accepted(killed)
        until(lambda: len(killed.ran) == 2)
        until(lambda: [one for one in killed.calls(id) if one["tool"] == "put" and one["tool_started"]])
        killed.kill()
        killed.let_go("put")
        killed.start()
        response = killed.ended(id)
        timeline, calls, count = killed.timeline(id), killed.calls(id), killed.run(id)["calls"]
    assert timeline == [
        (1, None, "tool_calls"),
        (1, "look_up", "completed"),
        (2, None, "tool_calls"),
        (2, "put", "unknown"),
        (2, "put", "completed"),
        (3, None, "answer"),
    ]
    assert [(one["result"], bool(one["ended"])) for one in calls[1:]] == [(None, False), ("Paris is put", True)]
    assert count == 3
    first, *puts = killed.ran
    assert first == "look_up"
    assert len(puts) == 2
    assert len(set(puts)) == 1
    assert response.output_text == "Step 1.Step 2.So: Paris is sunny; Paris is put"
    assert len(script.requests) == 3


def test_consent_that_was_used_up_before_the_call_began_is_not_asked_for_again(tmp_path: Path) -> None:
    """spec: E8; fault: K-D"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db") as killed:
        killed.play(calling("book"))
        killed.start()
        id = accepted(killed)
        asked = killed.pending()
        until(lambda: (1, "book", "waiting") in killed.timeline(id))
        assert killed.run(id)["calls"] == 0
        killed.kill()
        killed.consume(asked, id)
        killed.start()
        response = killed.ended(id)
        run, (book,) = killed.run(id), killed.calls(id)
    # The tool was started once, by the second server, and the call that waited goes on in its entry.
    assert (run["calls"], book["outcome"], book["approval"]) == (1, "completed", asked)
    assert book["started"] < book["tool_started"] <= book["ended"]
    assert response.output_text == "Step 1.So: Paris is booked"
    assert killed.ran == ["book"]


def test_a_run_that_brings_its_server_down_again_and_again_is_given_up(tmp_path: Path) -> None:
    """fault: K-F"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db", runs={"crashes": 2, **QUICK["runs"]}) as killed:
        killed.play(calling("crash"))
        killed.start()
        id = accepted(killed)
        killed.wait()
        for _ in range(2):
            killed.start()
            killed.wait()
        killed.start()
        response = killed.ended(id)
        assert (response.status, response.error and response.error.code) == ("failed", "server_error")
        assert "given up" in response.error.message
    assert killed.ran == ["crash"] * 3


def test_a_server_that_is_stopped_leaves_its_runs_to_the_next_start(tmp_path: Path) -> None:
    """spec: D3, E8"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db") as stopped:
        stopped.play(calling("look_up", "book"))
        stopped.start()
        id = accepted(stopped)
        asked = stopped.pending()
        stopped.stop()
        stopped.start()
        stopped.answer(asked, "approve")
        assert stopped.ended(id).output_text == "Step 1.Step 2.So: Paris is sunny; Paris is booked"
        assert stopped.timeline(id) == [
            (1, None, "tool_calls"),
            (1, "look_up", "completed"),
            (2, None, "tool_calls"),
            (2, "book", "completed"),
            (3, None, "answer"),
        ]
        assert stopped.run(id)["calls"] == 2
    assert stopped.ran == ["look_up", "book"]


def test_a_run_that_goes_on_after_a_crash_is_counted_with_all_its_tokens(tmp_path: Path) -> None:
    """spec: D1"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db") as killed:
        killed.play(calling("put"))
        killed.hold("put")
        killed.start()
        id = accepted(killed)
        until(lambda: killed.ran)
        killed.kill()
        killed.let_go("put")
        killed.start()
        response = killed.ended(id)
        [used] = until(lambda: httpx.get(f"{killed.url}/v1/usage?by=model").json()["data"])
    assert (used["model"], used["requests"], used["input_tokens"]) == ("m", 1, response.usage.input_tokens)


def test_a_frozen_node_loses_its_run_to_another_and_can_neither_write_nor_call_tools(
    tmp_path: Path, storage_url: str
) -> None:
    """fault: M6"""
    places = [tmp_path / name for name in ("frozen", "other")]
    for place in places:
        place.mkdir()
    patient = {
        "runs": {**QUICK["runs"], "lease_seconds": 5}
    }  # on a busy machine the other must not lose the run in turn
    with server(places[0], storage_url, **patient) as frozen, server(places[1], storage_url, **patient) as other:
        frozen.play(calling("put", "book"))
        other.play(calling("put", "book"))
        frozen.hold("put")
        frozen.start()
        other.start()
        id = accepted(frozen)
        until(lambda: frozen.ran)
        frozen.freeze()
        until(lambda: other.ran, seconds=40)  # frozen in the middle of a transaction it has locks for a while
        asked = other.pending()
        frozen.let_go("put")
        frozen.signal(signal.SIGCONT)
        other.answer(asked, "approve")
        response = other.ended(id)
        assert frozen.ended(id) == response
    assert response.output_text == "Step 1.Step 2.So: Paris is put; Paris is booked"
    assert [line.partition(":")[0] for line in other.ran] == ["put", "book"]
    assert len(frozen.ran) == 1


def test_a_run_is_cancelled_from_another_node(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/t.db"
    places = [tmp_path / name for name in ("one", "other")]
    for place in places:
        place.mkdir()
    with server(places[0], storage, **QUICK) as one, server(places[1], storage, **QUICK) as other:
        one.play(calling("put"))
        one.hold("put")
        one.start()
        other.start()
        id = accepted(one)
        until(lambda: one.ran)
        with other.client() as client:
            assert client.responses.cancel(id).status == "cancelled"
        assert one.ended(id).status == "cancelled"


def test_a_run_whose_steps_are_lost_fails_rather_than_do_anything_twice(tmp_path: Path) -> None:
    """spec: D3"""
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db") as killed:
        killed.play(calling("look_up", "put"))
        killed.hold("put")
        killed.start()
        id = accepted(killed)
        until(lambda: len(killed.ran) == 2)
        killed.kill()
        for file in tmp_path.glob("t-runs.db*"):
            file.unlink()
        killed.start()
        response = killed.ended(id)
    assert response.status == "failed"
    assert response.error is not None
    assert "lost" in response.error.message
    assert len(killed.ran) == 2


def test_a_cancelled_run_has_no_pending_approval(tmp_path: Path) -> None:
    with server(tmp_path, f"sqlite:///{tmp_path}/t.db") as running:
        running.play(calling("book"))
        running.start()
        id = accepted(running)
        asked = running.pending()
        with running.client() as client:
            assert client.responses.cancel(id).status == "cancelled"
        assert running.approval(asked)["state"] == "denied"
    assert running.ran == []
