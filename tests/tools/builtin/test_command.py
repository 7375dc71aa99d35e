"""Running programs: words and no shell, a bare environment, and nothing left behind (spec: R2; fault: T1, T3, T5)."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.tools.invoke import invocation_of, run, run_text
from tests.upstreams.transport.faulty import on_both_loops
from toolgate.tools.builtin.command import MAX_OUTPUT, CommandTool
from toolgate.tools.builtin.granted_folders import GrantedFolders
from toolgate.tools.tool import ToolCallFailed

PYTHON = sys.executable
# Starts a child that would run for long, says its own and the child's number, and then does what the test wants.
WITH_CHILD = (
    "import subprocess, os, time; c = subprocess.Popen(['sleep', '300']); print(os.getpid(), c.pid, flush=True); "
)


@pytest.fixture
def tool(tmp_path: Path) -> CommandTool:
    (tmp_path / "sub").mkdir()
    return CommandTool(
        GrantedFolders([tmp_path]), {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "canary", "LANG": "C.UTF-8"}
    )


@on_both_loops
async def test_a_program_runs_and_its_output_and_code_come_back(tool: CommandTool) -> None:
    output = await run(tool, command=[PYTHON, "-c", "import sys; print('out'); sys.exit(3)"])
    assert output.content[0].text == "out\n[exit code 3]"  # type: ignore[union-attr]
    assert output.is_error
    assert await run_text(tool, command=["true"]) == "[exit code 0]"


async def test_words_are_not_read_by_a_shell(tool: CommandTool, tmp_path: Path) -> None:
    """fault: A6"""
    words = ["$(touch evil)", "; touch evil", "&& touch evil", "`touch evil`", "*", "a\nb"]
    assert await run_text(tool, command=["printf", "%s|", *words]) == "|".join(words) + "|\n[exit code 0]"
    assert not (tmp_path / "evil").exists()


async def test_a_program_sees_nothing_of_our_environment_but_what_it_needs(tool: CommandTool) -> None:
    text = await run_text(tool, command=["env"])
    assert "canary" not in text
    assert "PATH=" in text


async def test_a_program_reads_no_input_and_runs_in_a_granted_folder(tool: CommandTool, tmp_path: Path) -> None:
    assert await run_text(tool, command=["cat"]) == "[exit code 0]"
    assert await run_text(tool, command=["pwd"], cwd="sub") == f"{tmp_path}/sub\n[exit code 0]"
    for outside in ("..", "/", "missing"):
        with pytest.raises(ToolCallFailed):
            await run(tool, command=["pwd"], cwd=outside)


@pytest.mark.parametrize("command", [["no-such-program"], ["./missing"], ["a\0b"], [""], ["/"]])
async def test_a_program_that_cannot_be_started_fails_with_a_message(tool: CommandTool, command: list[str]) -> None:
    with pytest.raises(ToolCallFailed):
        await run(tool, command=command)


@on_both_loops
async def test_much_output_is_cut_in_the_middle_with_a_note(tool: CommandTool) -> None:
    """fault: T3"""
    script = "import sys; sys.stdout.write('a' + 'x' * 5_000_000 + 'z'); sys.stdout.buffer.write(b'\\xff')"
    text = await run_text(tool, command=[PYTHON, "-c", script])
    assert len(text) < MAX_OUTPUT + 100
    assert text.startswith("ax")
    assert text.endswith("xz\ufffd\n[exit code 0]")
    assert f"[… {5_000_003 - MAX_OUTPUT} bytes left out …]" in text


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead; whoever inherited it has yet to look


async def until(true: Callable[[], bool]) -> None:
    """Other processes tell us of nothing: ask again and again."""
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@on_both_loops
async def test_cancelling_ends_the_program_and_all_that_it_started(tool: CommandTool, tmp_path: Path) -> None:
    """fault: T5"""
    script = WITH_CHILD + "open('started', 'w').write(f'{os.getpid()} {c.pid}'); time.sleep(300)"
    running = asyncio.ensure_future(run(tool, command=[PYTHON, "-c", script]))
    started = tmp_path / "started"
    await until(lambda: started.exists() and " " in started.read_text())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert int(started.read_text().split()[0]) not in [child.pid for child in psutil.Process().children()]
    for pid in map(int, started.read_text().split()):
        await until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]
    started.unlink()


@on_both_loops
async def test_a_program_that_ends_leaves_no_child_behind(tool: CommandTool) -> None:
    """fault: T5. The child holds the output open, and nobody waits for it."""
    text = await run_text(tool, command=[PYTHON, "-c", WITH_CHILD])
    assert text.endswith("[exit code 0]")
    await until(lambda: not is_running(int(text.split()[1])))


async def test_a_person_sees_the_command_as_it_would_be_typed(tool: CommandTool) -> None:
    preparation = await tool.prepare(invocation_of(tool, command=["rm", "-rf", "my files"], cwd="sub"))
    assert preparation.asks
    assert preparation.title == "Run rm?"
    assert preparation.question == "rm -rf 'my files'\nin sub"
