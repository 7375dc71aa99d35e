"""Find the code of a configured place: a file, a folder of files, a package, a module or installed entry points.

Looks at names and files only; nothing is loaded here.
"""

import glob
import os
import re
from importlib.metadata import entry_points
from pathlib import Path

from toolgate.tools.authoring.loading import ToolImportTarget

GROUP = "toolgate.tools"
ENTRY_POINTS = "entry-points"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class PythonCodeNotFound(Exception):
    """There is no code at a configured place; the message is for the operator."""


def find_places(text: str, base: Path) -> list[ToolImportTarget]:
    """List the code of a place, always in the same order; PythonCodeNotFound if there is none.

    A text that exists as a path is a path; any other dotted name is a module.
    """
    kind, _, name = text.partition(":")
    if kind == ENTRY_POINTS:
        found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
        chosen = [entry for entry in found if name in ("", entry.name)]
        if name and not chosen:
            raise PythonCodeNotFound(f"{text}: no installed package has an entry point of that name in {GROUP}")
        return [
            ToolImportTarget(f"{ENTRY_POINTS}:{entry.name}", module=entry.module, attribute=entry.attr or None)
            for entry in chosen
        ]
    if glob.has_magic(text):
        paths = [base / match for match in sorted(glob.glob(text, root_dir=base))]
        return [place for path in paths for place in _at(path, base)]
    path = base / os.path.expanduser(text)
    if path.exists():
        return _at(path.resolve(), base)
    if _MODULE.fullmatch(text) and not text.endswith(".py"):
        return [ToolImportTarget(text, module=text)]
    raise PythonCodeNotFound(f"{text}: there is no such file or folder")


def _at(path: Path, base: Path) -> list[ToolImportTarget]:
    if path.is_file():
        return [ToolImportTarget(_label(path, base), path=str(path))]
    if (path / "__init__.py").is_file():
        return _package(path, base)
    inner = sorted(entry for entry in path.iterdir() if not entry.name.startswith(("_", ".")))
    files = [
        ToolImportTarget(_label(file, base), path=str(file))
        for file in inner
        if file.suffix == ".py" and file.is_file()
    ]
    packages = [folder for folder in inner if (folder / "__init__.py").is_file()]
    return files + [place for folder in packages for place in _package(folder, base)]


def _package(path: Path, base: Path) -> list[ToolImportTarget]:
    """List the package and each of its modules, so that a broken one does not affect the others."""
    modules = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
    inner = [ToolImportTarget(_label(file, base), path=str(path), module=file.stem) for file in modules]
    return [ToolImportTarget(_label(path / "__init__.py", base), path=str(path)), *inner]


def _label(path: Path, base: Path) -> str:
    root = base.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
