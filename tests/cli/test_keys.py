"""`toolgate keys` (spec: E2, E5)."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

from tests.api.http_client import PATHS, body
from tests.auth.tenants import Tenants, tenants
from tests.limits.limited_server import ANSWER, limited_server
from toolgate.auth.authenticator import Authenticator
from toolgate.cli.keys import PERIODS, SCOPES, app
from toolgate.config import load
from toolgate.config.settings import BudgetPeriod, KeyBudgetSettings, Scope
from toolgate.limits import KeyBudget, KeyLimits

LIMITS = {"ann": KeyLimits(requests_per_minute=5, concurrency=2, budget=KeyBudget(10.0, "total"))}


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(app, [*arguments], **options)


def test_a_new_key_opens_the_server_whose_configuration_has_its_line(tmp_path: Path) -> None:
    result = run("new", "ann@home", "--scopes", "chat, admin")
    assert result.exit_code == 0
    key = result.stdout.strip()
    assert re.fullmatch(r"tg-[\w-]{43}", key)
    [line] = [line for line in result.stderr.splitlines() if line.startswith("  - ")]
    assert key not in result.stderr
    config = tmp_path / "toolgate.yaml"
    config.write_text(f"keys:\n{line}\n")
    caller = Authenticator(load(config, {}).keys).authenticate([(b"x-api-key", key.encode())])
    assert (caller.name, set(caller.scopes)) == ("ann@home", {"chat", "admin"})


def test_the_line_of_a_new_key_has_its_lists_and_limits(tmp_path: Path) -> None:
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "9000", "--concurrency", "2", "--budget", "25")
    lists = ("--models", "gpt-*, *", "--tools", "clock", "--blocked-tools", "mcp/time")
    [line] = [line for line in run("new", "ann", *limits, *lists).stderr.splitlines() if line.startswith("  - ")]
    config = tmp_path / "toolgate.yaml"
    config.write_text(f"keys:\n{line}\n")
    [key] = load(config, {}).keys
    assert (key.requests_per_minute, key.tokens_per_minute, key.concurrency) == (60, 9000, 2)
    assert (key.models, key.tools, key.blocked_tools) == (("gpt-*", "*"), ("clock",), ("mcp/time",))
    assert key.budget == KeyBudgetSettings(amount=25, period="month")


WRONG = [
    ("a b",),
    ("",),
    ("x" * 65,),
    ("ann", "--scopes", "chat,root"),
    ("ann", "--scopes", ""),
    ("ann", "--budget", "0"),
    ("ann", "--budget", "inf"),
    ("ann", "--budget", "5/year"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_line_that_the_configuration_would_refuse_is_not_made(wrong: tuple[str, ...]) -> None:
    result = run("new", *wrong)
    assert result.exit_code == 1
    assert result.stdout == ""


def test_no_two_keys_are_the_same() -> None:
    assert run("new", "ann").stdout != run("new", "ann").stdout


def test_the_digest_of_a_key_is_printed_and_the_key_is_not_an_argument() -> None:
    result = run("hash", input="secret\n")
    assert result.stdout == "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n"
    assert run("hash", "secret").exit_code == 2
    assert run("hash", input="\n").exit_code == 1


@pytest.mark.parametrize("who", ["root", "ann"])
async def test_keys_are_listed_with_limits_and_spending_for_admins_only(who: str) -> None:
    async with limited_server([ANSWER], LIMITS) as gate:
        await gate.ask(PATHS["openai_chat"], body("openai_chat", "m", False))
        environment = {"COLUMNS": "200", "TOOLGATE_URL": gate.url, "TOOLGATE_KEY": f"{who}-key"}
        result = await asyncio.to_thread(run, "list", env=environment)
        as_json = await asyncio.to_thread(run, "list", "--json", env=environment)
    if who == "ann":
        assert result.exit_code == 1
        assert "lacks the scope admin" in result.stderr
        return
    for words in ("5 requests/min, 2 at a time, 10 in total", "0.6", "chat, tools, admin", "none"):
        assert words in result.stdout
    assert [one["name"] for one in json.loads(as_json.stdout)["data"]] == ["ann", "bob", "root"]


async def on(served: Tenants, *arguments: str, who: str = "root") -> Result:
    environment = {"COLUMNS": "200", "TOOLGATE_URL": served.url, "TOOLGATE_KEY": f"{who}-key"}
    return await asyncio.to_thread(run, *arguments, env=environment)


async def test_a_key_of_the_database_is_made_listed_rotated_and_revoked(tmp_path: Path) -> None:
    """spec: E5"""
    async with tenants(tmp_path) as served:

        async def status(key: str) -> int:
            return (await served.ask("GET", "/v1/models", headers={"x-api-key": key})).status_code

        limits = ("--concurrency", "2", "--budget", "5/day", "--models", "m", "--expires", "90d", "--owner", "Sales")
        made = await on(served, "create", "carl", "--scopes", "chat, tools", *limits)
        key = made.stdout.strip()
        assert re.fullmatch(r"tg-[\w-]{43}", key)
        assert key not in made.stderr
        assert "tools.approvals.self_approval: true" in made.stderr
        assert await status(key) == 200
        listed = await on(served, "list")
        for words in ("carl", "until 2", "chat, tools", "2 at a time, 5 a day", "configured"):
            assert words in listed.stdout
        changed = await on(
            served, "change", "carl", "--budget", "7", "--concurrency", "0", "--models", "", "--expires", ""
        )
        assert (changed.exit_code, changed.stdout) == (0, "")
        assert changed.stderr == "carl: scopes chat, tools; models all; limits 7 a month.\n"
        assert "active" in (await on(served, "list")).stdout, "it expires no more"
        rotated = (await on(served, "rotate", "carl")).stdout.strip()
        assert (await status(key), await status(rotated)) == (401, 200)
        again = await on(served, "rotate", "carl", "--grace", "1h")
        key, rotated = rotated, again.stdout.strip()
        assert "stays valid until 2" in again.stderr
        assert (await status(key), await status(rotated)) == (200, 200)
        revoked = await on(served, "revoke", "carl")
        assert "carl is revoked" in revoked.stderr
        assert await status(rotated) == 401
        assert "revoked" in (await on(served, "list")).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "carl", "--budget", "much"), "25/month"),
        (("create", "carl", "--expires", "soon"), "90d"),
        (("create", "carl", "--scopes", "root"), "not 'root'"),
        (("create", "ann"), "take another name"),
        (("change", "carl"), "Name what is to change"),
        (("change", "nobody", "--budget", "7"), "There is no key"),
        (("revoke", "nobody"), "There is no key"),
        (("revoke", "ann"), "in the configuration"),
        (("rotate", "a/../b?c"), "There is no key"),
        (("rotate", "carl", "--grace", "long"), "such as 30m"),
    ],
)
async def test_what_cannot_be_done_is_reported_and_nothing_is_printed(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    async with tenants(tmp_path) as served:
        result = await on(served, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


async def test_without_keys_the_command_that_makes_the_first_one_is_named(tmp_path: Path) -> None:
    async with tenants(tmp_path, keys=()) as served:
        listed = await on(served, "list")
        refused = await on(served, "create", "carl")
    assert (listed.exit_code, refused.exit_code) == (0, 1)
    for emitted in (listed, refused):
        assert "`toolgate keys new NAME --scopes chat,tools,admin` makes" in emitted.stderr


def test_the_command_line_knows_every_scope_and_period() -> None:
    assert get_args(Scope) == SCOPES
    assert get_args(BudgetPeriod) == PERIODS
    made = CliRunner().invoke(app, ["new", "editor", "--scopes", ",".join(SCOPES)])
    assert made.exit_code == 0
    assert "scopes: [chat, tools, admin, bridge]" in made.stderr
