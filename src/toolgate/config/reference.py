"""Generate the reference of settings and providers in docs/configuration.md from the tables themselves.

`python -m toolgate.config.reference docs/configuration.md` replaces what is between the markers of the document.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from toolgate.config.parse import unwrap
from toolgate.config.settings import RootSettings
from toolgate.config.settings.secret import Secret
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import catalog

_TYPE_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", Secret: "text"}

QUIRKS: Mapping[str, str] = {
    "max_tokens_field": (
        "The field that limits the length of an answer; by default the one that the client sent, else max_tokens."
    ),
    "system_role": "The role of system messages.",
    "reasoning_field": "The field in which earlier reasoning is sent back.",
    "images_in_tool_results": "Whether a tool result may hold images; otherwise they are sent in a user message after it.",
    "usage_in_streams": "Whether usage must be requested for streams.",
    "output_format": "The output formats that it takes: a JSON Schema, any JSON object, or none.",
    "call_id_pattern": "A regular expression that call ids must match; others are replaced, always in the same way.",
    "name_limit": "Most characters of a tool's name.",
    "freeform_tools": "Whether it has tools that take free text.",
    "default_max_tokens": "The length limit of an answer, if the dialect demands one and the request has none.",
    "thinking": "How thinking is requested: by effort, always, or by a budget of tokens.",
    "system_in_place": (
        "Whether system messages may stand between other messages; by default if the client's dialect allows it."
    ),
    "unsupported": "Fields that it refuses; they are left out, with a warning.",
}


class SettingReference(Struct, frozen=True):
    """One row of the reference."""

    path: str
    kind: str
    default: str
    help: str


def settings(shape: type[Struct] = RootSettings, prefix: str = "") -> Iterator[SettingReference]:
    """Yield every setting that a file may hold, in the order of the Structs."""
    for field in msgspec.structs.fields(shape):
        path = f"{prefix}{field.name}"
        notes = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        help = next((note.description for note in notes if isinstance(note, Meta) and note.description), "")
        # Quirks are values of the dialects, which know nothing of help texts.
        if not help and shape is Quirks:
            help = QUIRKS.get(field.name, "")
        yield SettingReference(path, _kind(field.type), _default(field), help)
        bare, partial = unwrap(field.type)
        if partial is not None:
            yield from settings(partial.of, f"{path}.")
            continue
        # `tuple[Key, ...]` is listed as `keys[].name`, `Mapping[str, Upstream]` as `upstreams.<name>.base_url`.
        suffix = {None: "", tuple: "[]"}.get(get_origin(bare), ".<name>")
        structs = [one for one in (bare, *get_args(bare)) if isinstance(one, type) and issubclass(one, Struct)]
        if structs:
            yield from settings(structs[0], f"{path}{suffix}.")


def _kind(kind: Any) -> str:
    bare, partial = unwrap(kind)
    if get_origin(bare) is Annotated:
        bare = get_args(bare)[0]
    if get_origin(bare) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(bare))
    if get_origin(bare) is tuple:
        return f"list of {_kind(get_args(bare)[0])}"
    if partial or get_origin(bare) is not None or (isinstance(bare, type) and issubclass(bare, Struct)):
        return "mapping"
    return _TYPE_NAMES.get(bare, "text")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is NODEFAULT and field.default_factory is NODEFAULT:
        return "required"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    # A default is in the source code, so it is no secret.
    if isinstance(value, Secret):
        value = value.reveal()
    match value:
        case None | () | {} | Struct() | [] | "":
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case tuple() if all(isinstance(item, str) for item in value):
            return f"`[{', '.join(value)}]`"
        case float() if value.is_integer():
            return f"`{int(value)}`"
        case tuple():
            return ""
        case _:
            return f"`{value}`"


def settings_table() -> str:
    """Return the reference of settings as a Markdown table."""
    shown = [one for one in settings() if not one.path.startswith("models[].quirks.")]  # the same as an upstream's
    rows = [f"| `{one.path}` | {one.kind} | {one.default} | {one.help} |" for one in shown]
    return "\n".join(["| setting | kind | default | what it does |", "|---|---|---|---|", *rows])


def providers_table() -> str:
    """Return the providers as a Markdown table."""
    rows = []
    for name, row in catalog().rows.items():
        endpoints = [f"`{dialect}` at {one.base_url or 'your own host'}" for dialect, one in row.dialects.items()]
        key = f"`{row.key}`" if row.key else "none"
        rows.append(f"| `{name}` | {row.title} | {'<br>'.join(endpoints)} | {key} |")
    return "\n".join(["| provider | who | dialects, the first by default | key |", "|---|---|---|---|", *rows])


def renewed(document: str) -> str:
    """Return the document with both tables generated anew."""
    for name, table in (("settings", settings_table()), ("providers", providers_table())):
        before, start, rest = document.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        document = f"{before}{start}\n\n{table}\n\n{end}{after}"
    return document


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text("utf-8")), "utf-8")
