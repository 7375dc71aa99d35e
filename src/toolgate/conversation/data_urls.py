"""Convert media between inline bytes and data URLs."""

from toolgate.conversation.message import NO_EXTRA, Extra, Media, MediaKind


def data_url(mime: str | None, data: str) -> str:
    """Return inline base64 as a data URL."""
    return f"data:{mime or 'application/octet-stream'};base64,{data}"


def media_from_url(kind: MediaKind, url: str, extra: Extra = NO_EXTRA) -> Media:
    """Return media by URL; a base64 data URL is decoded to inline bytes, for dialects that take no such URLs."""
    if url.startswith("data:"):
        head, comma, data = url[5:].partition(",")
        mime, _, encoding = head.partition(";")
        if comma and encoding.endswith("base64"):
            return Media(kind, mime or None, data=data, extra=extra)
    return Media(kind, url=url, extra=extra)
