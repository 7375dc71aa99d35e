"""Asking a running server over HTTP, and ending the command with the server's own words when it refuses.

What a server shows may come from strangers, so it is printed as plain text, whatever it holds.
"""

import json
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

SECONDS = 10.0
HERE = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option("--url", help="Where the server is.", envvar="TOOLGATE_URL")]
Key = Annotated[str | None, typer.Option("--key", help="Key to present.", envvar="TOOLGATE_KEY", show_envvar=True)]


def ask(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    """What the server answers; a refusal ends the command with the server's own words."""
    try:
        status, text = _exchange(url, key, method, path, body)
        answer = json.loads(text)
    except ValueError:
        stop(f"{url}: the answer is not JSON")
    except OSError as error:
        stop(f"{url}: no answer ({error})")
    if status != 200 or not isinstance(answer, dict):
        stop(plain(_message(answer) or f"{url}: {status_words(status)}"))
    return answer


def _message(answer: Any) -> str | None:
    match answer:
        case {"error": {"message": str(message)}}:
            return message
        case _:
            return None


def _exchange(url: str, key: str | None, method: str, path: str, body: Any) -> tuple[int, bytes]:
    from http.client import HTTPConnection, HTTPException, HTTPSConnection  # with TLS it takes long to load

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        stop("a URL must start with http:// or https://")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=SECONDS)
    headers = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    if body is not None:
        headers["content-type"] = "application/json"
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, parts.path.rstrip("/") + path, sent, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except HTTPException as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()


def plain(text: str) -> str:
    """The text without anything that would move a cursor or turn the reading direction."""
    return "".join([char if char.isprintable() else "\ufffd" for char in text])


def stop(text: str) -> NoReturn:
    """End the command with these words."""
    typer.echo(text, err=True)
    raise typer.Exit(1)


def status_words(code: int) -> str:
    """A status in words for a person."""
    match code:
        case 401 | 403:
            return f"the key was refused ({code})"
        case 404:
            return "it has no such path (404)"
        case _:
            return f"status {code}"
