"""A page or a terminal learns at one request what the server is and who asks (spec: E8)."""

from tests.api.records.record_server import record_server
from toolgate import __version__


def test_the_status_names_the_version_the_models_the_caller_and_the_base_urls() -> None:
    with record_server() as server:
        status, body = server.ask("/v1/status")
        assert status == 200
        assert (body["version"], body["models"], body["default_model"]) == (__version__, 4, "openai_chat")
        assert (body["keys_required"], body["caller"]) == (True, {"name": "ann", "scopes": ["chat"]})
        assert body["base_urls"] == {"openai": f"{server.url}/v1", "anthropic": server.url, "ollama": server.url}
        assert body["local_model"]["state"] == "off"
        assert (body["prices"], body["records"]) == (False, {"requests_days": 7})
        assert server.ask("/v1/status", who="nobody")[0] == 401


def test_without_keys_the_caller_is_anonymous() -> None:
    with record_server(keys=()) as server:
        body = server.ask("/v1/status", who="any")[1]
        assert (body["keys_required"], body["caller"]["name"]) == (False, "anonymous")
