"""Toolgate as it was at another commit, beside the one that is here: whether a change made anything slower."""

import os
import subprocess
import sys
from pathlib import Path

from bench.peers.peer import Missing, Start
from bench.peers.toolgate import Toolgate
from bench.processes import WORK

_START = "from toolgate.cli import main; main()"
_ROOT = Path(__file__).parents[2]


class Before(Toolgate):
    """The sources of that commit, in the environment of this one."""

    name = "before"
    title = "before"

    def __init__(self, commit: str) -> None:
        super().__init__()
        self.commit = commit
        self._sources = WORK / "before"

    def prepare(self) -> None:
        """Unpacks the sources; `Missing` if there is no such commit."""
        self._sources.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(["git", "archive", self.commit, "src"], cwd=_ROOT, capture_output=True)
        if packed.returncode:
            raise Missing(packed.stderr.decode().strip())
        subprocess.run(["tar", "-x", "--recursive-unlink", "-C", str(self._sources)], input=packed.stdout, check=True)

    def version(self) -> str:
        """The commit."""
        return self.commit

    def start(self, folder: Path, port: int, upstream: int) -> Start:
        """As ever, from those sources."""
        command = super().start(folder, port, upstream).command
        return Start([sys.executable, "-c", _START, *command[1:]], {"PYTHONPATH": os.fspath(self._sources / "src")})
