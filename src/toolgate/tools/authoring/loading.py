"""Code of tools brought into this process: a file under a private name, or a module by its own.

Both the server and its workers load through here, so that both see the same tools. Knows nothing of where to look.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from toolgate.tools.authoring.definition import Definition
from toolgate.tools.authoring.registry import MARK, Registry
from toolgate.tools.authoring.results import told
from toolgate.tools.authoring.signature import BadTool

_LOADING = threading.Lock()
"""sys.path and sys.modules are the process's own, so one place is loaded at a time."""


class Place(Struct, frozen=True):
    """Where code is: the file or package at a `path`, or a `module` by its name, and perhaps one `attribute` of it.

    With both, `module` is one within the package at `path`. `label` names the place to a person.
    """

    label: str
    path: str | None = None
    module: str | None = None
    attribute: str | None = None


class BrokenPlace(Exception):
    """The code cannot be loaded; the message names the file, the line and the reason."""


def load(place: Place) -> list[Definition]:
    """The tools that the code defines, loaded unless it was before; BrokenPlace if it cannot be."""
    registry = Registry()
    try:
        with _LOADING, registry.current():
            module = _module(place)
            _adopt(registry, module, place.attribute)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the tool boundary
        raise BrokenPlace(_complaint(place, error)) from error
    return registry.definitions


def unload(place: Place) -> None:
    """Forget the code, so that it is read anew the next time."""
    name = _private_name(Path(place.path)) if place.path else place.module or ""
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


def _module(place: Place) -> ModuleType:
    if place.path is None:
        return importlib.import_module(place.module or "")
    package = _from_file(Path(place.path))
    if place.module is None:
        return package
    with _neighbours(Path(place.path).parent):
        return importlib.import_module(f"{package.__name__}.{place.module}")


def _from_file(path: Path) -> ModuleType:
    name = _private_name(path)
    if name in sys.modules:
        return sys.modules[name]
    initial = path / "__init__.py" if path.is_dir() else path
    inner = [str(path)] if path.is_dir() else None
    loader = _Unwritten(name, str(initial))
    spec = importlib.util.spec_from_file_location(name, initial, loader=loader, submodule_search_locations=inner)
    assert spec is not None  # it was given its loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _neighbours(path.parent):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _private_name(path: Path) -> str:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    return f"_toolgate_{digest}_{path.stem}"


class _Unwritten(importlib.machinery.SourceFileLoader):
    """Reads the source, never a cache of it: a file edited twice within a second would otherwise stay old."""

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours while it loads, and leave no trace of that: two folders may share names."""
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder) and not name.startswith("_toolgate_"):
                del sys.modules[name]


def _adopt(registry: Registry, module: ModuleType, attribute: str | None) -> None:
    """Add the tools that were decorated before, in a module that somebody else had loaded."""
    if attribute is not None:
        registry.clear()
    for name, value in [(attribute, _attribute(module, attribute))] if attribute else list(vars(module).items()):
        definition = vars(value).get(MARK) if hasattr(value, "__dict__") else None
        if isinstance(definition, Definition):
            registry.define(definition)
        elif attribute:
            raise BadTool(f"`{name}` is not decorated with @tool")


def _attribute(module: ModuleType, path: str) -> object:
    value: object = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _complaint(place: Place, error: BaseException) -> str:
    """Where in the author's own file it went wrong, and what."""
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == _file(place) else _line(place, error)
    reason = str(error) if isinstance(error, BadTool) else told(error)
    return f"{place.label}, line {line}: {reason}" if line else f"{place.label}: {reason}"


def _line(place: Place, error: BaseException) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _file(place)]
    return lines[-1] if lines else None


def _file(place: Place) -> str | None:
    if place.path is None:
        found = sys.modules.get(place.module or "")
        return getattr(found, "__file__", None)
    path = Path(place.path)
    if place.module is not None:
        return str(path / f"{place.module}.py")
    return str(path / "__init__.py" if path.is_dir() else path)
