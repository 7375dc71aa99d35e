"""The public Python API for authors of tools, modelled on the editor's `vscode.lm` in Python's spelling.

A tool is a function with `@tool`, or an object with `invoke(options, token)` that is passed to `register_tool`.
Tools are added to the registry of the current context: the one that is loading the file, otherwise a default.
"""

from typing import Any, Unpack

from toolgate.tools.authoring.cancellation import CancellationToken, CancellationTokenSource, Disposable
from toolgate.tools.authoring.definition import LanguageModelTool, ToolDecoratorOptions
from toolgate.tools.authoring.language_model_types import (
    ConfirmationMessages,
    LanguageModelDataPart,
    LanguageModelTextPart,
    LanguageModelToolInformation,
    LanguageModelToolInvocationOptions,
    LanguageModelToolInvocationPrepareOptions,
    LanguageModelToolResult,
    PreparedToolInvocation,
    ToolInvocationToken,
)
from toolgate.tools.authoring.language_model_types import ProgressReporter as Progress
from toolgate.tools.authoring.registry import PythonToolRegistry as Registry
from toolgate.tools.authoring.registry import current_registry, tool
from toolgate.tools.authoring.signature import BadTool
from toolgate.tools.tool import Annotations
from toolgate.tools.tool import ToolCallFailed as ToolFailure

__all__ = [
    "Annotations",
    "BadTool",
    "CancellationToken",
    "CancellationTokenSource",
    "ConfirmationMessages",
    "Disposable",
    "LanguageModelDataPart",
    "LanguageModelTextPart",
    "LanguageModelTool",
    "LanguageModelToolInformation",
    "LanguageModelToolInvocationOptions",
    "LanguageModelToolInvocationPrepareOptions",
    "LanguageModelToolResult",
    "PreparedToolInvocation",
    "Progress",
    "Registry",
    "ToolFailure",
    "ToolInvocationToken",
    "invoke_tool",
    "register_tool",
    "tool",
    "tools",
]

tools: list[LanguageModelToolInformation]


def register_tool(name: str, tool: LanguageModelTool, **fields: Unpack[ToolDecoratorOptions]) -> Disposable:
    """Add a tool in class form to the current registry; dispose of the returned object to remove it."""
    return current_registry().register_tool(name, tool, **fields)


async def invoke_tool(
    name: str, options: LanguageModelToolInvocationOptions[Any], token: CancellationToken | None = None
) -> LanguageModelToolResult:
    """Run a tool of the current registry by its name; `ToolFailure` if it fails."""
    return await current_registry().invoke_tool(name, options, token)


def __getattr__(name: str) -> Any:
    """Return `lm.tools`, the present tools of the current registry."""
    if name == "tools":
        return current_registry().tools
    raise AttributeError(f"module 'toolgate.lm' has no attribute {name!r}")
