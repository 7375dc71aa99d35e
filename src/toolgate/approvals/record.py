"""Approvals and grants as values, and the states that an approval goes through.

    pending ──► approved ──► consumed
       ├──────► denied          approved ──► expired, out_of_scope
       ├──────► expired
       └──────► out_of_scope

A state is left once and only along an arrow. Values only: the store keeps them.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

State: TypeAlias = Literal["pending", "approved", "denied", "expired", "consumed", "out_of_scope"]
Level: TypeAlias = Literal["once", "session", "workspace", "always"]
# The order of a list: by creation; or `fair`, where callers take turns and the oldest of each comes first.
Order: TypeAlias = Literal["asc", "desc", "fair"]

NEXT: Mapping[State, frozenset[State]] = {
    "pending": frozenset({"approved", "denied", "expired", "out_of_scope"}),
    "approved": frozenset({"consumed", "expired", "out_of_scope"}),
    "denied": frozenset(),
    "expired": frozenset(),
    "consumed": frozenset(),
    "out_of_scope": frozenset(),
}


class Approval(Struct, frozen=True, kw_only=True):
    """One call that needs a person's decision, and the decision.

    `arguments` is the exact text of the call. `digest` binds caller, tool, arguments, definition (`spec`) and `policy`.
    `edited` are the arguments to run with instead. `told` is the run that received a denial and for which it counts.
    """

    id: str
    caller: str
    session: str
    run: str
    call: str
    tool: str
    source: str
    origin: str | None
    arguments: str
    digest: str
    spec: str
    policy: str
    why: str
    created: float
    expires: float
    title: str | None = None
    question: str | None = None
    message: str | None = None
    tainted: bool = False
    state: State = "pending"
    answered_by: str | None = None
    answered: float | None = None
    level: Level | None = None
    reason: str | None = None
    edited: str | None = None
    edited_digest: str | None = None
    told: str | None = None


class StandingApproval(Struct, frozen=True, kw_only=True):
    """Approval of every call of one tool by one caller, as long as the tool's definition stays the same.

    `place` is the session or the workspace it is good in, and empty for `always`.
    """

    id: str
    caller: str
    tool: str
    source: str
    spec: str
    level: Level
    place: str
    granted_by: str
    created: float
