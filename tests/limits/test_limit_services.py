"""Limits of keys and idempotency keys over the whole server."""

from pathlib import Path

import httpx

from tests.stage import served
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import load

CONFIG = """
server: {port: 0}
keys:
  - {name: ann, key: ann-key, scopes: [chat], requests_per_minute: 2}
  - {name: bob, key: bob-key, scopes: [chat, admin], budget: {amount: 5}}
models: [{name: echo, upstream: builtin, price: {input: 1, output: 1}}]
storage: "sqlite://"
log: {level: error}
"""
BODY = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


def test_a_key_is_held_to_its_limit_others_are_not_and_a_repeated_request_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.yaml"
    path.write_text(CONFIG)
    with served(Toolgate(load(path, {}))) as url, httpx.Client(base_url=url) as client:
        ann, bob = ({"authorization": f"Bearer {name}-key"} for name in ("ann", "bob"))
        answers = [client.post("/v1/chat/completions", json=BODY, headers=ann) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert int(answers[2].headers["retry-after"]) <= 61
        assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
        once = {**bob, "idempotency-key": "k1"}
        first, second = (client.post("/v1/chat/completions", json=BODY, headers=once) for _ in range(2))
        assert first.json() == second.json()
        assert second.headers["idempotent-replayed"] == "true"
        listed = client.get("/v1/keys", headers=bob).json()["data"]
        assert [one["name"] for one in listed] == ["ann", "bob"]
        assert "ann-key" not in str(listed)


def test_a_reload_that_is_refused_leaves_the_limits_of_keys_made_afterwards_in_force(tmp_path: Path) -> None:
    """The policy is looked at last: by then the limits of the refused configuration had taken the others' place."""
    path = tmp_path / "toolgate.yaml"
    path.write_text(CONFIG)
    gate = Toolgate(load(path, {}))
    with served(gate) as url, httpx.Client(base_url=url, headers={"authorization": "Bearer bob-key"}) as client:
        path.write_text(f"{CONFIG}tools: {{approvals: {{auto_approve_urls: ['*.com']}}}}\n")
        gate.reload(path)
        made = client.post("/v1/keys", json={"name": "carl", "scopes": ["chat"], "requests_per_minute": 1}).json()
        carl = {"authorization": f"Bearer {made['key']}"}
        answers = [client.post("/v1/chat/completions", json=BODY, headers=carl) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
