"""Keep of what an editor lends what can be used, and of everything no more than a bound. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from toolgate.bridge.frames import EditorNameAndVersion, LentModel, LentTool, WindowDescription
from toolgate.wire.fields import MAX_TOKENS

# What an editor has from us is not taken back: requests would go round in a ring.
OWN_VENDOR, OWN_TOOLS = "toolgate", "mcp_toolgate_"

MAX_MODELS, MAX_TOOLS = 256, 1024
# Of all tools of a window, about as JSON: they stay in memory, where they take several times as much.
MAX_TOOL_BYTES = 2 * 1024 * 1024

_MAX_FOLDERS, _MAX_CONTEXT, _MAX_CONTEXT_TEXT = 32, 64, 256
_MAX_NAME, _MAX_DESCRIPTION, _MAX_TAGS = 128, 16 * 1024, 32
# The largest integer that JavaScript keeps exact.
_MAX_NUMBER = 2**53
_BLANK = re.compile(r"\s")
_TOOL_NAME = re.compile(r"[\w-]+")


def usable_models(items: tuple[LentModel, ...]) -> tuple[LentModel, ...]:
    """Return the models that can be asked: named, with room for a prompt, not denied by the person, and not our own."""
    kept: list[LentModel] = []
    for one in items[:MAX_MODELS]:
        if one.access is False or one.vendor == OWN_VENDOR or not 0 < one.max_input_tokens <= MAX_TOKENS:
            continue
        # Clients name a model by `vendor/id`, or by its id or family alone.
        name = one.vendor + one.id + one.family
        is_named = one.vendor and one.id and "/" not in one.vendor and len(name) <= _MAX_NAME
        if is_named and name.isprintable() and not _BLANK.search(name):
            kept.append(replace(one, name=one.name[:_MAX_NAME], version=one.version[:_MAX_NAME]))
    return tuple(kept)


def usable_tools(items: tuple[LentTool, ...]) -> tuple[LentTool, ...]:
    """Return the tools that can be called: named as the editor itself demands, and not our own.

    Those behind the first `MAX_TOOL_BYTES` are left out.
    """
    kept: list[LentTool] = []
    size = 0
    for one in items[:MAX_TOOLS]:
        if not _TOOL_NAME.fullmatch(one.name) or len(one.name) > _MAX_NAME or one.name.startswith(OWN_TOOLS):
            continue
        tags = tuple([tag[:_MAX_NAME] for tag in one.tags[:_MAX_TAGS]])
        tool = replace(one, description=one.description[:_MAX_DESCRIPTION], tags=tags)
        size += _size((tool.name, tool.description, tool.tags, tool.input_schema))
        if size > MAX_TOOL_BYTES:
            break
        kept.append(tool)
    return tuple(kept)


def _size(value: Any) -> int:
    """Count the characters of a JSON value, roughly: encoding millions of them is one long call that nothing interrupts."""
    size, values = 0, [value]
    while values:
        one = values.pop()
        size += len(one) if isinstance(one, str) else 4
        if isinstance(one, Mapping):
            values += one.keys()
            values += one.values()
        elif isinstance(one, (list, tuple)):
            values += one
    return size


def bounded_identity(editor: EditorNameAndVersion) -> EditorNameAndVersion:
    """Return the editor's name and version, as long as they may be in messages to people."""
    return EditorNameAndVersion(editor.name[:_MAX_NAME], editor.version[:_MAX_NAME])


def bounded_window(window: WindowDescription) -> WindowDescription:
    """Return the description with as many folders and context keys as are kept."""
    context = {
        name[:_MAX_NAME]: value
        for name, value in list(window.context.items())[:_MAX_CONTEXT]
        if _is_context_value(value)
    }
    folders = tuple([one[:_MAX_NAME] for one in window.folders[:_MAX_FOLDERS]])
    remote = window.remote[:_MAX_NAME] if window.remote is not None else None
    return replace(window, folders=folders, remote=remote, context=context)


def _is_context_value(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= _MAX_FOLDERS and all(isinstance(one, str) and _is_context_value(one) for one in value)
    if isinstance(value, str):
        return len(value) <= _MAX_CONTEXT_TEXT
    return isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) <= _MAX_NUMBER)
