"""Tools with effects that are written down where no crash reaches: one line for each run, on the disk before anything else.

The tools are Python files such as a user would write, so they run in worker processes and outlive no server.
"""

from collections import Counter
from pathlib import Path

from msgspec import Struct

TOOLS = '''
import os
import time
from pathlib import Path

from toolgate.lm import Annotations, ToolInvocationToken, tool

ORACLE = Path(__file__).parent.parent / "oracle"


def note(kind: str, effect: str, call: ToolInvocationToken) -> str:
    file = os.open(ORACLE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{kind} {effect} {call.call_id} {call.key}\\n".encode())
    os.fsync(file)
    os.close(file)
    time.sleep(0.02)
    return f"did {effect}"


@tool(annotations=Annotations())
def unsafe(effect: str, call: ToolInvocationToken) -> str:
    """Has an effect that cannot be taken back."""
    return note("unsafe", effect, call)


@tool(annotations=Annotations())
def asked(effect: str, call: ToolInvocationToken) -> str:
    """The same, and a person is asked first."""
    return note("unsafe", effect, call)


@tool(annotations=Annotations(destructive=False, idempotent=True, open_world=False))
def idempotent(effect: str, call: ToolInvocationToken) -> str:
    """Has one effect however often it is run with one key."""
    return note("idempotent", effect, call)


@tool(annotations=Annotations(read_only=True, destructive=False, idempotent=True, open_world=False))
def read(effect: str, call: ToolInvocationToken) -> str:
    """Only looks."""
    return note("read", effect, call)
'''
NAMES = frozenset(("unsafe", "asked", "idempotent", "read"))


class Ran(Struct, frozen=True):
    """One line of the oracle."""

    kind: str
    effect: str
    call: str
    key: str


class Oracle:
    """What really happened."""

    def __init__(self, place: Path) -> None:
        """The tools go to the folder `tools` in this place, the oracle beside it."""
        self._file = place / "oracle"
        (place / "tools").mkdir()
        (place / "tools" / "effects.py").write_text(TOOLS)

    def runs(self) -> list[Ran]:
        """All lines."""
        return [Ran(*line.split(" ")) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def twice(self) -> list[str]:
        """Harmful calls that ran more than once."""
        counts = Counter([one.call for one in self.runs() if one.kind == "unsafe"])
        return [call for call, count in counts.items() if count > 1]

    def effects(self, effect: str) -> int:
        """The net effect: runs, but those of an idempotent tool with one key count once."""
        mine = [one for one in self.runs() if one.effect == effect]
        harmful = [one for one in mine if one.kind == "unsafe"]
        return len(harmful) + len({one.key for one in mine if one.kind == "idempotent"})
