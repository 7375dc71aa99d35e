"""Files in granted folders: what can be read and written there, and that nothing leads out (spec: R2; fault: T3, A5)."""

import io
import os
import threading
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.invoke import invocation_of, run, run_text, text_of
from toolgate.conversation.message import Media
from toolgate.tools.builtin import read_files, search_files
from toolgate.tools.builtin.granted_folders import GrantedFolders, GrantedPath
from toolgate.tools.builtin.read_files import MAX_TEXT, ListFilesTool, ReadFileTool
from toolgate.tools.builtin.search_files import SearchFilesTool, fits
from toolgate.tools.builtin.write_file import WriteFileTool
from toolgate.tools.tool import ToolCallFailed

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A granted folder, beside a secret that nobody granted."""
    (tmp_path / "secret.txt").write_text("canary")
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "notes.txt").write_text("one\ntwo\nthree\n")
    (root / "src" / "main.py").write_text("import os\nprint('Hello')\n")
    (root / "src" / "deep" / "more.py").write_text("HELLO = 1\n")
    return root


@pytest.fixture
def roots(top: Path) -> GrantedFolders:
    return GrantedFolders([top])


async def test_a_folder_is_listed_folders_first(roots: GrantedFolders) -> None:
    assert await run_text(ListFilesTool(roots)) == "src/\nnotes.txt  14"
    assert await run_text(ListFilesTool(roots), path="src", depth=2) == "deep/\n  more.py  10\nmain.py  25"


async def test_a_file_is_read_in_portions_of_lines(roots: GrantedFolders) -> None:
    assert await run_text(ReadFileTool(roots), path="notes.txt") == "one\ntwo\nthree\n"
    portion = await run_text(ReadFileTool(roots), path="notes.txt", offset=2, limit=1)
    assert portion == "two\n[more lines follow: call read_file again with offset=3]"
    with pytest.raises(ToolCallFailed, match="fewer than 9 lines"):
        await run(ReadFileTool(roots), path="notes.txt", offset=9)


@pytest.mark.parametrize("block", [1, 2, 5, 1024])
async def test_a_portion_begins_at_its_line_wherever_a_block_ends(
    roots: GrantedFolders, top: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_files, "_BLOCK", block)
    lines = ["one", "", "three", "", "", "six"]
    (top / "lines.txt").write_text("\n".join(lines))
    for number, line in enumerate(lines, 1):
        portion = await run_text(ReadFileTool(roots), path="lines.txt", offset=number, limit=1)
        assert portion.partition("\n")[0] == line
    with pytest.raises(ToolCallFailed, match="fewer than 7 lines"):
        await run(ReadFileTool(roots), path="lines.txt", offset=7)


def test_lines_are_skipped_in_large_blocks() -> None:
    class CountingFile(io.RawIOBase):
        reads = 0
        left = 8_000_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.reads += 1
            size = min(len(buffer), self.left)
            buffer[:size] = b"\n" * size
            self.left -= size
            return size

    file = CountingFile()
    with pytest.raises(ToolCallFailed, match="fewer than"):
        read_files.portion(GrantedPath("/", ("a",), "a"), io.BufferedReader(file), 10**12, 1)
    assert file.reads < 100


async def test_lines_are_not_skipped_for_longer_than_a_call_may_take(
    roots: GrantedFolders, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (top / "lines.txt").write_text("\n" * 100)
    monkeypatch.setattr(read_files, "_BLOCK", 10)
    monkeypatch.setattr(read_files, "MAX_SECONDS", -1.0)
    with pytest.raises(ToolCallFailed, match="too long to be read up to that one"):
        await run(ReadFileTool(roots), path="lines.txt", offset=50)


@pytest.mark.parametrize("tool", [ListFilesTool, SearchFilesTool])
async def test_a_folder_of_very_many_files_is_not_read_for_longer_than_a_call_may_take(
    tool: Any, roots: GrantedFolders, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped: it would use the processor long after the call has timed out."""
    for number in range(100):
        (top / f"{number}.txt").touch()
    looked_at: list[GrantedPath] = []
    hides = GrantedFolders.hides

    def count_and_hide(self: GrantedFolders, place: GrantedPath) -> bool:
        looked_at.append(place)
        return hides(self, place)

    monkeypatch.setattr(GrantedFolders, "hides", count_and_hide)
    clock = SimpleNamespace(monotonic=lambda: float(len(looked_at)))  # a second for each entry
    monkeypatch.setattr(read_files, "time", clock)
    monkeypatch.setattr(search_files, "time", clock)
    assert "ended after 8 s" in await run_text(tool(roots))
    assert len(looked_at) < 20


