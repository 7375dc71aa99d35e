"""A source of tools from an OpenAPI document: each operation of the service is a tool. Documents are not trusted.

bounded_yaml.py       parse the bytes of a document within bounds
reference.py          resolve a local `$ref`
schema.py             translate schemas into JSON Schema without references to the document
encode_parameters.py  encode arguments in the path, query, headers and cookies
encode_body.py        encode arguments in a body
operation.py          turn one operation into a ServerToolDefinition and a way to make its request
source.py             OpenApiSource
"""

from toolgate.tools.sources.openapi.source import OpenApiSource

__all__ = ["OpenApiSource"]
