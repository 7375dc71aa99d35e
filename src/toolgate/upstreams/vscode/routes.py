"""Make a route of every model that an editor lends now; routes come and go with windows.

A model is named `vscode/<vendor>/<family>`, or `vscode/<vendor>/<id>` where a vendor has several of a family. Its id and its
family are aliases. Names of the configuration always win: the router asks here last.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from toolgate.bridge.frames import LentModel
from toolgate.bridge.windows import EditorWindows
from toolgate.engine.ports import Model
from toolgate.upstreams.model_names import ModelNameTable
from toolgate.upstreams.router import LENT_PREFIX, ModelRoute, TokenCounter

# Tools of one request: editors refuse more.
MAX_TOOLS = 128

MakeLent = Callable[[str, LentModel], tuple[Model, TokenCounter | None]]


class LentRoutes:
    """The routes to all lent models (`toolgate.upstreams.router.RouteProvider`)."""

    def __init__(self, windows: EditorWindows, make: MakeLent) -> None:
        """`make` builds the model of a public name."""
        self._windows = windows
        self._make = make
        self._made: dict[tuple[str, LentModel], ModelRoute] = {}
        self._routes: Mapping[str, ModelRoute] = {}
        self._names: ModelNameTable[ModelRoute] = ModelNameTable([])
        self._revision = -1

    @property
    def routes(self) -> Mapping[str, ModelRoute]:
        """The routes by name."""
        self._refresh()
        return self._routes

    def find(self, name: str) -> ModelRoute | None:
        """Find a route by name or alias."""
        self._refresh()
        return self._names.find(name)

    def _refresh(self) -> None:
        if self._revision == self._windows.revision:  # nothing has changed, as for most requests
            return
        self._revision = self._windows.revision
        lent = self._windows.models()
        families = Counter((one.vendor, one.family) for one in lent)
        named: dict[str, LentModel] = {}
        for one in lent:
            unique = bool(one.family) and families[one.vendor, one.family] == 1
            named[f"{LENT_PREFIX}{one.vendor}/{one.family if unique else one.id}"] = one
        # A route that was made before is kept, with the state of its model.
        self._made = {(name, one): self._route(name, one) for name, one in sorted(named.items())}
        self._routes = {name: route for (name, _), route in self._made.items()}
        # Of two vendors with one family, the first in the alphabet has its name as an alias.
        aliases = [(alias, route) for route in reversed(self._routes.values()) for alias in route.aliases]
        self._names = ModelNameTable([*aliases, *self._routes.items()])

    def _route(self, name: str, lent: LentModel) -> ModelRoute:
        known = self._made.get((name, lent))
        if known is not None:
            return known
        model, counter = self._make(name, lent)
        aliases = dict.fromkeys([f"{LENT_PREFIX}{lent.vendor}/{lent.id}", lent.id, lent.family])
        return ModelRoute(
            name=name,
            model=model,
            aliases=tuple([alias for alias in aliases if alias and alias != name and "*" not in alias]),
            owner=lent.vendor,
            created=int(min([one.state.since for one in self._windows.ordered], default=0)),
            max_tools=MAX_TOOLS,
            lenient=lent.tools is False,
            context=lent.max_input_tokens,
            images=lent.images is not False,
            editor=True,
            counter=counter,
        )