async def test_an_absolute_path_inside_the_root_is_understood(roots: GrantedFolders, top: Path) -> None:
    assert await run_text(ReadFileTool(roots), path=str(top / "notes.txt"), limit=3) == "one\ntwo\nthree\n"


async def test_a_huge_file_is_cut_with_a_note(roots: GrantedFolders, top: Path) -> None:
    """fault: T3"""
    (top / "huge.txt").write_bytes(b"x" * (MAX_TEXT * 3))
    text = await run_text(ReadFileTool(roots), path="huge.txt")
    assert text.endswith("[line 1 is cut here: it is too long to be shown whole]")
    assert len(text) < MAX_TEXT + 100


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "(empty)"),
        (b"bad \xff", "bad \ufffd"),
        ("\ufeffhi".encode(), "hi"),
        ("\ufeffhi\nho".encode("utf-16-le"), "hi\nho"),
    ],
)
async def test_files_are_decoded_and_never_fail_to(roots: GrantedFolders, top: Path, raw: bytes, text: str) -> None:
    """fault: T3"""
    (top / "odd.txt").write_bytes(raw)
    assert await run_text(ReadFileTool(roots), path="odd.txt") == text


async def test_a_picture_comes_as_media_and_other_binary_files_do_not_come(roots: GrantedFolders, top: Path) -> None:
    """fault: T3"""
    (top / "cat.png").write_bytes(PNG)
    (top / "a.out").write_bytes(b"\x7fELF\0\0")
    output = await run(ReadFileTool(roots), path="cat.png")
    picture = output.content[1]
    assert isinstance(picture, Media)
    assert (picture.mime, b64decode(picture.data or "")) == ("image/png", PNG)
    with pytest.raises(ToolCallFailed, match="binary"):
        await run(ReadFileTool(roots), path="a.out")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "src/../../secret.txt",
        "/etc/passwd",
        "//etc/passwd",
        "src/./../../secret.txt",
        "way-out",
        "way-out-folder/secret.txt",
        "src/loop/../../../secret.txt",
        "notes.txt\0",
        "../root-twin/secret.txt",
        "\udc80",
        "a" * 5000,
    ],
)
async def test_no_path_leads_out_of_the_root(roots: GrantedFolders, top: Path, path: str) -> None:
    (top / "way-out").symlink_to(top.parent / "secret.txt")
    (top / "way-out-folder").symlink_to(top.parent)
    (top / "src" / "loop").symlink_to(top / "src")
    twin = top.parent / "root-twin"
    twin.mkdir()
    (twin / "secret.txt").write_text("canary")
    for tool, arguments in (
        (ReadFileTool(roots), {"path": path}),
        (ListFilesTool(roots), {"path": path}),
        (SearchFilesTool(roots), {"path": path, "text": "canary"}),
        (WriteFileTool(roots), {"path": path, "content": "overwritten"}),
    ):
        with pytest.raises(ToolCallFailed) as failure:
            assert "canary" not in text_of(await run(tool, **arguments))
        assert "canary" not in str(failure.value)
    assert (top.parent / "secret.txt").read_text() == "canary"
    assert sorted(os.listdir(top.parent)) == ["root", "root-twin", "secret.txt"]


async def test_links_that_stay_inside_are_followed(roots: GrantedFolders, top: Path) -> None:
    (top / "inner").symlink_to(top / "src")
    assert await run_text(ReadFileTool(roots), path="inner/main.py", limit=1) == (
        "import os\n[more lines follow: call read_file again with offset=2]"
    )


