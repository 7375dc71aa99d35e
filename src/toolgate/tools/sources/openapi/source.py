"""A source of the tools of one HTTP service: load its OpenAPI document, and report operations that are left out."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urljoin

from msgspec.structs import replace

from toolgate.tools.egress import EgressHttpClient, EgressRefused, EgressRequest
from toolgate.tools.egress.url import MAX_URL, read_url
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.sources.openapi.bounded_yaml import MAX_JSON, OpenApiDocumentError, read_document
from toolgate.tools.sources.openapi.operation import OperationLocation, OperationReader, found_in
from toolgate.tools.sources.openapi.reference import DocumentReferences, UnusableOperation
from toolgate.tools.sources.openapi_operation_tool import OpenApiOperationTool
from toolgate.tools.tool import OnChange, Tool, ToolCallFailed

MAX_OPERATIONS = 1000
# Operations that cannot be tools before the rest is not read, and operations that patterns are compared with.
MAX_LEFT_OUT = 4 * MAX_OPERATIONS
MAX_COMPARED = 50 * MAX_OPERATIONS
_MAX_LABEL = 200
_MAX_PAUSE = 300.0
# How long the start of the server waits for the look-up of a service's host.
_LOOKUP_SECONDS = 2.0
_URL = re.compile(r"(?i)https?://")
_VARIABLE = re.compile(r"\{([^{}]+)\}")


class OperatorHttpClient(EgressHttpClient, Protocol):
    """An HTTP client that can be allowed to reach the hosts that the operator configured."""

    def trusting(self, url: str) -> EgressHttpClient:
        """Return a client that may also reach the host of this URL."""

    async def check(self, url: str) -> None:
        """Raise EgressRefused if a request to the URL would be refused."""


class OpenApiSource:
    """Brings the operations of one service.

    `headers` are its credentials. They are sent to `base_url`; without one, to the server that the document names, if the
    document is a local file or comes from that server. `include` and `exclude` are patterns of operation ids or `GET /path`.
    """

    def __init__(
        self,
        name: str,
        document: str,
        http: OperatorHttpClient,
        *,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        timeout: float | None = None,
        retry_seconds: float = 5.0,
        schemas: ToolSchemaValidator | None = None,
    ) -> None:
        """Opens nothing yet; raises EgressRefused for a `base_url` that could never be reached."""
        self.name = f"http/{name}"
        self.tools: Sequence[Tool] = ()
        self.problem: str | None = None
        # Why tools may not reach the server that the document names; None if they may.
        self.refused: str | None = None
        self._service = name
        self._document = document
        self._http = http
        self._base_url = None if base_url is None else read_url(base_url).url
        self._headers = dict(headers or {})
        self._include, self._exclude = tuple(include), tuple(exclude)
        self._timeout = timeout
        self._pause = retry_seconds
        self._schemas = schemas or ToolSchemaValidator()
        self._loading: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()

    async def open(self, on_change: OnChange) -> None:
        """Read a file at once; fetch a URL in the background, until it can be fetched."""
        if not _URL.match(self._document):
            await self._load(on_change)
            self._tried.set()
            return

        async def fetch() -> None:
            pause = self._pause
            while not await self._load(on_change):
                self._tried.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE)
            self._tried.set()

        self._loading = asyncio.ensure_future(fetch())

    async def settled(self) -> None:
        """Wait until the document was loaded, or could not be for the first time."""
        await self._tried.wait()

    async def aclose(self) -> None:
        """Stop fetching."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait((self._loading,))

    async def _load(self, on_change: OnChange) -> bool:
        """Load the tools; False if it is useful to try again."""
        try:
            raw = await self._raw_document()
        except (OSError, ToolCallFailed) as error:
            why = (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
            self.problem = f"the OpenAPI document of {self._service} could not be loaded: {why}"
            return isinstance(error, EgressRefused)  # which only the configuration can change
        try:
            base, tools, left_out = await asyncio.to_thread(self.parse, raw)
            self.refused = await self._refusal(base)
            if self.refused is None:
                self.tools = tools
            self.problem = self.refused
            if self.problem is None and left_out:
                more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
                self.problem = f"operations of {self._service} are left out: {'; '.join(left_out[:5])}{more}"
        except (OpenApiDocumentError, UnusableOperation, ToolCallFailed) as error:
            self.problem = f"the OpenAPI document of {self._service} cannot be used: {error}"
        except Exception as error:  # noqa: BLE001  # the tool boundary: else a download would end without a word
            self.problem = f"the OpenAPI document of {self._service} cannot be used: {type(error).__name__}: {error}"
        on_change()
        return True

    async def _refusal(self, base: str) -> str | None:
        """Return why no operation could ever be called: the document names a host that tools may not reach.

        It is checked here because a call would be refused only after a person has approved it.
        """
        if self._is_configured(base):
            return None
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                await self._http.check(base)
        except EgressRefused:
            host = read_url(base).exact
            return f"its document names {base}, a host that tools may not reach: add {host} to tools.reach, or set base_url"
        except (ToolCallFailed, TimeoutError):  # the look-up fails now, which may change
            return None
        return None

    async def _raw_document(self) -> bytes:
        if not _URL.match(self._document):

            def read() -> bytes:
                with Path(self._document).open("rb") as file:
                    return file.read(MAX_JSON + 1)

            return await asyncio.to_thread(read)
        headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5"}
        # Documents often lie at a public host, which must not see the credentials of the service.
        if self._base_url is not None and _same_origin(self._base_url, self._document):
            headers |= self._headers
        request = EgressRequest(self._document, headers=headers, max_bytes=MAX_JSON + 1, account=self.name)
        response = await self._http.trusting(self._document).send(request)
        if response.status != 200:
            raise ToolCallFailed(f"HTTP {response.status}")
        return response.body

    def parse(self, raw: bytes) -> tuple[str, tuple[Tool, ...], list[str]]:
        """Parse a document into the URL of the service, its tools, and the operations that are left out and why."""
        document = read_document(raw)
        if not str(document.get("openapi", "")).startswith("3."):
            raise OpenApiDocumentError("it is not OpenAPI 3.0 or 3.1")
        references = DocumentReferences(document)
        base = self._base_url or self._server(document)
        http = self._http.trusting(base) if self._is_configured(base) else self._http
        credentials = frozenset(name.lower() for name in self._headers)
        reader = OperationReader(self._service, references, base, credentials, self._schemas)
        tools: list[Tool] = []
        left_out: list[str] = []
        for number, found in enumerate(found_in(references)):
            # A path may refer to the operations of another, so that a few bytes are six more.
            if number >= MAX_COMPARED:
                raise OpenApiDocumentError(f"it has more than {MAX_COMPARED} operations")
            included = not self._include or _matches(found, self._include)
            if not included or _matches(found, self._exclude):
                continue
            label = found.label[:_MAX_LABEL]
            if len(tools) >= MAX_OPERATIONS or len(left_out) >= MAX_LEFT_OUT:
                most = MAX_OPERATIONS if len(tools) >= MAX_OPERATIONS else MAX_LEFT_OUT
                left_out.append(f"{label}: there are more than {most} operations, and all after it are left out")
                break
            try:
                # Credentials are for the one server that was checked above.
                if self._base_url is None and (found.node.get("servers") or found.item.get("servers")):
                    raise UnusableOperation("it names a server of its own; set base_url")
                operation = reader.read(found)
            except UnusableOperation as reason:
                left_out.append(f"{label}: {reason}")
                continue
            spec = replace(operation.spec, timeout=self._timeout)
            tools.append(OpenApiOperationTool(spec, operation.compose, base, self._headers, http))
        return base, tuple(tools), left_out

    def _is_configured(self, base: str) -> bool:
        """Return whether the operator named this server: as `base_url`, or as the origin of the document's own URL."""
        if self._base_url is not None:
            return True
        return _URL.match(self._document) is not None and _same_origin(base, self._document)

    def _server(self, document: Mapping[str, Any]) -> str:
        """Return the URL of the server that the document names, if our credentials may be sent there."""
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
                raise OpenApiDocumentError("it names a server by a malformed URL; set base_url") from None
        if not _URL.match(url):
            raise OpenApiDocumentError("it does not say where the service is; set base_url")
        base = read_url(url).url
        if remote and self._headers and not _same_origin(base, self._document):
            raise OpenApiDocumentError(
                "it names a server elsewhere, to which headers are not sent; set base_url to allow it"
            )
        return base


def _filled(url: str, variables: Mapping[str, Any]) -> str:
    """Replace each variable in a URL by its default; variables in a default are not replaced."""
    if len(url) > MAX_URL:
        raise OpenApiDocumentError(f"it names a server by a URL longer than {MAX_URL} characters")
    # Counted piece by piece: a short URL may name a long default a thousand times.
    pieces: list[str] = []
    size = 0
    for number, piece in enumerate(_VARIABLE.split(url)):
        if number % 2:  # `split` puts what the group matched, a name, between the pieces of text
            variable = variables.get(piece)
            piece = str(variable.get("default", "")) if isinstance(variable, dict) else f"{{{piece}}}"
        size += len(piece)
        if size > MAX_URL:
            raise OpenApiDocumentError(f"it names a server by a URL longer than {MAX_URL} characters")
        pieces.append(piece)
    return "".join(pieces)


def _same_origin(one: str, other: str) -> bool:
    return read_url(one).origin == read_url(other).origin


def _matches(found: OperationLocation, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in (found.id, found.label) for pattern in patterns)
