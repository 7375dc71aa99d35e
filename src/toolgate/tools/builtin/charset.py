"""Decode the bytes of a page or file by the charset that they declare, else as UTF-8."""

import re

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_IN_TYPE = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_IN_PAGE = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
# The charsets of web pages. Python has further codecs, such as `utf-7` and `unicode_escape`, that no page may choose.
_KNOWN = re.compile(
    r"utf-?8|utf-?16(?:-?[lb]e)?|us-ascii|iso-8859-(?:[1-9]|1[0-6])|windows-125[0-8]|windows-874|koi8-[ru]|macintosh"
    r"|gbk|gb2312|gb18030|big5|shift[_-]jis|euc-(?:jp|kr)|iso-2022-jp|latin-?1",
    re.IGNORECASE,
)
# Browsers read these as the wider set, because pages are written that way.
_WIDER = {"iso-8859-1": "cp1252", "latin1": "cp1252", "latin-1": "cp1252", "us-ascii": "cp1252", "gb2312": "gb18030"}
# Names that Python spells differently.
_PYTHONS = {"macintosh": "mac_roman", "windows-874": "cp874"}


def decoded(raw: bytes, content_type: str = "", *, html: bool = False) -> str:
    """Decode bytes; those that are invalid in the charset become the replacement character."""
    # As browsers do: a byte order mark wins over the header, and that over the page.
    for mark, name in _BOMS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(name, "replace")
    declared = _IN_TYPE.search(content_type)
    name = declared[1] if declared else ""
    if not name and html and (meta := _IN_PAGE.search(raw[:4096])):
        name = meta[1].decode("ascii")
        if name.lower().startswith("utf-16"):  # then this declaration could not have been found
            name = "utf-8"
    name = name.lower()
    codec = (_WIDER.get(name) or _PYTHONS.get(name) or name) if _KNOWN.fullmatch(name) else "utf-8"
    return raw.decode(codec, "replace")


def is_binary(raw: bytes) -> bool:
    """Whether the beginning of the bytes shows that they are not text."""
    # Text has no NUL bytes, except in UTF-16, which is recognised by its byte order mark.
    return b"\0" in raw[:8192] and not raw.startswith((b"\xff\xfe", b"\xfe\xff"))
