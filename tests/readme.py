"""What the pages show, cut into the pieces that a reader would paste."""

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE = "localhost:8080"


class Shown(Struct, frozen=True):
    """A command or program of a page and what is shown behind it."""

    name: str
    text: str
    output: str

    @property
    def asks_local(self) -> bool:
        """Whether it needs the model in the box."""
        return bool(re.search(r"""model"?[=:] ?"local\"""", self.text))

    def at(self, url: str) -> str:
        """It, for a server at another address."""
        return self.text.replace(_HERE, url.removeprefix("http://"))

    def words(self, url: str) -> list[str]:
        """A command for a server at another address, as a shell reads it."""
        return shlex.split(self.at(url).replace("\\\n", " "))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: their language and their text."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(page.read_text())]


def commands(pages: Sequence[Path]) -> list[Shown]:
    """What is shown to be asked with curl."""
    return [one for kind, one in _shown(pages) if not kind and one.text.startswith("curl ")]


def programs(pages: Sequence[Path]) -> list[Shown]:
    """The Python programs that talk to a server."""
    return [one for kind, one in _shown(pages) if kind == "python" and _HERE in one.text]


def _shown(pages: Sequence[Path]) -> list[tuple[str, Shown]]:
    found = []
    for page in pages:
        pieces = [*blocks(page), ("", "")]
        for number, ((kind, text), (_, following)) in enumerate(pairwise(pieces)):
            found.append((kind, Shown(f"{page.stem}-{number}", text, following)))
    return found
