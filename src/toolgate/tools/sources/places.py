"""Which code a configured place means: a file, a folder of files, a package, a module or installed entry points.

Looks at names and files only; nothing is loaded here.
"""

import glob
import os
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from toolgate.tools.authoring.loading import Place

GROUP = "toolgate.tools"
ENTRY_POINTS = "entry-points"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class NoPlace(Exception):
    """There is nothing where the operator said; the message says so to them."""


def find_places(text: str, base: Path) -> list[Place]:
    """The code that is meant, in a steady order; NoPlace if there is none.

    What exists as a path is a path; otherwise a dotted name is a module.
    """
    kind, _, name = text.partition(":")
    if kind == ENTRY_POINTS:
        return _installed(name or None)
    if glob.has_magic(text):
        found = [base / match for match in sorted(glob.glob(text, root_dir=base))]
        return [place for path in found for place in _at(path, base)]
    path = base / os.path.expanduser(text)
    if path.exists():
        return _at(path.resolve(), base)
    if _MODULE.fullmatch(text) and not text.endswith(".py"):
        return [Place(text, module=text)]
    raise NoPlace(f"{text}: there is no such file or folder")


def _at(path: Path, base: Path) -> list[Place]:
    if path.is_file():
        return [Place(_label(path, base), path=str(path))]
    if (path / "__init__.py").is_file():
        return _package(path, base)
    inner = sorted(entry for entry in path.iterdir() if not entry.name.startswith(("_", ".")))
    files = [Place(_label(file, base), path=str(file)) for file in inner if file.suffix == ".py" and file.is_file()]
    packages = [folder for folder in inner if (folder / "__init__.py").is_file()]
    return files + [place for folder in packages for place in _package(folder, base)]


def _package(path: Path, base: Path) -> list[Place]:
    """The package itself and each of its modules: one that is broken harms no other."""
    modules = sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
    inner = [Place(_label(file, base), path=str(path), module=file.stem) for file in modules]
    return [Place(_label(path / "__init__.py", base), path=str(path)), *inner]


def _installed(name: str | None) -> list[Place]:
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    chosen = [entry for entry in found if name in (None, entry.name)]
    if name is not None and not chosen:
        raise NoPlace(f"{ENTRY_POINTS}:{name}: no installed package has an entry point of that name in {GROUP}")
    return [_entry(entry) for entry in chosen]


def _entry(entry: EntryPoint) -> Place:
    return Place(f"{ENTRY_POINTS}:{entry.name}", module=entry.module, attribute=entry.attr or None)


def _label(path: Path, base: Path) -> str:
    root = base.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
