"""Help to start a server, alone or as one of several: its log, its storage, the banner and the garbage collector."""

import gc
import json
import shlex
import shutil
import sys
from importlib.util import find_spec

from toolgate.config import Config, short_key_warnings
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.storage.database import Database, SlowJobStats
from toolgate.storage.migrations import NewerSchema
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redaction import Redactor


def make_logger(config: Config) -> Logger:
    """Return the log of a configuration, which never shows its secrets: text at a terminal, else JSON."""
    form = config.log.format
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    return Logger(config.log.level, form, Redactor(config.secrets()))


def make_database(config: Config, log: Logger, metrics: Metrics) -> Database:
    """Return the database of a configuration, which connects when it is first used; slow jobs are logged and counted."""

    def observe(slow: SlowJobStats) -> None:
        metrics.count_slow_storage(slow.seconds)
        seconds, commit = round(slow.seconds, 2), round(slow.commit_seconds, 2)
        fields = {"jobs": list(slow.jobs), "seconds": seconds, "commit_seconds": commit, "waiting": slow.waiting}
        log.write("warning", "storage is slow", fields)

    return Database(config.storage.reveal(), connections=config.storage_pool, observe=observe)


async def open_storage(database: Database, log: Logger) -> str | None:
    """Upgrade the tables to the newest version; return why the server must not start, if they are of a newer one."""
    try:
        await database.open()
    except NewerSchema as error:
        log.error("storage", problem=error.message)
        return error.message
    # A database that is away does not keep a server from starting: most requests need none, and it is found again.
    except GatewayOverloaded as error:
        log.error("storage", problem=error.message, cause=str(error.__cause__ or ""))
    return None


def print_banner(url: str, config: Config) -> None:
    """Print one screen for the person who started the server; machines read the log."""
    names = [model.name for model in config.models]
    lines = [
        f"Toolgate serves {', '.join(names[:8])} on {url}",
        f"  OpenAI     {url}/v1        (chat/completions, responses)",
        f"  Anthropic  {url}           (v1/messages)",
        f"  Ollama     {url}           (api/chat)",
    ]
    model = "echo" if "echo" in names else config.default_model or names[0]  # echo needs no upstream
    choice = ""
    if config.embedded.enabled and any(config.is_local(model) for model in config.models):
        runs_here = find_spec("xllamacpp") is not None
        choice = "" if runs_here else f" --model {shlex.quote(model)}"
        lines.append(
            f"`local` is {config.embedded.model} on this machine, small and slow: it is made ready meanwhile."
            if runs_here
            else "`local` cannot answer: its runtime is not installed (pip install '.[embedded]' in the clone)."
        )
    key = ' -H "authorization: Bearer $TOOLGATE_KEY"' if config.keys else ""
    body = shlex.quote(json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}))
    lines += [
        f"Open {url}/console/ in a browser.",
        "Try this next:",
        f"  curl -s {url}/v1/chat/completions{key} -H 'content-type: application/json' -d {body}",
        f"  {'toolgate' if shutil.which('toolgate') else sys.argv[0]} chat --url {url}{choice}",
    ]
    lines += [f"Warning: {warning}" for warning in short_key_warnings(config)]
    sys.stderr.write("\n".join(lines) + "\n")


def tune_garbage_collector() -> None:
    """Exclude what lives as long as the server from garbage collection, and collect the rest less often."""
    gc.collect()  # first: `freeze` would keep garbage for ever
    gc.freeze()
    # A request frees what it made by counting references; only cancelled tasks leave cycles behind.
    gc.set_threshold(20_000, 20, 50)
