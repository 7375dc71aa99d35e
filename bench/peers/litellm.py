"""LiteLLM's proxy, in a virtual environment of its own; one worker, no database, no telemetry, a master key."""

import json
import subprocess
import sys
from pathlib import Path

from bench.peers.peer import Missing, Start, Target
from bench.processes import WORK
from bench.shapes import MODELS, PATHS, Route

HOME = WORK / "litellm"
KEY = "sk-bench"


class LiteLLM:
    """Configured as its production notes advise: errors alone are logged, nothing is fetched at start."""

    name = "litellm"
    title = "LiteLLM"

    def prepare(self) -> None:
        """Makes the environment and installs `litellm[proxy]`, once."""
        if (HOME / "bin" / "litellm").exists():
            return
        pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "--quiet", "litellm[proxy]"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True, capture_output=True)
            subprocess.run(pip, check=True, capture_output=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"pip could not install litellm[proxy] ({type(error).__name__})") from error

    def version(self) -> str:
        """The installed distribution's version."""
        ask = "from importlib.metadata import version; print(version('litellm'))"
        return subprocess.run(
            [str(HOME / "bin/python"), "-c", ask], capture_output=True, text=True, check=True
        ).stdout.strip()

    def start(self, folder: Path, port: int, upstream: int) -> Start:
        """Writes the model table and a logging configuration that leaves the access log out."""
        folder.mkdir(parents=True, exist_ok=True)
        config, logging = folder / "config.yaml", folder / "logging.json"
        config.write_text(json.dumps(_config(upstream)))
        quiet = {"uvicorn": {"level": "ERROR"}, "uvicorn.access": {"level": "ERROR"}}
        logging.write_text(json.dumps({"version": 1, "disable_existing_loggers": False, "loggers": quiet}))
        command = [str(HOME / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
        return Start([*command, "--num_workers", "1", "--telemetry", "False", "--log_config", str(logging)], env)

    def target(self, route: Route, model: str, upstream: int) -> Target | None:
        """Every route, by the model's name."""
        return Target(PATHS[route.client], {"authorization": f"Bearer {KEY}"}, f"{route.upstream}-{model}")


def _config(upstream: int) -> dict[str, object]:
    root = f"http://127.0.0.1:{upstream}"
    table = []
    for model in MODELS:
        chat = {"model": f"openai/{model}", "api_base": f"{root}/v1", "api_key": "sk-upstream"}
        messages = {"model": f"anthropic/{model}", "api_base": root, "api_key": "sk-upstream"}
        table.append({"model_name": f"chat-{model}", "litellm_params": chat})
        table.append({"model_name": f"messages-{model}", "litellm_params": messages})
    # Without the switch an Anthropic client's request would go to the upstream's Responses API.
    settings = {"telemetry": False, "use_chat_completions_url_for_anthropic_messages": True}
    return {"model_list": table, "general_settings": {"master_key": KEY}, "litellm_settings": settings}
