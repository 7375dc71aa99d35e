"""The source of Python tools: folders, packages, modules and entry points, broken ones beside good ones."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from tests.child_processes import living_children
from toolgate.conversation.message import Media, Text
from toolgate.tools.sources.python import PythonSource
from toolgate.tools.tool import CallPreview, CallProgressUpdate, Tool, ToolCallFailed, ToolCallInput, ToolSource
from toolgate.tools.workers.process import WorkerLimits

ADD = '''
from toolgate.lm import tool

@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
'''


class Folder:
    """A folder of tools, and the sources that read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[PythonSource] = []

    def write(self, name: str, code: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(code))

    async def open(self, *places: str, on_change: Callable[[], None] = lambda: None, **settings: Any) -> PythonSource:
        source = PythonSource(places or ("./tools",), self.path, **{"open_seconds": 20.0, **settings})
        self.opened.append(source)
        await source.open(on_change)
        return source


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    folder = Folder(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield folder
    for source in folder.opened:
        await source.aclose()
    assert living_children() == []
    assert sys.path == path
    assert not [name for name in set(sys.modules) - modules if name.startswith("_toolgate")]


def tool_of(source: ToolSource, name: str) -> Tool:
    return next(tool for tool in source.tools if tool.spec.name == name)


async def run(
    source: ToolSource, tool: str, report_progress: Callable[[CallProgressUpdate], None] = print, /, **arguments: Any
) -> Any:
    text = msgspec.json.encode(arguments).decode()
    output = await tool_of(source, tool).invoke(
        ToolCallInput("call_1", arguments, text, key="k1", report=report_progress)
    )
    return (
        output.structured
        if output.structured is not None
        else "".join(part.text for part in output.content if isinstance(part, Text))
    )


def names(source: ToolSource) -> list[str]:
    return [tool.spec.name for tool in source.tools]


async def test_the_files_and_packages_of_a_folder_bring_tools(folder: Folder) -> None:
    """spec: R2"""
    folder.write("tools/a.py", ADD)
    folder.write("tools/_hidden.py", "raise SystemExit")
    folder.write("tools/notes.txt", "no code")
    folder.write(
        "tools/b.py",
        '''
        from dataclasses import dataclass
        from helpers import SUFFIX
        from toolgate import lm

        @dataclass
        class Greeting:
            name: str

        class Greet:
            """Greet."""
            def prepare_invocation(self, options, token):
                return lm.PreparedToolInvocation(
                    "Greeting", lm.ConfirmationMessages("Greet?", f"Greet {options.input.name}?"))
            def invoke(self, options: lm.LanguageModelToolInvocationOptions[Greeting], token):
                options.progress.report("greeting", 1, 1)
                return f"Hello {options.input.name}{SUFFIX} ({options.tool_invocation_token.key})"

        lm.register_tool("greet", Greet())
        ''',
    )
    folder.write("tools/helpers.py", "SUFFIX = '!'\n")
    folder.write("tools/pack/__init__.py", "")
    folder.write("tools/pack/_shared.py", "FACTOR = 2\n")
    folder.write(
        "tools/pack/twice.py",
        '''
        from ._shared import FACTOR
        from toolgate.lm import tool

        @tool
        async def twice(n: int) -> int:
            """Twice."""
            return n * FACTOR
        ''',
    )
    changes: list[bool] = []
    source = await folder.open(on_change=lambda: changes.append(True))
    assert source.problem is None
    assert (names(source), source.name, changes) == (["add", "greet", "twice"], "python", [True])
    assert await run(source, "add", a=1, b=2) == 3
    assert await run(source, "twice", n=4) == 8
    reports: list[CallProgressUpdate] = []
    assert await run(source, "greet", reports.append, name="Ann") == "Hello Ann! (k1)"
    assert reports == [CallProgressUpdate("greeting", 1, 1)]
    asked = await tool_of(source, "greet").prepare(ToolCallInput("c", {"name": "Ann"}, ""))
    assert asked == CallPreview("Greeting", "Greet?", "Greet Ann?")
    assert await tool_of(source, "add").prepare(ToolCallInput("c", {}, "")) == CallPreview()
    assert "helpers" not in sys.modules


BROKEN = {
    "syntax.py": ("def f(:\n", "tools/syntax.py, line 1: SyntaxError: invalid syntax"),
    "raises.py": ("x = 1\nint('x')\n", "tools/raises.py, line 2: ValueError: invalid literal"),
    "imports.py": ("import no_such_thing\n", "tools/imports.py, line 1: ModuleNotFoundError: No module named 'no_such"),
    "exits.py": ("import sys\nsys.exit(1)\n", "tools/exits.py, line 2: The tool called exit with status 1."),
    "dies.py": (
        "import os\nos._exit(5)\n",
        "tools/dies.py: while it was loaded: The tool ended its process with status 5.",
    ),
    "signals.py": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGRTMIN + 6)\n",
        f"tools/signals.py: while it was loaded: The tool's process was ended by signal {signal.SIGRTMIN + 6}.",
    ),
    "hangs.py": ("while True:\n    pass\n", "tools/hangs.py: it took longer than 3 seconds to load"),
    "hint.py": (
        "from toolgate.lm import tool\n@tool\ndef f(z: complex) -> None:\n    '''F.'''\n",
        "tools/hint.py, line 2: `f`, parameter `z`: the hint `complex` cannot be a schema",
    ),
    "schema.py": (
        "from toolgate.lm import register_tool\nclass T:\n    '''T.'''\n    input_schema = {'type': 'objet'}\n"
        "    def invoke(self, options, token): ...\nregister_tool('t', T())\n",
        "tools/schema.py:2: `t` is refused: its input schema must describe an object, not 'objet'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_file_is_reported_precisely_and_does_not_affect_others(folder: Folder, name: str) -> None:
    """R2, fault: T2"""
    code, complaint = BROKEN[name]
    folder.write(f"tools/{name}", code)
    folder.write("tools/zz_good.py", ADD)
    source = await folder.open(load_seconds=3.0 if name == "hangs.py" else 20.0)
    assert source.problem is not None
    assert source.problem.startswith(complaint)
    assert "\n" not in source.problem
    assert await run(source, "add", a=1, b=2) == 3


async def test_a_second_tool_of_one_name_is_refused_and_both_places_are_named(folder: Folder) -> None:
    folder.write("tools/a.py", ADD)
    folder.write("tools/b.py", ADD.replace("a + b", "-1") + ADD.replace("add", "other"))
    source = await folder.open()
    assert names(source) == ["add", "other"]
    assert await run(source, "other", a=1, b=1) == 2
    assert await run(source, "add", a=1, b=1) == 2
    assert source.problem == "tools/b.py:4: `add` is refused: tools/a.py:4 has a tool of that name"


async def test_code_found_through_two_places_is_no_trouble(folder: Folder) -> None:
    folder.write("tools/a.py", ADD)
    folder.write("tools/b.py", "from a import add\n")
    source = await folder.open("./tools", "tools/a.py", "tools/*.py")
    assert (names(source), source.problem) == (["add"], None)


async def test_a_broken_package_is_reported_once(folder: Folder) -> None:
    folder.write("tools/pack/__init__.py", "1 / 0\n")
    folder.write("tools/pack/inner.py", ADD)
    source = await folder.open()
    assert source.problem == "tools/pack/__init__.py, line 1: ZeroDivisionError: division by zero"


async def test_a_broken_module_of_a_package_harms_no_other(folder: Folder) -> None:
    folder.write("tools/pack/__init__.py", "")
    folder.write("tools/pack/bad.py", "1 / 0\n")
    folder.write("tools/pack/good.py", ADD)
    source = await folder.open()
    assert source.problem == "tools/pack/bad.py, line 1: ZeroDivisionError: division by zero"
    assert await run(source, "add", a=1, b=2) == 3


async def test_modules_are_imported_by_name(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("lib/my_installed_tools.py", ADD)
    monkeypatch.syspath_prepend(str(folder.path / "lib"))
    source = await folder.open("my_installed_tools", "no.such.module", "./absent")
    assert await run(source, "add", a=1, b=2) == 3
    assert source.problem == (
        "./absent: there is no such file or folder\nno.such.module: ModuleNotFoundError: No module named 'no'"
    )
    await source.aclose()


async def test_installed_packages_bring_tools_by_entry_points(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """spec: R2"""
    folder.write("lib/entry_tools.py", ADD + ADD.replace("add", "other"))
    folder.write(
        "lib/entry_tools-1.0.dist-info/entry_points.txt",
        """
        [toolgate.tools]
        just_add = entry_tools:add
        everything = entry_tools
        nothing = entry_tools:tool
        """,
    )
    folder.write("lib/entry_tools-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: entry-tools\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(folder.path / "lib"))
    chosen = await folder.open("entry-points:just_add")
    assert (names(chosen), chosen.problem) == (["add"], None)
    every = await folder.open("entry-points", "entry-points:absent")
    assert sorted(names(every)) == ["add", "other"]
    assert every.problem is not None
    assert "entry-points:absent: no installed package" in every.problem
    assert "entry-points:nothing: `tool` is not decorated with @tool" in every.problem


async def test_opening_again_reads_the_files_again(folder: Folder) -> None:
    code = ADD.replace("def", "async def") + ADD.replace("add", "sync")
    folder.write("tools/a.py", code)
    source = await folder.open()
    assert [await run(source, name, a=1, b=2) for name in ("add", "sync")] == [3, 3]
    folder.write("tools/a.py", code.replace("a + b", "a - b"))
    await source.open(lambda: None)
    assert [await run(source, name, a=1, b=2) for name in ("add", "sync")] == [-1, -1]
    await source.aclose()
    assert list(source.tools) == []


async def test_sync_code_runs_in_a_worker_and_async_code_on_the_loop_by_default(folder: Folder) -> None:
    folder.write(
        "tools/where.py",
        '''
        import os, threading
        from toolgate.lm import tool

        def where() -> list:
            return [os.getpid(), threading.current_thread() is threading.main_thread()]

        @tool
        def plain() -> list:
            """Sync."""
            return where()

        @tool(worker=False)
        def threaded() -> list:
            """Sync, here."""
            return where()

        @tool
        async def on_loop() -> list:
            """Async."""
            return where()

        @tool(worker=True)
        async def away() -> list:
            """Async, away."""
            return where()
        ''',
    )
    source = await folder.open()
    here = os.getpid()
    assert await run(source, "on_loop") == [here, True]
    assert await run(source, "threaded") == [here, False]
    for name in ("plain", "away"):
        number, main = await run(source, name)
        assert number != here
        assert main


async def test_a_file_with_worker_tools_alone_is_never_loaded_by_the_server(folder: Folder) -> None:
    folder.write("tools/a.py", "import os\nopen(f'{os.getpid()}.loaded', 'w').close()\n" + ADD)
    there = os.getcwd()
    os.chdir(folder.path)
    try:
        source = await folder.open()
        assert await run(source, "add", a=1, b=2) == 3
    finally:
        os.chdir(there)
    (mark,) = folder.path.glob("*.loaded")
    assert mark.stem != str(os.getpid())


async def test_a_tool_on_the_loop_invokes_others_by_name(folder: Folder) -> None:
    folder.write("tools/a.py", ADD.replace("@tool", "@tool(private=True)"))
    folder.write(
        "tools/b.py",
        '''
        from toolgate import lm

        @lm.tool
        async def six() -> str:
            """Six."""
            options = lm.LanguageModelToolInvocationOptions({"a": 2, "b": 4})
            result = await lm.invoke_tool("add", options)
            return f"{result.content[0].value} of {[tool.name for tool in lm.tools]}"
        ''',
    )
    source = await folder.open()
    assert await run(source, "six") == "6 of ['six']"


async def test_failures_carry_the_message_and_nothing_else(folder: Folder) -> None:
    folder.write(
        "tools/a.py",
        '''
        from toolgate.lm import ToolFailure, tool

        @tool
        def fail(how: str) -> None:
            """Fail."""
            local = "a local secret"
            raise ToolFailure("Try Paris.") if how == "kind" else LookupError(f"no city {how}")
        ''',
    )
    source = await folder.open()
    with pytest.raises(ToolCallFailed) as failure:
        await run(source, "fail", how="Atlantis")
    assert str(failure.value) == "LookupError: no city Atlantis"
    with pytest.raises(ToolCallFailed) as failure:
        await run(source, "fail", how="kind")
    assert str(failure.value) == "Try Paris."


async def test_opening_does_not_wait_for_slow_files(folder: Folder) -> None:
    folder.write("tools/a.py", ADD)
    folder.write("tools/slow.py", "import time\ntime.sleep(1000)\n")
    changed = asyncio.Event()
    async with asyncio.timeout(30):
        source = await folder.open(on_change=changed.set, open_seconds=0.01, load_seconds=3)
        assert not changed.is_set()
        await changed.wait()
    assert names(source) == ["add"]
    assert source.problem == "tools/slow.py: it took longer than 3 seconds to load"


async def test_a_folder_without_tools_is_reported(folder: Folder) -> None:
    folder.write("tools/helpers.py", "X = 1\n")
    source = await folder.open()
    assert source.problem == "there are no tools in ./tools"


async def test_what_tools_print_can_be_read(folder: Folder) -> None:
    folder.write("tools/a.py", ADD.replace("return", "print('adding', flush=True)\n    return"))
    source = await folder.open(limits=WorkerLimits(workers=1))
    assert await run(source, "add", a=1, b=2) == 3
    async with asyncio.timeout(30):
        while "adding" not in source.log:  # noqa: ASYNC110 - the pipe of another process
            await asyncio.sleep(0.01)


EXAMPLES = Path(__file__).parents[3] / "examples" / "tools"


async def test_the_examples_work(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    source = await folder.open(str(EXAMPLES))
    assert source.problem is None
    assert names(source) == ["draw_bars", "roll_dice", "toss_coin", "write_note", "list_notes", "delete_note"]
    assert 3 <= (await run(source, "roll_dice", count=3))["total"] <= 18
    assert await run(source, "toss_coin") in ("heads", "tails")
    reports: list[CallProgressUpdate] = []
    chart = ToolCallInput("c", {"values": [1, 2, 3]}, "", report=reports.append)
    (picture,) = (await tool_of(source, "draw_bars").invoke(chart)).content
    assert isinstance(picture, Media)
    assert picture.mime == "image/png"
    assert reports[0] == CallProgressUpdate("Drawing", 0, 120)
    await run(source, "write_note", title="to do", text="everything")
    assert await run(source, "list_notes") == ["to do"]
    asked = await tool_of(source, "delete_note").prepare(ToolCallInput("c", {"title": "to do"}, ""))
    assert asked.question == "Delete the note “to do” for good?"
    assert await run(source, "delete_note", title="to do") == "Deleted to do."
    with pytest.raises(ToolCallFailed, match="A title has letters"):
        await run(source, "delete_note", title="../x")


PAGE = Path(__file__).parents[3] / "docs" / "tools.md"
FILES = re.findall(r"```python\n# (my_tools/\w+\.py)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


async def test_every_file_in_the_guide_can_be_loaded(folder: Folder) -> None:
    for name, code in FILES:
        folder.write(name, code)
    source = await folder.open("./my_tools")
    assert len(FILES) >= 5
    assert source.problem is None
    assert len(source.tools) >= len(FILES)
