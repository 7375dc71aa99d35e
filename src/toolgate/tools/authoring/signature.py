"""A function's signature as a tool's input: the schema its hints make, and its arguments as they want them.

Parameters of the types CancellationToken, Progress and ToolInvocationToken are filled by us and shown to no model.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Optional, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from toolgate.tools.authoring import docstring
from toolgate.tools.authoring.cancellation import CancellationToken
from toolgate.tools.authoring.hints import BadHint, Misfit, Shape
from toolgate.tools.authoring.parts import Progress, ToolInvocationToken
from toolgate.tools.tool import ToolFailure

_OURS = (CancellationToken, Progress, ToolInvocationToken)
_NO_DEFAULT = inspect.Parameter.empty


class BadTool(Exception):
    """What the author wrote cannot be a tool; the message names the function, the parameter and the reason."""


class Call(Struct, frozen=True):
    """What a running tool may be given beside its arguments."""

    token: CancellationToken
    progress: Progress
    invocation: ToolInvocationToken

    def of_type(self, kind: type) -> object:
        """The one of the three that is of this type."""
        return next(value for value in (self.token, self.progress, self.invocation) if isinstance(value, kind))


class Signature:
    """How a function is called by a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """BadTool if a parameter cannot be described to a model."""
        self._name = getattr(function, "__qualname__", repr(function))
        hints = self._hints(function)
        parameters = inspect.signature(function).parameters
        self._ours = {name: hint for name, hint in hints.items() if name in parameters and hint in _OURS}
        shown = {name: parameter for name, parameter in parameters.items() if name not in self._ours}
        said = docstring.parameters(function.__doc__)
        fields = [self._field(parameter, hints, said.get(name)) for name, parameter in shown.items()]
        struct = msgspec.defstruct("input", fields, kw_only=True, forbid_unknown_fields=True)
        self._shape = Shape(struct)
        self.schema = _with_defaults(self._shape.schema, shown)
        self.output_schema = _output_schema(hints.get("return"))

    def bind(self, arguments: Mapping[str, Any], call: Call) -> dict[str, Any]:
        """The keyword arguments of one call; ToolFailure if the arguments do not fit the hints."""
        given = converted(self._shape, arguments)
        chosen = {name: getattr(given, name) for name in given.__struct_fields__ if getattr(given, name) is not UNSET}
        return {**chosen, **{name: call.of_type(kind) for name, kind in self._ours.items()}}

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return get_type_hints(function, include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            raise BadTool(f"`{self._name}`: its hints cannot be read: {error}") from error

    def _field(self, parameter: inspect.Parameter, hints: Mapping[str, Any], said: str | None) -> tuple[str, Any, Any]:
        """One parameter as a field; an optional one stays unset, so that the function's own default holds."""
        place = f"`{self._name}`, parameter `{parameter.name}`"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadTool(f"{place}: a model passes arguments by name, so *, ** and / cannot be used")
        if parameter.name not in hints:
            raise BadTool(f"{place}: it has no type hint, so a model cannot know what to pass")
        hint = _spoken(hints[parameter.name], said)
        if parameter.default is None:
            hint = Optional[hint]  # noqa: UP045 - made at run time
        try:
            Shape(hint)
        except BadHint as error:
            raise BadTool(
                f"{place}: the hint {_readable(hints[parameter.name])} cannot be a schema: {error}"
            ) from error
        if parameter.default is _NO_DEFAULT:
            return parameter.name, hint, msgspec.NODEFAULT
        return parameter.name, Union[hint, UnsetType], UNSET  # noqa: UP007 - made at run time


def converted(shape: Shape, arguments: Mapping[str, Any]) -> Any:
    """The arguments in the hinted types; ToolFailure, written for the model, if they do not fit."""
    try:
        return shape.convert(dict(arguments))
    except Misfit as error:
        raise ToolFailure(f"The arguments do not fit the tool's schema: {error}") from None


def _spoken(hint: Any, said: str | None) -> Any:
    """The hint with its description as msgspec wants it: from `Annotated[..., "text"]`, otherwise the docstring's."""
    if get_origin(hint) is Annotated:
        said = next((extra for extra in hint.__metadata__ if isinstance(extra, str)), said)
        if any(isinstance(extra, Meta) and extra.description for extra in hint.__metadata__):
            said = None
    hint = _dated(hint)
    return Annotated[hint, Meta(description=said)] if said else hint


def _dated(hint: Any) -> Any:
    """The hint with moments in time named as such, which msgspec leaves out."""
    if hint is datetime:
        return Annotated[datetime, Meta(extra_json_schema={"format": "date-time"})]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_dated(option) for option in get_args(hint))]  # noqa: UP007 - made at run time
    return hint


def _with_defaults(schema: dict[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    properties = {name: dict(field) for name, field in schema["properties"].items()}
    for name, parameter in parameters.items():
        if parameter.default is not _NO_DEFAULT:
            try:
                properties[name]["default"] = msgspec.to_builtins(parameter.default)
            except (TypeError, RecursionError):  # a default that is no JSON is the function's own affair
                continue
    return {name: value for name, value in {**schema, "properties": properties}.items() if name != "title"}


def _output_schema(hint: Any) -> dict[str, Any] | None:
    """What a function that promises an object gives back."""
    try:
        schema = Shape(hint).schema
    except BadHint:
        return None
    return schema if schema.get("type") == "object" and "properties" in schema else None


def _readable(hint: Any) -> str:
    return f"`{hint.__qualname__}`" if isinstance(hint, type) and not get_args(hint) else f"`{hint}`"
