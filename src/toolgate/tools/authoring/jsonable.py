"""Convert what a tool returned to JSON of bounded depth. Knows nothing of tools."""

import math
from typing import Any

import msgspec

from toolgate.tools.tool import ToolCallFailed

MAX_DEPTH = 64


def jsonable(value: Any) -> Any:
    """Convert a value to JSON's types; ToolCallFailed names the value that cannot be JSON.

    Numbers that JSON lacks become the strings `NaN`, `Infinity` and `-Infinity`: a silent null would be wrong.
    """
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except RecursionError:
        raise ToolCallFailed(
            "The tool returned a value that contains itself or is nested too deeply for JSON."
        ) from None
    except (TypeError, ValueError) as error:
        raise ToolCallFailed(f"The tool returned a value that cannot be JSON: {str(error)[:300]}") from None
    return _clean(plain, MAX_DEPTH)


def json_text(value: Any) -> str:
    """Encode a value as JSON text; ToolCallFailed if it cannot be JSON."""
    return msgspec.json.encode(jsonable(value)).decode()


def whole_characters(text: str) -> str:
    """Replace halves of surrogate pairs, which no encoding can carry."""
    if text.isascii():
        return text
    # By way of UTF-16, in which two halves that belong together become one character again.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _clean(value: Any, levels: int) -> Any:
    if levels < 0:
        raise ToolCallFailed(f"The tool returned a value that is nested deeper than {MAX_DEPTH} levels.")
    match value:
        case dict():
            return {whole_characters(str(name)): _clean(item, levels - 1) for name, item in value.items()}
        case list() | tuple():
            return [_clean(item, levels - 1) for item in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return whole_characters(value)
    return value
