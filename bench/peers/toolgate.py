"""Toolgate, as its users start it: the command line and a configuration file, authentication on."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers.peer import Missing, Start, Target
from bench.shapes import CALLING_MODELS, MODELS, PATHS, Route
from toolgate import __version__

KEY = "tg-bench-0123456789abcdef"
PROGRAM = Path(sys.executable).parent / "toolgate"


class Toolgate:
    """One key with the chat scope, two upstreams on the mock, one model row per scripted model and upstream."""

    name = "toolgate"
    title = "Toolgate"

    def __init__(self, services: Mapping[str, Mapping[str, Any]] | None = None, workers: int = 1) -> None:
        """`services` are OpenAPI documents by name, whose operations are server tools; the mock answers for them."""
        self.services = services or {}
        self.workers = workers

    def prepare(self) -> None:
        """Looks for the program beside the interpreter that runs the benchmark."""
        if not os.access(PROGRAM, os.X_OK):
            raise Missing(f"no `toolgate` beside {Path(sys.executable).name}; run `make bench`")

    def version(self) -> str:
        """The installed distribution's version."""
        return __version__

    def start(self, folder: Path, port: int, upstream: int) -> Start:
        """Writes the configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        settings = _config(upstream)
        # Of its own and by version: a database that a newer one has used is refused by an older.
        settings["storage"] = f"sqlite:///{folder / f'toolgate-{self.version()}.db'}"
        if self.services:
            for name, document in self.services.items():
                (folder / f"{name}.json").write_text(json.dumps(document))
            settings |= _tools(self.services, upstream)
        config = folder / "toolgate.yaml"
        config.write_text(json.dumps(settings, indent=1))
        command = [str(PROGRAM), "serve", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        return Start([*command, "--workers", str(self.workers)] if self.workers > 1 else command)

    def target(self, route: Route, model: str, upstream: int) -> Target | None:
        """Every route, by the model's name."""
        return Target(PATHS[route.client], {"authorization": f"Bearer {KEY}"}, f"{route.upstream}-{model}")


def _config(upstream: int) -> dict[str, object]:
    root = f"http://127.0.0.1:{upstream}"
    upstreams = {
        "chat": {"dialect": "openai_chat", "base_url": f"{root}/v1", "api_key": "sk-upstream"},
        "messages": {"dialect": "anthropic", "base_url": root, "api_key": "sk-upstream"},
    }
    models = [{"name": f"{name}-{model}", "upstream": name, "model": model} for name in upstreams for model in MODELS]
    models += [{"name": f"chat-{model}", "upstream": "chat", "model": model} for model in CALLING_MODELS]
    keys = [{"name": "bench", "key": KEY, "scopes": ["chat"]}]
    # The others' request logs are off, too.
    return {"keys": keys, "upstreams": upstreams, "models": models, "log": {"level": "warning"}}


def _tools(services: Mapping[str, object], upstream: int) -> dict[str, object]:
    root = f"http://127.0.0.1:{upstream}"
    http = {name: {"openapi": f"./{name}.json", "base_url": root} for name in services}
    # What is read from elsewhere is asked about by default, and nobody is here to answer.
    tools = {"http": http, "reach": ["127.0.0.1"], "approvals": {"open_world": "allow"}}
    keys = [{"name": "bench", "key": KEY, "scopes": ["chat", "tools"]}]
    return {"keys": keys, "tools": tools}
