"""Build what runs background responses: durable with DBOS, or in this process where the storage is memory."""

from collections.abc import Callable
from pathlib import Path

from toolgate.api.responses import BackgroundResponseOptions, BackgroundServices, ConversationsAndBackground
from toolgate.change_notifications.notifier import ChangeNotifier
from toolgate.config import Config
from toolgate.runs.dbos_workflow_ids import stored_workflows
from toolgate.runs.executor import DurableRunExecutor, InProcessExecutor, LazyRunExecutor, RunExecutor
from toolgate.runs.node_liveness import is_gone, this_node
from toolgate.runs.scheduler import SchedulerOptions
from toolgate.runs.step_records import DurableStepLog
from toolgate.runs.timeline_recorder import RunTimelines
from toolgate.storage.database import Database
from toolgate.storage.responses import HistoryLimits, ResponseStore
from toolgate.storage.runs import RunStore
from toolgate.storage.sqlite_file_permissions import steps_file
from toolgate.telemetry.request_log import Telemetry


def make_state(
    config: Config,
    database: Database,
    store: ResponseStore,
    telemetry: Telemetry,
    notifier: ChangeNotifier,
    services: Callable[[], BackgroundServices],
    timelines: RunTimelines | None = None,
) -> ConversationsAndBackground:
    """Build the state of the Responses API; `services` returns those of the configuration in force."""
    responses, runs = config.responses, config.runs
    run_store = RunStore(database, this_node(), lease_seconds=runs.lease_seconds, is_gone=is_gone)
    return ConversationsAndBackground(
        database,
        store,
        telemetry,
        run_store,
        make_executor(config.storage.reveal(), database, run_store.node, telemetry),
        services,
        BackgroundResponseOptions(
            responses.background_per_caller,
            responses.stream_bytes,
            responses.stream_keep_seconds,
            asks_again=runs.ask_again,
        ),
        SchedulerOptions(runs.look_seconds, runs.crashes, responses.stream_keep_seconds),
        notifier,
        HistoryLimits(responses.past_bytes, responses.past_items),
        timelines,
    )


def make_executor(place: str, database: Database, node: str, telemetry: Telemetry) -> RunExecutor:
    """Build what executes runs for a storage at this URL: DBOS, or tasks where the storage is memory."""
    url = system_database(place)
    if url is None:  # nothing survives the process anyway
        return InProcessExecutor()

    def warn(what: str) -> None:
        telemetry.log.warning("runs", engine=what)

    return LazyRunExecutor(lambda: _dbos_executor(url, node, warn), lambda: stored_workflows(url, database))


async def prepare_runs(place: str, warn: Callable[[str], None]) -> None:
    """Create the missing tables in which DBOS stores its steps, for a storage at this URL."""

    async def run_nothing(id: str, steps: DurableStepLog) -> None:
        """Do nothing: the executor is opened for its tables alone."""

    url = system_database(place)
    if url is not None:
        executor = _dbos_executor(url, this_node(), warn)
        await executor.open(run_nothing)
        await executor.aclose()


def system_database(place: str) -> str | None:
    """Return the URL of the steps: a file beside the database, or a schema of its own in PostgreSQL; None for memory."""
    if not place.startswith("sqlite:"):
        return "postgresql:" + place.partition(":")[2]
    path = place.removeprefix("sqlite://").removeprefix("/")
    if not path:
        return None
    return f"sqlite:///{steps_file(Path(path))}"


def _dbos_executor(url: str, node: str, warn: Callable[[str], None]) -> DurableRunExecutor:
    from toolgate.runs.dbos_executor import DbosExecutor  # imports DBOS

    return DbosExecutor(url, node, warn)
