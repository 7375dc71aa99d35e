"""Compile and render templates that can do nothing but put given texts together.

A template may use the values it is given, look into them, branch, loop and use a handful of filters. It cannot call
anything, multiply, assign or include, and loops nest no deeper than two: so its run time is bounded by its input, and what
could be expensive is refused before it is compile_template. The size of the output is limited, too.

Texts of users, tools and models are values here and never templates.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT = 64 * 1024 * 1024  # characters that one prompt may have; no model reads as many

_MAX_SOURCE = 256 * 1024
_MAX_INDENT = 16
_MAX_LOOP_DEPTH = 2
# A list of what is allowed, not of what is forbidden: a node that a later Jinja adds is refused.
_ALLOWED: tuple[type[nodes.Node], ...] = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.For,
    nodes.If,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Concat,
    nodes.Filter,
    nodes.Keyword,
)


class InvalidTemplate(ValueError):
    """A template that cannot be used, with the line of the error."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def compile_template(source: str, variables: Collection[str]) -> Template:
    """Compile a template that uses these variables; `InvalidTemplate` if it is wrong or uses what it may not."""
    if len(source) > _MAX_SOURCE:
        raise InvalidTemplate(1, f"it is longer than {_MAX_SOURCE} characters")
    environment = _environment()
    try:
        tree = environment.parse(source)
        _check(tree, variables)
        return environment.from_string(tree)
    except TemplateError as error:
        raise InvalidTemplate(getattr(error, "lineno", None) or 1, error.message or str(error)) from None
    except (RecursionError, MemoryError, SyntaxError):  # of the parser, or of Python where it compiles the template
        raise InvalidTemplate(1, "it is nested too deeply") from None


def render_template(template: Template, values: Mapping[str, Any]) -> str:
    """Render a template; `InvalidTemplate` if a value is missing."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(**values):
            size += len(piece)
            if size > MAX_OUTPUT:
                raise InvalidTemplate(1, f"the text grows beyond {MAX_OUTPUT} characters")
            pieces.append(piece)
    except RecursionError:
        raise InvalidTemplate(1, "it is nested too deeply") from None
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, InvalidTemplate):
            raise
        # The last frame of the template itself has its line, since Jinja rewrites tracebacks so.
        line, trace = 1, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
                line = trace.tb_lineno
            trace = trace.tb_next
        raise InvalidTemplate(line, str(error)) from None
    return "".join(pieces)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False, autoescape=False
    )
    # Nothing of Jinja's own is left, since some of it builds large texts from small ones: `range`, `center`, `lipsum`.
    environment.globals.clear()
    environment.tests.clear()

    def indent(text: str, width: int = 2) -> str:
        return text.replace("\n", "\n" + " " * min(width, _MAX_INDENT))

    def join(items: Collection[str], between: str = "") -> str:
        return between.join([str(item) for item in items])

    environment.filters = {"indent": indent, "join": join, "trim": str.strip, "upper": str.upper, "length": len}
    return environment


def _check(tree: nodes.Node, variables: Collection[str], bound: frozenset[str] = frozenset(), loops: int = 0) -> None:
    """Refuse what a template may not do; `bound` are the variables of the loops around."""
    if not isinstance(tree, _ALLOWED):
        raise InvalidTemplate(tree.lineno, f"{type(tree).__name__.lower()} is not allowed in a prompt template")
    if isinstance(tree, nodes.Name) and tree.ctx == "load" and tree.name not in (*variables, *bound):
        raise InvalidTemplate(
            tree.lineno, f"there is no variable {tree.name!r} here; there are {', '.join(sorted(variables))}"
        )
    if isinstance(tree, nodes.For):
        if loops == _MAX_LOOP_DEPTH:
            raise InvalidTemplate(tree.lineno, f"loops may nest no deeper than {_MAX_LOOP_DEPTH}")
        loops += 1
        bound |= {name.name for name in tree.target.find_all(nodes.Name)} | {"loop"}
        if isinstance(tree.target, nodes.Name):
            bound |= {tree.target.name}
    for child in tree.iter_child_nodes():
        _check(child, variables, bound, loops)
