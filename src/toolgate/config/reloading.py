"""What a changed configuration can change while the server runs. Pure: whoever calls it does the changing."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.config.problems import Problems
from toolgate.config.resolve import check_bind
from toolgate.config.settings import Approvals
from toolgate.config.values import Config

_LIVE_TOOLS = ("execution", "offer", "context", "group_above", "limits", "approvals")
_RESTART = ("embedded", "storage", "storage_pool", "redis", "responses", "runs")
_LIVE_SERVER = ("open", "hosts", "origins", "keepalive_seconds", "first_event_wait")


class Changes(Struct, frozen=True):
    """What differs, by path: what takes effect at once and what waits for a restart.

    `config` is what to run with now: the new one, with whatever waits for a restart left as it was.
    """

    live: tuple[str, ...]
    restart: tuple[str, ...]
    config: Config


def diff(old: Config, new: Config) -> Changes:
    """Sort the differences; ConfigError if checks are lost that nobody said should be.

    A server that took `config` over would differ from `new` only by what needs a restart.
    """
    problems = Problems()
    running = _running(old, new)
    _check_cut_off(old, new, problems)
    check_bind(running, problems)
    problems.settle(str(new.source or "the built-in configuration"))
    live = [f"keys.{name}" for name in _differing(_by_name(old.keys), _by_name(new.keys))]
    live += [f"upstreams.{name}" for name in _differing(old.upstreams, new.upstreams)]
    live += [f"models.{name}" for name in _differing(_by_name(old.models), _by_name(new.models))]
    server = _differing(msgspec.structs.asdict(old.server), msgspec.structs.asdict(new.server))
    live += [f"server.{name}" for name in server if name in _LIVE_SERVER]
    live += [name for name in ("default_model", "text", "records") if getattr(old, name) != getattr(new, name)]
    live += ["log.level"] * (old.log.level != new.log.level)
    restart = [f"server.{name}" for name in server if name not in _LIVE_SERVER]
    restart += ["log.format"] * (old.log.format != new.log.format)
    tools = _differing(msgspec.structs.asdict(old.tools), msgspec.structs.asdict(new.tools))
    live += [f"tools.{name}" for name in tools if name in _LIVE_TOOLS]
    restart += [f"tools.{name}" for name in tools if name not in _LIVE_TOOLS]
    restart += ["tools.approvals.webhook"] * (old.tools.approvals.webhook != new.tools.approvals.webhook)
    restart += [name for name in _RESTART if getattr(old, name) != getattr(new, name)]
    return Changes(tuple(live), tuple(restart), running)


def _check_cut_off(old: Config, new: Config, problems: Problems) -> None:
    """Note what a file lacks that is still being written: whoever means to take keys or rules away says so in words."""
    if not new.outline.sections:
        problems.note("", "the file says nothing, as one does that is being written")
    elif old.outline.ends_line and not new.outline.ends_line:
        problems.note("", "the last line has no end, as in a file that is being written: end it with a line break")
    if old.keys and not new.keys and not new.server.open:
        problems.note(
            "keys",
            "there are keys now, and this file has none: keep one, or write `server: {open: true}` "
            "to let everybody on this machine in",
        )
    for section, guards in (("server", old.server.hosts), ("tools", old.tools.approvals != Approvals())):
        if guards and section in old.outline.sections and section not in new.outline.sections:
            problems.note(section, f"is gone, and its checks with it: write `{section}: {{}}` if that is meant")


def _running(old: Config, new: Config) -> Config:
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
