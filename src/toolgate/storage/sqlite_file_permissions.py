"""Name the files of a SQLite storage, and let only their owner read and write them."""

import os
import stat
from pathlib import Path

from toolgate.storage.row_encryption import SECRET_BYTES, new_secret

# SQLite's own files beside the database; `-journal` is of a file that is not in WAL mode yet.
_BESIDE = ("", "-wal", "-shm", "-journal")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def steps_file(path: Path) -> Path:
    """Return the path of the steps of background runs, beside the database."""
    return path.with_name(f"{path.stem}-runs{path.suffix}")


def secret_file(path: Path) -> Path:
    """Return the path of the secret that encrypts the credentials in the database."""
    return path.with_name(f"{path.stem}.key")


def own_files(path: Path) -> list[Path]:
    """Return all files that belong to the database at this path, whether or not they exist."""
    return [*_with_journals(path), *_with_journals(steps_file(path)), secret_file(path)]


def make_private(path: Path) -> None:
    """Create the database file if there is none, and let only its owner use it, its journals and its secret.

    SQLite gives the journals that it makes the mode of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (*_with_journals(path), secret_file(path)):
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & _OTHERS:
                file.chmod(mode & ~_OTHERS)
        except OSError:
            continue  # it is not there, or another's: then it is theirs to protect


def read_secret(path: Path) -> bytes | None:
    """Return the secret of the database at this path; None if it has none."""
    try:
        text = secret_file(path).read_bytes()
    except FileNotFoundError:
        return None
    if len(text) != SECRET_BYTES:
        raise OSError(f"{secret_file(path)} is damaged")
    return text


def make_secret(path: Path) -> bytes:
    """Return the secret of the database at this path, made if it has none; of several processes one makes it."""
    if (known := read_secret(path)) is not None:
        return known
    file = secret_file(path)
    # Written under another name and then linked: a link fails if the file exists, and no process ever reads half of it.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as opened:
        opened.write(new_secret())
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    made = read_secret(path)
    assert made is not None  # this process or another has made it by now
    return made


def _with_journals(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in _BESIDE]
