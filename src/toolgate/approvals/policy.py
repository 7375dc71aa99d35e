"""Decide by the configuration whether a call runs, waits for a person or is denied.

`ApprovalPolicy.decide` is the only place where this is decided. A policy is one immutable value: what a tool, a model or a
request demands can make its decision stricter, never laxer. Its `version` changes with anything in it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256

import msgspec
from msgspec import Struct

from toolgate.approvals.auto_approve import (
    AutoApprovedUrlPattern,
    command_pattern,
    commands_match,
    url_pattern,
    urls_match,
)
from toolgate.approvals.digest import AmbiguousArguments, parse_arguments
from toolgate.tools.tool import ProposedCall, ServerToolDefinition, Stance

_STRICTNESS: Mapping[Stance, int] = {"allow": 0, "ask": 1, "deny": 2}
_AUTO_APPROVED = "the configuration approves it"
# Sources that the configuration names, whose operator vouches for their annotations; not those registered at run time.
TRUSTED = ("builtin", "python", "http/*", "mcp/*")
# Names all tools that are registered at run time, those of registered MCP servers included.
REGISTERED = "api"


class ApprovalRule(Struct, frozen=True, kw_only=True):
    """The stance for tools that match all patterns of the rule; an empty list of patterns matches everything."""

    stance: Stance
    tools: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()

    def matches(self, spec: ServerToolDefinition, caller: str) -> bool:
        """Whether the rule applies to calls of this tool by this caller."""
        return (
            _matches(self.tools, spec.name)
            and _matches(self.sources, spec.source)
            and _matches(self.callers, caller)
            and (not self.tags or any(_matches(self.tags, tag) for tag in spec.tags))
        )


class PolicyDecision(Struct, frozen=True):
    """The policy's decision about one call and its reason; a `fresh` approval cannot come from an earlier grant."""

    stance: Stance
    why: str
    fresh: bool = False


class ApprovalPolicy(Struct, frozen=True, kw_only=True, dict=True):
    """Which callers may call which tools, and which calls need a person's approval.

    The first of the `rules` that matches decides. Where none does, a tool that only reads and reaches nothing outside
    takes `read_only`, one that only reads takes `open_world`, all others `default`; the annotations of a tool count if
    `trusted` names its source. Every call of a tool that `never_auto` names needs an approval of its own.
    """

    rules: tuple[ApprovalRule, ...] = ()
    default: Stance = "ask"
    read_only: Stance = "allow"
    open_world: Stance = "ask"
    trusted: tuple[str, ...] = TRUSTED
    never_auto: tuple[str, ...] = ()
    auto_approve: bool = False
    auto_approve_urls: tuple[str, ...] = ()
    auto_approve_commands: tuple[tuple[str, ...], ...] = ()
    self_approval: bool = True

    def __post_init__(self) -> None:
        """Parse all patterns, so that a malformed one raises ValueError here."""
        _ = self._urls, self._commands

    @cached_property
    def version(self) -> str:
        """A digest of all fields."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()[:16]

    def decide(self, query: ProposedCall) -> PolicyDecision:
        """Decide about one call: run it, hold it for a person, or deny it."""
        decision = self._decide(query.spec, query.invocation.caller, query.stance, query.preparation.asks)
        # Patterns come last: they can answer for a person, but neither overrule a denial nor a demand to be asked.
        if decision.stance == "ask" and not decision.fresh and self._auto_approves(query):
            return PolicyDecision("allow", _AUTO_APPROVED)
        return decision

    def stance(self, spec: ServerToolDefinition, caller: str, requested: Stance | None = None) -> Stance:
        """Decide about a tool before a call of it is known; `ask` means that a call may be held for a person."""
        return self._decide(spec, caller, requested, tool_asks=False).stance

    def _decide(
        self, spec: ServerToolDefinition, caller: str, requested: Stance | None, tool_asks: bool
    ) -> PolicyDecision:
        """Decide as far as that is possible without the arguments of a call."""
        stance, why = self._by_rules(spec, caller)
        never_auto = self.is_never_auto(spec.name)
        demands: tuple[tuple[Stance | None, str], ...] = (
            (spec.approval, "the tool's author wants it so"),
            ("ask" if tool_asks else None, "the tool asks about this call"),
            ("ask" if never_auto else None, "every call of this tool is asked about"),
            (requested, "the request wants it so"),
        )
        # Only a stricter demand counts: neither a tool nor a request can loosen what the rules decide.
        for demand, reason in demands:
            if demand is not None and _STRICTNESS[demand] > _STRICTNESS[stance]:
                stance, why = demand, reason
        fresh = requested == "ask" or never_auto
        if stance == "ask" and self.auto_approve and not fresh:
            return PolicyDecision("allow", _AUTO_APPROVED)
        return PolicyDecision(stance, why, fresh=fresh and stance == "ask")

    def _auto_approves(self, query: ProposedCall) -> bool:
        """Whether the URLs or the command of the call match a configured pattern."""
        if not (self._urls or self._commands):
            return False
        try:
            arguments = parse_arguments(query.invocation.text)
        except AmbiguousArguments:
            return False
        if commands_match(self._commands, arguments):
            return True
        # A URL pattern decides where a call goes, not what it does there: it is enough only for harmless tools.
        annotations = query.spec.annotations
        is_harmless = self._is_trusted(query.spec) and (annotations.read_only or not annotations.destructive)
        return is_harmless and urls_match(self._urls, arguments)

    def is_never_auto(self, tool: str) -> bool:
        """Whether every call of the tool needs an approval of its own, whatever was granted."""
        return bool(self.never_auto) and _matches(self.never_auto, tool)

    def _by_rules(self, spec: ServerToolDefinition, caller: str) -> tuple[Stance, str]:
        for number, rule in enumerate(self.rules, 1):
            if rule.matches(spec, caller):
                return rule.stance, f"rule {number} of the policy says {rule.stance}"
        if not self._is_trusted(spec) or not spec.annotations.read_only:
            return self.default, "nothing says that the tool only reads"
        if spec.annotations.open_world:
            return self.open_world, "the tool reads from the outside world"
        return self.read_only, "the tool only reads"

    def _is_trusted(self, spec: ServerToolDefinition) -> bool:
        if not self.trusted:
            return False
        if spec.registered:
            # A registered MCP server is named like those of the configuration: their pattern `mcp/*` is not meant for it.
            return _matches(self.trusted, REGISTERED) or spec.source in self.trusted
        return _matches(self.trusted, spec.source)

    @cached_property
    def _urls(self) -> tuple[AutoApprovedUrlPattern, ...]:
        return tuple(url_pattern(text) for text in self.auto_approve_urls)

    @cached_property
    def _commands(self) -> tuple[tuple[str, ...], ...]:
        return tuple(command_pattern(words) for words in self.auto_approve_commands)


def _matches(patterns: tuple[str, ...], value: str) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
