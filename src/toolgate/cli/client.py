"""One GET of JSON with the standard library: enough for a command that runs once."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from toolgate.cli.asking import status_words

SECONDS = 10.0


class Refused(Exception):
    """There was no answer, or not the one that was wanted; the text says why."""


class _StayPut(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key is for the host that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def get_json(url: str, headers: Mapping[str, str], seconds: float = SECONDS) -> Any:
    """What the URL answers."""
    if not url.startswith(("http://", "https://")):
        raise Refused("a URL must start with http:// or https://")
    request = urllib.request.Request(url, headers={"accept": "application/json", **headers})  # noqa: S310 - checked above
    try:
        with urllib.request.build_opener(_StayPut).open(request, timeout=seconds) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise Refused(status_words(error.code)) from None
    except (urllib.error.URLError, OSError, HTTPException) as error:
        raise Refused(f"no answer ({getattr(error, 'reason', error)})") from None
    except ValueError:
        raise Refused("the answer is not JSON") from None
