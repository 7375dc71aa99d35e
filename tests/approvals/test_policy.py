"""Decisions of the approval policy about tools and calls (spec: A1)."""

import pytest

from tests.approvals.builders import BROWSES, READS, call, tool
from toolgate.approvals import ApprovalPolicy, ApprovalRule
from toolgate.tools.tool import Annotations, CallPreview, ServerToolDefinition, Stance

FETCH = tool("fetch", annotations=BROWSES)


@pytest.mark.parametrize(
    ("spec", "stance"),
    [
        (tool(), "ask"),
        (tool(annotations=Annotations(destructive=False, open_world=False)), "ask"),
        (tool(annotations=Annotations(idempotent=True)), "ask"),
        (tool(annotations=BROWSES), "ask"),
        (tool(annotations=READS), "allow"),
        (tool(annotations=READS, source="mcp/files"), "allow"),
        (tool(annotations=READS, source="api"), "ask"),
        (tool(annotations=READS, approval="deny"), "deny"),
        (tool(approval="allow"), "ask"),
    ],
)
def test_tools_without_annotations_need_approval(spec: ServerToolDefinition, stance: Stance) -> None:
    assert ApprovalPolicy().stance(spec, "ann") == stance
    assert ApprovalPolicy().decide(call(spec)).stance == stance


def test_the_first_rule_that_fits_decides() -> None:
    policy = ApprovalPolicy(
        rules=(
            ApprovalRule(stance="deny", tools=("delete_*",), callers=("guest*",)),
            ApprovalRule(stance="allow", tools=("delete_*", "move"), sources=("python",)),
            ApprovalRule(stance="deny", sources=("mcp/*",), tags=("danger", "net*")),
            ApprovalRule(stance="ask", sources=("mcp/*",)),
        ),
        default="deny",
    )
    assert policy.stance(tool(), "guest1") == "deny"
    assert policy.stance(tool(), "ann") == "allow"
    assert policy.stance(tool("move"), "guest1") == "allow"
    assert policy.stance(tool(source="mcp/x", tags=("a", "network")), "ann") == "deny"
    assert policy.stance(tool(source="mcp/x", tags=("a",)), "ann") == "ask"
    assert policy.stance(tool("other"), "ann") == "deny"
    assert policy.decide(call(tool(source="mcp/x"))).why == "rule 4 of the policy says ask"


def test_annotations_of_sources_that_are_not_trusted_count_for_nothing() -> None:
    policy = ApprovalPolicy(trusted=("builtin",), auto_approve_urls=("https://good.io",))
    assert policy.stance(tool(annotations=READS), "ann") == "ask"
    assert policy.decide(call(FETCH, {"url": "https://good.io/"})).stance == "ask"
    assert ApprovalPolicy(trusted=()).stance(tool(annotations=READS), "ann") == "ask"


def test_wishes_make_it_stricter_and_never_laxer() -> None:
    allows = ApprovalPolicy(rules=(ApprovalRule(stance="allow"),))
    asks = CallPreview(title="Sure?")
    assert allows.decide(call()).stance == "allow"
    assert allows.decide(call(preparation=asks)).stance == "ask"
    assert allows.decide(call(tool(approval="ask"))).stance == "ask"
    assert allows.decide(call(stance="ask")).stance == "ask"
    assert allows.decide(call(stance="deny")).stance == "deny"
    denies = ApprovalPolicy(rules=(ApprovalRule(stance="deny"),), auto_approve=True)
    assert denies.decide(call(tool(approval="allow"), stance="allow", preparation=asks)).stance == "deny"
    assert denies.stance(tool(approval="allow"), "ann") == "deny"


def test_approving_everything_stops_at_tools_never_approved_and_at_demands() -> None:
    policy = ApprovalPolicy(auto_approve=True, never_auto=("pay*",))
    assert policy.stance(tool(), "ann") == "allow"
    assert policy.decide(call(preparation=CallPreview(question="?"))).stance == "allow"
    for asked in (call(stance="ask"), call(tool("pay")), call(tool("pay", annotations=READS))):
        ruling = policy.decide(asked)
        assert (ruling.stance, ruling.fresh) == ("ask", True)
    assert policy.stance(tool("pay", annotations=READS), "ann") == "ask"


def test_an_address_is_approved_only_for_tools_that_do_no_harm_there() -> None:
    policy = ApprovalPolicy(auto_approve_urls=("https://good.io",))
    here = {"url": "https://good.io/page"}
    assert policy.decide(call(FETCH, here)).stance == "allow"
    assert policy.decide(call(FETCH, here, preparation=CallPreview(title="Fetch?"))).stance == "allow"
    assert policy.decide(call(FETCH, {"url": "https://good.io.evil.com/"})).stance == "ask"
    assert policy.decide(call(tool("upload"), here)).stance == "ask"
    assert policy.decide(call(FETCH, here, stance="ask")).stance == "ask"


def test_patterns_read_the_text_that_the_call_was_made_with() -> None:
    """A key that stands twice is read differently by different readers (fault: A6)."""
    policy = ApprovalPolicy(auto_approve_urls=("https://good.io",), auto_approve_commands=(("ls",),))
    text = '{"url":"https://evil.com/","url":"https://good.io/"}'
    assert policy.decide(call(FETCH, {"url": "https://good.io/"}, text=text)).stance == "ask"
    assert policy.decide(call(tool("run"), {"command": ["ls", "-l"]})).stance == "allow"
    assert policy.decide(call(tool("run"), {"command": "ls -l"})).stance == "ask"


def test_a_policy_with_a_bad_pattern_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no URL pattern"):
        ApprovalPolicy(auto_approve_urls=("https://*",))
    with pytest.raises(ValueError, match="runs whatever"):
        ApprovalPolicy(auto_approve_commands=(("bash",),))


def test_the_version_changes_with_anything_in_the_policy() -> None:
    policies = [
        ApprovalPolicy(),
        ApprovalPolicy(default="deny"),
        ApprovalPolicy(rules=(ApprovalRule(stance="deny", tools=("a",)),)),
        ApprovalPolicy(rules=(ApprovalRule(stance="deny", tools=("b",)),)),
        ApprovalPolicy(rules=(ApprovalRule(stance="deny", sources=("a",)),)),
        ApprovalPolicy(read_only="ask"),
        ApprovalPolicy(open_world="allow"),
        ApprovalPolicy(trusted=()),
        ApprovalPolicy(never_auto=("a",)),
        ApprovalPolicy(auto_approve=True),
        ApprovalPolicy(auto_approve_urls=("https://a.io",)),
        ApprovalPolicy(auto_approve_commands=(("ls",),)),
        ApprovalPolicy(self_approval=False),
    ]
    assert len({policy.version for policy in policies}) == len(policies)
    assert ApprovalPolicy().version == ApprovalPolicy().version


def test_a_policy_cannot_be_changed() -> None:
    """(fault: A5)"""
    with pytest.raises(AttributeError):
        ApprovalPolicy().auto_approve = True  # type: ignore[misc]  # that is the point
