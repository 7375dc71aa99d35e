"""HTTP services described by OpenAPI documents, each operation a tool. A document is a stranger's, and is read as one.

document.py     bytes → plain JSON within bounds
reference.py    what a local `$ref` means
schema.py       its schemas → JSON Schema that stands alone
parameter.py    arguments → path, query, headers and cookies
body.py         arguments → a body
operation.py    one operation → a ToolSpec and the way to its request
source.py       OpenApiSource
"""

from toolgate.tools.sources.openapi.source import OpenApiSource

__all__ = ["OpenApiSource"]
