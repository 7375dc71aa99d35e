"""Resolve the configured models: join them with their upstreams, and check their names."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from toolgate.config.errors import ProblemCollector, suggestion
from toolgate.config.resolved_config import BUILTIN, VSCODE, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.config.settings import ModelSettings, TargetSettings
from toolgate.conversation.request import ReasoningSettings, RequestSettings
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import ModelCapabilities, Provider
from toolgate.upstreams.model_names import ModelNameTable
from toolgate.upstreams.router import LENT_PREFIX

BUILTIN_MODELS = ("local", "echo")
_NAME = re.compile(r"\S{1,256}")

# Paths of the settings that name models: `models`, `models[0]`, `models[0].name`, `models[0].aliases[1]`.
# If one of them cannot be read, it is unknown which models there are, and no reference to a model is called wrong.
NAMES = r"models(\[\d+\](\.(name|aliases.*))?)?"


class UpstreamsWithProviders(msgspec.Struct, frozen=True):
    """What models refer to: upstreams by name (None where one could not be resolved) and their rows of the catalog."""

    upstreams: Mapping[str, UpstreamConfig | None]
    rows: Mapping[str, Provider | None]


def resolve_models(
    entries: tuple[ModelSettings, ...], context: UpstreamsWithProviders, problems: ProblemCollector
) -> tuple[ModelConfig, ...]:
    """Resolve the models; names that are missing, unknown or given twice are noted."""
    owners = _owners(entries, problems)
    models = []
    for number, entry in enumerate(entries):
        path = f"models[{number}]"
        targets = tuple(_targets(entry, path, context, problems))
        fallbacks = []
        for place, name in enumerate(entry.fallbacks):
            at = f"{path}.fallbacks[{place}]"
            if name not in owners:
                problems.note(at, f"there is no model {name}; {suggestion(name, owners)}", NAMES)
            elif owners[name] == entry.name:
                problems.note(at, "a model cannot stand in for itself")
            else:
                fallbacks.append(owners[name])
        # A model without a target has a problem that is noted already; its other settings are checked all the same.
        models.append(_model(entry, path, targets, tuple(fallbacks), context))
    return tuple(models)


def default_model(named: str | None, entries: tuple[ModelSettings, ...], problems: ProblemCollector) -> str | None:
    """Return the public name of the model that `default_model` names, by name or alias."""
    if named is None:
        return None
    known = [(name, entry.name) for entry in entries for name in (entry.name, *entry.aliases)]
    found = ModelNameTable(known).find(named)
    # An editor may lend it later: what it lends is unknown until it joins.
    if found is None and named.startswith(LENT_PREFIX):
        return named
    if found is None:
        problems.note(
            "default_model", f"there is no model {named}; {suggestion(named, [name for name, _ in known])}", NAMES
        )
    return found


def _model(
    entry: ModelSettings,
    path: str,
    targets: tuple[TargetConfig, ...],
    fallbacks: tuple[str, ...],
    context: UpstreamsWithProviders,
) -> ModelConfig:
    # Targets serve the same model, so the upstream of the first one decides what it can do.
    first = targets[0].upstream if targets else ""
    row, upstream = context.rows.get(first), context.upstreams.get(first)
    # A peer exchanges text only (docs/peers.md), so its tools can only be emulated.
    tools = "emulated" if upstream is not None and upstream.dialect == "peer" else entry.tools
    # A model that only writes text seldom sees images.
    defaults = {"images": False} if tools == "emulated" else {}
    capabilities: Mapping[str, Any] = {**defaults, **(row.capabilities if row else {}), **entry.capabilities}
    sampling = msgspec.structs.asdict(entry.defaults)
    effort = sampling.pop("effort")
    thinking = ReasoningSettings(effort != "none", effort) if effort else None
    return ModelConfig(
        name=entry.name,
        path=path,
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
        capabilities=msgspec.convert(capabilities, ModelCapabilities),
        defaults=RequestSettings(**sampling, thinking=thinking),
    )


def _targets(
    entry: ModelSettings, path: str, context: UpstreamsWithProviders, problems: ProblemCollector
) -> Iterator[TargetConfig]:
    given = {f"{path}.upstreams[{number}].upstream": one for number, one in enumerate(entry.upstreams)}
    if entry.upstream is not None:
        if given:
            problems.note(path, "has both upstream and upstreams; give one of them")
        given = {f"{path}.upstream": TargetSettings(upstream=entry.upstream), **given}
    if not given:
        problems.note(f"{path}.upstream", "is required", rf"{re.escape(path)}(\.upstreams.*)?")
    for at, one in given.items():
        model = one.model or entry.model or entry.name
        if one.upstream == BUILTIN:
            if model not in BUILTIN_MODELS:
                problems.note(at, f"the built-in upstream has no model {model}; {suggestion(model, BUILTIN_MODELS)}")
            yield TargetConfig(upstream=BUILTIN, model=model, weight=one.weight)
        elif one.upstream == VSCODE:
            yield TargetConfig(upstream=VSCODE, model=model, weight=one.weight)
        elif one.upstream not in context.upstreams:
            known = [*context.upstreams, BUILTIN, VSCODE]
            problems.note(at, f"there is no upstream {one.upstream}; {suggestion(one.upstream, known)}", "upstreams")
        elif upstream := context.upstreams[one.upstream]:
            # The quirks of the model win over those of its upstream.
            quirks = msgspec.convert({**msgspec.structs.asdict(upstream.quirks), **entry.quirks}, Quirks)
            yield TargetConfig(upstream=one.upstream, model=model, weight=one.weight, quirks=quirks)


def _owners(entries: tuple[ModelSettings, ...], problems: ProblemCollector) -> dict[str, str]:
    """Map every name and alias to its model's public name; one that is given twice is noted."""
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
            # The first one that gives a name keeps it.
            owners.setdefault(name, entry.name)
            places.setdefault(name, path)
    return owners
