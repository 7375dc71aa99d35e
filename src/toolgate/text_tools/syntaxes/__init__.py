"""Return every syntax by its name, and `auto`, which recognises calls by the markers of all syntaxes.

A module in this folder owns the marks that begin its calls and lists, in `SYNTAXES`, all syntaxes that begin with them.
"""

import importlib
import pkgutil
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from toolgate.text_tools.parsing.syntax import CallMarker, Syntax

AUTO = "auto"


@cache
def syntaxes() -> Mapping[str, Syntax]:
    """Return all syntaxes; `auto` renders calls as `invoke` does."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found: dict[str, Syntax] = {one.name: one for module in modules for one in getattr(module, "SYNTAXES", ())}
    named = tuple(found.values())
    reasoning_marks = tuple(dict.fromkeys([pair for one in named for pair in one.reasoning_marks]))

    def markers(names: Collection[str]) -> Sequence[CallMarker]:
        # Several syntaxes begin with the same mark, whose reader then knows all of them.
        every = [marker for one in named if one.detected for marker in one.markers(names)]
        return list({(marker.word or marker.pattern, marker.at): marker for marker in every}.values())

    found[AUTO] = Syntax(AUTO, markers, found["invoke"].render, reasoning_marks=reasoning_marks)
    return found


def syntax(name: str) -> Syntax:
    """Return the syntax of that name; ValueError lists the names there are."""
    try:
        return syntaxes()[name]
    except KeyError:
        raise ValueError(f"no syntax is called {name!r}; there are {', '.join(sorted(syntaxes()))}") from None
