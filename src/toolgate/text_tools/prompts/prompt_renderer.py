"""Render the prompts of one variant of templates; each method renders one template.

Templates are loaded once and checked when the object is made. The same values always give the same text. Knows no
conversation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template
from msgspec import Struct
from msgspec.structs import asdict

from toolgate.conversation.request import ToolDef
from toolgate.conversation.result_delimiters import new_secret
from toolgate.text_tools.prompts.template_files import COMPLETE, VARIABLES, TemplateSource, load, read
from toolgate.text_tools.prompts.template_sandbox import InvalidTemplate, render_template
from toolgate.text_tools.prompts.tool_descriptions import describe_tool
from toolgate.wire.jsontext import encode

_MAX_CACHED_PROMPTS = 16
_MAX_CACHED_SIZE = 2 * 1024 * 1024  # of a prompt with its key, which is as long as the schemas of its tools

CALL_MARK = "Tool Call: "
# The marks that begin a block of results: a model that writes one makes up a result.
RESULT_MARKS = ("Result [SUCCESS]", "Result [ERROR]")
# The tag around the text of a result, as a model imitates it right after its call. Elsewhere it may be an answer: many
# users ask for answers in `<output>` tags.
OUTPUT_MARKS = ("<output>", "<output ")


class CustomInstructionsFile(Struct, frozen=True):
    """A file of rules that is added to every prompt."""

    name: str
    text: str


class PromptToolResult(Struct, frozen=True):
    """The result of a call, as text."""

    name: str
    arguments: str
    status: str
    text: str


class CallInstructions(Struct, frozen=True):
    """How to write calls: the general form, an example, and whether strings are `tagged`, that is, not quoted."""

    form: str
    example: str = ""
    tagged: bool = False
    parallel: bool = True
    output: str = ""


class TextToolPromptRenderer:
    """Renders all prompts; `PromptTemplateError` if a template or a file of rules is missing or wrong."""

    def __init__(
        self,
        variant: str = COMPLETE,
        *,
        templates_dir: Path | None = None,
        instructions: str = "",
        rules: Sequence[Path] = (),
        secret: bytes | None = None,
    ) -> None:
        """Load the templates; marks around results are derived from `secret`, by default a new one for each process."""
        self.secret = secret or new_secret()
        sources = load(variant, templates_dir)
        self._templates = {name: _CheckedTemplate(source) for name, source in sources.items()}
        self._cache: dict[tuple[bytes, CallInstructions], str] = {}
        texts = [CustomInstructionsFile(path.name, read(path).strip()) for path in rules]
        self.guidance = self._render(
            "guidance", instructions=instructions.strip(), rules=[asdict(one) for one in texts]
        )

    def tools(self, tools: Sequence[ToolDef], how: CallInstructions) -> str:
        """Render the description of the tools and how to call them; cached, because agents repeat theirs."""
        key = (encode([[tool.name, tool.description, tool.input_schema] for tool in tools]), how)
        prompt = self._cache.pop(key, None)  # and put back at the end below: the first one is the least recently used
        if prompt is None:
            described_tools = [_plain(describe_tool(tool)) for tool in tools]
            prompt = self._render("tools", tools=described_tools, **asdict(how))
        if len(key[0]) + len(prompt) <= _MAX_CACHED_SIZE:
            self._cache[key] = prompt
        if len(self._cache) > _MAX_CACHED_PROMPTS:
            del self._cache[next(iter(self._cache))]
        return prompt

    def system(self, system: str, tool_prompt: str) -> str:
        """Render the system message of a model that takes one."""
        return self._render("system", system=system, tool_prompt=tool_prompt, guidance=self.guidance)

    def system_context(self, tag: str, messages: Sequence[str]) -> str:
        """Render system messages as a block of the user's text."""
        numbered = [{"number": number, "text": text} for number, text in enumerate(messages, 1)]
        return self._render("system_context", tag=tag, messages=numbered)

    def first(self, user: str, system: str, tool_prompt: str | None, guided: bool = True) -> str:
        """Render the user's first message; `tool_prompt` is None if there are no tools."""
        guidance = self.guidance if guided else ""
        if tool_prompt is None:
            return self._render("plain_first", system=system, guidance=guidance, user=user)
        return self._render("first_with_tools", system=system, tool_prompt=tool_prompt, guidance=guidance, user=user)

    def next(self, user: str, with_tools: bool) -> str:
        """Render a later message of the user."""
        return self._render("next_with_tools" if with_tools else "plain_next", user=user)

    def results(self, results: Sequence[PromptToolResult], mark: str) -> str:
        """Render the results of calls; `mark` is a word that occurs in none of them."""
        return self._render("tool_results", results=[asdict(result) for result in results], mark=mark)

    def choice(self, mode: str, names: Sequence[str], parallel: bool) -> str:
        """Render the client's tool choice; empty if it has none."""
        return self._render("choice", mode=mode, names=list(names), parallel=parallel)

    def correction(self, problems: Sequence[str], mode: str, names: Sequence[str], form: str) -> str:
        """Render why an answer cannot be used."""
        return self._render("correction", problems=list(problems), mode=mode, names=list(names), form=form)

    def media(self, kind: str, name: str, mime: str) -> str:
        """Render the placeholder of an image or other media."""
        return self._render("media", kind=kind, name=name, mime=mime)

    def _render(self, template: str, **values: Any) -> str:
        text = self._templates[template].render(values)
        return text if "user" in values else text.strip("\n")  # the user's own line breaks are kept


class _CheckedTemplate:
    """A compiled template that was rendered once with all values and once with empty ones."""

    def __init__(self, source: TemplateSource) -> None:
        self._source = source
        self._template: Template = source.compile()
        for values in (_FULL_VALUES, _EMPTY_VALUES):
            self.render({name: values[name] for name in VARIABLES[source.name]})

    def render(self, values: Mapping[str, Any]) -> str:
        """Render the template."""
        try:
            return render_template(self._template, values)
        except InvalidTemplate as broken:
            raise self._source.error(broken) from None


def _plain(value: Struct) -> dict[str, Any]:
    """Return a struct and the structs in it as mappings: templates get no objects."""
    fields = asdict(value)
    return {
        name: [asdict(one) for one in inner] if isinstance(inner, tuple) else inner for name, inner in fields.items()
    }


_TOOL = ToolDef(
    "search", "Searches. Well.", {"properties": {"q": {"type": "string", "description": "What"}}, "required": ["q"]}
)
# Two of everything, so that a mistake in a loop or between two items shows when the templates are loaded.
_FULL_VALUES: Mapping[str, Any] = {
    "tools": [_plain(describe_tool(_TOOL))] * 2,
    "form": "form",
    "example": "example",
    "tagged": True,
    "parallel": True,
    "output": "{}",
    "instructions": "Be kind.",
    "rules": [asdict(CustomInstructionsFile("a.md", "Be brief."))] * 2,
    "tag": "system_context",
    "messages": [{"number": 1, "text": "one"}, {"number": 2, "text": "two"}],
    "system": "system",
    "tool_prompt": "tools",
    "guidance": "guidance",
    "user": "user",
    "results": [asdict(PromptToolResult("search", "{}", "SUCCESS", "found"))] * 2,
    "mark": "0123456789",
    "mode": "required",
    "names": ["search"],
    "problems": ["wrong"],
    "kind": "image",
    "name": "a.png",
    "mime": "image/png",
}
_EMPTY_VALUES: Mapping[str, Any] = {
    name: [] if isinstance(value, list) else False if isinstance(value, bool) else ""
    for name, value in _FULL_VALUES.items()
}
