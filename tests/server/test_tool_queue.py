"""More calls of Python tools than processes to run them in: waiting in line costs no call any of its own time."""

from pathlib import Path

from tests.server.toolwork import TRUSTING, Work, at_work, call, results, said, soon
from toolgate.config.settings import RunLimits, Tools, Workers

SLOW = """
import time
from toolgate.lm import tool

@tool()
def slow(number: int) -> str:
    "Takes most of its time."
    time.sleep(0.5)
    return str(number)
"""


async def _has(work: Work, name: str) -> bool:
    return name in [one["name"] for one in (await work.get("/v1/tools")).json["data"]]


async def test_calls_that_wait_for_a_worker_have_all_of_their_time(tmp_path: Path) -> None:
    """fault: T1, L2: four calls of half a second each, a second for each, one process for all."""
    (tmp_path / "slow.py").write_text(SLOW)
    limits = RunLimits(call_seconds=1.0)
    setup = Tools(approvals=TRUSTING.approvals, python=(str(tmp_path),), workers=Workers(count=1), limits=limits)
    async with at_work(tools=setup) as work:
        await soon(lambda: _has(work, "slow"), seconds=20)
        script = work.play([call("slow", f'{{"number":{number}}}', number) for number in range(4)], "Done.")
        assert said("openai_chat", await work.ask()) == "Done."
        assert results(script.requests[1]) == ["0", "1", "2", "3"]
