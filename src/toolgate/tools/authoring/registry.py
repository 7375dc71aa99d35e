"""The registry behind `toolgate.lm`: register tools, list them, invoke them by name.

The functions of `toolgate.lm` act on the registry of the current context, so that a file of tools can simply call
`register_tool(...)` and adds to the registry that is loading it, not to one for the whole process.
"""

import asyncio
import base64
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack, overload

import msgspec

from toolgate.conversation.message import Media, Text
from toolgate.tools.authoring.cancellation import CancellationToken, Disposable
from toolgate.tools.authoring.definition import (
    LanguageModelTool,
    PythonToolDefinition,
    ToolDecoratorOptions,
    of_function,
    of_object,
)
from toolgate.tools.authoring.in_process_tool import InProcessTool
from toolgate.tools.authoring.language_model_types import (
    LanguageModelDataPart,
    LanguageModelTextPart,
    LanguageModelToolInformation,
    LanguageModelToolInvocationOptions,
    LanguageModelToolResult,
    ResultPart,
)
from toolgate.tools.authoring.signature import BadTool
from toolgate.tools.tool import Tool, ToolCallFailed, ToolCallInput, ToolOutput

F = TypeVar("F", bound=Callable[..., Any])
# The attribute of a decorated function or class that holds its definition.
MARK = "__toolgate_tool__"


class PythonToolRegistry:
    """Tools by name; two of one name are refused."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def register_tool(self, name: str, tool: LanguageModelTool, **fields: Unpack[ToolDecoratorOptions]) -> Disposable:
        """Add a tool in class form; dispose of the returned object to remove it."""
        return self.define(of_object(tool, name, fields))

    def define(self, definition: PythonToolDefinition) -> Disposable:
        """Add an author's tool; if the same code is defined again, it replaces the earlier one."""
        name = definition.spec.name
        tool = InProcessTool(definition, scope=lambda: _CURRENT.set(self))
        present = self._tools.get(name)
        if isinstance(present, InProcessTool) and present.definition.place == definition.place:
            self._tools[name] = tool
            return self._removal(tool)
        return self.add(tool)

    def add(self, tool: Tool) -> Disposable:
        """Add a tool of any kind; BadTool if its name is taken."""
        name = tool.spec.name
        if name in self._tools:
            raise BadTool(f"`{name}` of {_place(tool)} is refused: {_place(self._tools[name])} has a tool of that name")
        self._tools[name] = tool
        return self._removal(tool)

    def _removal(self, tool: Tool) -> Disposable:
        name = tool.spec.name
        return Disposable(lambda: self._tools.pop(name) if self._tools.get(name) is tool else None)

    def clear(self) -> None:
        """Remove all tools."""
        self._tools.clear()

    @property
    def definitions(self) -> list[PythonToolDefinition]:
        """The definitions of authors, in order."""
        return [tool.definition for tool in self._tools.values() if isinstance(tool, InProcessTool)]

    @property
    def tools(self) -> list[LanguageModelToolInformation]:
        """The public information about all tools that are not private."""
        specs = [tool.spec for tool in self._tools.values()]
        return [
            LanguageModelToolInformation(spec.name, spec.description, spec.input_schema, spec.tags)
            for spec in specs
            if not spec.private
        ]

    def find(self, name: str) -> Tool | None:
        """Find a tool by name, private ones included."""
        return self._tools.get(name)

    async def invoke_tool(
        self, name: str, options: LanguageModelToolInvocationOptions[Any], token: CancellationToken | None = None
    ) -> LanguageModelToolResult:
        """Check the input and run a tool by its name; ToolCallFailed if it fails."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolCallFailed(f"There is no tool `{name}`.")
        import jsonschema_rs  # a worker whose tools invoke no others need not load it

        arguments = msgspec.to_builtins(options.input)
        try:
            jsonschema_rs.validator_for(dict(tool.spec.input_schema)).validate(arguments)
        except jsonschema_rs.ValidationError as error:
            place = "".join(f"/{step}" for step in error.instance_path)
            raise ToolCallFailed(
                f"The arguments do not fit the tool's schema at {place or 'their root'}: {error.message}"
            ) from None
        call, progress = options.tool_invocation_token, options.progress
        invocation = ToolCallInput(
            call_id=call.call_id,
            arguments=arguments,
            text=msgspec.json.encode(arguments).decode(),
            caller=call.caller,
            session=call.session,
            key=call.key,
            report=lambda one: progress.report(one.message, one.done, one.total),
        )
        task = asyncio.ensure_future(tool.invoke(invocation))
        stop = asyncio.get_running_loop().call_soon_threadsafe  # a token may be cancelled on another thread
        with (token or CancellationToken()).on_cancellation_requested(lambda: stop(task.cancel)):
            return result_of(await task)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current registry inside the context."""
        reset = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(reset)


# The default serves an author's own tests and scripts, where no registry loads the code.
_CURRENT: contextvars.ContextVar[PythonToolRegistry] = contextvars.ContextVar("registry", default=PythonToolRegistry())  # noqa: B039


def current_registry() -> PythonToolRegistry:
    """Return the registry that is loading or running the calling code."""
    return _CURRENT.get()


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str | None = None, **fields: Unpack[ToolDecoratorOptions]) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, name: str | None = None, **fields: Unpack[ToolDecoratorOptions]) -> Any:
    """Register a function, or a class with `invoke`, as a tool; it can still be called as before."""

    def make(code: F) -> F:
        if isinstance(code, type):
            definition = of_object(code(), name or code.__name__, fields)
        else:
            definition = of_function(code, name, fields)
        setattr(code, MARK, definition)
        current_registry().define(definition)
        return code

    return make if function is None else make(function)


def result_of(output: ToolOutput) -> LanguageModelToolResult:
    """Convert an output to the result of `invoke_tool`; an output that is an error is raised."""
    parts: list[ResultPart] = []
    for part in output.content:
        match part:
            case Text(text=text):
                parts.append(LanguageModelTextPart(text))
            case Media(mime=mime, data=str() as data):
                parts.append(LanguageModelDataPart(base64.b64decode(data), mime or "application/octet-stream"))
            case Media(url=url):
                parts.append(LanguageModelTextPart(url or ""))
    if output.is_error:
        raise ToolCallFailed("".join(part.value for part in parts if isinstance(part, LanguageModelTextPart)))
    return LanguageModelToolResult(tuple(parts))


def _place(tool: Tool) -> str:
    return tool.definition.place if isinstance(tool, InProcessTool) else tool.spec.source
