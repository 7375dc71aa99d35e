"""What commands show of a configuration, as tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolgate.cli.printing import rows_table
from toolgate.cli.probe import Probed
from toolgate.config import Model, Upstream
from toolgate.upstreams.model_names import AliasPattern, is_pattern

if TYPE_CHECKING:
    from rich.table import Table


def models_table(models: Iterable[Model]) -> "Table":
    """Models, where they come from and how they are spoken to."""
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
    return rows_table("Models", ("name", "aliases", "asks", "tools", "system", "falls back to"), rows)


def aliases_table(models: Sequence[Model]) -> "Table | None":
    """Alias patterns in the order in which they are tried, and the names that something else answers."""
    entries = [(name, model.name) for model in models for name in model.names]
    patterns = sorted(
        [(AliasPattern(name), owner) for name, owner in entries if is_pattern(name)],
        key=lambda one: -one[0].specificity,
    )
    if not patterns:
        return None
    rows = []
    for place, (pattern, owner) in enumerate(patterns):
        exact = [name for name, other in entries if not is_pattern(name) and other != owner and pattern.matches(name)]
        sooner = [one.text for one, other in patterns[:place] if other != owner and pattern.matches(one.text)]
        rows.append((pattern.text, owner, ", ".join([*exact, *sooner])))
    return rows_table("Alias patterns", ("names like", "go to", "except"), rows)


def upstreams_table(upstreams: Iterable[Upstream], answers: Mapping[str, Probed] | None) -> "Table":
    """Upstreams, and what they said if they were asked; of a key only its end is shown."""
    columns = ["name", "dialect", "base URL", "key", *(["answer"] if answers else [])]
    rows = []
    for one in upstreams:
        key = one.api_key.hint if one.api_key else "none"
        said = [f"{'ok' if answers[one.name].ok else 'FAILED'}: {answers[one.name].said}"] if answers else []
        rows.append([one.name, one.dialect, one.base_url, key, *said])
    return rows_table("Upstreams", columns, rows)


def names_table(answer: Any) -> "Table":
    """The models that a server lists."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
    return rows_table("Models", ("name", "owner"), [(model.get("id"), model.get("owned_by")) for model in models])
