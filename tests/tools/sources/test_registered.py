"""Registrations as a source of tools."""

import asyncio

import msgspec

from tests.tools.fakes import FakeSource, FakeTool
from toolgate.storage.database import Database
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.sources.registered import RegisteredToolSource, ToolRegistration
from toolgate.tools.tool import ServerToolDefinition


class ConnectingFakeSource(FakeSource):
    """Brings its tool once it is told to go on."""

    def __init__(self) -> None:
        super().__init__("mcp/far", problem="It is being connected to.")
        self.go_on = asyncio.Event()

    async def settled(self) -> None:
        await self.go_on.wait()
        self.bring(FakeTool(ServerToolDefinition(name="far_hi", description="Hi.", source=self.name)))


async def test_a_registered_server_that_is_still_connecting_after_a_restart_is_waited_for() -> None:
    """A client of `/mcp` that listed the tools right after a restart never got those of registered servers."""
    database, server = Database(None), ConnectingFakeSource()
    store = RegisteredSourceStore(database)
    registration = ToolRegistration(type="mcp", name="far", url="http://far.example/mcp")
    await store.save("far", msgspec.json.encode(registration))
    registry = ToolRegistry([RegisteredToolSource(store, lambda _: server)])
    await registry.open()
    settled = asyncio.ensure_future(registry.settled())
    await asyncio.sleep(0)
    assert not settled.done()
    server.go_on.set()
    await settled
    assert [tool.spec.name for tool in registry.tools()] == ["far_hi"]
    await registry.aclose()
    await database.aclose()
