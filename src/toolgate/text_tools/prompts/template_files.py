"""Load template files, check them, and report in which file and line a template is wrong.

A variant is a YAML file. A folder of the operator may have files of the same names, each with the templates that it
changes; the others come from the shipped files. Every mistake is reported when a variant is loaded, never later.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Template
from msgspec import Struct

from toolgate.text_tools.prompts.template_sandbox import InvalidTemplate, compile_template

# The shipped variant that has every template; the others change some of them.
COMPLETE = "full"

# Every template, and the variables that it may use.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "tools": ("tools", "form", "example", "tagged", "parallel", "output"),
    "guidance": ("instructions", "rules"),
    "system_context": ("tag", "messages"),
    "system": ("system", "tool_prompt", "guidance"),
    "first_with_tools": ("system", "tool_prompt", "guidance", "user"),
    "next_with_tools": ("user",),
    "plain_first": ("system", "guidance", "user"),
    "plain_next": ("user",),
    "tool_results": ("results", "mark"),
    "choice": ("mode", "names", "parallel"),
    "correction": ("problems", "mode", "names", "form"),
    "media": ("kind", "name", "mime"),
}
_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 8
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PromptTemplateError(ValueError):
    """A template that is missing or wrong, with its file, name and line."""

    def __init__(self, file: str, reason: str, template: str | None = None, line: int | None = None) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {f'template {template!r}: ' if template else ''}{reason}")
        self.file = file
        self.template = template
        self.line = line
        self.reason = reason


class TemplateSource(Struct, frozen=True):
    """The text of a template and where it is; `line` is the one before its first."""

    name: str
    text: str
    file: str
    line: int

    def compile(self) -> Template:
        """Compile the template."""
        try:
            return compile_template(self.text, VARIABLES[self.name])
        except InvalidTemplate as broken:
            raise self.error(broken) from None

    def error(self, broken: InvalidTemplate) -> PromptTemplateError:
        """Return the error with its place in the file."""
        return PromptTemplateError(self.file, broken.reason, self.name, self.line + broken.line)


def load(variant: str, folder: Path | None = None) -> dict[str, TemplateSource]:
    """Return every template of the variant; those of the folder replace the shipped ones."""
    own = _folder_templates(folder, variant) if folder else {}
    names = shipped()
    if variant not in names and not own:
        there = sorted({*names, *([path.stem for path in folder.glob("*.yaml")] if folder else ())})
        raise PromptTemplateError(
            f"{variant}.yaml", f"there is no such file of templates; there are {', '.join(there)}"
        )
    if variant == COMPLETE:
        return {**_shipped_templates(COMPLETE), **own}
    # The operator's own `full` changes every variant, except for the templates that the variant has itself.
    base = _folder_templates(folder, COMPLETE) if folder else {}
    return {**_shipped_templates(COMPLETE), **base, **(_shipped_templates(variant) if variant in names else {}), **own}


def shipped() -> tuple[str, ...]:
    """Return the names of the variants that come with Toolgate."""
    paths = files("toolgate.text_tools.prompts").joinpath("templates").iterdir()
    return tuple(sorted([path.name.removesuffix(".yaml") for path in paths if path.name.endswith(".yaml")]))


@cache
def _shipped_templates(variant: str) -> Mapping[str, TemplateSource]:
    path = files("toolgate.text_tools.prompts").joinpath("templates", f"{variant}.yaml")
    return parse(path.read_text("utf-8"), f"{variant}.yaml")


def _folder_templates(folder: Path, variant: str) -> dict[str, TemplateSource]:
    if not folder.is_dir():
        raise PromptTemplateError(str(folder), "there is no such folder of templates")
    path = folder / f"{variant}.yaml"
    return parse(read(path), str(path)) if path.exists() else {}


def read(path: Path) -> str:
    """Return the text of a file; `PromptTemplateError` if it cannot be read."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise PromptTemplateError(str(path), f"the file is larger than {_MAX_FILE_BYTES} bytes")
        return path.read_text("utf-8")
    except OSError as error:
        raise PromptTemplateError(str(path), error.strerror or "the file cannot be read") from None
    except UnicodeDecodeError:
        raise PromptTemplateError(str(path), "the file is not UTF-8") from None


def parse(text: str, file: str) -> dict[str, TemplateSource]:
    """Parse the templates in the text of a file."""
    try:
        # The depth is checked before a tree is built, which the C library does by recursion without a limit.
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise PromptTemplateError(file, "the file must hold templates by name", line=event.start_mark.line + 1)
        tree = yaml.compose(text, Loader=_LOADER)  # a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise PromptTemplateError(file, error.problem or "no YAML", line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise PromptTemplateError(file, str(error)) from None
    if tree is None:
        return {}
    if not isinstance(tree, yaml.MappingNode):
        raise PromptTemplateError(file, "the file must hold templates by name", line=1)
    # The nodes of the tree, unlike the values of `yaml.load`, have the lines that errors name.
    return {str(key.value): _source(key, value, file) for key, value in tree.value}


def _source(key: Any, value: Any, file: str) -> TemplateSource:
    name = str(key.value)
    if name not in VARIABLES:
        close = get_close_matches(name, VARIABLES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(VARIABLES)}"
        raise PromptTemplateError(file, f"no template is called {name!r}{hint}", line=key.start_mark.line + 1)
    if not isinstance(value, yaml.ScalarNode):
        raise PromptTemplateError(file, "a template is text", name, value.start_mark.line + 1)
    block = value.style in ("|", ">")  # then the text begins on the next line
    return TemplateSource(name, str(value.value), file, value.start_mark.line + block)
