"""The documented examples of the four APIs as requests: read from `examples/*.yaml`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

FILES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))


class Expected(Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer must hold: dotted paths into its JSON, or into the last event of a stream.

    `ends` is the type of that event; `calls` wants a tool call in the answer, `json` a text that is JSON, and `loads` the
    answer to a request that only loads or unloads a model.
    """

    holds: tuple[str, ...] = ()
    stream: str | None = None
    ends: str | None = None
    calls: bool = False
    json: bool = False
    loads: bool = False


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A documented request; `{model}`, `{response}`, `{conversation}`, `{item}` and `{completion}` are filled in."""

    name: str
    method: str
    path: str
    answer: Expected
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    body: Any = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The kinds of ids that must exist before it is sent."""
        return tuple(re.findall(r"{(\w+)}", self.path))


class NotOffered(Struct, frozen=True, forbid_unknown_fields=True):
    """Documented examples of a path that the gateway does not have."""

    method: str
    why: str
    count: int


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """The examples of one documentation."""

    source: str
    examples: tuple[Example, ...]
    not_offered: Mapping[str, NotOffered] = {}


SOURCES: dict[str, Source] = {file.stem: msgspec.yaml.decode(file.read_bytes(), type=Source) for file in FILES}
