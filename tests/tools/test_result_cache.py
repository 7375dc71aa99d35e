"""Outputs are cached for the next call with the same arguments."""

from toolgate.conversation.message import Text
from toolgate.tools.result_cache import MAX_BYTES, ResultCache
from toolgate.tools.runner import new_invocation
from toolgate.tools.tool import ServerToolDefinition, ToolOutput

SPEC = ServerToolDefinition(name="t", description="T.", source="python", cache_seconds=3600.0)


def test_outputs_are_kept_by_their_size_and_not_by_their_number_alone() -> None:
    cache = ResultCache()
    asked = [new_invocation(f"c{number}", "{}", "ann", arguments={"n": number}) for number in range(100)]
    for one in asked:
        cache.put(SPEC, one, ToolOutput((Text("x" * 1_000_000),)))
    kept = [cache.get(SPEC, one) for one in asked]
    assert kept[0] is None
    assert kept[-1] is not None
    assert 1_000_000 * sum(one is not None for one in kept) <= MAX_BYTES


def test_an_output_that_is_too_large_is_not_kept() -> None:
    cache = ResultCache()
    asked = new_invocation("c", "{}", "ann")
    cache.put(SPEC, asked, ToolOutput((), structured={"x": "y" * 2_000_000}))
    assert cache.get(SPEC, asked) is None
