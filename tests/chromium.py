"""A Chromium for tests that needs neither root nor anything of the system: the one of the npm package @sparticuz/chromium.

It is unpacked once beside the package, by the first process that asks for it. On processors for which the package has no
build, a Chromium of the system is used.
"""

import fcntl
import os
import platform
import shutil
from pathlib import Path

from tests.node import npm_ci, run_node

FOLDER = Path(__file__).parent / "console"
ARGUMENTS = ("--no-sandbox", "--headless=shell", "--disable-gpu", "--font-render-hinting=none")
_SYSTEM = ("chromium", "chromium-browser", "google-chrome")


def executable() -> Path:
    """The path of the browser's program."""
    if platform.machine() not in ("x86_64", "AMD64"):
        found = next(filter(None, map(shutil.which, _SYSTEM)), None)
        assert found, f"There is no Chromium for {platform.machine()} to install: install {_SYSTEM[0]} first."
        return Path(found)
    place = npm_ci(FOLDER) / ".chromium"
    with (FOLDER / ".npm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_suffix(".partial")
            shutil.rmtree(unfinished, ignore_errors=True)
            run_node("unpack.mjs", unfinished, cwd=FOLDER)
            unfinished.rename(place)
    return place / "chromium"


def environment(program: Path) -> dict[str, str]:
    """The environment in which the browser finds its libraries, and a font where the system has none."""
    changes = {"LD_LIBRARY_PATH": str(program.parent / "lib"), "HOME": str(program.parent)}
    if not Path("/etc/fonts/fonts.conf").exists():
        changes["FONTCONFIG_PATH"] = str(program.parent)
    return {**os.environ, **changes} if program.parent.name == ".chromium" else dict(os.environ)
