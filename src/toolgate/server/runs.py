"""Runs as this server carries them out: durable where its storage is, on the engine that suits it."""

from collections.abc import Callable
from pathlib import Path

from toolgate.config import Config
from toolgate.runs.execution import Deferred, Execution, InProcess
from toolgate.runs.host import Runs, Terms
from toolgate.runs.nodes import is_gone, this_node
from toolgate.runs.steps import Steps
from toolgate.server.fanout import Fanout
from toolgate.server.responses import State
from toolgate.server.responses import Terms as ResponseTerms
from toolgate.storage.database import Database
from toolgate.storage.files import steps_file
from toolgate.storage.responses import PastLimits, ResponseStore
from toolgate.storage.runs import RunStore
from toolgate.telemetry.traced import Traced


def make_state(config: Config, database: Database, store: ResponseStore, traced: Traced, fanout: Fanout) -> State:
    """What the Responses API has under way, as the configuration wants it."""
    kept, how = config.responses, config.runs
    runs_terms = Terms(how.look_seconds, how.crashes, kept.stream_keep_seconds)
    runs = make_runs(config.storage.reveal(), database, traced, runs_terms, how.lease_seconds)
    terms = ResponseTerms(
        kept.background_per_caller, kept.stream_bytes, kept.stream_keep_seconds, asks_again=how.ask_again
    )
    return State(database, store, traced, runs, terms, fanout, PastLimits(kept.past_bytes, kept.past_items))


def make_runs(
    place: str, database: Database, traced: Traced, terms: Terms | None = None, lease_seconds: float = 6.0
) -> Runs:
    """The runs of a server whose storage is at this URL."""

    def complain(what: str) -> None:
        traced.log.error("runs", problem=what)

    def warn(what: str) -> None:
        traced.log.warning("runs", engine=what)

    store = RunStore(database, this_node(), lease_seconds=lease_seconds, is_gone=is_gone)
    url = system_database(place)
    execution: Execution = InProcess() if url is None else Deferred(lambda: _workflows(url, store.node, warn))
    return Runs(store, execution, terms or Terms(), complain)


async def prepare_runs(place: str, warn: Callable[[str], None]) -> None:
    """Make the tables in which the engine of a storage at this URL keeps its steps, where they are missing."""
    url = system_database(place)
    if url is not None:
        workflows = _workflows(url, this_node(), warn)
        await workflows.open(_nothing)
        await workflows.aclose()


async def _nothing(id: str, steps: Steps) -> None:
    """The work of no run."""


def system_database(place: str) -> str | None:
    """Where the engine keeps its steps: a file beside ours, or a schema of its own in our PostgreSQL; None for memory."""
    if not place.startswith("sqlite:"):
        return "postgresql:" + place.partition(":")[2]
    path = place.removeprefix("sqlite://").removeprefix("/")
    if not path:
        return None
    return f"sqlite:///{steps_file(Path(path))}"


def _workflows(url: str, node: str, warn: Callable[[str], None]) -> Execution:
    from toolgate.runs.workflows import Workflows  # imports DBOS

    return Workflows(url, node, warn)
