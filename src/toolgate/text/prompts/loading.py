"""Template files: which there are, what must be in them, and where each template stands, for whoever has to mend one.

A variant is a YAML file. A folder of one's own may hold files of the same names, each with the templates that it changes;
the rest come from those that are shipped. Whatever is wrong shows when a variant is loaded, never later.
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

from toolgate.text.prompts.sandbox import Broken, compiled

COMPLETE = "full"
"""The shipped variant that has every template; the others change some of them."""

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
"""Every template, and what it may speak of."""

_LARGEST = 1 << 20


class PromptError(ValueError):
    """A template that is missing or broken, with its file, name and line."""

    def __init__(self, file: str, reason: str, template: str | None = None, line: int | None = None) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {f'template {template!r}: ' if template else ''}{reason}")
        self.file = file
        self.template = template
        self.line = line
        self.reason = reason


class Source(Struct, frozen=True):
    """A template as it stands in its file; `line` is the one before its first."""

    name: str
    text: str
    file: str
    line: int

    def compiled(self) -> Template:
        """The template, ready to be used."""
        try:
            return compiled(self.text, VARIABLES[self.name])
        except Broken as broken:
            raise self.error(broken) from None

    def error(self, broken: Broken) -> PromptError:
        """The complaint about it, by its place in the file."""
        return PromptError(self.file, broken.reason, self.name, self.line + broken.line)


def load(variant: str, folder: Path | None = None) -> dict[str, Source]:
    """Every template of the variant, the folder's own before those that are shipped."""
    own = _own(folder, variant) if folder else {}
    names = shipped()
    if variant not in names and not own:
        there = sorted({*names, *([path.stem for path in folder.glob("*.yaml")] if folder else ())})
        raise PromptError(f"{variant}.yaml", f"there is no such file of templates; there are {', '.join(there)}")
    if variant == COMPLETE:
        return {**_shipped(COMPLETE), **own}
    base = _own(folder, COMPLETE) if folder else {}
    return {**_shipped(COMPLETE), **base, **(_shipped(variant) if variant in names else {}), **own}


def shipped() -> tuple[str, ...]:
    """The variants that come with Toolgate."""
    paths = files("toolgate.text.prompts").joinpath("templates").iterdir()
    return tuple(sorted([path.name.removesuffix(".yaml") for path in paths if path.name.endswith(".yaml")]))


@cache
def _shipped(variant: str) -> Mapping[str, Source]:
    path = files("toolgate.text.prompts").joinpath("templates", f"{variant}.yaml")
    return parse(path.read_text("utf-8"), f"{variant}.yaml")


def _own(folder: Path, variant: str) -> dict[str, Source]:
    if not folder.is_dir():
        raise PromptError(str(folder), "there is no such folder of templates")
    path = folder / f"{variant}.yaml"
    return parse(read(path), str(path)) if path.exists() else {}


def read(path: Path) -> str:
    """The text of a file; a complaint that names it if there is none."""
    try:
        if path.stat().st_size > _LARGEST:
            raise PromptError(str(path), f"the file is larger than {_LARGEST} bytes")
        return path.read_text("utf-8")
    except OSError as error:
        raise PromptError(str(path), error.strerror or "the file cannot be read") from None
    except UnicodeDecodeError:
        raise PromptError(str(path), "the file is not UTF-8") from None


def parse(text: str, file: str) -> dict[str, Source]:
    """The templates in the text of a file."""
    try:
        _check_depth(text, file)
        tree = yaml.compose(text, Loader=_LOADER)  # a safe loader, see below
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise PromptError(file, error.problem or "no YAML", line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise PromptError(file, str(error)) from None
    if tree is None:
        return {}
    if not isinstance(tree, yaml.MappingNode):
        raise PromptError(file, "the file must hold templates by name", line=1)
    return {source.name: source for source in [_source(key, value, file) for key, value in tree.value]}


def _check_depth(text: str, file: str) -> None:
    """Refuse what is nested before a tree is made of it: that is done by recursion, in C, without a limit."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise PromptError(file, "the file must hold templates by name", line=event.start_mark.line + 1)


def _source(key: Any, value: Any, file: str) -> Source:
    name = str(key.value)
    if name not in VARIABLES:
        close = get_close_matches(name, VARIABLES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(VARIABLES)}"
        raise PromptError(file, f"no template is called {name!r}{hint}", line=key.start_mark.line + 1)
    if not isinstance(value, yaml.ScalarNode):
        raise PromptError(file, "a template is text", name, value.start_mark.line + 1)
    block = value.style in ("|", ">")  # then the text begins on the next line
    return Source(name, str(value.value), file, value.start_mark.line + block)


_DEEPEST = 8
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
