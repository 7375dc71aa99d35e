"""Encode arguments as the body of a request: JSON, a form, or plain text. Knows no document."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from toolgate.tools.sources.openapi.encode_parameters import OperationParameter, query_with
from toolgate.tools.sources.openapi.reference import UnusableOperation
from toolgate.tools.sources.openapi_operation_tool import is_json

Form = Literal["json", "form", "text"]


class OpenApiRequestBody(Struct, frozen=True):
    """How arguments become a body: `fields` maps arguments to properties; else the argument `whole` is the body."""

    media_type: str
    form: Form
    fields: Mapping[str, str] = {}
    whole: str | None = None
    required: bool = False

    def write(self, arguments: Mapping[str, Any]) -> bytes | None:
        """Encode the body; None if no argument of it was given."""
        if self.whole is not None:
            return self._encoded(arguments[self.whole]) if self.whole in arguments else None
        given = {name: arguments[one] for one, name in self.fields.items() if one in arguments}
        return self._encoded(given) if given or self.required else None

    def _encoded(self, value: Any) -> bytes:
        match self.form:
            case "json":
                return msgspec.json.encode(value)
            case "text":
                return str(value).encode()
            case "form":
                # A form is encoded as a query is; an object in a field is JSON, as OpenAPI has it.
                fields = [
                    OperationParameter(name, name, "query", "form", True, isinstance(one, dict))
                    for name, one in value.items()
                ]
                return query_with(fields, value).encode("ascii")


def chosen(content: Mapping[str, Any]) -> tuple[str, Form]:
    """Choose the media type of a request: JSON before forms before text."""
    kinds = {kind.partition(";")[0].strip().lower(): kind for kind in content}
    for kind, name in kinds.items():
        if is_json(kind) or kind in ("*/*", "application/*"):
            return name, "json"
    if "application/x-www-form-urlencoded" in kinds:
        return kinds["application/x-www-form-urlencoded"], "form"
    text = next((name for kind, name in kinds.items() if kind.startswith("text/")), None)
    if text is not None:
        return text, "text"
    raise UnusableOperation(f"it takes only {', '.join(kinds)[:100] or 'bodies of no type'}")
