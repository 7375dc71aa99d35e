"""The prompts of one variant, loaded once and checked whole: each method is one template with its values.

The same values always give the same text. Knows no conversation.
"""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template
from msgspec import Struct
from msgspec.structs import asdict

from toolgate.conversation.request import ToolDef
from toolgate.text.prompts.loading import COMPLETE, VARIABLES, Source, load, read
from toolgate.text.prompts.sandbox import Broken, rendered
from toolgate.text.signatures import described
from toolgate.wire.jsontext import encode

_REMEMBERED = 16
_REMEMBERED_SIZE = 2 * 1024 * 1024

CALL_MARK = "Tool Call: "
RESULT_MARKS = ("Result [SUCCESS]", "Result [ERROR]")
"""With these a block of results begins: a model that writes one invents what it was to wait for."""


class Rule(Struct, frozen=True):
    """A file of rules that the operator adds to every prompt."""

    name: str
    text: str


class Result(Struct, frozen=True):
    """What became of a call, in words."""

    name: str
    arguments: str
    status: str
    text: str


class Manner(Struct, frozen=True):
    """How calls are to be written: the general form, one of a tool on offer, and whether text stands there unquoted."""

    form: str
    example: str = ""
    tagged: bool = False
    parallel: bool = True
    output: str = ""


class Prompts:
    """Everything that can be said to a model; `PromptError` if a template or a file of rules is missing or broken."""

    def __init__(
        self,
        variant: str = COMPLETE,
        *,
        templates_dir: Path | None = None,
        instructions: str = "",
        rules: Sequence[Path] = (),
        secret: bytes | None = None,
    ) -> None:
        """Marks of results are made of `secret`, which no tool knows; without one they differ from process to process."""
        self.secret = secret or secrets.token_bytes(32)
        sources = load(variant, templates_dir)
        self._templates = {name: _Checked(source) for name, source in sources.items()}
        self._described: dict[tuple[bytes, Manner], str] = {}
        texts = [Rule(path.name, read(path).strip()) for path in rules]
        self.guidance = self._say("guidance", instructions=instructions.strip(), rules=[asdict(one) for one in texts])

    def tools(self, tools: Sequence[ToolDef], manner: Manner) -> str:
        """How the tools are described, and how they are called; the latest are remembered, for agents repeat theirs."""
        key = (encode([[tool.name, tool.description, tool.input_schema] for tool in tools]), manner)
        said = self._described.pop(key, None)
        if said is None:
            said = self._say("tools", tools=[_plain(described(tool)) for tool in tools], **asdict(manner))
        if len(key[0]) + len(said) <= _REMEMBERED_SIZE:
            self._described[key] = said
        if len(self._described) > _REMEMBERED:
            del self._described[next(iter(self._described))]
        return said

    def system(self, system: str, tool_prompt: str) -> str:
        """The system message of a model that takes one."""
        return self._say("system", system=system, tool_prompt=tool_prompt, guidance=self.guidance)

    def system_context(self, tag: str, messages: Sequence[str]) -> str:
        """The system messages as a block of the user's text."""
        numbered = [{"number": number, "text": text} for number, text in enumerate(messages, 1)]
        return self._say("system_context", tag=tag, messages=numbered)

    def first(self, user: str, system: str, tool_prompt: str | None, guided: bool = True) -> str:
        """The first thing that the user says; `tool_prompt` None if there are no tools."""
        guidance = self.guidance if guided else ""
        if tool_prompt is None:
            return self._say("plain_first", system=system, guidance=guidance, user=user)
        return self._say("first_with_tools", system=system, tool_prompt=tool_prompt, guidance=guidance, user=user)

    def next(self, user: str, with_tools: bool) -> str:
        """What the user says later."""
        return self._say("next_with_tools" if with_tools else "plain_next", user=user)

    def results(self, results: Sequence[Result], mark: str) -> str:
        """What became of some calls; `mark` is a word that stands in none of the results."""
        return self._say("tool_results", results=[asdict(result) for result in results], mark=mark)

    def choice(self, mode: str, names: Sequence[str], parallel: bool) -> str:
        """The client's wish about calling; nothing if it has none."""
        return self._say("choice", mode=mode, names=list(names), parallel=parallel)

    def correction(self, problems: Sequence[str], mode: str, names: Sequence[str], form: str) -> str:
        """Why an answer cannot be used."""
        return self._say("correction", problems=list(problems), mode=mode, names=list(names), form=form)

    def media(self, kind: str, name: str, mime: str) -> str:
        """What stands in the place of a picture or the like."""
        return self._say("media", kind=kind, name=name, mime=mime)

    def _say(self, template: str, **values: Any) -> str:
        said = self._templates[template].say(values)
        return said if "user" in values else said.strip("\n")  # a user's own line breaks are not ours to take


class _Checked:
    """A template that has been tried, with everything it may be given and with as little as possible."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._template: Template = source.compiled()
        for values in (_MUCH, _LITTLE):
            self.say({name: values[name] for name in VARIABLES[source.name]})

    def say(self, values: Mapping[str, Any]) -> str:
        """Its text."""
        try:
            return rendered(self._template, values)
        except Broken as broken:
            raise self._source.error(broken) from None


def _plain(value: Struct) -> dict[str, Any]:
    """A struct and those in it as mappings: a template gets to see data and no objects."""
    fields = asdict(value)
    return {
        name: [asdict(one) for one in inner] if isinstance(inner, tuple) else inner for name, inner in fields.items()
    }


_TOOL = ToolDef(
    "search", "Searches. Well.", {"properties": {"q": {"type": "string", "description": "What"}}, "required": ["q"]}
)
_MUCH: Mapping[str, Any] = {
    "tools": [_plain(described(_TOOL))] * 2,
    "form": "form",
    "example": "example",
    "tagged": True,
    "parallel": True,
    "output": "{}",
    "instructions": "Be kind.",
    "rules": [asdict(Rule("a.md", "Be brief."))] * 2,
    "tag": "system_context",
    "messages": [{"number": 1, "text": "one"}, {"number": 2, "text": "two"}],
    "system": "system",
    "tool_prompt": "tools",
    "guidance": "guidance",
    "user": "user",
    "results": [asdict(Result("search", "{}", "SUCCESS", "found"))] * 2,
    "mark": "0123456789",
    "mode": "required",
    "names": ["search"],
    "problems": ["wrong"],
    "kind": "image",
    "name": "a.png",
    "mime": "image/png",
}
_LITTLE: Mapping[str, Any] = {
    name: [] if isinstance(value, list) else False if isinstance(value, bool) else "" for name, value in _MUCH.items()
}