def test_a_link_swapped_in_after_the_check_is_not_followed(roots: GrantedFolders, top: Path) -> None:
    outside = top.parent / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("canary")
    folder_swapped, file_swapped = roots.place("src/main.py"), roots.place("notes.txt")
    (top / "src").rename(top / "gone")
    (top / "src").symlink_to(outside)
    (top / "notes.txt").unlink()
    (top / "notes.txt").symlink_to(outside / "main.py")
    for place in (folder_swapped, file_swapped):
        with pytest.raises(ToolCallFailed), roots.file(place):
            pytest.fail("the link was followed")
    writing = WriteFileTool(roots)
    with pytest.raises(ToolCallFailed):
        writing._replace(os.open(top, os.O_RDONLY), file_swapped, b"overwritten")
    with pytest.raises(ToolCallFailed), roots.folder(folder_swapped, create=True):
        pytest.fail("the link was followed")
    assert (outside / "main.py").read_text() == "canary"


def test_a_link_swapped_in_between_looking_and_opening_is_not_followed(
    roots: GrantedFolders, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat

    def look_then_swap(*names: Any, **more: Any) -> os.stat_result:
        found = look(*names, **more)
        if names == ("notes.txt",) and not (top / "notes.txt").is_symlink():
            (top / "notes.txt").unlink()
            (top / "notes.txt").symlink_to(top.parent / "secret.txt")
        return found

    place = roots.place("notes.txt")
    monkeypatch.setattr(os, "stat", look_then_swap)
    with pytest.raises(ToolCallFailed, match="leads through a link"), roots.file(place):
        pytest.fail("the link was followed")


@pytest.mark.parametrize(
    "name", [".env", ".ENV", ".env.local", ".git/config", ".ssh/id_rsa", "server.pem", "Server.Key"]
)
async def test_secrets_are_hidden_by_default(roots: GrantedFolders, top: Path, name: str) -> None:
    (top / name).parent.mkdir(exist_ok=True)
    (top / name).write_text("canary")
    (top / "innocent").symlink_to(top / name)
    for path in (name, "innocent"):
        with pytest.raises(ToolCallFailed, match="not for tools"):
            await run(ReadFileTool(roots), path=path)
        with pytest.raises(ToolCallFailed, match="not for tools"):
            await run(WriteFileTool(roots), path=path, content="x")
    assert "canary" not in await run_text(SearchFilesTool(roots), text="canary")
    assert Path(name).parts[0] not in await run_text(ListFilesTool(roots))


async def test_the_servers_own_files_are_out_of_reach_under_any_name(top: Path) -> None:
    """fault: A5"""
    (top / "toolgate.yaml").write_text("canary: 1")
    (top / "toolgate.db-wal").write_text("canary")
    (top / "tools").mkdir()
    os.link(top / "toolgate.yaml", top / "harmless.txt")
    roots = GrantedFolders([top], [top / "toolgate.yaml", top / "toolgate.db", top / "tools"])
    for path in ("toolgate.yaml", "toolgate.db", "toolgate.db-wal", "tools/evil.py", "harmless.txt"):
        with pytest.raises(ToolCallFailed, match="not for tools"):
            await run(WriteFileTool(roots), path=path, content="approvals: off")
        with pytest.raises(ToolCallFailed):
            await run(ReadFileTool(roots), path=path)
    assert (top / "toolgate.yaml").read_text() == "canary: 1"
    assert os.listdir(top / "tools") == []


async def test_a_pipe_or_device_is_no_file(roots: GrantedFolders, top: Path) -> None:
    """fault: T1. Nobody ever opens the other end."""
    os.mkfifo(top / "pipe")
    with pytest.raises(ToolCallFailed, match="not a plain file"):
        await run(ReadFileTool(roots), path="pipe")
    with pytest.raises(ToolCallFailed, match="not a plain file"):
        await run(WriteFileTool(roots), path="pipe", content="x")
    assert "nothing" in await run_text(SearchFilesTool(roots), text="canary")


async def test_several_roots_are_distinguished_by_name(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent / "docs").mkdir(parents=True)
        (tmp_path / parent / "docs" / "x.txt").write_text(parent)
    roots = GrantedFolders([tmp_path / "a" / "docs", tmp_path / "b" / "docs"])
    assert await run_text(ListFilesTool(roots)) == "docs/\ndocs-2/"
    assert await run_text(ReadFileTool(roots), path="docs-2/x.txt") == "b"
    assert await run_text(SearchFilesTool(roots), pattern="*.txt") == "docs/x.txt\ndocs-2/x.txt"
    with pytest.raises(ToolCallFailed, match="must begin with one of docs, docs-2"):
        await run(ReadFileTool(roots), path="x.txt")
    with pytest.raises(ToolCallFailed, match="outside"):
        await run(ReadFileTool(roots), path="docs/../../../c")


async def test_files_are_found_by_name_and_by_text(roots: GrantedFolders) -> None:
    search = SearchFilesTool(roots)
    assert await run_text(search, pattern="*.py") == "src/main.py\nsrc/deep/more.py"
    assert await run_text(search, pattern="src/*.py") == "src/main.py"
    assert await run_text(search, text="hello") == "src/main.py:2: print('Hello')\nsrc/deep/more.py:1: HELLO = 1"
    assert await run_text(search, text="HELLO", case_sensitive=True) == "src/deep/more.py:1: HELLO = 1"
    assert await run_text(search, text="o", pattern="notes.txt", max_results=1) == (
        "notes.txt:1: one\n[only the first 1 results are shown: narrow the search]"
    )
    assert await run_text(search, text="(a+)+$") == "nothing was found"


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a/b/c.py", "**/*.py", True),
        ("c.py", "**/*.py", True),
        ("a/b/c.py", "a/**/c.py", True),
        ("a/c.py", "a/**/c.py", True),
        ("a/b/c.py", "a/*.py", False),
        ("a/b", "**", True),
        ("a/b/c", "**/b/**", True),
        ("a/b/c", "**/x/**", False),
        ("/".join("a" * 200), "/".join(["**", "a"] * 100 + ["b"]), False),
    ],
)
def test_patterns_mean_what_they_mean_elsewhere_and_take_no_time(path: str, pattern: str, expected: bool) -> None:
    """fault: J3"""
    assert fits(tuple(path.split("/")), tuple(pattern.split("/"))) is expected


