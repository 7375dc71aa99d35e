"""Decide whether a tool call may run, and hold it until a person has approved or denied it.

    policy.py             the configured policy: decides about a tool and about one call
    auto_approve.py       URL and command patterns of calls that need no approval
    record.py             approvals and grants as values, and the states of an approval
    digest.py             what an approval is bound to: exact arguments, the tool's definition, the policy
    decisions.py          new approvals, and what a person's decision makes of them
    store_protocol.py     the Protocol of the storage
    service.py            ApprovalService: decides, waits and takes decisions
    encode_for_people.py  approvals as JSON for people, with nothing hidden or disguised
    webhook.py            sends every new approval to a URL

Knows tools and values. It must not know databases or models, and of HTTP only the webhook's request.
"""

from toolgate.approvals.policy import ApprovalPolicy, ApprovalRule
from toolgate.approvals.record import Approval, StandingApproval
from toolgate.approvals.service import ApprovalLimits, ApprovalService

__all__ = ["Approval", "ApprovalLimits", "ApprovalPolicy", "ApprovalRule", "ApprovalService", "StandingApproval"]
