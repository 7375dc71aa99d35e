"""What a server says and does when it starts, alone or as one of several."""

import gc
import sys

from toolgate.config import Config
from toolgate.conversation.errors import Overloaded
from toolgate.storage.database import Database
from toolgate.storage.migrations import NewerSchema
from toolgate.telemetry.logs import Log, LogForm
from toolgate.telemetry.redact import Redactor


def log_of(config: Config) -> Log:
    """The log of this configuration, in which its secrets are never shown."""
    return Log(config.log.level, _log_form(config), Redactor(config.secrets()))


async def open_storage(database: Database, log: Log) -> str | None:
    """Bring the tables to their newest version; why the server must not start, if they are of a newer one.

    A database that is away does not keep a server from starting: most requests need none, and it is found again.
    """
    try:
        await database.open()
    except NewerSchema as error:
        log.error("storage", problem=error.message)
        return error.message
    except Overloaded as error:
        log.error("storage", problem=error.message, said=str(error.__cause__ or ""))
    return None


def announce(url: str, config: Config) -> None:
    """One screen for the person who started us; machines read the log."""
    models = ", ".join([model.name for model in config.models][:8])
    lines = [
        f"Toolgate serves {models} on {url}",
        f"  OpenAI     {url}/v1        (chat/completions, responses)",
        f"  Anthropic  {url}           (v1/messages)",
        f"  Ollama     {url}           (api/chat)",
    ]
    if config.embedded.enabled and any(config.is_local(model) for model in config.models):
        lines.append(f"`local` is {config.embedded.model} on this machine, small and slow: it is made ready meanwhile.")
    sys.stderr.write("\n".join(lines) + "\n")


def spare_the_collector() -> None:
    """What lives as long as the server is not searched for garbage again, and the rest less often.

    A request frees what it made by counting references; only broken-off tasks leave cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _log_form(config: Config) -> LogForm:
    """People at a terminal read text, machines read JSON."""
    if config.log.format == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return config.log.format
