"""A service and its document as a source of tools. Reads the document once it can be had, and says what is left out."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urljoin

from msgspec.structs import replace

from toolgate.tools.egress import Http, HttpAnswer, HttpRequest, Refused
from toolgate.tools.egress.url import MAX_URL, read_url
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.sources.http import HttpTool
from toolgate.tools.sources.openapi.document import MAX_JSON, DocumentError, read_document
from toolgate.tools.sources.openapi.operation import Found, Operation, Reader, found_in
from toolgate.tools.sources.openapi.reference import References, Unusable
from toolgate.tools.tool import OnChange, Tool, ToolFailure

MAX_OPERATIONS = 1000
_LONGEST_PAUSE = 300.0
_URL = re.compile(r"(?i)https?://")
_VARIABLE = re.compile(r"\{([^{}]+)\}")


class TrustingHttp(Http, Protocol):
    """The network, and a way to open what the operator wrote down."""

    def trusting(self, url: str) -> Http:
        """The same, with the host of this URL open to it."""


class OpenApiSource:
    """Brings the operations of one service.

    `headers` are its credentials. They go to `base_url`; without one, to the server that the document names, if the document
    is a file of ours or that server's own. `include` and `exclude` are patterns of operation ids or of `GET /path`.
    """

    def __init__(
        self,
        name: str,
        document: str,
        http: TrustingHttp,
        *,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        timeout: float | None = None,
        retry_seconds: float = 5.0,
        schemas: SchemaCheck | None = None,
    ) -> None:
        """Opens nothing yet; Refused is raised for a `base_url` that could never be opened."""
        self.name = f"http/{name}"
        self.tools: Sequence[Tool] = ()
        self.trouble: str | None = None
        self._service = name
        self._document = document
        self._http = http
        self._base_url = None if base_url is None else read_url(base_url).url
        self._headers = dict(headers or {})
        self._include, self._exclude = tuple(include), tuple(exclude)
        self._timeout = timeout
        self._pause = retry_seconds
        self._schemas = schemas or SchemaCheck()
        self._loading: asyncio.Task[None] | None = None

    async def open(self, on_change: OnChange) -> None:
        """Read a file at once; fetch a URL in the background, as often as it takes."""
        if _URL.match(self._document):
            self._loading = asyncio.ensure_future(self._fetch_until_there(on_change))
        else:
            await self._load(on_change)

    async def aclose(self) -> None:
        """Stop fetching."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait((self._loading,))

    async def _fetch_until_there(self, on_change: OnChange) -> None:
        pause = self._pause
        while not await self._load(on_change):
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _load(self, on_change: OnChange) -> bool:
        """Bring the tools; whether there is no use in trying again."""
        try:
            raw = await self._raw()
        except (OSError, ToolFailure) as error:
            self.trouble = f"the OpenAPI document of {self._service} could not be had: {_words(error)}"
            return isinstance(error, Refused)
        try:
            self.tools, left_out = await asyncio.to_thread(self._read, raw)
            self.trouble = _told(self._service, left_out)
        except (DocumentError, Unusable, ToolFailure) as error:
            self.trouble = f"the OpenAPI document of {self._service} cannot be used: {error}"
        on_change()
        return True

    async def _raw(self) -> bytes:
        if not _URL.match(self._document):
            return await asyncio.to_thread(_file, Path(self._document))
        headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5"}
        if self._base_url is not None and _same_origin(self._base_url, self._document):
            headers |= self._headers
        request = HttpRequest(self._document, headers=headers, max_bytes=MAX_JSON + 1, account=self.name)
        return _body(await self._http.trusting(self._document).send(request))

    def _read(self, raw: bytes) -> tuple[tuple[Tool, ...], list[str]]:
        document = read_document(raw)
        if not str(document.get("openapi", "")).startswith("3."):
            raise DocumentError("it is not OpenAPI 3.0 or 3.1")
        references = References(document)
        base = self._base_url or self._server(document)
        http = self._http.trusting(base) if self._base_url is not None else self._http
        credentials = frozenset(name.lower() for name in self._headers)
        reader = Reader(self._service, references, base, credentials, self._schemas)
        tools: list[Tool] = []
        left_out: list[str] = []
        for found in found_in(references):
            if not self._wants(found):
                continue
            if len(tools) >= MAX_OPERATIONS:
                left_out.append(f"{found.label}: there are more than {MAX_OPERATIONS} operations")
                continue
            try:
                self._check_servers(found)
                operation = reader.read(found)
            except Unusable as reason:
                left_out.append(f"{found.label}: {reason}")
                continue
            tools.append(self._tool(operation, base, http))
        return tuple(tools), left_out

    def _tool(self, operation: Operation, base: str, http: Http) -> Tool:
        spec = replace(operation.spec, timeout=self._timeout)
        return HttpTool(spec, operation.compose, base, self._headers, http)

    def _wants(self, found: Found) -> bool:
        def fits(patterns: Sequence[str]) -> bool:
            return any(fnmatchcase(name, pattern) for name in (found.id, found.label) for pattern in patterns)

        return (not self._include or fits(self._include)) and not fits(self._exclude)

    def _check_servers(self, found: Found) -> None:
        if self._base_url is None and (found.node.get("servers") or found.item.get("servers")):
            raise Unusable("it names a server of its own; set base_url")

    def _server(self, document: Mapping[str, Any]) -> str:
        """The server that the document names, if our credentials may go there."""
        match document.get("servers"):
            case [{"url": str(url), **rest}, *_]:
                variables = rest.get("variables")
                url = _filled(url, variables if isinstance(variables, dict) else {})
            case _:
                url = "/"
        remote = _URL.match(self._document) is not None
        if remote:
            try:
                url = urljoin(self._document, url)
            except ValueError:
                raise DocumentError("it names a server by a malformed URL; set base_url") from None
        if not _URL.match(url):
            raise DocumentError("it does not say where the service is; set base_url")
        base = read_url(url).url
        if remote and self._headers and not _same_origin(base, self._document):
            raise DocumentError("it names a server elsewhere, to which headers are not sent; set base_url to allow it")
        return base


def _filled(url: str, variables: Mapping[str, Any]) -> str:
    """The address with the default of each variable in its place; a default is never filled in itself."""
    if len(url) > MAX_URL:
        raise DocumentError(f"it names a server by a URL longer than {MAX_URL} characters")
    pieces: list[str] = []
    size = 0
    for number, piece in enumerate(_VARIABLE.split(url)):
        if number % 2:
            variable = variables.get(piece)
            piece = str(variable.get("default", "")) if isinstance(variable, dict) else f"{{{piece}}}"
        size += len(piece)
        if size > MAX_URL:
            raise DocumentError(f"it names a server by a URL longer than {MAX_URL} characters")
        pieces.append(piece)
    return "".join(pieces)


def _same_origin(one: str, other: str) -> bool:
    return read_url(one).origin == read_url(other).origin


def _file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_JSON + 1)


def _body(answer: HttpAnswer) -> bytes:
    if answer.status != 200:
        raise ToolFailure(f"HTTP {answer.status}")
    return answer.body


def _words(error: Exception) -> str:
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)


def _told(service: str, left_out: Sequence[str]) -> str | None:
    if not left_out:
        return None
    more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    return f"operations of {service} are left out: {'; '.join(left_out[:5])}{more}"
