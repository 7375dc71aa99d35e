"""`toolgate keys`: make keys for the configuration, and manage those of a running server.

A key is printed once, when it is made, on standard output alone; the configuration and the database need only its digest.
"""

import json
import math
import re
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any

import typer

from toolgate.cli.api_client import Key, Url, call_api, encode_segment, fail, plain
from toolgate.cli.printing import TextTable, print_table, text_table
from toolgate.cli.server_url import DEFAULT_URL
from toolgate.cli.times import format_utc

PREFIX = "tg-"
# Random bytes of a key: with so many, a plain digest without salt or stretching cannot be reversed.
ENTROPY = 32

SCOPES = ("chat", "tools", "admin", "bridge")
SELF_APPROVAL = (
    "With more than one key, a key cannot approve the tool calls that it asked for\n"
    "itself: another key with the scopes tools and admin can. The setting\n"
    "tools.approvals.self_approval: true lets keys approve their own calls."
)
FIRST_KEY = "toolgate keys new NAME --scopes chat,tools,admin"
_NAME = re.compile(r"[\w.@-]{1,64}")

app = typer.Typer(
    help="Make keys, and manage the keys of a running server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

_DURATION = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_LIMITS = (
    ("requests_per_minute", "{} requests/min"),
    ("tokens_per_minute", "{} tokens/min"),
    ("concurrency", "{} at a time"),
)

PERIODS = ("day", "month", "total")

_SCOPES_HELP = f"What it may do, separated by commas: {', '.join(SCOPES)}."
_OWNER_HELP = "A note: the person or team that holds the key."

Scopes = Annotated[str, typer.Option(help=_SCOPES_HELP)]
Models = Annotated[str | None, typer.Option(help="Models that it may use, separated by commas; by default all.")]
Tools = Annotated[str | None, typer.Option(help="Server tools that it may use, separated by commas; by default all.")]
BlockedTools = Annotated[str | None, typer.Option(help="Server tools that it may not use, separated by commas.")]
RequestsPerMinute = Annotated[int | None, typer.Option(help="Requests in any sixty seconds; 0 means no limit.", min=0)]
TokensPerMinute = Annotated[int | None, typer.Option(help="Tokens in any sixty seconds; 0 means no limit.", min=0)]
Concurrency = Annotated[int | None, typer.Option(help="Requests at a time; 0 means no limit.", min=0)]
Budget = Annotated[
    str | None,
    typer.Option(
        help="What it may spend, such as 25/month, 1/day or 100/total; 25 alone is for a month."
        " Counts only models with a price."
    ),
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of the key.")],
    scopes: Scopes = "chat",
    models: Models = None,
    tools: Tools = None,
    blocked_tools: BlockedTools = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    concurrency: Concurrency = None,
    budget: Budget = None,
) -> None:
    """Make a key: it is printed once, with the line for the configuration that knows only its digest."""
    if not _NAME.fullmatch(name):
        fail("A name may hold letters, digits and . _ @ - only, 64 at most.")
    chosen = [scope.strip() for scope in scopes.split(",")]
    if not set(chosen) <= set(SCOPES):
        fail(f"A scope is one of {', '.join(SCOPES)}.")
    lists = {"models": models, "tools": tools, "blocked_tools": blocked_tools}
    numbers = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    limits = _given(_limit_fields(lists, numbers | {"concurrency": concurrency}, budget))
    key = PREFIX + secrets.token_urlsafe(ENTROPY)
    line = f'{{name: "{name}", key: "{key_digest(key)}", scopes: [{", ".join(chosen)}]'
    line += "".join([f", {field}: {json.dumps(value)}" for field, value in limits.items()]) + "}"  # JSON is YAML
    # The key alone goes to standard output, so that `KEY=$(toolgate keys new …)` works.
    typer.echo(key)
    typer.echo("Keep it: it is not shown again. Put this under `keys:` in the configuration:", err=True)
    typer.echo(f"  - {line}", err=True)
    typer.echo(SELF_APPROVAL, err=True)


@app.command("hash")
def hash_key() -> None:
    """Print the digest of a key that you have, for the configuration; the key is read from the input, not the command."""
    key = typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = key.strip()
    if not key:
        fail("There was no key on the input.")
    typer.echo(key_digest(key))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The name of the key; its data belongs to this name.")],
    scopes: Scopes = "chat",
    owner: Annotated[str, typer.Option(help=_OWNER_HELP)] = "",
    models: Models = None,
    tools: Tools = None,
    blocked_tools: BlockedTools = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    concurrency: Concurrency = None,
    budget: Budget = None,
    expires: Annotated[str, typer.Option(help="When it expires, such as 12h or 90d; by default never.")] = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Make a key in the database of a running server. It is valid at once, and printed once."""
    body: dict[str, Any] = {"name": name, "scopes": _split(scopes)}
    lists = {"models": models, "tools": tools, "blocked_tools": blocked_tools}
    numbers = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    body |= _limit_fields(lists, numbers | {"concurrency": concurrency}, budget)
    body |= {"owner": owner, "expires_at": int(time.time()) + _seconds(expires) if expires else None}
    _print_key(call_api(url, key, "POST", "/v1/keys", _given(body)))
    typer.echo(SELF_APPROVAL, err=True)


@app.command()
def change(
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    scopes: Annotated[str | None, typer.Option(help=_SCOPES_HELP)] = None,
    owner: Annotated[str | None, typer.Option(help=_OWNER_HELP)] = None,
    models: Models = None,
    tools: Tools = None,
    blocked_tools: BlockedTools = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    concurrency: Concurrency = None,
    budget: Budget = None,
    expires: Annotated[str | None, typer.Option(help="When it expires from now on, such as 12h or 90d.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Change the rights and limits of a key of a running server, at once. What is not named stays.

    An empty value, or 0, takes a limit away: --models "" allows all models, --expires "" makes the key last.
    """
    lists = {"scopes": scopes, "models": models, "tools": tools, "blocked_tools": blocked_tools}
    numbers = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    body = _limit_fields(lists, numbers | {"concurrency": concurrency}, budget)
    body |= {} if owner is None else {"owner": owner or None}
    body |= {} if expires is None else {"expires_at": int(time.time()) + _seconds(expires) if expires else None}
    if not body:
        fail("Name what is to change: `toolgate keys change --help` lists the options.")
    answer = call_api(url, key, "POST", f"/v1/keys/{encode_segment(name)}", body)
    may, allowed = _join(answer.get("scopes")), _join(answer.get("models")) or "all"
    typer.echo(f"{plain(str(answer.get('name')))}: scopes {may}; models {allowed}; limits {_limits(answer)}.", err=True)


@app.command()
def rotate(
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    grace: Annotated[
        str,
        typer.Option(
            help="How long the old secret stays valid, such as 30m or 1h, at most 7d; by default it ends at once."
        ),
    ] = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Give a key a new secret, which is printed once. The old one ends at once, or after --grace.

    Requests with the old secret end with it.
    """
    body = {"grace_seconds": _seconds(grace)} if grace else {}
    answer = call_api(url, key, "POST", f"/v1/keys/{encode_segment(name)}/rotate", body)
    _print_key(answer)
    if isinstance(until := answer.get("former_expires_at"), int):
        typer.echo(f"The former secret stays valid until {format_utc(until, '%Y-%m-%d %H:%M:%S UTC')}.", err=True)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Revoke a key. This cannot be undone, and ends its running requests."""
    answer = call_api(url, key, "DELETE", f"/v1/keys/{encode_segment(name)}")
    typer.echo(f"{plain(str(answer.get('name')))} is revoked.", err=True)


@app.command("list")
def listed(
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON answer of the server.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List the keys of a running server with their limits and spending; needs a key with the scope admin."""
    answer = call_api(url, key, "GET", "/v1/keys")
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    listed = answer.get("data")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    if rows:
        print_table(_keys_table(rows))
    else:
        typer.echo(f"There are no keys. `{FIRST_KEY}` makes one for the configuration.", err=True)


def key_digest(key: str) -> str:
    """Return the digest of a key in the form that the configuration takes."""
    return "sha256:" + sha256(key.encode()).hexdigest()


def _print_key(answer: Mapping[str, Any]) -> None:
    typer.echo(plain(str(answer.get("key"))))
    name, id = plain(str(answer.get("name"))), plain(str(answer.get("id")))
    typer.echo(f"This is the key of {name} ({id}). Keep it: it is not shown again.", err=True)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _limit_fields(
    lists: Mapping[str, str | None], numbers: Mapping[str, int | None], budget: str | None
) -> dict[str, Any]:
    """Return the lists and limits that were given, as the API takes them; None resets one to its default."""
    fields: dict[str, Any] = {field: _split(names) or None for field, names in lists.items() if names is not None}
    fields |= {field: number or None for field, number in numbers.items() if number is not None}
    if budget is not None:
        fields["budget"] = None
    if budget:
        given, _, period = budget.partition("/")
        try:
            amount = float(given)
        except ValueError:
            amount = 0.0
        # `float` also reads `inf` and `nan`; both fail this comparison.
        if not 0 < amount < math.inf or (period or "month") not in PERIODS:
            fail(f"A budget is an amount and a period, such as 25/month; a period is one of {', '.join(PERIODS)}.")
        fields["budget"] = {"amount": amount, "period": period or "month"}
    return fields


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value: a new key has the defaults already."""
    return {field: value for field, value in fields.items() if value}


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        fail("A span of time is a number and a unit, such as 30m, 12h or 90d.")
    return int(found[1]) * _UNITS[found[2]]


def _keys_table(keys: Iterable[Mapping[str, Any]]) -> TextTable:
    rows = []
    for one in keys:
        # A key of the configuration has no state: it is always valid.
        state, expires = one.get("state"), one.get("expires_at")
        shown_state = plain(str(state)) if state else "configured"
        if state == "active" and isinstance(expires, int):
            shown_state = f"until {format_utc(expires, '%Y-%m-%d')}"
        spent = one.get("spent")
        amounts = [spent.get(period) if isinstance(spent, dict) else 0 for period in PERIODS]
        rows.append(
            [
                one.get("name"),
                shown_state,
                _join(one.get("scopes")),
                _join(one.get("models")) or "all",
                _limits(one),
                *[f"{amount:g}" if isinstance(amount, int | float) and amount else "" for amount in amounts],
            ]
        )
    return text_table("Keys", ("name", "state", "scopes", "models", "limits", "today", "month", "ever"), rows)


def _limits(key: Mapping[str, Any]) -> str:
    limits = [text.format(key[name]) for name, text in _LIMITS if key.get(name)]
    match key.get("budget"):
        case {"amount": int() | float() as amount, "period": str(period)}:
            limits.append(f"{amount:g} in total" if period == "total" else f"{amount:g} a {plain(period)}")
    return ", ".join(limits) or "none"


def _join(value: Any) -> str:
    return ", ".join([plain(str(item)) for item in value]) if isinstance(value, list) else ""
