"""`toolgate approvals`: list the calls that wait for a person, and answer them, over the API of a running server.

The server escapes what it shows; it is printed as plain text all the same.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from toolgate.cli.api_client import Key, Url, call_api, encode_segment, fail, plain
from toolgate.cli.paging import begins_with, list_pages
from toolgate.cli.printing import format_duration, print_table, text_table
from toolgate.cli.server_url import DEFAULT_URL
from toolgate.cli.times import format_iso

# Characters of the arguments that a list shows; `show` shows all.
SHORT = 300

# Questions that a list shows unless it is asked for more.
LISTED = 100

# Empties a terminal and moves its cursor to the top.
_CLEAR = "\x1b[2J\x1b[H"

_ID_PREFIX = "mcpr_"

# Of a whole id; what is shorter is the beginning of one.
_ID_CHARACTERS = len(_ID_PREFIX) + 24

# Approvals that are searched for one whose id begins so.
_MAX_SEARCHED = 1000

# The fields that `show` prints first, and their labels.
_FIELDS = {
    "arguments": "arguments",
    "edited_arguments": "edited arguments",
    "why": "asked because",
    "caller": "asked by",
    "state": "state",
    "level": "level",
    "reason": "reason",
    "id": "id",
}

# Fields that `show` prints in its own way, or not at all.
_PRINTED_OTHERWISE = (
    *("object", "title", "question", "message", "tainted", "tool", "source"),
    *("created_at", "expires_at", "answered_at", "answered_by"),
)

app = typer.Typer(
    help="List the tool calls that need a person's approval, and answer them.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # they would print local variables
)

Id = Annotated[str, typer.Argument(help="The id of the approval, or its first characters.")]
Reason = Annotated[str | None, typer.Option(help="The reason, for the model and the records.")]


class ApprovalCoverage(StrEnum):
    """The calls that an approval covers."""

    once = "once"
    session = "session"
    workspace = "workspace"
    always = "always"


@app.callback()
def pending(
    context: typer.Context,
    caller: Annotated[str | None, typer.Option(help="Only calls of this key.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    limit: Annotated[int, typer.Option(help="How many to list at most.", min=1)] = LISTED,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List open questions: the oldest of each key first, then the next of each."""
    if context.invoked_subcommand is None:
        listed, more = _list_pending(url, key, limit, caller=caller, tool=tool)
        _print_pending(listed)
        if more:
            typer.echo("There are more: see --limit, --caller and --tool.", err=True)


