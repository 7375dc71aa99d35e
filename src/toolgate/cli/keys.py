"""`toolgate keys`: make keys, and see what the keys of a running server may do and have spent.

A key is printed once, when it is made; the configuration needs only its digest.
"""

import json
import re
import secrets
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

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
    help="Make keys, and see what they may do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

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


def _table(keys: Iterable[Mapping[str, Any]]) -> "Table":
    rows = []
    for one in keys:
        models = _words(one.get("models")) or "all"
        rows.append([one.get("name"), _words(one.get("scopes")), models, _limits(one), *_spent(one)])
    return rows_table("Keys", ("name", "scopes", "models", "limits", "today", "month", "ever"), rows)


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
