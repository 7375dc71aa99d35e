"""Models as they are written, joined with their upstreams and checked."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from toolgate.config.problems import Problems, meant
from toolgate.config.settings import Defaults, ModelEntry, TargetEntry
from toolgate.config.values import BUILTIN, Model, Target, Upstream
from toolgate.conversation.request import Settings, Thinking
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import Capabilities, Row
from toolgate.upstreams.model_names import ModelNames

BUILTIN_MODELS = ("local", "echo")
_NAME = re.compile(r"\S{1,256}")


class Surroundings(msgspec.Struct, frozen=True):
    """What models refer to: upstreams by name (None where one could not be resolved) and the rows behind them."""

    upstreams: Mapping[str, Upstream | None]
    rows: Mapping[str, Row | None]


def resolve_models(entries: tuple[ModelEntry, ...], around: Surroundings, problems: Problems) -> tuple[Model, ...]:
    """The models, with every name checked to be there and to be the only one."""
    owners = _owners(entries, problems)
    models = []
    for number, entry in enumerate(entries):
        path = f"models[{number}]"
        targets = tuple(_targets(entry, path, around, problems))
        fallbacks = tuple(_fallbacks(entry, path, owners, problems))
        if targets:
            models.append(_model(entry, targets, fallbacks, around))
    return tuple(models)


def default_model(named: str | None, entries: tuple[ModelEntry, ...], problems: Problems) -> str | None:
    """The public name of the model that `default_model` names by name or alias, if it names one."""
    if named is None:
        return None
    known = [(name, entry.name) for entry in entries for name in (entry.name, *entry.aliases)]
    found = ModelNames(known).find(named)
    if found is None:
        problems.note("default_model", f"there is no model {named}; {meant(named, [name for name, _ in known])}")
    return found


def _model(entry: ModelEntry, targets: tuple[Target, ...], fallbacks: tuple[str, ...], around: Surroundings) -> Model:
    row, upstream = around.rows.get(targets[0].upstream), around.upstreams.get(targets[0].upstream)
    tools = "emulated" if upstream is not None and upstream.dialect == "peer" else entry.tools
    unsaid = {"images": False} if tools == "emulated" else {}  # a model that only writes text seldom sees more
    given: Mapping[str, Any] = {**unsaid, **(row.capabilities if row else {}), **entry.capabilities}
    return Model(
        name=entry.name,
        aliases=entry.aliases,
        targets=targets,
        fallbacks=fallbacks,
        retries=entry.retries,
        tools=tools,
        system=entry.system,
        syntax=entry.syntax,
        prompts=entry.prompts,
        thinking=entry.thinking,
        reasks=entry.reasks,
        promote=entry.promote,
        strict=entry.strict,
        whole_arguments=entry.whole_arguments,
        price=entry.price,
        server_tools=entry.server_tools,
        blocked_tools=entry.blocked_tools,
        capabilities=msgspec.convert(given, Capabilities),
        defaults=_settings(entry.defaults),
    )


def _targets(entry: ModelEntry, path: str, around: Surroundings, problems: Problems) -> Iterator[Target]:
    if entry.upstream is not None and entry.upstreams:
        problems.note(path, "has both upstream and upstreams; give one of them")
    elif entry.upstream is not None:
        only = TargetEntry(upstream=entry.upstream)
        yield from _target(only, entry, f"{path}.upstream", around, problems)
    elif entry.upstreams:
        for number, one in enumerate(entry.upstreams):
            yield from _target(one, entry, f"{path}.upstreams[{number}].upstream", around, problems)
    else:
        problems.note(f"{path}.upstream", "is required")


def _target(
    one: TargetEntry, entry: ModelEntry, path: str, around: Surroundings, problems: Problems
) -> Iterator[Target]:
    model = one.model or entry.model or entry.name
    if one.upstream == BUILTIN:
        if model not in BUILTIN_MODELS:
            problems.note(path, f"the built-in upstream has no model {model}; {meant(model, BUILTIN_MODELS)}")
        yield Target(upstream=BUILTIN, model=model, weight=one.weight)
    elif one.upstream not in around.upstreams:
        known = [*around.upstreams, BUILTIN]
        problems.note(path, f"there is no upstream {one.upstream}; {meant(one.upstream, known)}")
    elif upstream := around.upstreams[one.upstream]:
        quirks = msgspec.convert({**msgspec.structs.asdict(upstream.quirks), **entry.quirks}, Quirks)
        yield Target(upstream=one.upstream, model=model, weight=one.weight, quirks=quirks)


def _fallbacks(entry: ModelEntry, path: str, owners: Mapping[str, str], problems: Problems) -> Iterator[str]:
    for number, name in enumerate(entry.fallbacks):
        at = f"{path}.fallbacks[{number}]"
        if name not in owners:
            problems.note(at, f"there is no model {name}; {meant(name, owners)}")
        elif owners[name] == entry.name:
            problems.note(at, "a model cannot stand in for itself")
        else:
            yield owners[name]


def _owners(entries: tuple[ModelEntry, ...], problems: Problems) -> dict[str, str]:
    """The public name behind every name and alias; one that is given twice is noted."""
    owners: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, entry in enumerate(entries):
        named = {f"models[{number}].name": entry.name}
        named |= {f"models[{number}].aliases[{i}]": alias for i, alias in enumerate(entry.aliases)}
        for path, name in named.items():
            if name in places:
                problems.note(path, f"{name} is already given by {places[name]}")
            elif not _NAME.fullmatch(name) or not name.isprintable():
                problems.note(path, "must be a name without spaces, 256 characters at most")
            owners.setdefault(name, entry.name)
            places.setdefault(name, path)
    return owners


def _settings(defaults: Defaults) -> Settings:
    values = msgspec.structs.asdict(defaults)
    effort = values.pop("effort")
    return Settings(**values, thinking=Thinking(effort != "none", effort) if effort else None)
