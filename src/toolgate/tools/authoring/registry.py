"""Tools by name, as code sees them: register, list, invoke.

The functions of `toolgate.lm` act on the registry of the current context, so that a file of tools can simply say
`register_tool(...)` and yet land in the registry that is loading it, not in one for the whole process.
"""

import asyncio
import base64
import contextvars
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack, overload

import msgspec

from toolgate.conversation.message import Media, Text
from toolgate.tools.authoring.authored import Authored
from toolgate.tools.authoring.cancellation import CancellationToken, Disposable
from toolgate.tools.authoring.definition import Definition, Fields, LanguageModelTool, of_function, of_object
from toolgate.tools.authoring.parts import (
    LanguageModelDataPart,
    LanguageModelTextPart,
    LanguageModelToolInformation,
    LanguageModelToolInvocationOptions,
    LanguageModelToolResult,
    ResultPart,
)
from toolgate.tools.authoring.signature import BadTool
from toolgate.tools.tool import Invocation, Output, Tool, ToolFailure

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__toolgate_tool__"


class Registry:
    """Tools by name; two of one name are refused."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def register_tool(self, name: str, tool: LanguageModelTool, **fields: Unpack[Fields]) -> Disposable:
        """Add a tool in class form; dispose of what is returned to take it away again."""
        return self.define(of_object(tool, name, fields))

    def define(self, definition: Definition) -> Disposable:
        """Add what an author defined; the same code defined again takes the place of its older self."""
        name = definition.spec.name
        tool = Authored(definition, scope=lambda: _CURRENT.set(self))
        present = self._tools.get(name)
        if isinstance(present, Authored) and present.definition.place == definition.place:
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
        """Forget every tool."""
        self._tools.clear()

    @property
    def definitions(self) -> list[Definition]:
        """What authors defined here, in order."""
        return [tool.definition for tool in self._tools.values() if isinstance(tool, Authored)]

    @property
    def tools(self) -> list[LanguageModelToolInformation]:
        """What may be known of the tools that are not private."""
        specs = [tool.spec for tool in self._tools.values()]
        return [
            LanguageModelToolInformation(spec.name, spec.description, spec.input_schema, spec.tags)
            for spec in specs
            if not spec.private
        ]

    def find(self, name: str) -> Tool | None:
        """The tool of this name, private ones too."""
        return self._tools.get(name)

    async def invoke_tool(
        self, name: str, options: LanguageModelToolInvocationOptions[Any], token: CancellationToken | None = None
    ) -> LanguageModelToolResult:
        """Run a tool by its name with checked input; ToolFailure says why it could not run."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailure(f"There is no tool `{name}`.")
        arguments = msgspec.to_builtins(options.input)
        _check(tool.spec.input_schema, arguments)
        task = asyncio.ensure_future(tool.invoke(_invocation(options, arguments)))
        stop = asyncio.get_running_loop().call_soon_threadsafe
        with (token or CancellationToken()).on_cancellation_requested(lambda: stop(task.cancel)):
            return result_of(await task)

    @contextmanager
    def current(self) -> Iterator[None]:
        """What is defined inside lands here."""
        reset = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(reset)


# The default serves an author's own tests and scripts, where nobody is loading anything.
_CURRENT: contextvars.ContextVar[Registry] = contextvars.ContextVar("registry", default=Registry())  # noqa: B039


def current_registry() -> Registry:
    """The registry that is loading or running the code that asks."""
    return _CURRENT.get()


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str | None = None, **fields: Unpack[Fields]) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, name: str | None = None, **fields: Unpack[Fields]) -> Any:
    """Make a tool of a function, or of a class with `invoke`; it stays what it was and can be called as before."""

    def make(code: F) -> F:
        if isinstance(code, type):
            definition = of_object(code(), name or code.__name__, fields)
        else:
            definition = of_function(code, name, fields)
        setattr(code, MARK, definition)
        current_registry().define(definition)
        return code

    return make if function is None else make(function)


def result_of(output: Output) -> LanguageModelToolResult:
    """An output as code that invokes tools sees it; one that is an error is raised."""
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
        raise ToolFailure("".join(part.value for part in parts if isinstance(part, LanguageModelTextPart)))
    return LanguageModelToolResult(tuple(parts))


def _invocation(options: LanguageModelToolInvocationOptions[Any], arguments: Mapping[str, Any]) -> Invocation:
    token, progress = options.tool_invocation_token, options.progress
    return Invocation(
        call_id=token.call_id,
        arguments=arguments,
        text=msgspec.json.encode(arguments).decode(),
        caller=token.caller,
        session=token.session,
        key=token.key,
        tell=lambda report: progress.report(report.message, report.done, report.total),
    )


def _check(schema: Mapping[str, Any], arguments: Any) -> None:
    import jsonschema_rs  # a worker whose tools invoke no others need not load it

    try:
        jsonschema_rs.validator_for(dict(schema)).validate(arguments)
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"/{step}" for step in error.instance_path)
        raise ToolFailure(
            f"The arguments do not fit the tool's schema at {place or 'their root'}: {error.message}"
        ) from None


def _place(tool: Tool) -> str:
    return tool.definition.place if isinstance(tool, Authored) else tool.spec.source