@app.command()
def show(id: Id, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show one approval, with all of its arguments."""
    approval = call_api(url, key, "GET", _path(_full_id(url, key, id)))
    questions = [f"question: {approval.get(name)}" for name in ("title", "question", "message") if approval.get(name)]
    lines = questions or [f"question: {_question(approval)}"]
    if approval.get("tainted"):
        lines.insert(0, "WARNING: this run holds text from outside, which may have led the model to this call")
    lines.append(f"tool: {approval.get('tool')} of {approval.get('source')}")
    lines += [f"{name}: {approval[field]}" for field, name in _FIELDS.items() if approval.get(field)]
    lines.append(f"asked: {_ago(approval.get('created_at'))}")
    if approval.get("state") == "pending":
        lines.append(f"expires: {_expiry(approval)}")
    if approval.get("answered_at"):
        lines.append(f"answered: {_ago(approval['answered_at'])}, by {approval.get('answered_by')}")
    # A newer server may send fields that this program does not know; digests come last.
    printed = {*_FIELDS, *_PRINTED_OTHERWISE}
    rest = [(name, value) for name, value in approval.items() if name not in printed and value not in (None, "", False)]
    rest.sort(key=lambda one: one[0].endswith("digest") or one[0] in ("definition", "policy"))
    lines += [f"{name}: {value}" for name, value in rest]
    typer.echo("\n".join([plain(line) for line in lines]))
    if approval.get("state") == "pending" and sys.stdout.isatty():
        typer.echo("To answer: toolgate approvals approve ID, or deny ID.")


@app.command()
def approve(
    id: Id,
    level: Annotated[
        ApprovalCoverage,
        typer.Option(
            help="What is approved: this call, or all calls of the tool in the session, in the workspace, or always."
        ),
    ] = ApprovalCoverage.once,
    edit: Annotated[
        str | None, typer.Option(help="Other arguments for the call, as JSON; `-` opens your editor.")
    ] = None,
    reason: Reason = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Approve a call."""
    id = _full_id(url, key, id)
    decision: dict[str, Any] = {"decision": "approve", "level": level.value}
    if edit is not None:
        text = _edit(call_api(url, key, "GET", _path(id))["arguments"]) if edit == "-" else edit
        try:
            decision["arguments"] = json.loads(text)
        except ValueError as error:
            fail(f"the arguments are not JSON: {error}")
        if not isinstance(decision["arguments"], dict):
            fail("the arguments must be a JSON object")
    _print_decision(call_api(url, key, "POST", _path(id), _with_reason(decision, reason)))


@app.command()
def deny(id: Id, reason: Reason = None, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Deny a call."""
    _print_decision(
        call_api(url, key, "POST", _path(_full_id(url, key, id)), _with_reason({"decision": "deny"}, reason))
    )


@app.command()
def deny_all(
    run: Annotated[str | None, typer.Option(help="Only calls of this run.")] = None,
    reason: Reason = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Deny all open questions."""
    body = _with_reason({} if run is None else {"run": run}, reason)
    denied = call_api(url, key, "POST", "/v1/approvals/deny_all", body)["denied"]
    typer.echo(f"Denied {len(denied)}.")


@app.command()
def watch(
    every: Annotated[float, typer.Option(help="Seconds between two requests to the server.", min=0.01)] = 1.0,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Show open questions, and new ones as they come, until interrupted.

    A terminal shows all that waits; elsewhere each approval is printed once, when it appears.
    """
    seen: list[Mapping[str, Any]] | None = None
    try:
        while True:
            listed, _ = _list_pending(url, key, LISTED)
            # A terminal is drawn anew only after a change, so that it does not flicker.
            if listed != seen and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
                _print_pending(listed)
            elif listed != seen:
                known = {one.get("id") for one in seen or ()}
                _print_pending([one for one in listed if one.get("id") not in known])
            seen = listed
            time.sleep(every)
    # Ctrl-C is the only way to end it, so that it is no failure.
    except KeyboardInterrupt:
        return


@app.command()
def grants(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """List approvals for more than one call."""
    listed, _ = list_pages(url, key, "/v1/approvals/grants", {})
    columns = ("tool", "source", "level", "place", "caller", "granted_by")
    print_table(text_table("Grants", columns, [[one.get(name) for name in columns] for one in listed]))


@app.command()
def reset(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Delete all approvals for more than one call, so that these calls are asked about again."""
    deleted = call_api(url, key, "POST", "/v1/approvals/reset", {})["forgotten"]
    typer.echo(f"Deleted {deleted} grants.")


def _list_pending(url: str, key: str | None, limit: int, **filters: str | None) -> tuple[list[Mapping[str, Any]], bool]:
    """List the pending approvals, one of each key in turn, and return whether there are more than the limit."""
    # In this order the many questions of one key do not hide those of the others.
    query = {"state": "pending", "order": "fair", **{name: value or None for name, value in filters.items()}}
    return list_pages(url, key, "/v1/approvals", query, limit)


def _full_id(url: str, key: str | None, id: str) -> str:
    """Return the id that begins so, of a pending approval if there is one; the server refuses any other text."""
    if len(id) >= _ID_CHARACTERS or not id:
        return id
    # The pending ones first: they are few, and those that a person means.
    for state in ({"state": "pending"}, {}):
        listed, _ = list_pages(url, key, "/v1/approvals", state, _MAX_SEARCHED)
        found = [str(one["id"]) for one in listed if begins_with(str(one["id"]), id, _ID_PREFIX)]
        if len(found) > 1:
            fail(f"{id} is the beginning of {len(found)} approvals: {', '.join(found[:5])}")
        if found:
            return found[0]
    return id


def _path(id: str) -> str:
    return f"/v1/approvals/{encode_segment(id)}"


def _with_reason(body: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return body if reason is None else {**body, "reason": reason}


def _edit(arguments: str) -> str:
    """Open the arguments in the person's editor and return the edited text."""
    before = json.dumps(json.loads(arguments), indent=2) + "\n"
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # A folder of its own, because editors put their backups beside the file.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "arguments.json")
        path.write_text(before, "utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)  # noqa: S603 - the person's own editor
        except (OSError, ValueError) as error:  # ValueError: a quote that is never closed
            fail(f"{editor} could not be started: {getattr(error, 'strerror', None) or error}")
        after = path.read_text("utf-8")
    if done.returncode or after == before:
        fail("the arguments were not changed, so nothing was answered")
    return after


def _print_decision(approval: Mapping[str, Any]) -> None:
    level = approval.get("level")
    scope = f" ({level})" if approval.get("state") == "approved" and level != "once" else ""
    typer.echo(plain(f"{approval.get('tool')}: {approval.get('state')}{scope}"))


def _print_pending(listed: Sequence[Mapping[str, Any]]) -> None:
    """Print approvals: for a person a paragraph each and how to answer, for a program a line each."""
    if not sys.stdout.isatty():
        for one in listed:
            fields = [one.get(name) for name in ("id", "tool", "source", "caller")]
            fields += [format_iso(one.get("expires_at")), _question(one), _shortened(one)]
            # No field may hold a tab or a line break, which separate fields and approvals.
            typer.echo("\t".join([" ".join(plain(str(field or "")).split()) for field in fields]))
        return
    if not listed:
        typer.echo("Nothing waits for approval.")
        return
    width = max(20, shutil.get_terminal_size().columns)
    for one in listed:
        asked_by = f", asked by {one['caller']}" if one.get("caller") else ""
        texts = [
            _question(one),
            f"{one.get('tool')} of {one.get('source')}{asked_by}, expires {_expiry(one)}",
            _shortened(one),
        ]
        lines = [line for text in texts for line in textwrap.wrap(plain(text), width - 2, subsequent_indent="  ")]
        # The id has a line of its own, so that it can be copied.
        lines.append(plain(str(one.get("id"))))
        typer.echo("\n  ".join(lines) + "\n")
    typer.echo("To answer: toolgate approvals approve ID, or deny ID.\nThe first characters of an ID are enough.")


def _question(approval: Mapping[str, Any]) -> str:
    return str(approval.get("title") or approval.get("question") or f"Run {approval.get('tool')}?")[:SHORT]


def _shortened(approval: Mapping[str, Any]) -> str:
    text = str(approval.get("arguments"))
    return text if len(text) <= SHORT else f"{text[:SHORT]} … ({len(text) - SHORT} more characters: see `show`)"


def _expiry(approval: Mapping[str, Any]) -> str:
    expires = approval.get("expires_at")
    left = expires - time.time() if isinstance(expires, int) else 0
    return f"in {format_duration(left)}" if left > 0 else "now"


def _ago(when: Any) -> str:
    return f"{format_duration(max(0, time.time() - when))} ago" if isinstance(when, int) else ""
