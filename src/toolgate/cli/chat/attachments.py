"""Read a file that is sent with a question: an image, or text."""

from base64 import b64encode
from pathlib import Path
from typing import Any

# Of one file; as base64 it must fit into the body of a request, of which a server takes 10 MiB by default.
MAX_BYTES = 7 * 2**20

# The first bytes of each format. WebP is RIFF, the length of the file in four bytes, then WEBP.
_IMAGES = {b"\x89PNG\r\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


class AttachmentRefused(Exception):
    """The file cannot be sent; the message says why."""


def read_attachment(path: Path) -> dict[str, Any]:
    """Read a file as a part of a message; images are recognised by their first bytes."""
    try:
        with path.open("rb") as file:
            # Not by its size: a device or a pipe has none, and could be read forever.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AttachmentRefused(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise AttachmentRefused(f"{path} has more than {MAX_BYTES // 2**20} MiB.")
    kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "webp"
    if kind is not None:
        url = f"data:image/{kind};base64,{b64encode(data).decode()}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise AttachmentRefused(f"{path} is neither text in UTF-8 nor a PNG, JPEG, GIF or WebP image.") from None
    return {"type": "input_text", "text": f"The file {path.name}:\n\n{text}"}
