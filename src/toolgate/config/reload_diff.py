"""Compare two configurations for a reload: what takes effect at once, and what needs a restart. Changes nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.config.errors import ProblemCollector
from toolgate.config.resolve import check_bind
from toolgate.config.resolved_config import Config
from toolgate.config.settings import ApprovalRuleSettings, ApprovalSettings

_LIVE_TOOLS = ("execution", "offer", "context", "group_above", "limits", "approvals")
_RESTART = ("embedded", "storage", "storage_pool", "redis", "responses", "runs")
_STANCES = ("allow", "ask", "deny")
_CHECKS = {
    "keys": (
        *("models", "tools", "blocked_tools"),
        *("requests_per_minute", "tokens_per_minute", "concurrency", "budget"),
    ),
    "models": ("price", "blocked_tools"),
}
"""Settings of keys and models without which a request is checked less."""

_LIVE_SERVER = ("open", "hosts", "origins", "keepalive_seconds", "first_event_wait")


class ConfigChanges(Struct, frozen=True):
    """The paths of what differs: what takes effect at once and what needs a restart.

    `config` is the configuration to run with now: the new one, except for what needs a restart.
    """

    live: tuple[str, ...]
    restart: tuple[str, ...]
    config: Config
    removed: tuple[str, ...] = ()
    """Keys and checks that are gone; reported, because a truncated file may still be valid."""


def diff(old: Config, new: Config) -> ConfigChanges:
    """Compare two configurations; ConfigError if the new one seems truncated, or removes all keys without saying so."""
    problems = ProblemCollector()
    applied = _applied(old, new)
    lost = _lost_checks(old, applied)
    _check_truncated(old, new, lost, problems)
    check_bind(applied, problems)
    problems.raise_if_any(str(new.source or "the built-in configuration"))
    live = [f"keys.{name}" for name in _differing(_by_name(old.keys), _by_name(new.keys))]
    live += [f"upstreams.{name}" for name in _differing(old.upstreams, new.upstreams)]
    live += [f"models.{name}" for name in _differing(_by_name(old.models), _by_name(new.models))]
    server = _differing(msgspec.structs.asdict(old.server), msgspec.structs.asdict(new.server))
    live += [f"server.{name}" for name in server if name in _LIVE_SERVER]
    live += [
        name for name in ("default_model", "text", "records", "vscode") if getattr(old, name) != getattr(new, name)
    ]
    live += ["log.level"] * (old.log.level != new.log.level)
    restart = [f"server.{name}" for name in server if name not in _LIVE_SERVER]
    restart += ["log.format"] * (old.log.format != new.log.format)
    tools = _differing(msgspec.structs.asdict(old.tools), msgspec.structs.asdict(new.tools))
    live += [f"tools.{name}" for name in tools if name in _LIVE_TOOLS]
    restart += [f"tools.{name}" for name in tools if name not in _LIVE_TOOLS]
    restart += ["tools.approvals.webhook"] * (old.tools.approvals.webhook != new.tools.approvals.webhook)
    restart += [name for name in _RESTART if getattr(old, name) != getattr(new, name)]
    remaining = _by_name(new.keys)
    removed = [f"keys.{key.name}" for key in old.keys if key.name not in remaining]
    return ConfigChanges(tuple(live), tuple(restart), applied, (*removed, *lost))


def _lost_checks(old: Config, new: Config) -> list[str]:
    """List the rules, and the limits of keys and models that stay, which the new configuration no longer has."""
    gone = [
        f"{section}.{name}.{field}"
        for section, fields in _CHECKS.items()
        for name, before in _by_name(getattr(old, section)).items()
        if (now := _by_name(getattr(new, section)).get(name)) is not None
        for field in fields
        if getattr(before, field) != _default(before, field) == getattr(now, field)
    ]
    before, now = old.tools.approvals, new.tools.approvals
    kept = set(map(msgspec.json.encode, now.rules))
    gone += [
        _describe(rule) for rule in before.rules if rule.stance != "allow" and msgspec.json.encode(rule) not in kept
    ]
    gone += [f"tools.approvals.never_auto: {tool}" for tool in before.never_auto if tool not in now.never_auto]
    gone += [
        f"tools.approvals.{name}: {getattr(before, name)}, now {getattr(now, name)}"
        for name in ("default", "read_only", "open_world")
        if _STANCES.index(getattr(now, name)) < _STANCES.index(getattr(before, name))
    ]
    if _STANCES.index(new.vscode.tools) < _STANCES.index(old.vscode.tools):
        gone.append(f"vscode.tools: {old.vscode.tools}, now {new.vscode.tools}")
    return gone


def _default(value: Struct, field: str) -> Any:
    """Return the default of a field, which for a check means that there is none."""
    return next(one.default for one in msgspec.structs.fields(value) if one.name == field)


def _describe(rule: ApprovalRuleSettings) -> str:
    fields = {name: ", ".join(getattr(rule, name)) for name in ("tools", "sources", "tags", "callers")}
    conditions = "; ".join([f"{name} {value}" for name, value in fields.items() if value])
    return f"tools.approvals.rules: {rule.stance} {conditions or 'all tools'}"


def _check_truncated(old: Config, new: Config, lost: list[str], problems: ProblemCollector) -> None:
    """Note what a file lacks that is still being written; to remove keys or rules on purpose, the file must say so.

    A file that is the beginning of the former one may remove keys, as when a person deletes the last one, but no checks.
    """
    if lost and new.outline.is_beginning_of(old.outline):
        problems.note(
            "",
            f"the file is the former one cut off, as one that is being written, and {', '.join(lost)} would be gone: "
            "add a comment at its end if that is meant",
        )
    if not new.outline.sections:
        problems.note("", "the file says nothing, as one does that is being written")
    elif old.outline.ends_line and not new.outline.ends_line:
        problems.note("", "the last line has no end, as in a file that is being written: end it with a line break")
    if old.keys and not new.keys and not new.server.open:
        problems.note(
            "keys",
            "there are keys now, and this file has none: keep one, or write `server: {open: true}` "
            "to allow requests without a key from this machine",
        )
    for section, guards in (("server", old.server.hosts), ("tools", old.tools.approvals != ApprovalSettings())):
        if guards and section in old.outline.sections and section not in new.outline.sections:
            problems.note(section, f"is gone, and its checks with it: write `{section}: {{}}` if that is meant")


def _applied(old: Config, new: Config) -> Config:
    kept = {name: getattr(new.server, name) for name in _LIVE_SERVER}
    tools = {name: getattr(new.tools, name) for name in _LIVE_TOOLS}
    return msgspec.structs.replace(
        new,
        server=msgspec.structs.replace(old.server, **kept),
        log=msgspec.structs.replace(new.log, format=old.log.format),
        tools=msgspec.structs.replace(old.tools, **tools),
        embedded=old.embedded,
        storage=old.storage,
        storage_pool=old.storage_pool,
        redis=old.redis,
        responses=old.responses,
        runs=old.runs,
    )


def _by_name(items: tuple[Any, ...]) -> dict[str, Any]:
    return {item.name: item for item in items}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
