"""Hold what the Responses API shares between requests and configurations: conversations and background responses."""

from collections.abc import Callable

from toolgate.api.responses.background import BackgroundResponses, topic
from toolgate.api.responses.background_run import (
    BackgroundResponseOptions,
    BackgroundRunHandler,
    BackgroundServices,
    LiveResponses,
)
from toolgate.api.responses.conversation_locks import ProcessConversationLocks
from toolgate.change_notifications.notifier import ChangeNotifier, LocalChangeNotifier
from toolgate.runs.executor import RunExecutor
from toolgate.runs.node_liveness import is_gone
from toolgate.runs.scheduler import LeasedRunScheduler, SchedulerOptions
from toolgate.runs.timeline_recorder import RunTimelines
from toolgate.storage.conversation_locks import ConversationLocks
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.database import Database
from toolgate.storage.responses import HistoryLimits, ResponseStore
from toolgate.storage.runs import RunStore
from toolgate.storage.streams import StreamStore
from toolgate.telemetry.request_log import Telemetry


class ConversationsAndBackground:
    """The conversations, their locks, and the background responses with the runs that make them."""

    def __init__(
        self,
        database: Database,
        store: ResponseStore,
        telemetry: Telemetry,
        runs: RunStore,
        executor: RunExecutor,
        services: Callable[[], BackgroundServices],
        options: BackgroundResponseOptions = BackgroundResponseOptions(),  # noqa: B008  # an immutable value
        scheduler_options: SchedulerOptions = SchedulerOptions(),  # noqa: B008  # an immutable value
        notifier: ChangeNotifier | None = None,
        past_limits: HistoryLimits = HistoryLimits(),  # noqa: B008  # an immutable value
        timelines: RunTimelines | None = None,
    ) -> None:
        """`services` returns those of the configuration in force whenever a background response is made.

        `timelines` show runs to people.
        """
        self.timelines = timelines
        self.past_limits = past_limits
        locks = ConversationLocks(database, node=runs.node, is_gone=is_gone)
        self.conversations = ConversationStore(database, locks)
        self._active = ProcessConversationLocks(locks)
        streams = StreamStore(database, keep_seconds=options.stream_keep_seconds)
        live, changes = LiveResponses(), notifier or LocalChangeNotifier()
        handler = BackgroundRunHandler(
            store,
            streams,
            runs,
            self.conversations,
            self._active,
            live,
            services,
            telemetry,
            options,
            announce=lambda response: changes.publish(topic(response)),
            timelines=timelines,
        )
        scheduler = LeasedRunScheduler(
            runs,
            executor,
            handler,
            scheduler_options,
            report=lambda problem: telemetry.log.error("runs", problem=problem),
            on_resume=lambda run: telemetry.log.info("run resumed", run=run),
        )
        self.background = BackgroundResponses(store, streams, scheduler, live, options, changes)

    def open(self) -> None:
        """Start or resume the runs that an earlier process left, and watch all runs from now on."""
        self.background.scheduler.open()

    async def lock_conversation(self, owner: str, conversation: str) -> Callable[[], None]:
        """Lock a conversation for one response, and return what unlocks it; Conflict if it is locked.

        A conversation of another owner is not locked: the request is refused when its items are read.
        """
        if await self.conversations.load(owner, conversation) is None:
            return lambda: None
        return await self._active.lock(conversation)

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for background responses, then leave them to another node or the next start."""
        await self.background.aclose(seconds)  # first: it still unlocks conversations
        await self._active.aclose()
