"""Read the metadata that clients attach to what is stored for them, within the limits of OpenAI.

Lists read the metadata of many objects at once, so that none of it may be large.
"""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.wire.fields import Fields

_MAX_PAIRS, _MAX_NAME_LENGTH, _MAX_VALUE_LENGTH = 16, 64, 512


def read_metadata(fields: Fields) -> dict[str, str]:
    """Read the field `metadata`; null is none."""
    metadata = fields.mapping("metadata") or {}
    check_metadata(metadata)
    return metadata


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if there are too many pairs, one is too long, or a value is no text."""
    if len(metadata) > _MAX_PAIRS:
        raise InvalidRequest(f"metadata may hold at most {_MAX_PAIRS} pairs.", param="metadata")
    for name, value in metadata.items():
        if type(value) is not str or len(name) > _MAX_NAME_LENGTH or len(value) > _MAX_VALUE_LENGTH:
            raise InvalidRequest(
                f"metadata takes names of at most {_MAX_NAME_LENGTH} and strings of at most {_MAX_VALUE_LENGTH} characters.",
                param=f"metadata.{name[:_MAX_NAME_LENGTH]}",
            )
