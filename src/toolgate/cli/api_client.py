"""Call the API of a running server, and end the command with the server's error message if it refuses.

Texts of a server may be untrusted, so they are printed as plain text, whatever they hold.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import typer

from toolgate.cli.config_file import find_config
from toolgate.cli.server_url import DEFAULT_URL, configured_url

if TYPE_CHECKING:
    from http.client import HTTPResponse

SECONDS = 10.0
# Bytes of an answer: lists come in pages of 8 MiB.
MAX_ANSWER = 64 * 2**20
_LONGEST_INT = 19
# After so long without a byte, TCP asks whether the other side still lives.
_IDLE_PROBE_SECONDS = 30
# The command that lists what a path names one of, for an id that is not found.
_LISTINGS = {
    "/v1/runs/": "toolgate runs",
    "/v1/requests/": "toolgate requests",
    "/v1/approvals/": "toolgate approvals",
    "/v1/keys/": "toolgate keys list",
    "/v1/tools/": "toolgate tools",
}

# What a person can do about a status.
_HINTS = {
    401: "Set TOOLGATE_KEY, or use --key.",
    502: "The model's server failed; `toolgate doctor` checks it.",
    504: "The model's server failed; `toolgate doctor` checks it.",
}


def _find_url(context: typer.Context, url: str) -> str:
    """Return the URL that was given, or else that of the toolgate.yaml in the current folder, if there is one."""
    path = find_config(None)
    # Parsing is resilient while the shell completes a command line, where loading the file would be slow.
    if path is None or url_given(context) or context.resilient_parsing:
        return url
    return configured_url(path)


def url_given(context: typer.Context) -> bool:
    """Return whether --url or TOOLGATE_URL names the server."""
    source = context.get_parameter_source("url")
    return source is not None and source.name != "DEFAULT"


Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="The URL of the server; by default that of the toolgate.yaml in the current folder.",
        envvar="TOOLGATE_URL",
        callback=_find_url,
    ),
]
Key = Annotated[
    str | None, typer.Option("--key", help="The key for the server.", envvar="TOOLGATE_KEY", show_envvar=True)
]


class ApiCallFailed(Exception):
    """The server did not answer, or refused; the message is for a person, and plain text."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def call_api(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    """Send a request and return the JSON object of the response; an error ends the command with its message."""
    try:
        return request_json(url, key, method, path, body)
    except ApiCallFailed as error:
        listing = next((command for start, command in _LISTINGS.items() if path.startswith(start)), None)
        fail(f"{error} `{listing}` lists them." if error.status == 404 and listing else str(error))


def request_json(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    """Send a request and return the JSON object of the response, or raise ApiCallFailed."""
    from http.client import HTTPException, IncompleteRead

    with open_response(url, key, method, path, body) as response:
        try:
            received = response.read(MAX_ANSWER + 1)
            if response.length and len(received) <= MAX_ANSWER:  # only a `read` without a size raises this itself
                raise IncompleteRead(received, response.length)
        except (HTTPException, OSError) as error:
            raise no_answer(url, error) from None
    if len(received) > MAX_ANSWER:
        raise ApiCallFailed(f"{url}: the answer has more than {MAX_ANSWER // 2**20} MiB")
    try:
        answer = decode_json(received)
    except ValueError:
        raise ApiCallFailed(f"{url}: the answer is not JSON") from None
    # All answers of the server are objects: another program listens there.
    if not isinstance(answer, dict):
        raise ApiCallFailed(f"{url}: {describe_status(response.status)}", response.status)
    return answer


@contextmanager
def open_response(
    url: str,
    key: str | None,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    patient: bool = False,
) -> "Iterator[HTTPResponse]":
    """Send a request and yield its response if the status is 2xx; leaving closes the connection.

    A patient request waits for its answer without a limit: TCP itself probes whether the server still lives.
    """
    import socket
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # with TLS it takes long to load

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:  # an open bracket, or a port above 65535
        raise ApiCallFailed(f"{plain(url)} is no URL: {error}.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ApiCallFailed(f"{plain(url)} is no URL: it must start with http:// or https://, as {DEFAULT_URL} does.")
    # `http.client` would show the key in its own error.
    if key and not (key.isascii() and key.isprintable()):
        raise ApiCallFailed(
            "The key holds a line break or another character that no key has; check TOOLGATE_KEY or --key."
        )
    connection = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(host, port, timeout=SECONDS)
    sent = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
    if body is not None:
        sent["content-type"] = "application/json"
    try:
        try:
            connection.connect()
            if patient:
                # A model may think, and a person may take to approve, for longer than any timeout.
                connection.sock.settimeout(None)
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):  # elsewhere the first probe is sent after two hours
                    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_PROBE_SECONDS)
            content = None if body is None else json.dumps(body).encode()
            # A server behind a proxy may have a path in its URL.
            connection.request(method, parts.path.rstrip("/") + path, content, sent)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise refusal(url, response.status, response.read(MAX_ANSWER))
        # UnicodeError: a host name that cannot be encoded for DNS, or a header that is not Latin-1.
        except (HTTPException, OSError, UnicodeError) as error:
            raise no_answer(url, error) from None
        yield response
    finally:
        connection.close()


def no_answer(url: str, error: Exception) -> ApiCallFailed:
    """Describe that no server answered, and what to do."""
    return ApiCallFailed(
        f"{url}: no answer ({error}). Start a server with `toolgate serve`. "
        "If it has another URL, give it with --url or TOOLGATE_URL."
    )


def refusal(url: str, status: int, body: bytes) -> ApiCallFailed:
    """Read the error message of a response, and say what can be done about its status."""
    try:
        answer = decode_json(body)
    except ValueError:
        answer = None
    match answer:
        case {"error": {"message": str(message), **rest}}:
            text, hint, code = plain(message), _HINTS.get(status), rest.get("code")
            if hint:
                text = f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {hint}"
            return ApiCallFailed(text, status, code if isinstance(code, str) else None)
        case _:
            return ApiCallFailed(f"{url}: {describe_status(status)}", status)


def decode_json(body: bytes) -> Any:
    """Decode an answer; ValueError if it is no JSON, or is nested too deeply."""
    try:
        return json.loads(body, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _parse_int(digits: str) -> int | float:
    # Longer ones could not be converted to a float any more, as a duration or a cost is.
    return int(digits) if len(digits) < _LONGEST_INT else float(digits)


def encode_segment(text: str) -> str:
    """Encode a text as a segment of a path; what is not Unicode, as a byte of a command line, becomes a question mark."""
    return quote(text, safe="", errors="replace")


def encode_query(parameters: Mapping[str, Any]) -> str:
    """Encode parameters as a query; what is not Unicode becomes a question mark."""
    return urlencode(parameters, errors="replace")


def plain(text: str) -> str:
    """Replace all characters that would move a cursor or change the reading direction."""
    return "".join([char if char.isprintable() else "\ufffd" for char in text])


def fail(text: str) -> NoReturn:
    """Print a message and end the command with status 1."""
    typer.echo(text, err=True)
    raise typer.Exit(1)


def describe_status(code: int) -> str:
    """Describe an HTTP status for a person."""
    match code:
        case 401 | 403:
            return f"the key was refused ({code})"
        case 404:
            return "it has no such path (404)"
        case _:
            return f"status {code}"
