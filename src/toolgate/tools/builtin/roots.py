"""The folders that were granted, and the one way to a file in them. Knows paths and descriptors; knows no tool.

A path is resolved first, links and all, and must end up inside a root. It is then opened from the root downwards, one
name at a time and following no link: whoever swaps one in meanwhile makes the opening fail and leads nowhere.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from toolgate.tools.tool import ToolFailure

# Where people and programs keep secrets, and what makes other programs run things.
HIDDEN = (
    ".env",
    ".env.*",
    ".git",
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".gcloud",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".htpasswd",
    ".git-credentials",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
)
_MAX_PATH = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe must not keep us waiting for somebody to open its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """A file or folder: the real path of its root, the names below, and what it is called to the model."""

    root: str
    parts: tuple[str, ...]
    shown: str

    def below(self, name: str) -> "Place":
        """Something in this folder."""
        return Place(self.root, (*self.parts, name), name if self.shown == "." else f"{self.shown}/{name}")

    @property
    def real(self) -> str:
        """Its path in the file system."""
        return os.path.join(self.root, *self.parts)


class Roots:
    """The granted folders. With several, a path begins with the name of one of them."""

    def __init__(self, roots: Sequence[Path], protected: Sequence[Path] = ()) -> None:
        """Raises ValueError for a root that is no folder; `protected` files and folders stay out of reach inside."""
        for root in roots:
            if not root.is_dir():
                raise ValueError(f"{root} is not a folder that tools could be given")
        self._roots = _named([os.path.realpath(root) for root in roots])
        self._protected = tuple(os.path.realpath(path) for path in protected)

    @property
    def names(self) -> tuple[str, ...]:
        """What the roots are called; `.` if there is but one."""
        return tuple(self._roots)

    def top(self) -> tuple[Place, ...]:
        """The roots themselves."""
        return tuple(Place(real, (), name) for name, real in self._roots.items())

    def place(self, text: str) -> Place:
        """Where a path leads; ToolFailure unless that is inside a root and not hidden."""
        if "\0" in text or len(text) > _MAX_PATH or not _is_text(text):
            raise ToolFailure("the path holds a character that no path can have, or is too long")
        real = os.path.realpath(self._wanted(text.strip() or "."))
        for name, root in self._roots.items():
            below = _below(root, real)
            if below is not None:
                place = Place(root, below, "/".join((*(() if name == "." else (name,)), *below)) or ".")
                self.check(place)
                return place
        raise ToolFailure(f"{text!r} is outside the folders that tools may use ({self._whereabouts()})")

    def check(self, place: Place) -> None:
        """ToolFailure if the place is hidden from tools."""
        if self.hides(place):
            raise ToolFailure(f"{place.shown} is not for tools: it may hold secrets or settings")

    def hides(self, place: Place) -> bool:
        """Whether the place may hold secrets, or belongs to the server itself."""
        if any(fnmatchcase(part.casefold(), pattern) for part in place.parts for pattern in HIDDEN):
            return True
        real = place.real
        # A database has its journal beside it.
        return any(real == one or real.startswith((f"{one}{os.sep}", f"{one}-")) for one in self._protected)

    @contextmanager
    def folder(self, place: Place, *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder."""
        with told(place):
            here = os.open(place.root, _FOLDER)
            try:
                for part in place.parts:
                    here = _step(here, part, create)
                yield here
            finally:
                os.close(here)

    @contextmanager
    def file(self, place: Place) -> Iterator[int]:
        """A descriptor of the file, for reading."""
        if not place.parts:
            raise ToolFailure(f"{place.shown} is a folder; use list_files")
        with self.folder(_parent(place)) as folder, told(place):
            self.regular(place, os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False))
            found = os.open(place.parts[-1], _FILE, dir_fd=folder)
            try:
                self.regular(place, os.fstat(found))
                yield found
            finally:
                os.close(found)

    def regular(self, place: Place, found: os.stat_result) -> None:
        """ToolFailure unless it is a plain file, and none of the server's own under another name."""
        if stat.S_ISDIR(found.st_mode):
            raise ToolFailure(f"{place.shown} is a folder; use list_files")
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailure(f"{place.shown} is not a plain file")
        if any(_is_same(found, one) for one in self._protected):
            raise ToolFailure(f"{place.shown} is not for tools: it belongs to the server")

    def _wanted(self, text: str) -> str:
        if os.path.isabs(text):
            return text
        if "." in self._roots:
            return os.path.join(self._roots["."], text)
        first, _, rest = text.removeprefix("./").partition("/")
        if first not in self._roots:
            raise ToolFailure(f"the path must begin with one of {self._whereabouts()}")
        return os.path.join(self._roots[first], rest)

    def _whereabouts(self) -> str:
        return "paths are relative to their top" if "." in self._roots else ", ".join(self._roots)


def _named(reals: Sequence[str]) -> dict[str, str]:
    if len(reals) == 1:
        return {".": reals[0]}
    named: dict[str, str] = {}
    for real in dict.fromkeys(reals):
        name, count = os.path.basename(real) or "root", 1
        while (name if count == 1 else f"{name}-{count}") in named:
            count += 1
        named[name if count == 1 else f"{name}-{count}"] = real
    return named


def _below(root: str, real: str) -> tuple[str, ...] | None:
    if real == root:
        return ()
    prefix = root if root.endswith(os.sep) else root + os.sep
    return tuple(real[len(prefix) :].split(os.sep)) if real.startswith(prefix) else None


def _parent(place: Place) -> Place:
    return Place(place.root, place.parts[:-1], place.shown.rpartition("/")[0] or ".")


def _step(here: int, part: str, create: bool) -> int:
    """From a folder into one that it holds; the outer descriptor stays open if that fails."""
    try:
        inner = os.open(part, _FOLDER, dir_fd=here)
    except FileNotFoundError:
        if not create:
            raise
        os.mkdir(part, dir_fd=here)
        inner = os.open(part, _FOLDER, dir_fd=here)
    os.close(here)
    return inner


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_same(found: os.stat_result, path: str) -> bool:
    try:
        other = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (other.st_dev, other.st_ino)


@contextmanager
def told(place: Place) -> Iterator[None]:
    """What the system refuses, in words for the model."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailure(f"there is no {place.shown}") from None
    except OSError as error:
        raise ToolFailure(f"{place.shown} {_words(error)}") from None


def _words(error: OSError) -> str:
    match error.errno:
        case errno.ELOOP | errno.ENOTDIR | errno.EMLINK:
            return "leads through a link or a file, and is not opened"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "may not be opened that way"
        case errno.ENOSPC | errno.EDQUOT:
            return "could not be written: the disk is full"
        case errno.ENAMETOOLONG:
            return "has a name that is too long"
    return f"could not be used ({errno.errorcode.get(error.errno or 0, 'unknown error')})"
