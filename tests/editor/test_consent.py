"""The editor's own question whether Toolgate may use a provider's models: given, denied, remembered."""

from concurrent.futures import Future, ThreadPoolExecutor

import httpx

from tests.api.http_client import PATHS, body
from tests.editor.gateways import Gateway, model_names
from tests.editor.window import Window, wait_until

LOCKED = "vscode/guarded/locked"


def start(pool: ThreadPoolExecutor, gateway: Gateway) -> "Future[httpx.Response]":
    """Ask the guarded model in a thread, while this one serves the window."""
    return pool.submit(
        httpx.post, gateway.url + PATHS["openai_chat"], json=body("openai_chat", LOCKED, False), timeout=90
    )


def test_a_denied_consent_is_remembered_and_a_given_one_is_enough(window: Window, gateway: Gateway) -> None:
    with ThreadPoolExecutor() as pool:
        denied = start(pool, gateway)
        window.dialog().get_by_text("wants to access the language models").wait_for()
        window.press("Cancel")
        window.until("return true")
        assert denied.result().status_code in (401, 403), denied.result().text
        wait_until(lambda: LOCKED not in model_names(gateway.url))
        window.toast("You denied Toolgate the models of guarded").wait_for()

        again = start(pool, gateway).result()
        assert again.status_code in (403, 404), again.text
        assert window.dialog().count() == 0
        assert window.requests == []

        window.toast("You denied Toolgate").get_by_role("button", name="Ask Me Again").click()
        wait_until(lambda: LOCKED in model_names(gateway.url), window.page)
        given = start(pool, gateway)
        window.press("Allow")
        window.until("return state.requests.length > 0")
        assert given.result().json()["choices"][0]["message"]["content"] == "Hello from the editor."
        assert start(pool, gateway).result().status_code == 200
