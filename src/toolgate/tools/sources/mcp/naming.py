"""The names under which a server's tools go here: every upstream accepts them, and no two are the same."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

LONGEST = 64
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")


def public_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """A public name for each name; it depends on the set of names alone, not on their order.

    A name that had to be changed gives way to one that fits as it is, and gets a few digits of its digest.
    """
    wanted = {name: tidy(prefix + name) for name in dict.fromkeys(names)}
    rivals: dict[str, int] = {}
    for plain in wanted.values():
        rivals[plain] = rivals.get(plain, 0) + 1
    fitting = {name for name, plain in wanted.items() if plain == prefix + name}
    chosen = {name: wanted[name] for name in fitting}
    taken = set(chosen.values())
    for name in sorted(wanted.keys() - fitting):
        plain = wanted[name]
        if rivals[plain] > 1 or len(prefix + name) > LONGEST or plain in taken:
            plain = _marked(plain, prefix + name, taken)
        chosen[name] = plain
        taken.add(plain)
    return {name: chosen[name] for name in wanted}


def borrowed(public: Mapping[str, str], foreign: Collection[str]) -> dict[str, str]:
    """Which tools go by a public name that begins with another source's prefix, and with which; rules mean that one's."""
    found = {
        name: next((prefix for prefix in foreign if goes_by.startswith(prefix)), "") for name, goes_by in public.items()
    }
    return {name: prefix for name, prefix in found.items() if prefix}


def tidy(name: str) -> str:
    """The name in letters that every upstream accepts, and no longer than they accept."""
    return _STRANGE.sub("_", name)[:LONGEST] or "_"


def _marked(plain: str, whole: str, taken: set[str]) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    for length in range(8, len(digest)):
        marked = f"{plain[: LONGEST - length - 1]}_{digest[:length]}"
        if marked not in taken:
            return marked
    raise AssertionError("two names have one digest")
