"""The registry of tools: names, order, problems, changes and scale (spec: R1, R3, N6)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.tools.fakes import FakeSource, many, source, tool
from toolgate.conversation.message import Text
from toolgate.tools.registry import LONGEST_NAME, ToolRegistry
from toolgate.tools.tool import OnChange, ToolCallInput, ToolSource

CALL = ToolCallInput("call_1", {}, "{}")


@asynccontextmanager
async def opened(*sources: ToolSource) -> AsyncIterator[ToolRegistry]:
    registry = ToolRegistry(sources, quiet_seconds=0)
    await registry.open()
    try:
        yield registry
    finally:
        await registry.aclose()


def names(registry: ToolRegistry) -> list[str]:
    return [tool.spec.name for tool in registry.tools()]


async def test_tools_stand_in_the_order_of_their_sources_and_then_of_their_names() -> None:
    async with opened(source("python", "zebra", "apple"), source("builtin", "clock")) as registry:
        assert names(registry) == ["apple", "zebra", "clock"]
        assert registry.sources == ("python", "builtin")


async def test_tools_are_found_by_any_of_several_tags_and_by_a_pattern() -> None:
    brought = [tool("get_a", tags=("web",)), tool("get_b", tags=("files", "slow")), tool("put_a", tags=("web",))]
    async with opened(FakeSource("python", brought)) as registry:
        assert [one.spec.name for one in registry.find(tags=["web", "slow"])] == ["get_a", "get_b", "put_a"]
        assert [one.spec.name for one in registry.find(tags=["web"], name="get_*")] == ["get_a"]
        assert [one.spec.name for one in registry.find(name="put_a")] == ["put_a"]
        assert registry.find(tags=["none"]) == ()


async def test_a_private_tool_is_had_by_name_and_never_listed() -> None:
    """spec: R5"""
    async with opened(FakeSource("python", [tool("secret", private=True), tool("open")])) as registry:
        assert names(registry) == ["open"]
        assert registry.find(name="*") == registry.tools()
        assert registry.get("secret") is not None
        assert registry.referenced("secret") == ()
        assert registry.get("nothing") is None


class TestNames:
    @pytest.mark.parametrize(
        ("source_name", "name", "known_as"),
        [
            ("http/git", "git_hub_search", "http_git__git_hub_search"),
            ("http/git", "git_search", "git_search"),
            ("http/git_hub", "git_hub_search", "git_hub_search"),
            ("http/other", "git_hub_search", "http_other__git_hub_search"),
            ("api", "git_hub_search", "api__git_hub_search"),
            ("api", "search", "search"),
            ("python", "git_hub_search", "git_hub_search"),
        ],
    )
    async def test_a_name_that_begins_as_another_sources_names_is_namespaced(
        self, source_name: str, name: str, known_as: str
    ) -> None:
        prefixes = {"http/git": "git_", "mcp/git_hub": "git_hub_"}
        registry = ToolRegistry([source(source_name, name)], quiet_seconds=0, prefixes=prefixes)
        if source_name == "http/git_hub":
            registry = ToolRegistry([source(source_name, name)], prefixes={**prefixes, source_name: "git_hub_"})
        await registry.open()
        assert names(registry) == [known_as]
        assert [tool_problem.tool for tool_problem in registry.problems()] == ([known_as] if known_as != name else [])
        await registry.aclose()

    async def test_a_taken_name_is_namespaced_and_its_owner_is_not_shadowed(self) -> None:
        """fault: T7"""
        async with opened(source("mcp/mail", "send"), source("mcp/evil", "send")) as registry:
            assert names(registry) == ["send", "mcp_evil__send"]
            renamed = registry.get("mcp_evil__send")
            assert renamed is not None
            assert (renamed.spec.origin, renamed.spec.source) == ("send", "mcp/evil")
            assert (await renamed.invoke(CALL)).content == (Text("mcp/evil send ran"),)
            assert (await renamed.prepare(CALL)).message == "about to run send"
            [tool_problem] = registry.problems()
            assert (tool_problem.source, tool_problem.tool) == ("mcp/evil", "mcp_evil__send")

    async def test_no_other_tool_gets_a_name_while_its_source_has_a_problem(self) -> None:
        """fault: T7; field: E15"""
        mail, evil = source("mcp/mail", "send"), source("mcp/evil")
        async with opened(mail, evil) as registry:
            mail.bring(problem="The connection was lost.")
            evil.bring(tool("send", "mcp/evil"))
            assert names(registry) == ["mcp_evil__send"]
            mail.bring(tool("send", "mcp/mail"))
            assert names(registry) == ["send", "mcp_evil__send"]

    async def test_a_name_once_given_is_kept_when_the_other_one_leaves_for_good(self) -> None:
        """field: E15"""
        first, second = source("mcp/a", "send"), source("mcp/b", "send")
        async with opened(first, second) as registry:
            first.bring()
            assert names(registry) == ["mcp_b__send"]
            second.bring()
            second.bring(tool("send", "mcp/b"))
            assert names(registry) == ["mcp_b__send"]  # nobody had looked in between

    async def test_the_tool_that_comes_first_keeps_the_name_though_its_source_is_listed_later(self) -> None:
        slow, quick = source("mcp/slow"), source("python", "send")
        async with opened(slow, quick) as registry:
            slow.bring(tool("send", "mcp/slow"))
            assert names(registry) == ["mcp_slow__send", "send"]

    async def test_a_name_that_grows_too_long_is_cut_and_stays_unique(self) -> None:
        long = "x" * LONGEST_NAME
        async with opened(source("mcp/a", long), source("mcp/b", long), source("mcp/c", long)) as registry:
            assert len(set(names(registry))) == 3
            assert all(len(name) <= LONGEST_NAME for name in names(registry))

    async def test_a_source_that_brings_a_name_twice_keeps_one_of_them(self) -> None:
        async with opened(source("python", "a", "a", "b")) as registry:
            assert names(registry) == ["a", "b"]
            assert [tool_problem.tool for tool_problem in registry.problems()] == ["a"]


@pytest.mark.parametrize(
    ("name", "fields", "word"),
    [
        ("a" * 65, {}, "letters"),
        ("naïve", {}, "letters"),
        ("two words", {}, "letters"),
        ("", {}, "letters"),
        ("a", {"input_schema": {"type": "array"}}, "schema must describe an object"),
        ("a", {"input_schema": {"type": "object", "properties": {"x": {"type": "strange"}}}}, "not valid JSON Schema"),
        ("a", {"when": "x ==="}, "column 6"),
    ],
)
async def test_an_unusable_definition_is_left_out_and_reported(name: str, fields: dict[str, Any], word: str) -> None:
    """fault: L1"""
    async with opened(FakeSource("python", [tool(name, **fields), tool("good")])) as registry:
        assert names(registry) == ["good"]
        [tool_problem] = registry.problems()
        assert word in tool_problem.message
        assert tool_problem.tool == name[:64]


class TestTroubles:
    async def test_a_source_with_a_problem_does_not_affect_the_tools_of_others(self) -> None:
        """field: E32"""

        class Broken(FakeSource):
            async def open(self, on_change: OnChange) -> None:
                raise ConnectionError("401 from the server")

            async def aclose(self) -> None:
                raise RuntimeError("was never open")

        away = FakeSource("mcp/away", problem="Not logged in.")
        good = source("python", "a")
        async with opened(Broken("mcp/broken"), away, good) as registry:
            assert names(registry) == ["a"]
            assert [(one.source, one.message) for one in registry.problems()] == [
                ("mcp/broken", "It could not be opened: 401 from the server"),
                ("mcp/away", "Not logged in."),
            ]
        assert good.closed
        assert away.closed

    async def test_a_solved_problem_is_no_longer_reported(self) -> None:
        away = FakeSource("mcp/away", problem="Not logged in.")
        async with opened(away) as registry:
            away.bring(tool("a", "mcp/away"))
            assert names(registry) == ["a"]
            assert registry.problems() == ()


class TestChanges:
    async def test_subscribers_are_notified_once_of_many_changes_and_not_without_one(self) -> None:
        """fault: T7"""
        response: list[int] = []
        one = source("mcp/one", "a")
        async with opened(one) as registry:
            stop = registry.subscribe(lambda: response.append(len(registry.tools())))
            for number in range(1000):
                one.bring(*[tool(f"t{n}", "mcp/one") for n in range(number % 3)])
            await settled()
            assert response == [0]
            one.bring()
            await settled()
            assert response == [0]
            stop()
            one.bring(tool("a", "mcp/one"))
            await settled()
            assert response == [0]

    async def test_what_did_not_change_is_the_very_same_object_afterwards(self) -> None:
        one, two = source("mcp/one", "a"), source("mcp/two", "a")
        async with opened(one, two) as registry:
            before = registry.tools()
            assert registry.tools() is before
            one.bring(*one.tools, tool("b", "mcp/one"))
            after = registry.tools()
            assert [tool.spec.name for tool in after] == ["a", "b", "mcp_two__a"]
            assert after[0] is before[0]
            assert after[2] is before[1]

    async def test_a_changed_definition_is_checked_again(self) -> None:
        one = source("mcp/one", "a")
        async with opened(one) as registry:
            one.bring(tool("a", "mcp/one", input_schema={"type": "array"}))
            assert names(registry) == []
            assert len(registry.problems()) == 1


async def settled() -> None:
    """Let the loop do what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


def quickest(work: Callable[[], object], times: int = 10) -> float:
    """The least time it took: what a busy machine adds is not ours."""
    took = []
    for _ in range(times):
        started = time.process_time()
        work()
        took.append(time.process_time() - started)
    return min(took)


async def test_five_thousand_tools_are_listed_and_filtered_in_no_time() -> None:
    """spec: N6"""
    big = FakeSource("mcp/big", many(5000))
    async with opened(source("python", "a"), big) as registry:
        assert len(registry.tools()) == 5001
        assert quickest(registry.tools) < 0.010
        assert quickest(lambda: registry.find(tags=["file", "issue"])) < 0.010
        assert quickest(lambda: registry.find(name="big_read_*")) < 0.010
        assert quickest(lambda: registry.get("big_read_read_0000")) < 0.010
        assert quickest(registry.problems) < 0.010
