"""A run is forked at a step with another model or edits, and no copied call is run again (spec: E8, D3)."""

from typing import Any

import pytest

from tests.api.runs.test_runs import ASKING, Runs, forever, outcomes, runs
from tests.tools.execution.toolwork import AUTO, CANARY, call, results, soon
from toolgate.conversation.message import Text, plain_text
from toolgate.conversation.request import ModelRequest

__all__ = ["runs"]


async def made(runs: Runs, *script: Any, **more: Any) -> Any:
    """A run of this script that has ended."""
    runs.work.play(*script)
    response = await runs.post("/v1/responses", {"model": "openai_chat", "input": "Go.", **AUTO, **more})
    assert response.status_code == 200, response.text
    run = (await runs.get("/v1/runs"))["data"][0]
    return await runs.until(run["id"], "completed", "failed", "incomplete")


async def fork(runs: Runs, run: Any, *script: Any, **query: Any) -> tuple[Any, list[ModelRequest]]:
    """The fork of a run when it has ended, and what its model was asked."""
    model = runs.work.play(*script)
    answer = await runs.post(f"/v1/runs/{run['id']}/fork", query)
    assert answer.status_code == 201, answer.text
    forked = answer.json()
    assert (forked["kind"], forked["forked_from"]) == ("background", {"run": run["id"], "step": query.get("step", 0)})
    return await runs.until(forked["id"], "completed", "failed"), model.requests


def user_texts(request: ModelRequest) -> list[str]:
    return [plain_text(message.parts) for message in request.messages if message.role == "user"]


TWO_CALLS: tuple[Any, ...] = ([Text("First."), call("read", "{}")], [Text("Second."), call("write")], "All done.")


@pytest.mark.parametrize("background", [False, True])
async def test_a_fork_copies_the_steps_before_and_runs_only_what_comes_after(runs: Runs, background: bool) -> None:
    run = await made(runs, *TWO_CALLS, background=background)
    forked, asked = await fork(runs, run, [call("write", number=9)], "Another end.", step=1, model="anthropic")
    assert outcomes(forked) == [
        ("step", 1, None, "tool_calls"),
        ("call", 1, "read", "completed"),
        ("step", 2, None, "tool_calls"),
        ("call", 2, "write", "completed"),
        ("step", 3, None, "answer"),
    ]
    assert [one["copied"] for one in forked["timeline"]] == [True, True, False, False, False]
    assert (forked["timeline"][0]["text"], forked["timeline"][1]["result"]) == ("First.", f"It says {CANARY}.")
    assert forked["timeline"][4]["text"] == "Another end."
    assert (forked["model"], forked["steps"], forked["calls"]) == ("anthropic", 3, 1)
    assert len(runs.write.runs) == 2, "one call of each run"
    assert results(asked[0]) == [f"It says {CANARY}."]
    assert user_texts(asked[0]) == ["Go."]
    response = await runs.get(f"/v1/responses/{forked['response']}")
    assert (response["status"], response["background"], response["model"]) == ("completed", True, "anthropic")
    assert await runs.get(f"/v1/runs/{run['id']}") == run, "the run itself stays as it is"


async def test_an_edited_result_takes_the_place_of_the_tools_own(runs: Runs) -> None:
    run = await made(runs, *TWO_CALLS)
    edited = run["timeline"][1]["call"]
    forked, asked = await fork(runs, run, "I see.", step=1, results={edited: "It says nothing."})
    assert results(asked[0]) == ["It says nothing."]
    assert forked["timeline"][1]["result"] == "It says nothing."
    assert len(runs.write.runs) == 1
    response = run["response"]
    model = runs.work.play("And on.")
    await runs.post("/v1/responses", {"model": "openai_chat", "input": "On.", "previous_response_id": response, **AUTO})
    assert results(model.requests[0])[0] == f"It says {CANARY}.", (
        "the edit is not seen by what continues the run itself"
    )


async def test_from_the_start_with_an_edited_message_and_other_instructions(runs: Runs) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    text = [{"role": "user", "content": [{"type": "input_text", "text": "Go."}, image]}]
    run = await made(runs, *TWO_CALLS, input=text, instructions="Be brief.")
    forked, asked = await fork(runs, run, "Well.", message="Stay.", instructions="Be long.")
    assert user_texts(asked[0])[-1].startswith("Stay.")
    assert len([message for message in asked[0].messages if message.role == "user"][-1].parts) == 2, "the image stays"
    assert "Be long." in str(asked[0].messages)
    assert "Be brief." not in str(asked[0].messages)
    assert outcomes(forked) == [("step", 1, None, "answer")]


async def test_a_fork_can_be_forked_at_a_copied_step_and_at_its_own(runs: Runs) -> None:
    run = await made(runs, *TWO_CALLS)
    forked, _ = await fork(runs, run, [call("read", "{}", number=7)], "Second end.", step=2)
    again, asked = await fork(runs, forked, "Third end.", step=1)
    assert results(asked[0]) == [f"It says {CANARY}."]
    assert [one["outcome"] for one in again["timeline"]] == ["tool_calls", "completed", "answer"]
    own, asked = await fork(runs, forked, "Fourth end.", step=3)
    assert len(results(asked[0])) == 3
    assert [one["step"] for one in own["timeline"] if one["type"] == "step"] == [1, 2, 3, 4]
    assert len(runs.write.runs) == 1


