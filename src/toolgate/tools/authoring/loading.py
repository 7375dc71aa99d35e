"""Load the code of tools into this process: a file under a private module name, or a module by its own name.

Both the server and its workers load code here, so that both see the same tools. Knows nothing of where to look.
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
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from toolgate.tools.authoring.definition import PythonToolDefinition
from toolgate.tools.authoring.registry import MARK, PythonToolRegistry
from toolgate.tools.authoring.results import error_text
from toolgate.tools.authoring.signature import BadTool

# sys.path and sys.modules belong to the process, so one place is loaded at a time.
_LOADING = threading.Lock()


class ToolImportTarget(Struct, frozen=True):
    """The place of code: the file or package at a `path`, or a `module` by its name, and perhaps one `attribute` of it.

    With both, `module` is inside the package at `path`. `label` names the place for a person.
    """

    label: str
    path: str | None = None
    module: str | None = None
    attribute: str | None = None


class CodeLoadError(Exception):
    """The code cannot be loaded; the message names the file, the line and the reason."""


def load(place: ToolImportTarget) -> list[PythonToolDefinition]:
    """Load the code, unless it is loaded, and return its tools; CodeLoadError if it cannot be loaded."""
    registry = PythonToolRegistry()
    try:
        with _LOADING, registry.current():
            if place.path is None:
                module = importlib.import_module(place.module or "")
            else:
                module = _from_file(Path(place.path))
                if place.module is not None:
                    with _neighbours(Path(place.path).parent):
                        module = importlib.import_module(f"{module.__name__}.{place.module}")
            _add_decorated(registry, module, place.attribute)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the tool boundary
        raise CodeLoadError(_load_problem(place, error)) from error
    return registry.definitions


def unload(place: ToolImportTarget) -> None:
    """Remove the code from `sys.modules`, so that it is loaded again the next time."""
    name = _private_name(Path(place.path)) if place.path else place.module or ""
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


def _from_file(path: Path) -> ModuleType:
    name = _private_name(path)
    if name in sys.modules:
        return sys.modules[name]
    initial = path / "__init__.py" if path.is_dir() else path
    inner = [str(path)] if path.is_dir() else None
    loader = _UncachedLoader(name, str(initial))
    spec = importlib.util.spec_from_file_location(name, initial, loader=loader, submodule_search_locations=inner)
    assert spec is not None  # it was given its loader
    module = importlib.util.module_from_spec(spec)
    # Before the code runs, as `import` does: pickle, dataclasses and type hints look their module up there.
    sys.modules[name] = module
    try:
        with _neighbours(path.parent):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _private_name(path: Path) -> str:
    # A file `json.py` must not hide Python's own module, and two folders may have files of the same name.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    return f"_toolgate_{digest}_{path.stem}"


class _UncachedLoader(importlib.machinery.SourceFileLoader):
    """Loads the source and never its bytecode cache, which misses a second edit within a second."""

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError  # `SourceLoader.get_code` then neither reads nor writes a cache


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours while it loads; they are removed afterwards because two folders may share names."""
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


def _add_decorated(registry: PythonToolRegistry, module: ModuleType, attribute: str | None) -> None:
    """Add the tools of a module that was loaded before, or the one of this attribute alone."""
    # `@tool` adds to the registry when a module runs, which it does only once: a module that another place has loaded
    # keeps the marks of its decorators.
    values = list(vars(module).items())
    if attribute is not None:
        registry.clear()
        values = [(attribute, attrgetter(attribute)(module))]
    for name, value in values:
        definition = vars(value).get(MARK) if hasattr(value, "__dict__") else None
        if isinstance(definition, PythonToolDefinition):
            registry.define(definition)
        elif attribute:
            raise BadTool(f"`{name}` is not decorated with @tool")


def _load_problem(place: ToolImportTarget, error: BaseException) -> str:
    """Describe what went wrong, and in which line of the author's own file."""
    if place.path is None:
        file = getattr(sys.modules.get(place.module or ""), "__file__", None)
    else:
        path = Path(place.path)
        main = path / "__init__.py" if path.is_dir() else path
        file = str(main if place.module is None else path / f"{place.module}.py")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    reason = str(error) if isinstance(error, BadTool) else error_text(error)
    return f"{place.label}, line {lines[-1]}: {reason}" if lines and lines[-1] else f"{place.label}: {reason}"
