"""Whatever a tool returned, as plain JSON of bounded depth. Knows nothing of tools' shapes."""

import math
from typing import Any

import msgspec

from toolgate.tools.tool import ToolFailure

MAX_DEPTH = 64


def jsonable(value: Any) -> Any:
    """The value as JSON has it; ToolFailure says what in it cannot be JSON.

    Numbers that JSON lacks become the words `NaN`, `Infinity` and `-Infinity`: a silent null would be a lie.
    """
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except RecursionError:
        raise ToolFailure("The tool returned a value that contains itself or is nested too deeply for JSON.") from None
    except (TypeError, ValueError) as error:
        raise ToolFailure(f"The tool returned a value that cannot be JSON: {str(error)[:300]}") from None
    return _clean(plain, MAX_DEPTH)


def json_text(value: Any) -> str:
    """The value as JSON text, or ToolFailure."""
    return msgspec.json.encode(jsonable(value)).decode()


def whole_characters(text: str) -> str:
    """The text without halves of characters, which no encoding can carry."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _clean(value: Any, room: int) -> Any:
    if room < 0:
        raise ToolFailure(f"The tool returned a value that is nested deeper than {MAX_DEPTH} levels.")
    match value:
        case dict():
            return {whole_characters(str(name)): _clean(item, room - 1) for name, item in value.items()}
        case list() | tuple():
            return [_clean(item, room - 1) for item in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return whole_characters(value)
    return value
