"""Compute public names for a server's tools: accepted by every upstream, and unique."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

# OpenAI's limit for the name of a function.
MAX_CHARS = 64
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def public_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return a public name for each name; it depends on the set of names, not on their order.

    A name that is valid as it is stays. One that had to be changed and then collides gets some digits of its digest.
    """
    sanitized = {name: sanitize(prefix + name) for name in dict.fromkeys(names)}
    counts: dict[str, int] = {}
    for public in sanitized.values():
        counts[public] = counts.get(public, 0) + 1
    # Valid names are taken first: a tool must not lose its name to another one that only becomes the same.
    valid = {name for name, public in sanitized.items() if public == prefix + name}
    chosen = {name: sanitized[name] for name in valid}
    taken = set(chosen.values())
    for name in sorted(sanitized.keys() - valid):
        public = sanitized[name]
        if counts[public] > 1 or len(prefix + name) > MAX_CHARS or public in taken:
            digest = hashlib.sha256((prefix + name).encode("utf-8", "surrogatepass")).hexdigest()
            marked = (f"{public[: MAX_CHARS - length - 1]}_{digest[:length]}" for length in range(8, len(digest)))
            # Eight digits do, unless a server has named another tool just so.
            public = next(candidate for candidate in marked if candidate not in taken)
        chosen[name] = public
        taken.add(public)
    return {name: chosen[name] for name in sanitized}


def ambiguous_names(public: Mapping[str, str], foreign_prefixes: Collection[str]) -> dict[str, str]:
    """Return the tools whose public name begins with another source's prefix, and that prefix.

    Policy rules for the other source's tools would match them.
    """
    found = {
        name: next((prefix for prefix in foreign_prefixes if public_name.startswith(prefix)), "")
        for name, public_name in public.items()
    }
    return {name: prefix for name, prefix in found.items() if prefix}


def sanitize(name: str) -> str:
    """Replace the characters that some upstream refuses, and cut the name to the length that all accept."""
    return _NOT_ALLOWED.sub("_", name)[:MAX_CHARS] or "_"
