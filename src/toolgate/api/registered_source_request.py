"""Decode the registration of a tool or an MCP server; every error names the field.

A registration has a URL. A command is refused: only the configuration file may start programs.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import urlsplit

from toolgate.conversation.errors import Forbidden, InvalidRequest
from toolgate.tools.registry import LONGEST_NAME
from toolgate.tools.sources.registered import ToolRegistration
from toolgate.tools.tool import NO_INPUT, Annotations, Stance
from toolgate.tools.when_clauses import WhenError, parse
from toolgate.wire.fields import Fields

# The names of MCP's annotations, and those of our own.
ANNOTATIONS = {
    "readOnlyHint": "read_only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open_world",
}

# What all providers accept as the name of a function.
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_REFERENCE = re.compile(r"[A-Za-z_][\w-]{0,63}", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")  # a token of RFC 9110
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,8192}")  # no line breaks, with which a header could add another
# Headers that frame the request on its connection, or choose another server behind the checked address.
_RESERVED_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect")
)
_PROGRAM_FIELDS = ("command", "args", "env", "cwd")
_MAX_TAGS = 32
_MAX_TEXT = 16 * 1024
_MAX_HEADERS = 64


def decode_registration(value: Any) -> ToolRegistration:
    """Decode the body of a registration."""
    fields = Fields(value)
    # An admin key must not be enough to run programs on this machine.
    for name in _PROGRAM_FIELDS:
        if name in fields.rest:
            raise Forbidden(
                f"{name}: programs are started for the configuration file alone; register a URL.",
                param=name,
                code="command_not_allowed",
            )
    kind = fields.one_of("type", "http", "mcp")
    if kind is None:
        raise InvalidRequest("type is required: http or mcp.", param="type", code="missing_required_parameter")
    name = fields.required_text("name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"name must be 1 to {LONGEST_NAME} letters, digits, _ and -.", param="name")
    url, headers = _url(fields), _headers(fields)
    if kind == "mcp":
        registration = ToolRegistration(type="mcp", name=name, url=url, headers=headers)
    else:
        registration = _http(fields, name, url, headers)
    for unknown in fields.rest:
        near = difflib.get_close_matches(unknown[:80], _FIELDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise InvalidRequest(
            f"{unknown[:80]} is not a field of an {kind} registration{hint}",
            param=unknown[:80],
            code="unknown_parameter",
        )
    return registration


def _http(fields: Fields, name: str, url: str, headers: Mapping[str, str]) -> ToolRegistration:
    stance, reference = fields.one_of("approval", *get_args(Stance)), fields.text("referenceName")
    if reference is not None and not _REFERENCE.fullmatch(reference):
        raise InvalidRequest("referenceName must be a word of letters, digits, _ and -.", param="referenceName")
    return ToolRegistration(
        type="http",
        name=name,
        url=url,
        headers=headers,
        secret=_text(fields, "secret"),
        description=_bounded(fields, "description", fields.required_text("description")) or "",
        input_schema=fields.mapping("inputSchema") or NO_INPUT,
        output_schema=fields.mapping("outputSchema"),
        display_name=_text(fields, "displayName"),
        reference_name=reference,
        user_description=_text(fields, "userDescription"),
        icon=_text(fields, "icon"),
        tags=_tags(fields),
        when=_when(fields),
        private=fields.flag("private") or False,
        annotations=_annotations(fields),
        approval=stance,  # type: ignore[arg-type]  # one_of checks it
        timeout=fields.number("timeout", least=0.001, most=3600),
        cache_seconds=fields.number("cacheSeconds", least=0, most=86400) or 0.0,
    )


_FIELDS = (
    *("type", "name", "url", "headers", "secret", "description", "inputSchema", "outputSchema", "displayName"),
    *("referenceName", "userDescription", "icon", "tags", "when", "private", "annotations", "approval", "timeout"),
    "cacheSeconds",
)


def _url(fields: Fields) -> str:
    url = fields.required_text("url")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url or len(url) > 2048:
        raise InvalidRequest("url must be a URL that starts with http:// or https://.", param="url")
    # Headers are never shown, but a URL may be in logs and error messages.
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("url must not hold a name or password; put them into headers.", param="url")
    return url


def _headers(fields: Fields) -> dict[str, str]:
    headers = fields.mapping("headers") or {}
    for name, value in headers.items():
        at = f"headers.{name}"[:140]
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED_HEADERS:
            raise InvalidRequest(f"{at!r} is not a header that can be set.", param=at)
        if type(value) is not str or not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest(f"{at} must be a string of printable ASCII characters.", param=at)
    if len(headers) > _MAX_HEADERS:
        raise InvalidRequest(f"headers may hold at most {_MAX_HEADERS} headers.", param="headers")
    return headers


def _text(fields: Fields, name: str) -> str | None:
    return _bounded(fields, name, fields.text(name))


def _bounded(fields: Fields, name: str, text: str | None) -> str | None:
    if text is not None and len(text) > _MAX_TEXT:
        raise InvalidRequest(f"{fields.at(name)} may have at most {_MAX_TEXT} characters.", param=fields.at(name))
    return text


def _tags(fields: Fields) -> tuple[str, ...]:
    tags = fields.items("tags") or []
    if len(tags) > _MAX_TAGS:
        raise InvalidRequest(f"tags may hold at most {_MAX_TAGS} tags.", param="tags")
    for number, tag in enumerate(tags):
        if type(tag) is not str or not tag.strip() or "," in tag or len(tag) > 64:  # `?tags=a,b` separates by commas
            raise InvalidRequest(f"tags[{number}] must be a word without a comma.", param=f"tags[{number}]")
    return tuple(tags)


def _when(fields: Fields) -> str | None:
    clause = fields.text("when")
    try:
        return parse(clause).text if clause is not None else None
    except WhenError as error:
        raise InvalidRequest(f"when: {error}.", param="when") from None


def _annotations(fields: Fields) -> Annotations:
    given = fields.object("annotations")
    if given is None:
        return Annotations()
    flags = {own: flag for name, own in ANNOTATIONS.items() if (flag := given.flag(name)) is not None}
    for unknown in given.rest:
        raise InvalidRequest(
            f"{given.at(unknown[:80])} is not known; there are {', '.join(ANNOTATIONS)}.", param=given.at(unknown[:80])
        )
    return Annotations(**flags)
