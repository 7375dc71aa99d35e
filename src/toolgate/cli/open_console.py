"""Open the console in a browser as soon as a server answers, for `serve --open`."""

import threading
import time
import webbrowser

from toolgate.cli.api_client import ApiCallFailed, request_json
from toolgate.cli.config_file import note
from toolgate.cli.server_url import server_url

# How long the server may take to start.
SECONDS = 60.0

_INTERVAL = 0.2


def open_when_ready(host: str, port: int) -> None:
    """Wait in a thread, which ends with the process, until the server answers; then open its console."""
    threading.Thread(target=_open, args=(server_url(host, port),), daemon=True, name="open-console").start()


def _open(url: str) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(_INTERVAL)
        try:
            request_json(url, None, "GET", "/healthz")
        except ApiCallFailed:
            continue
        if not webbrowser.open(f"{url}/console/"):
            note(f"There is no browser here; open {url}/console/ in one.")
        return