async def test_what_a_run_continues_is_continued_by_its_fork_and_a_conversation_stays_untouched(runs: Runs) -> None:
    runs.work.play("Hello.")
    first = (await runs.post("/v1/responses", {"model": "openai_chat", "input": "Hi."})).json()["id"]
    run = await made(runs, *TWO_CALLS, previous_response_id=first)
    _, asked = await fork(runs, run, "Well.", step=1)
    assert user_texts(asked[0]) == ["Hi.", "Go."]
    conversation = (await runs.post("/v1/conversations", {})).json()["id"]
    runs.work.play("Hello.")
    await runs.post("/v1/responses", {"model": "openai_chat", "input": "Hi there.", "conversation": conversation})
    run = await made(runs, *TWO_CALLS, conversation=conversation)
    before = await runs.get(f"/v1/conversations/{conversation}/items")
    _, asked = await fork(runs, run, "Well.", step=1, message="Go on.")
    assert user_texts(asked[0]) == ["Hi there.", "Go on."]
    assert await runs.get(f"/v1/conversations/{conversation}/items") == before


async def test_a_demanded_call_is_not_demanded_again_after_it_was_made(runs: Runs) -> None:
    run = await made(runs, *TWO_CALLS, tool_choice="required")
    _, asked = await fork(runs, run, "Well.", step=1)
    assert asked[0].tool_choice is None or asked[0].tool_choice.mode == "auto"
    _, asked = await fork(runs, run, [call("read", "{}")], "Well.", step=0)
    assert asked[0].tool_choice is not None
    assert asked[0].tool_choice.mode == "required"


async def test_a_cancelled_run_is_forked_after_its_finished_steps(runs: Runs) -> None:
    runs.write.give = forever
    runs.work.play(*TWO_CALLS)
    id = await runs.background()
    await runs.write.began.wait()
    await runs.post(f"/v1/runs/{id}/cancel", {})
    run = await runs.until(id, "cancelled")
    forked, asked = await fork(runs, run, "Well.", step=1)
    assert results(asked[0]) == [f"It says {CANARY}."]
    assert forked["state"] == "completed"
    refused = await runs.post(f"/v1/runs/{id}/fork", {"step": 2})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_stored")


@pytest.mark.parametrize("runs", [ASKING], indirect=True)
async def test_a_waiting_run_is_forked_after_its_finished_steps(runs: Runs) -> None:
    runs.work.play(*TWO_CALLS)
    id = await runs.background()
    await runs.work.decide((await runs.work.waiting("ann-key"))["id"], "approve", "ann-key")
    run = await soon(lambda: in_step(runs, id, 2))
    _, asked = await fork(runs, run, "Well.", step=1)
    assert results(asked[0]) == [f"It says {CANARY}."]
    await runs.post(f"/v1/runs/{id}/cancel", {})


async def in_step(runs: Runs, id: str, step: int) -> Any:
    run = await runs.get(f"/v1/runs/{id}")
    return run if run["state"] == "waiting" and run["steps"] == step else None


@pytest.mark.parametrize("runs", [ASKING], indirect=True)
async def test_a_call_that_still_needs_approval_can_be_given_a_result_instead(runs: Runs) -> None:
    tools = [{"type": "mcp", "server_label": "toolgate", "require_approval": "always"}]
    run = await made(runs, [call()], "Done.", tools=tools, tool_execution="none", use_server_tools=False)
    waiting = run["timeline"][1]["call"]
    assert (await runs.post(f"/v1/runs/{run['id']}/fork", {"step": 1})).status_code == 409
    _, asked = await fork(runs, run, "Well.", step=1, results={waiting: "as if written"})
    assert results(asked[0]) == ["as if written"]
    assert runs.write.runs == []


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"step": 7}, 400, "step"),
        ({"step": 3}, 400, "step"),
        ({"step": -1}, 400, "step"),
        ({"step": "one"}, 400, "step"),
        ({"step": 1, "results": {"call_nothing": "x"}}, 400, "results"),
        ({"step": 1, "results": ["x"]}, 400, "results"),
        ({"model": "nothing"}, 404, None),
        ({"colour": "blue"}, 400, "colour"),
    ],
)
async def test_a_fork_that_cannot_be_made_is_refused(runs: Runs, query: Any, status: int, param: str | None) -> None:
    run = await made(runs, *TWO_CALLS)
    refused = await runs.post(f"/v1/runs/{run['id']}/fork", query)
    assert refused.status_code == status, refused.text
    if param:
        assert refused.json()["error"]["param"] == param
    assert len((await runs.get("/v1/runs"))["data"]) == 1


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses"])
async def test_a_run_that_is_not_stored_cannot_be_forked(runs: Runs, client: str) -> None:
    runs.work.play([call("read", "{}")], "Done.")
    more: dict[str, Any] = {"store": False} if client == "openai_responses" else {}
    await runs.work.ask(client, key="ann-key", **more)
    refused = await runs.post(f"/v1/runs/{(await runs.newest())['id']}/fork", {"step": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_stored")


async def test_only_the_key_that_made_a_run_forks_it(runs: Runs) -> None:
    run = await made(runs, *TWO_CALLS)
    assert (await runs.post(f"/v1/runs/{run['id']}/fork", {"step": 1}, "root")).status_code == 403
    assert (await runs.post(f"/v1/runs/{run['id']}/fork", {"step": 1}, "bob")).status_code == 404
