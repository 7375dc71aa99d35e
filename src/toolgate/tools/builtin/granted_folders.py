"""Open files and folders inside the granted folders, and nothing outside. Knows paths and descriptors; knows no tool.

A path is resolved first, with all links, and must end up inside a root. It is then opened from the root downwards, one name
at a time and without following links: a link that a program swaps in meanwhile makes the opening fail.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import translate
from pathlib import Path

from msgspec import Struct

from toolgate.tools.tool import ToolCallFailed

# Files with secrets, and files that make other programs run commands.
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
# One pattern of all, because every entry of a folder is compared with it. In lower case: some file systems open `.ENV` as
# `.env`.
_HIDDEN = re.compile("|".join(map(translate, HIDDEN)))
_MAX_PATH = 4096
# O_NOFOLLOW: the path was resolved before, so that a link in it can only be one that was swapped in since.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class GrantedPath(Struct, frozen=True):
    """A file or folder: the real path of its root, the names below it, and its path as the model sees it."""

    root: str
    parts: tuple[str, ...]
    shown: str

    def below(self, name: str) -> "GrantedPath":
        """Return the path of an entry of this folder."""
        return GrantedPath(self.root, (*self.parts, name), name if self.shown == "." else f"{self.shown}/{name}")

    @property
    def real(self) -> str:
        """Its path in the file system."""
        return os.path.join(self.root, *self.parts)


class GrantedFolders:
    """The granted folders. With several, a path begins with the name of one of them."""

    def __init__(self, roots: Sequence[Path], protected: Sequence[Path] = ()) -> None:
        """Raises ValueError for a root that is no folder; `protected` files and folders inside cannot be opened."""
        for root in roots:
            if not root.is_dir():
                raise ValueError(f"{root} is not a folder")
        reals = [os.path.realpath(root) for root in roots]
        self._roots: dict[str, str] = {}
        if len(reals) == 1:
            self._roots["."] = reals[0]
        else:  # named by their last part, with a number where two are the same
            for real in dict.fromkeys(reals):
                name = base = os.path.basename(real) or "root"
                count = 1
                while name in self._roots:
                    count += 1
                    name = f"{base}-{count}"
                self._roots[name] = real
        self._protected = tuple(os.path.realpath(path) for path in protected)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the roots; `.` if there is only one."""
        return tuple(self._roots)

    def top(self) -> tuple[GrantedPath, ...]:
        """The roots themselves."""
        return tuple(GrantedPath(real, (), name) for name, real in self._roots.items())

    def place(self, text: str) -> GrantedPath:
        """Resolve a path; ToolCallFailed unless it is inside a root and not hidden."""
        is_encodable = text.encode("utf-8", "replace").decode() == text  # without halves of surrogate pairs
        if "\0" in text or len(text) > _MAX_PATH or not is_encodable:
            raise ToolCallFailed("the path contains a character that no path can have, or is too long")
        path = text.strip() or "."
        if not os.path.isabs(path) and "." in self._roots:
            path = os.path.join(self._roots["."], path)
        elif not os.path.isabs(path):
            first, _, rest = path.removeprefix("./").partition("/")
            if first not in self._roots:
                raise ToolCallFailed(f"the path must begin with one of {self._hint()}")
            path = os.path.join(self._roots[first], rest)
        real = os.path.realpath(path)
        for name, root in self._roots.items():
            # With the separator, or `/data-private` would be inside of `/data`; the root `/` ends with one.
            prefix = root if root.endswith(os.sep) else root + os.sep
            if real == root or real.startswith(prefix):
                below = tuple(real[len(prefix) :].split(os.sep)) if real != root else ()
                place = GrantedPath(root, below, "/".join((*(() if name == "." else (name,)), *below)) or ".")
                self.check(place)
                return place
        raise ToolCallFailed(f"{text!r} is outside the folders that tools may use ({self._hint()})")

    def check(self, place: GrantedPath) -> None:
        """Raise ToolCallFailed if the path is hidden from tools."""
        if self.hides(place):
            raise ToolCallFailed(f"{place.shown} is not for tools: it may contain secrets or settings")

    def hides(self, place: GrantedPath) -> bool:
        """Whether the path may contain secrets, or belongs to the server itself."""
        if any(_HIDDEN.match(part.casefold()) for part in place.parts):
            return True
        real = place.real
        # The suffix covers the journal of a database.
        return any(real == one or real.startswith((f"{one}{os.sep}", f"{one}-")) for one in self._protected)

    @contextmanager
    def folder(self, place: GrantedPath, *, create: bool = False) -> Iterator[int]:
        """Open a descriptor of the folder."""
        with os_errors_as_failures(place):
            here = os.open(place.root, _FOLDER)
            try:
                for part in place.parts:
                    here = _step(here, part, create)
                yield here
            finally:
                os.close(here)

    @contextmanager
    def file(self, place: GrantedPath) -> Iterator[int]:
        """Open a descriptor of the file, for reading."""
        if not place.parts:
            raise ToolCallFailed(f"{place.shown} is a folder; use list_files")
        parent = GrantedPath(place.root, place.parts[:-1], place.shown.rpartition("/")[0] or ".")
        with self.folder(parent) as folder, os_errors_as_failures(place):
            # Checked before, because opening a device can have effects, and again afterwards, because the name may lead
            # to another file by then.
            self.regular(place, os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False))
            found = os.open(place.parts[-1], _FILE, dir_fd=folder)
            try:
                self.regular(place, os.fstat(found))
                yield found
            finally:
                os.close(found)

    def regular(self, place: GrantedPath, found: os.stat_result) -> None:
        """Raise ToolCallFailed unless it is a plain file, and none of the server's own under another name."""
        if stat.S_ISDIR(found.st_mode):
            raise ToolCallFailed(f"{place.shown} is a folder; use list_files")
        if not stat.S_ISREG(found.st_mode):
            raise ToolCallFailed(f"{place.shown} is not a plain file")
        # A hard link has another path and the same inode.
        for path in self._protected:
            with suppress(OSError):  # the server's file need not exist
                if os.path.samestat(found, os.stat(path)):
                    raise ToolCallFailed(f"{place.shown} is not for tools: it belongs to the server")

    def _hint(self) -> str:
        return "paths are relative to their top" if "." in self._roots else ", ".join(self._roots)


def _step(here: int, part: str, create: bool) -> int:
    """Replace the descriptor of a folder by that of a folder in it; it stays open if that fails."""
    try:
        inner = os.open(part, _FOLDER, dir_fd=here)
    except FileNotFoundError:
        if not create:
            raise
        os.mkdir(part, dir_fd=here)
        inner = os.open(part, _FOLDER, dir_fd=here)
    os.close(here)
    return inner


@contextmanager
def os_errors_as_failures(place: GrantedPath) -> Iterator[None]:
    """Map errors of the operating system to ToolCallFailed, with a message for the model."""
    try:
        yield
    except FileNotFoundError:
        raise ToolCallFailed(f"there is no {place.shown}") from None
    except OSError as error:
        match error.errno:
            case errno.ELOOP | errno.ENOTDIR | errno.EMLINK:
                why = "leads through a link or a file, and is not opened"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                why = "may not be opened that way"
            case errno.ENOSPC | errno.EDQUOT:
                why = "could not be written: the disk is full"
            case errno.ENAMETOOLONG:
                why = "has a name that is too long"
            case _:
                why = f"could not be used ({errno.errorcode.get(error.errno or 0, 'unknown error')})"
        raise ToolCallFailed(f"{place.shown} {why}") from None
