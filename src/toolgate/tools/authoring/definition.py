"""Turn an author's function or object into a tool definition: its spec, and how it is called in this process."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypedDict, cast, get_args, get_origin, get_type_hints

from msgspec import Struct

from toolgate.tools.authoring import docstring
from toolgate.tools.authoring.language_model_types import (
    LanguageModelToolInvocationOptions,
    LanguageModelToolInvocationPrepareOptions,
)
from toolgate.tools.authoring.signature import BadTool, InjectableCallValues, ToolSignature, converted
from toolgate.tools.authoring.type_hints import HintSchema, UnsupportedTypeHint
from toolgate.tools.tool import NO_INPUT, Annotations, ServerToolDefinition, Stance

SOURCE = "python"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolDecoratorOptions(TypedDict, total=False):
    """The fields that an author may set; the others are derived from the code."""

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
        """Run the call and return what a decorated function may return."""


Run: TypeAlias = Callable[[Mapping[str, Any], InjectableCallValues], Any]


class FunctionWithAsyncFlag(Struct, frozen=True):
    """One of an author's functions; if it `blocks` it returns a value, otherwise an awaitable."""

    run: Run
    blocks: bool


class PythonToolDefinition(Struct, frozen=True):
    """One tool; `worker` is set if it runs in a worker process, `place` is the file and line of its code."""

    spec: ServerToolDefinition
    invoke: FunctionWithAsyncFlag
    prepare: FunctionWithAsyncFlag | None
    worker: bool
    place: str


def of_function(function: Callable[..., Any], name: str | None, fields: ToolDecoratorOptions) -> PythonToolDefinition:
    """Define a tool by a plain function; BadTool if it cannot be one."""
    signature = ToolSignature(function)
    # Code that blocks goes to a worker, where it can be killed; async code runs on the server's loop by default.
    blocks = not inspect.iscoroutinefunction(function)
    derived: ToolDecoratorOptions = {
        "description": docstring.summary(function.__doc__),
        "input_schema": signature.schema,
    }
    if signature.output_schema is not None:
        derived["output_schema"] = signature.output_schema
    return PythonToolDefinition(
        spec=_spec(name or function.__name__, {**derived, **fields}),
        invoke=FunctionWithAsyncFlag(lambda arguments, call: function(**signature.bind(arguments, call)), blocks),
        prepare=None,
        worker=fields.get("worker", blocks),
        place=_place(function),
    )


def of_object(tool: LanguageModelTool, name: str, fields: ToolDecoratorOptions) -> PythonToolDefinition:
    """Define a tool by an object with `invoke(options, token)`; BadTool if it cannot be one."""
    kind = type(tool)
    if not callable(getattr(tool, "invoke", None)):
        raise BadTool(f"`{kind.__qualname__}`: a tool has a method `invoke(options, token)`")
    # Fields may be set in `register_tool`, as attributes of the object, or follow from its docstring and hints.
    attributes = {name: getattr(tool, name, None) for name in ToolDecoratorOptions.__annotations__}
    own = cast(ToolDecoratorOptions, {name: value for name, value in attributes.items() if value is not None})
    derived: ToolDecoratorOptions = {"description": docstring.summary(kind.__doc__), **own}
    shape = _input_shape(tool) if "input_schema" not in fields and "input_schema" not in derived else None
    if shape is not None:
        derived["input_schema"] = {name: value for name, value in shape.schema.items() if name != "title"}

    def invoke(arguments: Mapping[str, Any], call: InjectableCallValues) -> Any:
        given = converted(shape, arguments) if shape else dict(arguments)
        return tool.invoke(LanguageModelToolInvocationOptions(given, call.invocation, call.progress), call.token)

    def prepare(arguments: Mapping[str, Any], call: InjectableCallValues) -> Any:
        given = converted(shape, arguments) if shape else dict(arguments)
        return preparing(LanguageModelToolInvocationPrepareOptions(given), call.token)

    preparing: Any = getattr(tool, "prepare_invocation", None)
    every: ToolDecoratorOptions = {**derived, **fields}
    blocks = not inspect.iscoroutinefunction(tool.invoke)
    return PythonToolDefinition(
        spec=_spec(name, every),
        invoke=FunctionWithAsyncFlag(invoke, blocks),
        prepare=FunctionWithAsyncFlag(prepare, not inspect.iscoroutinefunction(preparing))
        if preparing is not None
        else None,
        worker=every.get("worker", blocks),
        place=_place(kind),
    )


def _input_shape(tool: LanguageModelTool) -> HintSchema | None:
    """Return the schema of the type in `options: LanguageModelToolInvocationOptions[Input]`, if the author named one."""
    place = f"`{type(tool).__qualname__}.invoke`, parameter `options`"
    try:
        hints = get_type_hints(tool.invoke)
    except (NameError, TypeError, SyntaxError) as error:
        raise BadTool(f"{place}: its hint cannot be read: {error}") from error
    hint = next((hint for hint in hints.values() if get_origin(hint) is LanguageModelToolInvocationOptions), None)
    if hint is None:
        return None
    try:
        shape = HintSchema(get_args(hint)[0])
    except UnsupportedTypeHint as error:
        raise BadTool(f"{place}: the hint `{hint}` cannot be a schema: {error}") from error
    if shape.schema.get("type") != "object":
        raise BadTool(f"{place}: the input of a tool is an object, so name a dataclass, a TypedDict or a Struct")
    return shape


def _spec(name: str, given: ToolDecoratorOptions) -> ServerToolDefinition:
    if not _NAME.fullmatch(name):
        raise BadTool(f"`{name}`: a tool's name has 1 to 64 letters, digits, _ or -")
    if not given.get("description"):
        raise BadTool(f"`{name}`: it has no description; write a docstring, which is what a model reads")
    fields: dict[str, Any] = {field: value for field, value in given.items() if field != "worker"}
    if not isinstance(fields.get("tags", ()), (list, tuple)):
        raise BadTool(f"`{name}`: its tags are a list of words")
    fields["tags"] = tuple(fields.get("tags", ()))
    return ServerToolDefinition(**{"input_schema": NO_INPUT, **fields, "name": name, "source": SOURCE})


def _place(code: Any) -> str:
    """Return the file and line where a function or class begins."""
    plain = inspect.unwrap(code)
    try:
        file = inspect.getsourcefile(code) or "?"
        line = int(plain.__code__.co_firstlineno) if hasattr(plain, "__code__") else inspect.getsourcelines(code)[1]
    except TypeError:  # made at run time, without a file
        return getattr(code, "__qualname__", repr(code))
    except OSError:  # the source cannot be read
        return f"{file}:0"
    return f"{file}:{line}"
