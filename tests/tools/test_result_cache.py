"""Outputs are cached for the next call with the same arguments."""

from tests.tools.fakes import FakeTool
from toolgate.conversation.message import Text
from toolgate.tools.result_cache import MAX_BYTES, ResultCache
from toolgate.tools.runner import new_invocation
from toolgate.tools.tool import ServerToolDefinition, ToolOutput

SPEC = ServerToolDefinition(name="t", description="T.", source="python", cache_seconds=3600.0)
TOOL = FakeTool(SPEC)


def test_outputs_are_kept_by_their_size_and_not_by_their_number_alone() -> None:
    cache = ResultCache()
    asked = [new_invocation(f"c{number}", "{}", "ann", arguments={"n": number}) for number in range(100)]
    for one in asked:
        cache.put(TOOL, one, ToolOutput((Text("x" * 1_000_000),)))
    kept = [cache.get(TOOL, one) for one in asked]
    assert kept[0] is None
    assert kept[-1] is not None
    assert 1_000_000 * sum(one is not None for one in kept) <= MAX_BYTES


def test_an_output_that_is_too_large_is_not_kept() -> None:
    cache = ResultCache()
    asked = new_invocation("c", "{}", "ann")
    cache.put(TOOL, asked, ToolOutput((), structured={"x": "y" * 2_000_000}))
    assert cache.get(TOOL, asked) is None


def test_a_tool_that_replaces_another_gets_none_of_its_outputs() -> None:
    """A registration that was deleted and made again with another URL answered from the old one for up to a day."""
    cache = ResultCache()
    asked = new_invocation("c", "{}", "ann")
    cache.put(TOOL, asked, ToolOutput((Text("old"),)))
    replacement = FakeTool(SPEC)
    assert cache.get(replacement, asked) is None
    cache.put(replacement, asked, ToolOutput((Text("new"),)))
    assert cache.get(replacement, asked) == ToolOutput((Text("new"),))
    assert cache.get(TOOL, asked) is None
