"""The tables of models and upstreams that `check` prints."""

from collections.abc import Iterable, Mapping, Sequence

from toolgate.cli.printing import TextTable, text_table
from toolgate.cli.probe_upstreams import ProbeResult
from toolgate.config import ModelConfig, UpstreamConfig
from toolgate.upstreams.model_names import AliasPattern, is_pattern


def models_table(models: Iterable[ModelConfig]) -> TextTable:
    """Table the models with their upstreams, modes and fallbacks."""
    rows = [
        (
            model.name,
            ", ".join(model.aliases),
            "\n".join([f"{target.upstream}: {target.model}" for target in model.targets]),
            model.tools,
            model.system,
            ", ".join(model.fallbacks),
        )
        for model in models
    ]
    return text_table("Models", ("name", "aliases", "asks", "tools", "system", "falls back to"), rows)


def aliases_table(models: Sequence[ModelConfig]) -> TextTable | None:
    """Table the alias patterns in the order in which they are tried, with the matching names of other models."""
    entries = [(name, model.name) for model in models for name in model.names]
    patterns = sorted(
        [(AliasPattern(name), owner) for name, owner in entries if is_pattern(name)],
        key=lambda one: -one[0].specificity,
    )
    if not patterns:
        return None
    rows = []
    for place, (pattern, owner) in enumerate(patterns):
        # A name that is written out, or a pattern that is more specific, is found before this pattern.
        exact = [name for name, other in entries if not is_pattern(name) and other != owner and pattern.matches(name)]
        sooner = [one.text for one, other in patterns[:place] if other != owner and pattern.matches(one.text)]
        rows.append((pattern.text, owner, ", ".join([*exact, *sooner])))
    return text_table("Alias patterns", ("names like", "go to", "except"), rows)


def upstreams_table(upstreams: Iterable[UpstreamConfig], answers: Mapping[str, ProbeResult] | None) -> TextTable:
    """Table the upstreams, with the results of a probe if there are any; of a key only the end is shown."""
    columns = ["name", "dialect", "base URL", "key", *(["answer"] if answers else [])]
    rows = []
    for one in upstreams:
        key = one.api_key.hint if one.api_key else "none"
        result = [f"{'ok' if answers[one.name].ok else 'FAILED'}: {answers[one.name].report}"] if answers else []
        rows.append([one.name, one.dialect, one.base_url, key, *result])
    return text_table("Upstreams", columns, rows)
