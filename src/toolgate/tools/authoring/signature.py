"""Turn the signature of a function into the input schema of a tool, and convert arguments to its types.

Parameters of the types CancellationToken, Progress and ToolInvocationToken are filled by the server; models never see them.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Optional, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from toolgate.tools.authoring import docstring
from toolgate.tools.authoring.cancellation import CancellationToken
from toolgate.tools.authoring.language_model_types import ProgressReporter, ToolInvocationToken
from toolgate.tools.authoring.type_hints import HintSchema, TypeHintMismatch, UnsupportedTypeHint
from toolgate.tools.tool import ToolCallFailed

_INJECTED = (CancellationToken, ProgressReporter, ToolInvocationToken)
_NO_DEFAULT = inspect.Parameter.empty


class BadTool(Exception):
    """A function or object cannot be a tool; the message names it, the parameter and the reason."""


class InjectableCallValues(Struct, frozen=True):
    """What a running tool can receive beside its arguments."""

    token: CancellationToken
    progress: ProgressReporter
    invocation: ToolInvocationToken

    def of_type(self, kind: type) -> object:
        """Return the field that has this type."""
        return next(value for value in (self.token, self.progress, self.invocation) if isinstance(value, kind))


class ToolSignature:
    """How a function is called by a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """BadTool if a parameter cannot be described to a model."""
        self._name = getattr(function, "__qualname__", repr(function))
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            raise BadTool(f"`{self._name}`: its hints cannot be read: {error}") from error
        parameters = inspect.signature(function).parameters
        self._injected = {name: hint for name, hint in hints.items() if name in parameters and hint in _INJECTED}
        shown = {name: parameter for name, parameter in parameters.items() if name not in self._injected}
        descriptions = docstring.parameters(function.__doc__)
        fields = [self._field(parameter, hints, descriptions.get(name)) for name, parameter in shown.items()]
        struct = msgspec.defstruct("input", fields, kw_only=True, forbid_unknown_fields=True)
        self._shape = HintSchema(struct)
        properties = {name: dict(field) for name, field in self._shape.schema["properties"].items()}
        for name, parameter in shown.items():
            if parameter.default is not _NO_DEFAULT:
                with suppress(TypeError, RecursionError):  # a default that is not JSON is not shown to the model
                    properties[name]["default"] = msgspec.to_builtins(parameter.default)
        self.schema = {**self._shape.schema, "properties": properties}
        self.schema.pop("title", None)  # the name of a struct that the author did not write
        self.output_schema: dict[str, Any] | None = None
        with suppress(UnsupportedTypeHint):
            returned = HintSchema(hints.get("return")).schema
            # MCP allows only objects as structured results.
            if returned.get("type") == "object" and "properties" in returned:
                self.output_schema = returned

    def bind(self, arguments: Mapping[str, Any], call: InjectableCallValues) -> dict[str, Any]:
        """Return the keyword arguments of one call; ToolCallFailed if the arguments do not fit the hints."""
        given = converted(self._shape, arguments)
        chosen = {name: getattr(given, name) for name in given.__struct_fields__ if getattr(given, name) is not UNSET}
        return {**chosen, **{name: call.of_type(kind) for name, kind in self._injected.items()}}

    def _field(
        self, parameter: inspect.Parameter, hints: Mapping[str, Any], description: str | None
    ) -> tuple[str, Any, Any]:
        """Turn a parameter into a field; an optional one stays unset, so that the function's own default is used."""
        place = f"`{self._name}`, parameter `{parameter.name}`"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadTool(f"{place}: a model passes arguments by name, so *, ** and / cannot be used")
        if parameter.name not in hints:
            raise BadTool(f"{place}: it has no type hint, so a model cannot know what to pass")
        hint = hints[parameter.name]
        # `Annotated[..., "text"]` wins over the docstring, and msgspec's own `Meta(description=...)` over both.
        if get_origin(hint) is Annotated:
            description = next((extra for extra in hint.__metadata__ if isinstance(extra, str)), description)
            if any(isinstance(extra, Meta) and extra.description for extra in hint.__metadata__):
                description = None
        hint = _with_formats(hint)
        hint = Annotated[hint, Meta(description=description)] if description else hint
        if parameter.default is None:  # `name: str = None` is common, and means an optional one
            hint = Optional[hint]  # noqa: UP045 - made at run time
        try:
            HintSchema(hint)
        except UnsupportedTypeHint as error:
            written = hints[parameter.name]
            plain = isinstance(written, type) and not get_args(written)
            shown = written.__qualname__ if plain else written
            raise BadTool(f"{place}: the hint `{shown}` cannot be a schema: {error}") from error
        if parameter.default is _NO_DEFAULT:
            return parameter.name, hint, msgspec.NODEFAULT
        return parameter.name, Union[hint, UnsetType], UNSET  # noqa: UP007 - made at run time


def converted(shape: HintSchema, arguments: Mapping[str, Any]) -> Any:
    """Convert the arguments to the hinted types; ToolCallFailed, for the model, if they do not fit."""
    try:
        return shape.convert(dict(arguments))
    except TypeHintMismatch as error:
        raise ToolCallFailed(f"The arguments do not fit the tool's schema: {error}") from None


def _with_formats(hint: Any) -> Any:
    """Add the format `date-time`, which msgspec leaves out."""
    if hint is datetime:
        return Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_with_formats(option) for option in get_args(hint))]  # noqa: UP007 - made at run time
    return hint
