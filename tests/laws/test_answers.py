"""The answer law: whatever bytes come on a connection, it ends in an answer or a close, and nothing fails on the way.

Every file of `corpus/connections/` makes cases: its `make(rng)` returns what a client sends, or a list of two of which the
second is sent once the first was answered. Each case is played on a clock that skips, with the limits of production, until
the server has closed. It goes against the law if that never happens, if the answer is an internal error, or if anything is
logged as an error.

By default a few hundred cases of each file are played; TOOLGATE_ANSWER_CASES says how many, TOOLGATE_ANSWER_SEED which.
"""

import asyncio
import importlib
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.connections import ENDINGS, Case, SkippingLoop, play_all, split

FILES = sorted(path.stem for path in (Path(__file__).parent / "corpus" / "connections").glob("*.py"))
COUNT = int(os.environ.get("TOOLGATE_ANSWER_CASES", "240"))
SEED = int(os.environ.get("TOOLGATE_ANSWER_SEED", "1"))


def cases(name: str) -> Iterator[tuple[str, Case]]:
    family = importlib.import_module(f"tests.laws.corpus.connections.{name}")
    for number in range(COUNT // getattr(family, "COST", 1)):
        rng = random.Random(f"{name} {SEED} {number}")
        sent = family.make(rng)
        first, then = sent if isinstance(sent, list) else (b"", sent)
        yield f"{name} {SEED} {number}", Case(split(rng, then), rng.choice(ENDINGS), first)


@pytest.mark.parametrize("name", FILES)
def test_every_connection_ends_in_an_answer_or_a_close(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.WARNING)
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        wrong = runner.run(play_all(cases(name)))
    assert not wrong, "\n".join(wrong[:5])
    assert not caplog.records
    assert capfd.readouterr().err == ""
