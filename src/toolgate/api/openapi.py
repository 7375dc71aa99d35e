"""Build the OpenAPI document from the endpoints that are served, so that it cannot miss one."""

import re
from collections.abc import Sequence
from typing import Any

from toolgate import __version__
from toolgate.http.application import HttpRoute

_ERRORS = {
    "400": "The request is wrong; the message names the field.",
    "401": "No key, or an unknown one.",
    "404": "No such model or object.",
    "413": "The body is too large.",
    "415": "The body is not JSON in UTF-8.",
    "429": "Too many requests; see Retry-After.",
    "502": "The upstream failed.",
    "503": "The upstream or this server is busy; see Retry-After.",
    "504": "The upstream took too long.",
}


def openapi_document(endpoints: Sequence[HttpRoute]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = re.sub(r"\{\}", "{id}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Toolgate",
            "version": __version__,
            "summary": "One server between LLM clients and LLMs that makes tool calling work everywhere.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
    }


def _operation(endpoint: HttpRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": (endpoint.handler.__doc__ or "").strip().splitlines()[0],
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()} {endpoint.path}").strip("_"),
        "responses": {"200": {"description": "The answer."}},
    }
    if "{}" in endpoint.path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    if endpoint.scope is not None:
        operation["security"] = [{"bearer": []}, {"header": []}]
        operation["responses"] |= {status: {"description": text} for status, text in _ERRORS.items()}
    if endpoint.method == "POST":
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    return operation
