"""Download a file from the model hub over HTTPS, and resume an earlier attempt. Blocks; runs in a thread.

Proxies and certificates are those of the environment.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from toolgate.upstreams.local.weights_catalog import DownloadAbandoned, DownloadFailed, ModelHubFile

HUB = "https://huggingface.co"
_CHUNK = 256 * 1024
_SECONDS = 30.0  # without any byte


def address(file: ModelHubFile, environment: Mapping[str, str]) -> str:
    """Return the URL of the file; `HF_ENDPOINT` names another hub, as for the hub's own tools."""
    hub = environment.get("HF_ENDPOINT", HUB).rstrip("/")
    return f"{hub}/{file.repository}/resolve/main/{quote(file.file)}"


def download(
    url: str,
    part: Path,
    size: int,
    on_progress: Callable[[int], None],
    abandoned: threading.Event,
    seconds: float = _SECONDS,
) -> None:
    """Append the missing bytes to `part`, up to `size`; what was received is kept after a failure."""
    start = part.stat().st_size if part.exists() else 0
    if start > size:
        part.unlink()
        start = 0
    if start == size:
        return
    if not url.startswith(("https://", "http://")):
        raise DownloadFailed(f"{url} is no web address")
    request = Request(url, headers={"range": f"bytes={start}-"} if start else {})  # noqa: S310 - checked above
    try:
        with (
            closing(urlopen(request, timeout=seconds)) as response,  # noqa: S310
            # A server that ignores `range` sends everything, with status 200 instead of 206.
            part.open("ab" if response.status == 206 else "wb") as file,
        ):
            at = start if response.status == 206 else 0
            while chunk := response.read(_CHUNK):
                if abandoned.is_set():
                    raise DownloadAbandoned
                at += len(chunk)
                if at > size:
                    raise DownloadFailed("the hub's file is longer than it should be")
                file.write(chunk)
                on_progress(at)
            if at < size:
                raise DownloadFailed(f"the hub broke off after {at:,} of {size:,} bytes")
    except HTTPError as error:
        raise DownloadFailed(f"the hub answered with status {error.code}") from None
    except (URLError, OSError, HTTPException) as error:
        raise DownloadFailed(f"the hub could not be reached or broke off ({getattr(error, 'reason', error)})") from None
