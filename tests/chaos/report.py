"""The numbers of many rounds, as a table."""

from collections.abc import Sequence

from tests.chaos.points import POINTS
from tests.chaos.rounds import Round
from tests.chaos.world import Violation

KINDS = ("lost", "doubled", "twice", "stuck", "slow", "wrong")


def table(rounds: Sequence[Round], late: Sequence[Violation]) -> str:
    """A row for each point and database, and the sums; `late` was found when all rounds were over."""
    lines = [
        f"{'point':<18}{'fault':<7}{'database':<12}{'rounds':>7}{'there':>7}{_heads()}{'start':>9}{'recovery':>10}"
    ]
    for database in dict.fromkeys([one.database for one in rounds]):
        for point in POINTS:
            mine = [one for one in rounds if (one.point, one.database) == (point.name, database)]
            if mine:
                lines.append(f"{point.name:<18}{point.fault:<7}{database:<12}{_row(mine)}")
    lines.append(f"{'all':<37}{_row(rounds)}")
    lines.append(f"{len(late)} violations found at the end: {', '.join([_described(one) for one in late]) or 'none'}")
    return "\n".join(lines)


def _heads() -> str:
    return "".join([f"{kind:>8}" for kind in KINDS])


def _row(rounds: Sequence[Round]) -> str:
    counts = [sum(found.kind == kind for one in rounds for found in one.violations) for kind in KINDS]
    start = max([one.start_seconds for one in rounds], default=0.0)
    worst = max([one.recovery_seconds for one in rounds], default=0.0)
    reached = sum(one.killed for one in rounds)
    return f"{len(rounds):>7}{reached:>7}{''.join([f'{count:>8}' for count in counts])}{start:>7.2f} s{worst:>8.2f} s"


def _described(violation: Violation) -> str:
    return f"{violation.kind}: {violation.what}"
