"""Tools are found by what they do (spec: R7, N6)."""

import pytest

from tests.tools.fakes import many, tool
from tests.tools.test_registry import quickest
from toolgate.tools.tool_search_index import ToolSearchIndex

TOOLS = [
    tool("list_pull_requests", "mcp/git", "Lists the open pull requests of a repository.", tags=("vcs",)),
    tool("merge_branch", "mcp/git", "Merges one branch into another.", tags=("vcs",)),
    tool("sendEmail", "mcp/mail", "Sends a message to a person."),
    tool("read_inbox", "mcp/mail", "Reads the newest messages of the inbox, email by email."),
    tool("get_weather", "http/weather", "Tells the forecast for a city.", display_name="Weather forecast"),
    tool("x1", "mcp/odd", "Übersetzt Texte ins Französische.", origin="translate_text"),
]
SEARCH = ToolSearchIndex([tool.spec for tool in TOOLS])


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("pull request", "list_pull_requests"),
        ("repo", "list_pull_requests"),
        ("send an email", "sendEmail"),
        ("emails", "sendEmail"),
        ("what is the weather in Paris?", "get_weather"),
        ("sendEmail", "sendEmail"),
        ("INBOX", "read_inbox"),
        ("translate", "x1"),
        ("französisch", "x1"),
        ("branches", "merge_branch"),
        ("merging", "merge_branch"),
    ],
)
def test_the_tool_that_is_meant_comes_first(query: str, best: str) -> None:
    assert SEARCH.best(query)[0] == best


def test_tags_are_searched_and_equals_stand_in_the_order_of_the_tools() -> None:
    assert SEARCH.best("vcs", count=1) in [("list_pull_requests",), ("merge_branch",)]
    alike = ToolSearchIndex([tool(name, description="The same.").spec for name in ("aa_x", "ab_x", "ac_x")])
    assert alike.best("same") == ("aa_x", "ab_x", "ac_x")


def test_only_those_among_whom_one_may_choose_are_found() -> None:
    assert SEARCH.best("email", among={"read_inbox", "get_weather"}) == ("read_inbox",)


@pytest.mark.parametrize("query", ["", "  ", "the of and", "zzz", "?!*", "q" * 100_000])
def test_words_that_no_tool_has_find_nothing(query: str) -> None:
    assert SEARCH.best(query) == ()


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    specs = [tool(f"file_{number}", description="Works on a file.").spec for number in range(50)]
    search = ToolSearchIndex([*specs, tool("odd", description="Works on a quark.").spec])
    assert search.best("quark file")[0] == "odd"


def test_nothing_is_found_among_nothing() -> None:
    assert ToolSearchIndex([]).best("anything") == ()


def test_five_thousand_tools_are_searched_in_no_time() -> None:
    """spec: N6"""
    search = ToolSearchIndex([tool.spec for tool in many(5000)])
    assert len(search.best("create a ticket for the user", count=10)) == 10
    assert quickest(lambda: search.best("create a ticket for the user")) < 0.020
