"""Compare two configurations for a reload: what takes effect at once, and what needs a restart. Changes nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.config.errors import ProblemCollector
from toolgate.config.resolve import check_bind
from toolgate.config.resolved_config import Config, ModelConfig
from toolgate.config.settings import ApprovalSettings, KeySettings

# What a running server applies; everything else of `server` and `tools` is read once, at the start.
_LIVE_SERVER = ("open", "hosts", "origins", "keepalive_seconds", "first_event_wait")
_LIVE_TOOLS = ("execution", "offer", "context", "group_above", "limits", "approvals")
_RESTART = ("embedded", "storage", "storage_pool", "redis", "responses", "runs")
# Where settings check, limit or keep private what is requested.
_CHECKING = ("keys.", "server.hosts", "tools.approvals", "tools.context", "tools.limits", "vscode", "records")
# From the loosest to the strictest.
_STANCES = ("allow", "ask", "deny")
# Settings of keys and models without which a request is checked less.
_CHECKS: Mapping[str, tuple[type[Struct], tuple[str, ...]]] = {
    "keys": (
        KeySettings,
        (
            *("models", "tools", "blocked_tools"),
            *("requests_per_minute", "tokens_per_minute", "concurrency", "budget"),
        ),
    ),
    "models": (ModelConfig, ("price", "blocked_tools")),
}


class ConfigChanges(Struct, frozen=True):
    """The paths of what differs: what takes effect at once and what needs a restart.

    `config` is the configuration to run with now: the new one, except for what needs a restart.
    """

    live: tuple[str, ...]
    restart: tuple[str, ...]
    config: Config
    # Keys and checks that are gone; reported, because a truncated file may still be valid.
    removed: tuple[str, ...] = ()


def diff(old: Config, new: Config) -> ConfigChanges:
    """Compare two configurations; ConfigError if the new one seems truncated, or removes all keys without saying so."""
    problems = ProblemCollector()
    applied = msgspec.structs.replace(
        new,
        server=msgspec.structs.replace(old.server, **{name: getattr(new.server, name) for name in _LIVE_SERVER}),
        log=msgspec.structs.replace(new.log, format=old.log.format),
        tools=msgspec.structs.replace(old.tools, **{name: getattr(new.tools, name) for name in _LIVE_TOOLS}),
        **{name: getattr(old, name) for name in _RESTART},
    )
    lost = _lost_checks(old, applied)
    live = [f"keys.{name}" for name in _differing(_by_name(old.keys), _by_name(new.keys))]
    live += [f"upstreams.{name}" for name in _differing(old.upstreams, new.upstreams)]
    live += [f"models.{name}" for name in _differing(_without_paths(old.models), _without_paths(new.models))]
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
    # The rules of approvals apply at once, but the sender of webhooks is made at the start.
    restart += ["tools.approvals.webhook"] * (old.tools.approvals.webhook != new.tools.approvals.webhook)
    restart += [name for name in _RESTART if getattr(old, name) != getattr(new, name)]
    remaining = _by_name(new.keys)
    removed = [f"keys.{key.name}" for key in old.keys if key.name not in remaining]
    checks = [path for path in live if path.startswith(_CHECKING) and path not in removed]
    _check_truncated(old, new, lost or checks, problems)
    # The new keys meet the old address, because the server goes on listening there.
    check_bind(applied, problems)
    problems.raise_if_any(str(new.source or "the built-in configuration"))
    return ConfigChanges(tuple(live), tuple(restart), applied, (*removed, *lost))


def _lost_checks(old: Config, new: Config) -> list[str]:
    """List the rules, and the limits of keys and models that stay, which the new configuration no longer has."""
    gone = []
    for section, (kind, fields) in _CHECKS.items():
        remaining = _by_name(getattr(new, section))
        # For each of these fields the default means that nothing is checked.
        defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
        for name, before in _by_name(getattr(old, section)).items():
            gone += [
                f"{section}.{name}.{field}"
                for field in fields
                if name in remaining and getattr(before, field) != defaults[field] == getattr(remaining[name], field)
            ]
    policy, now = old.tools.approvals, new.tools.approvals
    # The order is left out: a rule that only moved counts as kept.
    kept = set(map(msgspec.json.encode, now.rules))
    for rule in policy.rules:
        if rule.stance == "allow" or msgspec.json.encode(rule) in kept:
            continue
        matched = {name: ", ".join(getattr(rule, name)) for name in ("tools", "sources", "tags", "callers")}
        conditions = "; ".join([f"{name} {value}" for name, value in matched.items() if value])
        gone.append(f"tools.approvals.rules: {rule.stance} {conditions or 'all tools'}")
    gone += [f"tools.approvals.never_auto: {tool}" for tool in policy.never_auto if tool not in now.never_auto]
    gone += [
        f"tools.approvals.{name}: {getattr(policy, name)}, now {getattr(now, name)}"
        for name in ("default", "read_only", "open_world")
        if _STANCES.index(getattr(now, name)) < _STANCES.index(getattr(policy, name))
    ]
    if _STANCES.index(new.vscode.tools) < _STANCES.index(old.vscode.tools):
        gone.append(f"vscode.tools: {old.vscode.tools}, now {new.vscode.tools}")
    return gone


def _check_truncated(old: Config, new: Config, lost: list[str], problems: ProblemCollector) -> None:
    """Note what a file lacks that is still being written; to remove keys or rules on purpose, the file must say so."""
    # The beginning of the former file may lack keys, as when a person deletes the last one, but what stays must be checked
    # as before: a key of which the rest is missing, or approvals that count other annotations.
    if lost and new.outline.is_beginning_of(old.outline):
        problems.note(
            "",
            f"the file is the former one cut off, as one that is being written, and {', '.join(lost)} would be gone or "
            "changed: add a comment at its end if that is meant",
        )
    if not new.outline.sections:
        problems.note("", "the file says nothing, as one does that is being written")
    # A person who never ends the last line is not refused: only a file that had its end and lost it.
    elif old.outline.ends_line and not new.outline.ends_line:
        problems.note("", "the last line has no end, as in a file that is being written: end it with a line break")
    if old.keys and not new.keys and not new.server.open:
        problems.note(
            "keys",
            "there are keys now, and this file has none: keep one, or write `server: {open: true}` "
            "to allow requests without a key from this machine",
        )
    # Both sections hold checks by which requests and calls are refused.
    for section, guards in (("server", old.server.hosts), ("tools", old.tools.approvals != ApprovalSettings())):
        if guards and section in old.outline.sections and section not in new.outline.sections:
            problems.note(section, f"is gone, and its checks with it: write `{section}: {{}}` if that is meant")


def _by_name(items: tuple[Any, ...]) -> dict[str, Any]:
    return {item.name: item for item in items}


def _without_paths(models: tuple[ModelConfig, ...]) -> dict[str, ModelConfig]:
    """Map the models by name without their paths: one that only moved in the file is the same."""
    return {model.name: msgspec.structs.replace(model, path="") for model in models}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
