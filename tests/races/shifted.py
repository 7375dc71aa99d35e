"""A server whose clock on the wall can be set: `python -m tests.races.shifted serve …` is `toolgate serve …`.

The file `clock` in its folder holds the seconds by which it is wrong, and is read whenever somebody asks for the time.
Clocks that only measure are right.
"""

import time
from pathlib import Path

_CLOCK = Path("clock")
_true = time.time


def shifted() -> float:
    """The time that this process takes to be true."""
    return _true() + float(_CLOCK.read_text() if _CLOCK.exists() else 0)


def set_clock(place: Path, seconds: float) -> None:
    """Have the clock of the server at this place be wrong by so much from now on."""
    new = place / "clock.new"
    new.write_text(str(seconds))
    new.replace(place / "clock")


def main() -> None:
    """Set the clock before anybody remembers the right one, then be an ordinary server."""
    time.time = shifted
    from toolgate.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
