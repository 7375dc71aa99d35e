"""Serve the web console at /console/: one page, its script and its style sheet, built from `console/` of the repository.

The page calls the public API with the key that its user enters, so that nothing here knows keys, models or data.
"""

import gzip
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from msgspec import Struct

from toolgate.conversation.errors import NotFound
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute

INDEX = "index.html"
CONTENT_TYPES = {
    INDEX: b"text/html; charset=utf-8",
    "app.js": b"text/javascript; charset=utf-8",
    "app.css": b"text/css; charset=utf-8",
}
# What the page may do: load its own files, call its own server, show images, and never turn text into markup.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)

_SECURITY = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# `gzip` or `*` in Accept-Encoding, unless its weight is 0: "br, gzip;q=0.8" and not "gzip;q=0".
_GZIP = re.compile(rb"(?:^|,)\s*(?:gzip|\*)\s*(?:;\s*q=(?:1|0\.0*[1-9]).*?)?(?:,|$)")


class StaticFile(Struct, frozen=True):
    """A file of the console, plain and compressed."""

    content_type: bytes
    body: bytes
    compressed: bytes
    # The beginning of the content's SHA-256, which the page names in the URLs of its files.
    version: str


@cache
def load_static_files() -> Mapping[str, StaticFile]:
    """Read the files of the package and compress them, once in a process: neither changes while it runs."""
    folder = files("toolgate.console") / "static"
    found = {}
    for name, content_type in CONTENT_TYPES.items():
        body = (folder / name).read_bytes()
        version = sha256(body).hexdigest()[:16]
        found[name] = StaticFile(content_type, body, gzip.compress(body, 6, mtime=0), version)
    return found


class ConsoleEndpoints:
    """The endpoints of the console; none needs a key, because the data that the page shows does."""

    def __init__(self) -> None:
        self._files = load_static_files()

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/console", self.redirect, errors, scope=None),
            HttpRoute("GET", "/console/", self.index, errors, scope=None),
            HttpRoute("GET", "/console/{}", self.file, errors, scope=None),
        ]

    async def redirect(self, call: AdmittedHttpRequest) -> None:
        """Send a browser to the console; the address is relative, so that it holds behind a proxy with a prefix, too."""
        await call.exchange.respond(302, b"", [(b"location", b"console/")], b"text/plain")

    async def index(self, call: AdmittedHttpRequest) -> None:
        """Return the page of the console."""
        await self._send(call, self._files[INDEX])

    async def file(self, call: AdmittedHttpRequest) -> None:
        """Return a file of the console."""
        found = self._files.get(call.arguments[0])
        if found is None:
            raise NotFound(f"There is no {call.exchange.path[:200]!r} here.", code="unknown_url")
        await self._send(call, found)

    async def _send(self, call: AdmittedHttpRequest, found: StaticFile) -> None:
        # What a URL with the version of its content returns never changes; the page itself is small.
        versioned = call.exchange.query == f"v={found.version}"
        caching = b"public, max-age=31536000, immutable" if versioned else b"no-cache"
        headers = [*_SECURITY, (b"cache-control", caching), (b"vary", b"accept-encoding")]
        if _GZIP.search(call.headers.get(b"accept-encoding", b"").lower()):
            headers.append((b"content-encoding", b"gzip"))
            await call.exchange.respond(200, found.compressed, headers, found.content_type)
        else:
            await call.exchange.respond(200, found.body, headers, found.content_type)
