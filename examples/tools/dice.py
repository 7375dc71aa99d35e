"""Plain functions as tools: hints become the schema, the docstring becomes what the model reads."""

import random
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from toolgate.lm import Annotations, tool


@dataclass
class Roll:
    """What fell."""

    dice: list[int]
    total: int


@tool(tags=["games"], annotations=Annotations(read_only=True, destructive=False, open_world=False))
def roll_dice(
    count: Annotated[int, Meta(ge=1, le=100, description="How many dice.")] = 1,
    sides: Literal[4, 6, 8, 12, 20] = 6,
) -> Roll:
    """Roll dice and add them up.

    Args:
        sides: How many sides each of them has.
    """
    dice = [random.randint(1, sides) for _ in range(count)]  # noqa: S311 - a game
    return Roll(dice, sum(dice))


@tool(reference_name="coin")
async def toss_coin() -> str:
    """Toss a coin: heads or tails."""
    return random.choice(["heads", "tails"])  # noqa: S311 - a game
