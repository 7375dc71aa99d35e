"""All records of a server behind one name: made once, told of each configuration, opened and closed with the server."""

from toolgate.config import Config
from toolgate.server.app import Endpoint
from toolgate.server.models.prices import price_table
from toolgate.server.records.chat_list import ChatList
from toolgate.server.records.chats import Chats
from toolgate.server.records.completions import Completions
from toolgate.server.records.invocations import ToolLog
from toolgate.server.records.sweeper import Sweeper
from toolgate.server.records.usage import Meter, UsageReport
from toolgate.server.records.writer import Writer
from toolgate.storage.chats import ChatStore
from toolgate.storage.database import Database
from toolgate.storage.invocations import InvocationStore
from toolgate.storage.retention import Retention
from toolgate.storage.usage import UsageStore
from toolgate.telemetry.traced import Traced


class Records:
    """Chats, runs of tools and usage."""

    def __init__(self, database: Database, traced: Traced) -> None:
        self.writer = Writer(database, traced)
        chats, usage = ChatStore(database), UsageStore(database)
        self.chats = Chats(chats, self.writer)
        self.tools = ToolLog(InvocationStore(database), self.writer, lambda text: traced.log.redact(text))
        self.sweeper = Sweeper(Retention(database), traced)
        self._meter = Meter(usage, self.writer)
        self._lists = (ChatList(chats, self.writer), Completions(chats), UsageReport(usage, self._meter, self.writer))
        traced.answered = self._meter.answered

    def renew(self, config: Config) -> None:
        """From now on this configuration holds."""
        self._meter.price_of = price_table(config)
        self.chats.kept = config.records.chats
        self.tools.keep_arguments = config.records.arguments
        self.sweeper.days = config.records.days

    def endpoints(self) -> list[Endpoint]:
        """The paths at which records are read and deleted."""
        lists = [endpoint for one in self._lists for endpoint in one.endpoints()]
        return [*lists, *self.tools.endpoints()]

    async def aclose(self) -> None:
        """Write down what is not yet."""
        await self.sweeper.aclose()
        self._meter.flush()
        await self.writer.aclose()
