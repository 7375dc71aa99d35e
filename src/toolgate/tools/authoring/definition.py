"""A tool as its author wrote it: what it says of itself and how it is called, here, in this process."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypedDict, cast, get_args, get_origin, get_type_hints

from msgspec import Struct

from toolgate.tools.authoring import docstring
from toolgate.tools.authoring.hints import BadHint, Shape
from toolgate.tools.authoring.parts import (
    LanguageModelToolInvocationOptions,
    LanguageModelToolInvocationPrepareOptions,
)
from toolgate.tools.authoring.signature import BadTool, Call, Signature, converted
from toolgate.tools.tool import NO_INPUT, Annotations, Stance, ToolSpec

SOURCE = "python"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Fields(TypedDict, total=False):
    """What an author may say of a tool; what is not said comes from its code."""

    description: str
    display_name: str
    reference_name: str
    user_description: str
    icon: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]
    tags: tuple[str, ...] | list[str]
    when: str
    private: bool
    annotations: Annotations
    approval: Stance
    timeout: float
    cache_seconds: float
    worker: bool


class LanguageModelTool(Protocol):
    """A tool in class form; both methods may be async, and `prepare_invocation(options, token)` may be left out."""

    def invoke(self, options: Any, token: Any) -> Any:
        """Run it and return what a decorated function may return."""


Run: TypeAlias = Callable[[Mapping[str, Any], Call], Any]


class Step(Struct, frozen=True):
    """One of an author's functions; if it `blocks` it gives a value, otherwise an awaitable of it."""

    run: Run
    blocks: bool


class Definition(Struct, frozen=True):
    """One tool; `worker` says that it wants a process of its own, `place` is the file and line of its code."""

    spec: ToolSpec
    invoke: Step
    prepare: Step | None
    worker: bool
    place: str


def of_function(function: Callable[..., Any], name: str | None, fields: Fields) -> Definition:
    """The tool that a plain function is; BadTool if it cannot be one."""
    signature = Signature(function)
    blocks = not inspect.iscoroutinefunction(function)
    made: Fields = {"description": docstring.summary(function.__doc__), "input_schema": signature.schema}
    if signature.output_schema is not None:
        made["output_schema"] = signature.output_schema
    return Definition(
        spec=_spec(name or function.__name__, {**made, **fields}),
        invoke=Step(lambda arguments, call: function(**signature.bind(arguments, call)), blocks),
        prepare=None,
        worker=fields.get("worker", blocks),
        place=_place(function),
    )


def of_object(tool: LanguageModelTool, name: str, fields: Fields) -> Definition:
    """The tool that an object with `invoke(options, token)` is; BadTool if it cannot be one."""
    kind = type(tool)
    if not callable(getattr(tool, "invoke", None)):
        raise BadTool(f"`{kind.__qualname__}`: a tool has a method `invoke(options, token)`")
    said: Fields = {"description": docstring.summary(kind.__doc__), **_own_fields(tool)}
    shape = _input_shape(tool) if "input_schema" not in fields and "input_schema" not in said else None
    if shape is not None:
        said["input_schema"] = {name: value for name, value in shape.schema.items() if name != "title"}
    every: Fields = {**said, **fields}
    invoke = _invoking(tool, shape)
    return Definition(
        spec=_spec(name, every),
        invoke=invoke,
        prepare=_preparing(tool, shape) if hasattr(tool, "prepare_invocation") else None,
        worker=every.get("worker", invoke.blocks),
        place=_place(kind),
    )


def _invoking(tool: LanguageModelTool, shape: Shape | None) -> Step:
    def invoke(arguments: Mapping[str, Any], call: Call) -> Any:
        given = converted(shape, arguments) if shape else dict(arguments)
        return tool.invoke(LanguageModelToolInvocationOptions(given, call.invocation, call.progress), call.token)

    return Step(invoke, not inspect.iscoroutinefunction(tool.invoke))


def _preparing(tool: Any, shape: Shape | None) -> Step:
    def prepare(arguments: Mapping[str, Any], call: Call) -> Any:
        given = converted(shape, arguments) if shape else dict(arguments)
        return tool.prepare_invocation(LanguageModelToolInvocationPrepareOptions(given), call.token)

    return Step(prepare, not inspect.iscoroutinefunction(tool.prepare_invocation))


def _own_fields(tool: object) -> Fields:
    """What the class itself says in attributes named like the fields."""
    found = {name: getattr(tool, name) for name in Fields.__annotations__ if getattr(tool, name, None) is not None}
    return cast(Fields, found)


def _input_shape(tool: LanguageModelTool) -> Shape | None:
    """The type in `options: LanguageModelToolInvocationOptions[Input]`, where the author named one."""
    place = f"`{type(tool).__qualname__}.invoke`, parameter `options`"
    try:
        hints = get_type_hints(tool.invoke)
    except (NameError, TypeError, SyntaxError) as error:
        raise BadTool(f"{place}: its hint cannot be read: {error}") from error
    hint = next((hint for hint in hints.values() if get_origin(hint) is LanguageModelToolInvocationOptions), None)
    if hint is None:
        return None
    try:
        shape = Shape(get_args(hint)[0])
    except BadHint as error:
        raise BadTool(f"{place}: the hint `{hint}` cannot be a schema: {error}") from error
    if shape.schema.get("type") != "object":
        raise BadTool(f"{place}: the input of a tool is an object, so name a dataclass, a TypedDict or a Struct")
    return shape


def _spec(name: str, said: Fields) -> ToolSpec:
    if not _NAME.fullmatch(name):
        raise BadTool(f"`{name}`: a tool's name has 1 to 64 letters, digits, _ or -")
    if not said.get("description"):
        raise BadTool(f"`{name}`: it has no description; write a docstring, which is what a model reads")
    fields: dict[str, Any] = {field: value for field, value in said.items() if field != "worker"}
    if not isinstance(fields.get("tags", ()), (list, tuple)):
        raise BadTool(f"`{name}`: its tags are a list of words")
    fields["tags"] = tuple(fields.get("tags", ()))
    return ToolSpec(**{"input_schema": NO_INPUT, **fields, "name": name, "source": SOURCE})


def _place(code: Any) -> str:
    """The file and line where the code of a function or class begins."""
    try:
        return f"{inspect.getsourcefile(code) or '?'}:{_line(code)}"
    except TypeError:  # made by hand, without a file
        return getattr(code, "__qualname__", repr(code))


def _line(code: Any) -> int:
    plain = inspect.unwrap(code)
    if hasattr(plain, "__code__"):
        return int(plain.__code__.co_firstlineno)
    try:
        return inspect.getsourcelines(code)[1]
    except OSError:
        return 0
