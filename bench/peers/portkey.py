"""Portkey's open-source gateway, under an npm prefix of its own; it has no keys of its own to check."""

import json
import shutil
import subprocess
from pathlib import Path

from bench.peers.peer import Missing, Start, Target
from bench.processes import WORK
from bench.shapes import PATHS, Route, Wire

HOME = WORK / "portkey"
PACKAGE = HOME / "node_modules" / "@portkey-ai" / "gateway"
# The gateway's streams fail with "TypeError: immutable" on a newer @hono/node-server than this (compare its issue 1389),
# which its own version range lets in.
MANIFEST = {
    "private": True,
    "dependencies": {"@portkey-ai/gateway": "*"},
    "overrides": {"@hono/node-server": "1.13.8"},
}
PROVIDERS: dict[Wire, str] = {"chat": "openai", "messages": "anthropic"}


class Portkey:
    """Headless, the provider and the upstream's address in headers, as its documentation shows."""

    name = "portkey"
    title = "Portkey"

    def prepare(self) -> None:
        """Installs the package, once."""
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise Missing("node and npm are not installed")
        if PACKAGE.exists():
            return
        HOME.mkdir(parents=True, exist_ok=True)
        (HOME / "package.json").write_text(json.dumps(MANIFEST))
        try:
            subprocess.run(["npm", "install", "--silent"], cwd=HOME, check=True, capture_output=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"npm could not install @portkey-ai/gateway ({type(error).__name__})") from error

    def version(self) -> str:
        """What its package.json says, and the Node it runs on."""
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        return f"{json.loads((PACKAGE / 'package.json').read_text())['version']} (Node {node})"

    def start(self, folder: Path, port: int, upstream: int) -> Start:
        """Everything travels in headers."""
        command = ["node", str(PACKAGE / "build" / "start-server.js"), f"--port={port}", "--headless"]
        return Start(command, {"NODE_ENV": "production"})

    def target(self, route: Route, model: str, upstream: int) -> Target | None:
        """All but the Anthropic API over a Chat upstream, which it refuses."""
        if route == Route("messages", "chat"):
            return None
        headers = {
            "authorization": "Bearer sk-upstream",
            "x-portkey-provider": PROVIDERS[route.upstream],
            "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
        }
        return Target(PATHS[route.client], headers, model)
