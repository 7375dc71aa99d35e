"""More calls of Python tools than processes to run them in: waiting costs no call its own time, and callers take turns."""

import asyncio
from pathlib import Path

from tests.tools.execution.toolwork import TRUSTING, Work, at_work, call, output, results, soon
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import RunLimitSettings, ServerToolSettings, ToolWorkerSettings

SLOW = """
import time
from toolgate.lm import tool

@tool()
def slow(number: int) -> str:
    "Takes most of its time."
    time.sleep(0.5)
    return str(number)
"""


async def _listed(work: Work, name: str, key: str = "") -> bool:
    return name in [one["name"] for one in (await work.get("/v1/tools", key)).json["data"]]


async def test_calls_that_wait_for_a_worker_have_all_of_their_time(tmp_path: Path) -> None:
    """fault: T1, L2: four calls of half a second each, a second for each, one process for all."""
    (tmp_path / "slow.py").write_text(SLOW)
    limits = RunLimitSettings(call_seconds=1.0)
    setup = ServerToolSettings(
        approvals=TRUSTING.approvals, python=(str(tmp_path),), workers=ToolWorkerSettings(count=1), limits=limits
    )
    async with at_work(tools=setup) as work:
        await soon(lambda: _listed(work, "slow"))
        script = work.play([call("slow", f'{{"number":{number}}}', number) for number in range(4)], "Done.")
        assert output("openai_chat", await work.ask()) == "Done."
        assert results(script.requests[1]) == ["0", "1", "2", "3"]


BLOCKED = """
import time
from pathlib import Path
from toolgate.lm import tool

HERE = Path(__file__).parent

@tool()
def blocked(number: int) -> str:
    "Waits until the test lets it go."
    (HERE / f"began{number}").touch()
    while not (HERE / "enough").exists():
        time.sleep(0.01)
    return str(number)

@tool()
def quick() -> str:
    "Takes no time."
    return "quick"
"""


def _began(folder: Path) -> int:
    return len(list(folder.glob("began*")))


async def test_a_caller_is_served_while_another_floods_all_workers(tmp_path: Path) -> None:
    (tmp_path / "blocked.py").write_text(BLOCKED)
    limits = RunLimitSettings(call_seconds=60.0)
    setup = ServerToolSettings(
        approvals=TRUSTING.approvals, python=(str(tmp_path),), workers=ToolWorkerSettings(count=2), limits=limits
    )
    keys = tuple(
        [KeySettings(name=name, key=Secret(f"{name}-key"), scopes=("chat", "tools")) for name in ("many", "few")]
    )
    async with at_work(tools=setup, keys=keys) as work:
        await soon(lambda: _listed(work, "quick", "few-key"), seconds=30)
        flood = [call("blocked", f'{{"number":{number}}}', number) for number in range(24)]
        script = work.play(flood, [call("quick", "{}", 1)], "Few are done.", "Many are done.")
        flooding = asyncio.create_task(work.ask(key="many-key"))
        await soon(lambda: _began(tmp_path) == 2, seconds=30)
        assert output("openai_chat", await work.ask(key="few-key")) == "Few are done."
        assert results(script.requests[2]) == ["quick"]
        assert _began(tmp_path) == 2  # none of the others has had its turn
        (tmp_path / "enough").touch()
        assert output("openai_chat", await flooding) == "Many are done."
