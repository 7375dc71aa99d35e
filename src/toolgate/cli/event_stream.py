"""Read a stream of server-sent events from a running server, as JSON objects."""

from collections.abc import Generator, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple

from toolgate.cli.api_client import ApiCallFailed, decode_json, open_response

# Bytes of one line: an event may hold a whole answer with its images.
MAX_LINE = 64 * 2**20


class ServerEvent(NamedTuple):
    """One event: its name (empty if it has none) and its JSON object."""

    name: str
    value: Mapping[str, Any]


def stream_events(
    url: str, key: str | None, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Generator[ServerEvent]:
    """Send a request and yield the events of its response until the stream ends; closing the iterator disconnects."""
    accept = {"accept": "text/event-stream", **(headers or {})}
    with open_response(url, key, method, path, body, headers=accept, patient=True) as response:
        for warning in response.headers.get_all("x-toolgate-warning") or ():
            yield ServerEvent("warning", {"message": warning})
        # event: response.created
        # data: {"type": "response.created", …}
        # (an empty line ends the event; a line that begins with a colon is a comment that keeps the connection open)
        # The server writes the data of an event on one line, so that the empty line need not be awaited.
        name = ""
        while line := _read_line(url, response):
            field, _, value = line.rstrip(b"\r\n").partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                name = value.decode("utf-8", "replace")
            elif field == b"data" and value != b"[DONE]":
                try:
                    decoded = decode_json(value)
                except ValueError:
                    decoded = None
                if not isinstance(decoded, dict):
                    raise ApiCallFailed(f"{url}: an event is not a JSON object.")
                yield ServerEvent(name, decoded)
            elif not field:
                name = ""


def _read_line(url: str, response: Any) -> bytes:
    try:
        line: bytes = response.readline(MAX_LINE)
    except (HTTPException, OSError) as error:
        raise ApiCallFailed(f"{url}: the connection broke ({error or type(error).__name__}).") from None
    if len(line) == MAX_LINE:
        raise ApiCallFailed(f"{url}: an event has more than {MAX_LINE // 2**20} MiB.")
    return line
