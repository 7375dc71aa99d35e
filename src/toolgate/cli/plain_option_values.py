"""Adapt Typer's parameters: plain values are converted without pydantic, and flags are shown without a type in help.

Typer converts all values with pydantic, also those of options that were not given, and its import takes a tenth of the
time in which the server starts. Commands and parameters are Typer's own objects, so their methods are replaced on them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def adapt_commands(command: Any) -> Any:
    """Adapt the parameters of a command, or of all commands of a group."""
    for part in (command, *getattr(command, "commands", {}).values()):
        get_params = part.get_params
        # As a default, because the loop's own variable changes with the next part.
        part.get_params = lambda ctx, get_params=get_params: adapt_params(get_params(ctx))
    return command


def adapt_params(params: list[Any]) -> list[Any]:
    """Return the parameters; each converts plain values itself from now on, and a flag has no type in help."""
    for param in params:
        # Typer asks for the parameters several times; each is wrapped once.
        if "process_value" not in vars(param):
            param.process_value = partial(_process_value, param, param.process_value)
            if getattr(param, "is_flag", False):
                # Typer shows `--yes <bool>`, as if the flag took a value.
                param.display_type_rich = lambda ctx: None
    return params


def _process_value(param: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Convert texts, paths and numbers in their range; `process`, which is Typer's, does all else, and reports mistakes."""
    described = getattr(param, "type_descriptor", None)  # other versions of Typer may have none
    # A required value that is missing is reported by Typer.
    if described is None or (param.required and not value) or described.parameter_info.parser is not None:
        return process(ctx, value)
    wanted, info = described.annotation, described.parameter_info
    several = param.multiple or param.nargs == -1
    if value is None:
        converted: Any = () if several else None
    elif type(value) is wanted:  # a text, or the default of another type
        converted = value
    elif wanted == list[str] and several:
        converted = list(value)
    elif wanted is Path and type(value) is str and not info.exists:
        converted = Path(value)
    elif (
        wanted is int
        and type(value) is str
        and value.isdecimal()
        and (info.min is None or int(value) >= int(info.min))
        and (info.max is None or int(value) <= int(info.max))
    ):
        converted = int(value)
    else:
        return process(ctx, value)
    return converted if param.callback is None else param.callback(ctx, param, converted)
