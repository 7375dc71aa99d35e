"""What the configuration says: of a tool before a call of it is known, and of one call.

A policy is one immutable value. Nothing a tool, a model or a request says can change it or make it laxer;
what they say can make it stricter. Its `version` changes with anything in it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256

import msgspec
from msgspec import Struct

from toolgate.tools.approvals.binding import Ambiguous, meant
from toolgate.tools.approvals.patterns import UrlPattern, command_pattern, commands_match, url_pattern, urls_match
from toolgate.tools.tool import Asked, Stance, ToolSpec

_STRICTNESS: Mapping[Stance, int] = {"allow": 0, "ask": 1, "deny": 2}
TRUSTED = ("builtin", "python", "http/*", "mcp/*")


class Rule(Struct, frozen=True, kw_only=True):
    """A stance for the tools that fit everything the rule says; what it does not say fits all. `*` stands for anything."""

    stance: Stance
    tools: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()

    def fits(self, spec: ToolSpec, caller: str) -> bool:
        """Whether the rule speaks of this tool in the hands of this caller."""
        return (
            _fits(self.tools, spec.name)
            and _fits(self.sources, spec.source)
            and _fits(self.callers, caller)
            and (not self.tags or any(_fits(self.tags, tag) for tag in spec.tags))
        )


class Ruling(Struct, frozen=True):
    """What the policy makes of one call, and why; `fresh` questions are answered by no earlier grant."""

    stance: Stance
    why: str
    fresh: bool = False


class Policy(Struct, frozen=True, kw_only=True, dict=True):
    """Who may call what, and when a person is asked first.

    `rules` are read in order and the first that fits decides. Where none does, a tool that only reads and reaches
    nothing outside takes `read_only`, one that only reads takes `open_world`, all others `default`; what a source says
    of its tools is believed if `trusted` names it. `never_auto` are tools for which every call is asked about.
    """

    rules: tuple[Rule, ...] = ()
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
        """Refuse patterns that cannot be read, with a ValueError."""
        _ = self._urls, self._commands

    @cached_property
    def version(self) -> str:
        """A digest of everything above."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]

    def stance(self, spec: ToolSpec, caller: str) -> Stance:
        """What it says of the tool before a call is known."""
        stance = max(self._of_tool(spec, caller)[0], spec.approval or "allow", key=_STRICTNESS.__getitem__)
        if self.is_never_auto(spec.name):
            return max(stance, "ask", key=_STRICTNESS.__getitem__)
        return "allow" if stance == "ask" and self.auto_approve else stance

    def rule(self, asked: Asked) -> Ruling:
        """What it says of this call."""
        spec = asked.spec
        stance, why = self._of_tool(spec, asked.invocation.caller)
        wishes: list[tuple[Stance | None, str]] = [
            (spec.approval, "the tool's author wants it so"),
            ("ask" if asked.preparation.asks else None, "the tool asks about this call"),
            ("ask" if self.is_never_auto(spec.name) else None, "every call of this tool is asked about"),
            (asked.stance, "the request wants it so"),
        ]
        for wish, reason in wishes:
            if wish is not None and _STRICTNESS[wish] > _STRICTNESS[stance]:
                stance, why = wish, reason
        if stance != "ask":
            return Ruling(stance, why)
        if asked.stance == "ask" or self.is_never_auto(spec.name):
            return Ruling(stance, why, fresh=True)
        return Ruling("allow", "the configuration approves it") if self._approves(asked) else Ruling(stance, why)

    def _approves(self, asked: Asked) -> bool:
        """Whether the configuration itself answers the question with yes."""
        if self.auto_approve or not (self._urls or self._commands):
            return self.auto_approve
        try:
            arguments = meant(asked.invocation.text)
        except Ambiguous:
            return False
        if commands_match(self._commands, arguments):
            return True
        # An address says where a call goes, not what it does there.
        return self._is_harmless(asked.spec) and urls_match(self._urls, arguments)

    def is_never_auto(self, tool: str) -> bool:
        """Whether every call of the tool is asked about, whatever was granted."""
        return bool(self.never_auto) and _fits(self.never_auto, tool)

    def _of_tool(self, spec: ToolSpec, caller: str) -> tuple[Stance, str]:
        for number, rule in enumerate(self.rules, 1):
            if rule.fits(spec, caller):
                return rule.stance, f"rule {number} of the policy says {rule.stance}"
        if not self._is_trusted(spec) or not spec.annotations.read_only:
            return self.default, "nothing says that the tool only reads"
        if spec.annotations.open_world:
            return self.open_world, "the tool reaches places that anybody may write to"
        return self.read_only, "the tool only reads"

    def _is_harmless(self, spec: ToolSpec) -> bool:
        return self._is_trusted(spec) and (spec.annotations.read_only or not spec.annotations.destructive)

    def _is_trusted(self, spec: ToolSpec) -> bool:
        return bool(self.trusted) and _fits(self.trusted, spec.source)

    @cached_property
    def _urls(self) -> tuple[UrlPattern, ...]:
        return tuple(url_pattern(text) for text in self.auto_approve_urls)

    @cached_property
    def _commands(self) -> tuple[tuple[str, ...], ...]:
        return tuple(command_pattern(words) for words in self.auto_approve_commands)


def _fits(patterns: tuple[str, ...], value: str) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
