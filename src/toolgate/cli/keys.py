"""`toolgate keys`: make keys for the configuration, and look after those of a running server.

A key is printed once, when it is made, on standard output alone; the configuration and the database need only its digest.
"""

import json
import re
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from toolgate.cli.asking import HERE, Key, Url, ask, plain, stop
from toolgate.cli.printing import print_table, rows_table

if TYPE_CHECKING:
    from rich.table import Table

PREFIX = "tg-"
ENTROPY = 32
"""Random bytes of a key."""

SCOPES = ("chat", "tools", "admin")
_NAME = re.compile(r"[\w.@-]{1,64}")

app = typer.Typer(
    help="Make keys, and look after those of a running server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

_SPAN = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_LIMITS = (
    ("requests_per_minute", "{} requests/min"),
    ("tokens_per_minute", "{} tokens/min"),
    ("concurrency", "{} at a time"),
)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Who will hold it.")],
    scopes: Annotated[str, typer.Option(help="What it may do, with commas between: chat, tools, admin.")] = "chat",
) -> None:
    """Make a key: it is printed once, with the line for the configuration that knows only its digest."""
    if not _NAME.fullmatch(name):
        stop("A name may hold letters, digits and . _ @ - only, 64 at most.")
    given = [scope.strip() for scope in scopes.split(",")]
    if not set(given) <= set(SCOPES):
        stop(f"A scope is one of {', '.join(SCOPES)}.")
    key = PREFIX + secrets.token_urlsafe(ENTROPY)
    typer.echo(key)
    typer.echo("Keep it: it is not shown again. Put this under `keys:` in the configuration:", err=True)
    typer.echo(f'  - {{name: "{name}", key: "{digest_of(key)}", scopes: [{", ".join(given)}]}}', err=True)


@app.command("hash")
def hash_key() -> None:
    """Print the digest of a key that you have, for the configuration; the key is read from the input, not the command."""
    key = typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = key.strip()
    if not key:
        stop("There was no key on the input.")
    typer.echo(digest_of(key))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who will hold it; what it makes is kept under this name.")],
    scopes: Annotated[str, typer.Option(help="What it may do, with commas between: chat, tools, admin.")] = "chat",
    owner: Annotated[str, typer.Option(help="Whom to ask about it; for people only.")] = "",
    models: Annotated[str, typer.Option(help="Models it may use, with commas between; none means all.")] = "",
    tools: Annotated[str, typer.Option(help="Server tools it may use, with commas between; none means all.")] = "",
    blocked_tools: Annotated[str, typer.Option(help="Server tools it may not use, with commas between.")] = "",
    requests_per_minute: Annotated[int, typer.Option(help="Requests in any sixty seconds; 0 means no limit.")] = 0,
    tokens_per_minute: Annotated[int, typer.Option(help="Tokens in any sixty seconds; 0 means no limit.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Requests at a time; 0 means no limit.")] = 0,
    budget: Annotated[str, typer.Option(help="What it may spend, such as 25/month, 1/day or 100/total.")] = "",
    expires: Annotated[str, typer.Option(help="When it dies, such as 12h or 90d; by default never.")] = "",
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Make a key in the database of a running server: it is good at once, and printed once."""
    body: dict[str, Any] = {"name": name, "scopes": _split(scopes)}
    lists = {"models": models, "tools": tools, "blocked_tools": blocked_tools}
    body |= {field: _split(words) for field, words in lists.items() if words}
    numbers = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    body |= {field: number for field, number in (numbers | {"concurrency": concurrency}).items() if number}
    body |= {"owner": owner} if owner else {}
    body |= {"budget": _budget(budget)} if budget else {}
    body |= {"expires_at": _moment(expires)} if expires else {}
    _tell_once(ask(url, key, "POST", "/v1/keys", body))


@app.command()
def rotate(
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    grace: Annotated[
        str,
        typer.Option(help="How long the old secret stays good, such as 30m, 1h or 7d at most; by default not at all."),
    ] = "",
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Give a key of the database a new secret, printed once; the old one is dead at once, or when its grace is over.

    What runs with the old secret ends with it.
    """
    body = {"grace_seconds": _seconds(grace)} if grace else {}
    answer = ask(url, key, "POST", f"/v1/keys/{quote(name, safe='')}/rotate", body)
    _tell_once(answer)
    if isinstance(until := answer.get("former_expires_at"), int):
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until))
        typer.echo(f"The former secret stays good until {moment}.", err=True)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Revoke a key of the database for ever; what runs with it is ended."""
    answer = ask(url, key, "DELETE", f"/v1/keys/{quote(name, safe='')}")
    typer.echo(f"{plain(str(answer.get('name')))} is revoked.", err=True)


@app.command("list")
def listed(
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as it is.")] = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """List the keys of a running server with their limits and spending; this takes a key with the scope admin."""
    answer = ask(url, key, "GET", "/v1/keys")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    rows = answer.get("data")
    print_table(_table([row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []))


def digest_of(key: str) -> str:
    """The digest of a key, as the configuration takes it."""
    return "sha256:" + sha256(key.encode()).hexdigest()


def _tell_once(answer: Mapping[str, Any]) -> None:
    typer.echo(plain(str(answer.get("key"))))
    name, id = plain(str(answer.get("name"))), plain(str(answer.get("id")))
    typer.echo(f"This is the key of {name} ({id}). Keep it: it is not shown again.", err=True)


def _split(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _budget(text: str) -> dict[str, Any]:
    amount, _, period = text.partition("/")
    try:
        return {"amount": float(amount), "period": period or "month"}
    except ValueError:
        stop("A budget is an amount and a period, such as 25/month.")


def _moment(text: str) -> int:
    return int(time.time()) + _seconds(text)


def _seconds(text: str) -> int:
    found = _SPAN.fullmatch(text)
    if found is None:
        stop("A span of time is a number and a unit, such as 30m, 12h or 90d.")
    return int(found[1]) * _UNITS[found[2]]


def _table(keys: Iterable[Mapping[str, Any]]) -> "Table":
    rows = []
    for one in keys:
        models = _words(one.get("models")) or "all"
        rows.append([one.get("name"), _state(one), _words(one.get("scopes")), models, _limits(one), *_spent(one)])
    return rows_table("Keys", ("name", "state", "scopes", "models", "limits", "today", "month", "ever"), rows)


def _state(one: Mapping[str, Any]) -> str:
    """How it stands with a key of the database; one of the configuration is always good."""
    state, expires = one.get("state"), one.get("expires_at")
    if state == "active" and isinstance(expires, int):
        return f"until {time.strftime('%Y-%m-%d', time.gmtime(expires))}"
    return plain(str(state)) if state else "configured"


def _words(value: Any) -> str:
    return ", ".join([plain(str(word)) for word in value]) if isinstance(value, list) else ""


def _limits(one: Mapping[str, Any]) -> str:
    said = [words.format(one[name]) for name, words in _LIMITS if one.get(name)]
    match one.get("budget"):
        case {"amount": int() | float() as amount, "period": str(period)}:
            said.append(f"{amount:g} in total" if period == "total" else f"{amount:g} a {plain(period)}")
    return ", ".join(said) or "none"


def _spent(one: Mapping[str, Any]) -> list[str]:
    spent = one.get("spent")
    amounts = [spent.get(period) for period in ("day", "month", "total")] if isinstance(spent, dict) else [0, 0, 0]
    return [f"{amount:g}" if isinstance(amount, int | float) and amount else "" for amount in amounts]