async def test_a_file_is_written_whole_and_its_folders_are_made(roots: GrantedFolders, top: Path) -> None:
    assert (
        await run_text(WriteFileTool(roots), path="new/folder/file.txt", content="käse")
        == "created new/folder/file.txt (5 bytes)"
    )
    (top / "run.sh").write_text("old")
    (top / "run.sh").chmod(0o755)
    assert await run_text(WriteFileTool(roots), path="run.sh", content="new") == "replaced run.sh (3 bytes)"
    assert ((top / "run.sh").read_text(), (top / "run.sh").stat().st_mode & 0o777) == ("new", 0o755)
    assert [name for name in os.listdir(top) if name.endswith(".tmp")] == []


async def test_readers_see_the_old_or_the_new_file_and_nothing_between(roots: GrantedFolders, top: Path) -> None:
    contents = ("a" * 100_000, "b" * 100_000)
    (top / "file").write_text(contents[0])
    done, seen = threading.Event(), set[str]()

    def read() -> None:
        while not done.is_set():
            seen.add((top / "file").read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        await run(WriteFileTool(roots), path="file", content=contents[turn % 2])
    done.set()
    reader.join()
    assert seen <= set(contents)


async def test_a_write_that_fails_leaves_everything_as_it_was(
    roots: GrantedFolders, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*names: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ToolCallFailed, match="the disk is full"):
        await run(WriteFileTool(roots), path="notes.txt", content="new")
    assert (top / "notes.txt").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(top)) == ["notes.txt", "src"]


async def test_a_person_sees_path_size_and_change_before_a_file_is_written(roots: GrantedFolders, top: Path) -> None:
    tool = WriteFileTool(roots)
    change = await tool.prepare(invocation_of(tool, path="notes.txt", content="one\n2\nthree\n"))
    assert change.asks
    assert change.title == "Overwrite notes.txt?"
    assert change.question == "12 bytes\n--- now\n+++ then\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    fresh = await tool.prepare(invocation_of(tool, path="./src/../new.txt", content="hello"))
    assert (fresh.title, fresh.question) == ("Create new.txt?", "5 bytes\nhello")
    assert not (top / "new.txt").exists()
    with pytest.raises(ToolCallFailed, match="outside"):
        await tool.prepare(invocation_of(tool, path="../secret.txt", content="x"))
    with pytest.raises(ToolCallFailed, match="folder"):
        await tool.prepare(invocation_of(tool, path="src", content="x"))
