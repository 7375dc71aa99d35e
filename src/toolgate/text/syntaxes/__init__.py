"""Every syntax by its name, and `auto`, which recognises calls by whatever opens them.

A file in this folder owns the marks that open its calls and names, in `SYNTAXES`, all syntaxes that begin with them.
"""

import importlib
import pkgutil
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from toolgate.text.syntax import Opener, Syntax

AUTO = "auto"


@cache
def syntaxes() -> Mapping[str, Syntax]:
    """All syntaxes; `auto` is written as `invoke`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = {one.name: one for module in modules for one in getattr(module, "SYNTAXES", ())}
    named = tuple(found.values())
    thinks = tuple(dict.fromkeys([pair for one in named for pair in one.thinks]))

    def openers(names: Collection[str]) -> Sequence[Opener]:
        every = [opener for one in named if one.detected for opener in one.openers(names)]
        return list({(opener.word or opener.pattern, opener.at): opener for opener in every}.values())

    found[AUTO] = Syntax(AUTO, openers, found["invoke"].render, thinks=thinks)
    return found


def syntax(name: str) -> Syntax:
    """The syntax of that name; ValueError names those there are."""
    try:
        return syntaxes()[name]
    except KeyError:
        raise ValueError(f"no syntax is called {name!r}; there are {', '.join(sorted(syntaxes()))}") from None
