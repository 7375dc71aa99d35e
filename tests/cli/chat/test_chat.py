"""`toolgate chat` on a real pseudo-terminal, against a server whose model is scripted (spec: E2, A2)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli.pseudo_terminal import TerminalProgram, on_terminal
from tests.ports import refusing_port
from tests.stage import Stage, on_stage
from toolgate.config import KeySettings, Secret
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Reasoning, Text, ToolCall
from toolgate.testing import FakeSource, FakeTool
from toolgate.tools.tool import Annotations

HARMFUL = Annotations(read_only=False, destructive=True, idempotent=False, open_world=False)
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m \u202eevil \x08\x08"
SHOWN = "␛]0;owned␇␛[2J␛[31mred<U+009B>31m <U+202E>evil ␈␈"


class Place:
    """The server, its tools, and how the program is started against it."""

    def __init__(self, stage: Stage, source: FakeSource, state: Path) -> None:
        self.stage = stage
        self.tools = {tool.spec.name: tool for tool in source.tools}
        self.env = {"TOOLGATE_URL": stage.url, "XDG_STATE_HOME": str(state), "HOME": str(state)}

    def chat(self, *arguments: str, width: int = 80, **env: str) -> AbstractContextManager[TerminalProgram]:
        return on_terminal("chat", "-m", "openai_chat", *arguments, env={**self.env, **env}, width=width)

    def piped(self, *arguments: str, text: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        """Run it without a terminal."""
        command = [sys.executable, "-c", "from toolgate.cli import main; main()", "chat", *arguments]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=60, env={**os.environ, **self.env, **env}
        )


async def never(_: object) -> str:
    await asyncio.Event().wait()
    return "never"


def make_tools() -> FakeSource:
    return FakeSource(
        FakeTool("add", lambda given: str(given["a"] + given["b"])),
        FakeTool("log", lambda given: "\n".join([f"line {number}" for number in range(100)])),
        FakeTool("wait", never, timeout=600.0),  # a busy machine may take longer than the usual ten seconds
        FakeTool("hostile", lambda given: HOSTILE),
        FakeTool("delete", lambda given: f"deleted {given['path']}", annotations=HARMFUL),
        FakeTool("send", lambda given: "sent", annotations=HARMFUL),
    )


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Stage, FakeSource]]:
    source = make_tools()
    with on_stage(source) as stage:
        yield stage, source


@pytest.fixture
def place(opened: tuple[Stage, FakeSource], tmp_path: Path) -> Place:
    for tool in opened[1].tools:
        tool.calls.clear()
    return Place(*opened, tmp_path)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(f"call_{name}", name, json.dumps(arguments))


def questions(scripted: object) -> list[list[str]]:
    """The texts of the users and the assistant in each request that reached the model."""
    return [
        ["".join([part.text for part in message.parts if isinstance(part, Text)]) for message in request.messages]
        for request in scripted.requests  # type: ignore[attr-defined]
    ]


def stuck_after(events: int) -> Callable[[], Awaitable[object]]:
    """Let a model send so many events, and then nothing more."""
    left = iter(range(events))

    async def pace() -> None:
        if next(left, None) is None:
            await asyncio.Event().wait()

    return pace


def test_an_answer_is_streamed_as_markdown_with_its_tools_and_their_results(place: Place) -> None:
    place.stage.play(
        [Text("Let me *add*."), call("add", a=2, b=40), call("log", n=1)], [Reasoning("Hm."), Text("It is **42**.")]
    )
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("What is 2 + 40?")
        shown = program.expect_prompt(2)
    assert "openai_chat at http://" in shown
    assert "Let me add." in shown
    assert '● add {"a": 2, "b": 40}' in shown
    assert "  ↳ add: 42 (" in shown
    assert '● log {"n": 1}' in shown
    assert "    line 7" in shown
    assert "line 8" not in shown
    assert "more characters: /show) (" in shown
    assert "It is 42." in shown
    assert "tokens in" in shown
    assert {"1", "3", "36", "2"} & program.screen.styles >= {"1", "3"}
    assert len(place.tools["add"].calls) == 1


def test_a_call_is_approved_denied_edited_and_approved_for_ever_where_it_is_asked(place: Place) -> None:
    names = ("yes", "no", "edit", "editor", "bad")
    scripted = place.stage.play(
        *[entry for name in names for entry in ([call("delete", path=f"/{name}")], f"Done {name}.")]
    )
    with place.chat(EDITOR="sed -i s/editor/edited/") as program:
        program.expect_prompt(1)
        program.enter("one")
        shown = program.expect("[y]es, [n]o")
        assert "? Run delete?" in shown
        assert '  delete {"path":"/yes"}' in shown
        program.enter("y")
        program.expect("Done yes.")
        program.enter("two")
        program.expect("[y]es, [n]o", 2)
        program.enter("what")
        program.expect("y: run this call once.")
        program.enter("n not this file")
        assert "not this file" in program.expect("Done no.")
        program.enter("three")
        program.expect("[y]es, [n]o", 4)
        program.enter("e")
        program.expect('arguments: {"path":"/edit"}')
        program.type("\x7f\x7f/b" + '"}\r')
        shown = program.expect("Done edit.")
        assert '● delete {"path": "/edit/b"} (edited)' in shown
        program.enter("four")
        program.expect("[y]es, [n]o", 5)
        program.enter("E")
        program.expect("Done editor.")
        program.enter("five")
        program.expect("[y]es, [n]o", 6)
        program.enter("e")
        program.expect("arguments:", 2)
        program.type("\x15[1]\r")
        program.expect("must be a JSON object")
        program.expect("[y]es, [n]o", 7)
        program.enter("a")
        program.expect("Done bad.")
        place.stage.play([call("delete", path="/always")], "Not asked.")
        program.enter("six")
        shown = program.expect("Not asked.")
        assert shown.count("[y]es, [n]o") == 7
    assert [one.arguments["path"] for one in place.tools["delete"].calls] == [
        *("/yes", "/edit/b", "/edited", "/bad"),
        "/always",
    ]
    results = [part for message in scripted.requests[3].messages for part in message.parts if hasattr(part, "is_error")]
    assert "not this file" in str(results[-1])


def test_ctrl_c_stops_the_answer_and_not_the_chat_and_the_model_keeps_what_was_said(place: Place) -> None:
    scripted = place.stage.play("First words of a long answer.", pace=stuck_after(5))
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("Tell me")
        program.expect("First words")
        assert not program.echoes()
        program.interrupt(lambda: "Stopped." in program.screen.text)
        shown = program.expect_prompt(2)
        assert "^C" not in shown
        again = place.stage.play("Going on.")
        program.enter("Go on")
        program.expect("Going on.")
    assert not scripted.answers[0].complete
    (sent,) = questions(again)
    assert sent[0] == "Tell me"
    assert sent[1].startswith("First words")
    assert sent[2] == "Go on"


def test_ctrl_c_stops_a_tool_and_the_model_learns_that_its_outcome_is_not_known(place: Place) -> None:
    place.stage.play([call("add", a=1, b=1), call("wait", n=1)])
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("Wait")
        program.expect('● wait {"n": 1}')
        program.expect("add: 2")
        program.interrupt(lambda: "Stopped." in program.screen.text)
        scripted = place.stage.play("Fine.")
        program.enter("What happened?")
        program.expect("Fine.")
    (request,) = scripted.requests
    assert "whether it took effect is not known" in str(request.messages)
    assert "call_add" in str(request.messages) or "'2'" in str(request.messages)


def test_ctrl_c_and_ctrl_d_at_a_question_deny_the_call_and_the_chat_goes_on(place: Place) -> None:
    place.stage.play([call("send", to="a")], [call("send", to="d")])
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("Send it")
        program.expect("[y]es, [n]o")
        program.interrupt(lambda: "Stopped." in program.screen.text)
        program.enter("Send it after all")
        program.expect("[y]es, [n]o", 2)
        program.type("\x04")
        program.expect("Stopped.", 2)
        scripted = place.stage.play("Fine.")
        program.enter("Never mind")
        shown = program.expect("Fine.")
        assert "Warning" not in shown
    assert str(scripted.requests[0].messages).count("The person stopped the answer; the call was not run.") == 2
    assert place.tools["send"].calls == []


def test_the_chat_ends_with_ctrl_d_with_quit_and_with_ctrl_c_twice_at_the_empty_prompt(place: Place) -> None:
    with place.chat() as program:
        program.expect_prompt(1)
        program.type("\x04")
        assert program.wait() == 0
        assert program.echoes()
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("/quit")
        assert program.wait() == 0
    with place.chat() as program:
        program.expect_prompt(1)
        program.type("half a line")
        program.expect("> half a line")
        program.interrupt(lambda: program.prompts >= 2)
        program.interrupt(lambda: "Press Ctrl-C again" in program.screen.text)
        program.interrupt(lambda: program.ended)
        assert program.wait() == 0


def test_a_stopped_program_leaves_the_terminal_as_it_was(place: Place) -> None:
    place.stage.play("First words of a long answer.", pace=stuck_after(5))
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("Tell me")
        program.expect("First words")
        program.signal(signal.SIGTERM)
        assert program.wait() == 143
        assert program.echoes()


def test_arrow_keys_bring_back_questions_also_of_earlier_chats_and_tab_completes(place: Place) -> None:
    place.stage.play("One.", "Two.", "Three.")
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("first question")
        program.expect("One.")
    with place.chat() as program:
        program.expect_prompt(1)
        program.type("\x1b[A")
        program.expect("> first question")
        program.type("\r")
        program.expect("Two.")
        program.expect_prompt(2)
        program.type("/mod\tanth\t\r")
        program.expect("The next answers are by anthropic.")
        program.expect_prompt(3)
        program.type("/tools ad\t,lo\t\r")
        program.expect("Server tools: add, log.")
        program.expect_prompt(4)
        program.type("use #del\t")
        program.expect("> use #delete")
        program.type("now\r")
        program.expect("Three.")
    history = place.env["XDG_STATE_HOME"] + "/toolgate/chat-history"
    assert os.stat(history).st_mode & 0o777 == 0o600


def test_a_message_may_have_several_lines(place: Place) -> None:
    scripted = place.stage.play("A.", "B.", "C.", "D.")
    with place.chat() as program:
        program.expect_prompt(1)
        program.type("one\\\rtwo\r")
        program.expect("A.")
        program.expect_prompt(2)
        program.type('"""three\r\rfour"""\r')
        program.expect("B.")
        program.expect_prompt(3)
        program.type("\x1b[200~five\nsix\x1b[201~\r")
        program.expect("C.")
        program.expect_prompt(4)
        program.type("seven\x1b\reight\r")
        program.expect("D.")
    asked = [texts[-1] for texts in questions(scripted)]
    assert asked == ["one\ntwo", "three\n\nfour", "five\nsix", "seven\neight"]


def test_the_last_chat_goes_on_with_continue_and_any_chat_by_its_id(place: Place) -> None:
    place.stage.play("Hello Ann.")
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("I am Ann")
        program.expect_prompt(2)
    scripted = place.stage.play("You are Ann.", "Still Ann.", "Ann.")
    with on_terminal("chat", "--continue", env=place.env) as program:
        shown = program.expect_prompt(2)
        assert "openai_chat at" in shown
        assert "I am Ann" in shown
        assert "Hello Ann." in shown
        program.enter("Who am I?")
        program.expect("You are Ann.")
        program.enter(f"/save {place.env['HOME']}/chat.md")
        shown = program.expect("--resume resp_")
    id = shown.rpartition("--resume ")[2].split()[0]
    assert place.piped("--resume", id, text="Who?").stdout == "Still Ann.\n"
    assert place.piped("-c", text="Who again?").stdout == "Ann.\n"
    assert questions(scripted)[-1] == [
        "I am Ann",
        "Hello Ann.",
        "Who am I?",
        "You are Ann.",
        "Who?",
        "Still Ann.",
        "Who again?",
    ]
    saved = Path(place.env["HOME"], "chat.md").read_text()
    assert saved.startswith("# Chat with openai_chat, ")
    assert saved.endswith(
        "## Question\n\nI am Ann\n\n## Answer\n\nHello Ann.\n\n## Question\n\nWho am I?\n\n## Answer\n\nYou are Ann.\n"
    )
    gone = place.piped("--resume", "resp_nothing", text="Who?")
    assert (gone.returncode, gone.stdout) == (1, "")
    other = place.piped("-c", text="Who?", TOOLGATE_URL="http://127.0.0.1:9")
    assert "There is no chat with http://127.0.0.1:9 to go on with." in other.stderr


def test_commands_change_the_chat(place: Place) -> None:
    scripted = place.stage.play("One.", "Two.", "Three.", [call("log")], "Four.")
    with place.chat("--system", "Be brief.", "--tools", "add") as program:
        program.expect_prompt(1)
        program.enter("/nothing")
        program.expect("There is no command /nothing; /help lists them.")
        program.enter("/help")
        program.expect("ask the last question again")
        program.enter("/attach ~/nothing")
        program.expect("No such file or directory.")
        Path(place.env["HOME"], "ink.txt").write_text("Ink. ")
        program.enter("/attach ~/ink.txt")
        program.expect("1 file goes with the next message.")
        program.enter("question")
        program.expect("One.")
        program.enter("/retry")
        program.expect("Two.")
        program.enter("/new")
        program.expect("A new chat begins.")
        program.enter("/system Be long.")
        program.enter("/tools off")
        program.expect("Server tools: none.")
        program.enter("//slash")
        program.expect("Three.")
        program.enter("/tools on")
        program.enter("read")
        program.expect("Four.")
        program.enter("/show")
        program.expect("line 99")
        program.enter("/model")
        program.expect("* openai_chat")
    assert questions(scripted)[:3] == [
        *[["Be brief.", "The file ink.txt:\n\nInk. question"]] * 2,
        ["Be long.", "/slash"],
    ]
    offered = [[tool.name for tool in request.tools] for request in scripted.requests]
    assert offered[:3] == [["add"], ["add"], []]
    assert "delete" in offered[3]


def test_no_control_sequence_of_a_model_or_a_tool_reaches_the_terminal(place: Place) -> None:
    place.stage.play([Text(HOSTILE), call("hostile", text=HOSTILE)], f"`{HOSTILE}`")
    with place.chat(width=200) as program:
        program.expect_prompt(1)
        program.enter("Attack")
        shown = program.expect_prompt(2)
        program.enter("/show")
        program.expect("hostile {", 1)
    assert SHOWN in shown
    assert f"  ↳ {SHOWN}" in shown
    assert b"\x1b]" not in program.raw
    assert b"\x1b[2J" not in program.raw
    place.stage.play(f"{HOSTILE}\tx")
    piped = place.piped(text="Attack")
    assert piped.stdout == SHOWN.replace("<U+202E>", "\u202e") + "\tx\n"


def test_an_error_is_shown_and_the_chat_goes_on(place: Place) -> None:
    place.stage.play(
        UpstreamUnavailable("The upstream is out of order."), [Text("Half an"), UpstreamUnavailable("Broken.")]
    )
    with place.chat() as program:
        program.expect_prompt(1)
        program.enter("one")
        program.expect("out of order")
        program.expect("/retry asks again.")
        program.enter("/model nothing")
        program.enter("two")
        program.expect("The model 'nothing' does not exist")
        program.enter("/model ollama")
        place.stage.play("Better.")
        program.enter("three")
        program.expect("Better.")


@pytest.mark.parametrize(("width", "env"), [(30, {}), (80, {"NO_COLOR": "1"}), (80, {"TERM": "dumb"})])
def test_narrow_and_plain_terminals_are_respected(place: Place, width: int, env: dict[str, str]) -> None:
    place.stage.play([call("add", a=1, b=2)], "A **bold** answer with enough words for a line to be wrapped twice.")
    with place.chat(width=width, **env) as program:
        program.expect_prompt(1)
        program.enter("Ask")
        program.expect_prompt(2)
        program.type("\x04")
        program.wait()
    assert max([len(line) for line in program.screen.lines]) <= width
    assert (program.screen.styles == set()) == bool(env)
    if env.get("TERM") == "dumb":
        assert b"\x1b" not in program.raw
    assert ("**bold**" in program.screen.text) == bool(env)


class TestWithoutATerminal:
    def test_only_the_answer_is_printed(self, place: Place) -> None:
        place.stage.play([Text("Adding."), call("add", a=1, b=2)], "**3**")
        done = place.piped("-m", "anthropic", text="What is 1 + 2?")
        assert (done.returncode, done.stdout, done.stderr) == (0, "Adding.\n\n**3**\n", "")

    def test_a_question_on_the_command_line_comes_after_the_input(self, place: Place) -> None:
        scripted = place.stage.play("Yes.", "No.")
        assert place.piped("-m", "ollama", "is", "it?", text="A file.\n").stdout == "Yes.\n"
        assert place.piped("-m", "ollama", "Is it?").stdout == "No.\n"
        assert [texts[-1] for texts in questions(scripted)] == ["A file.\n\nis it?", "Is it?"]

    def test_failures_have_a_status_and_a_sentence(self, place: Place) -> None:
        place.stage.play(UpstreamUnavailable("The upstream is out of order."))
        failed = place.piped("-m", "openai_chat", "Ask")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "out of order" in failed.stderr
        assert "`toolgate doctor` checks it" in failed.stderr
        empty = place.piped("-m", "openai_chat")
        assert (empty.returncode, empty.stderr) == (2, "There is no question on the command line or the input.\n")
        binary = [sys.executable, "-c", "from toolgate.cli import main; main()", "chat"]
        refused = subprocess.run(binary, input=b"\xff\x00", capture_output=True, env={**os.environ, **place.env})
        assert (refused.returncode, refused.stderr) == (2, b"The input is not text in UTF-8.\n")
        with refusing_port() as port:
            gone = place.piped("Ask", TOOLGATE_URL=f"http://127.0.0.1:{port}")
        assert gone.returncode == 1
        assert "Start a server with `toolgate serve`" in gone.stderr

    def test_images_and_text_files_are_sent_with_the_question(self, place: Place, tmp_path: Path) -> None:
        (tmp_path / "dot.png").write_bytes(b64decode(DOT))
        (tmp_path / "notes.txt").write_text("Buy ink.")
        scripted = place.stage.play("A dot.")
        attached = ["-a", str(tmp_path / "dot.png"), "--attach", str(tmp_path / "notes.txt")]
        assert place.piped("-m", "openai_chat", *attached, "What is it?").stdout == "A dot.\n"
        image, file, question = scripted.requests[0].messages[-1].parts
        assert (image.data, image.mime) == (DOT, "image/png")  # type: ignore[union-attr]
        assert (file, question) == (Text("The file notes.txt:\n\nBuy ink."), Text("What is it?"))
        (tmp_path / "odd.bin").write_bytes(b"\xff\x00")
        for name, problem in (("odd.bin", "is neither text in UTF-8 nor"), ("none", "cannot be read: No such file")):
            refused = place.piped("-a", str(tmp_path / name), "What is it?")
            assert (refused.returncode, problem in refused.stderr) == (1, True)

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
    def test_output_that_cannot_be_written_is_reported_in_a_sentence(self, place: Place) -> None:
        place.stage.play("An answer.")
        command = [sys.executable, "-c", "from toolgate.cli import main; main()", "chat", "-m", "ollama", "Ask"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, **place.env}
            )
        assert (done.returncode, done.stderr) == (1, "The output cannot be written: No space left on device.\n")

    def test_half_an_answer_is_printed_and_is_a_failure(self, place: Place) -> None:
        place.stage.play([Text("Half an answer"), UpstreamUnavailable("Broken.")])
        done = place.piped("-m", "openai_chat", "Ask")
        assert done.returncode == 1
        assert done.stdout.startswith("Half an")
        assert done.stderr

    def test_a_call_that_needs_approval_ends_it_with_the_way_to_approve(self, place: Place) -> None:
        place.stage.play([call("send", to="b")], [call("send", to="b")], "Sent.", [call("send", to="b")])
        done = place.piped("-m", "openai_chat", "Send")
        assert done.returncode == 1
        command = done.stderr.partition("`toolgate ")[2].partition("`")[0].split()
        assert (command[:2], len(command)) == (["approvals", "approve"], 3)
        assert place.tools["send"].calls == []
        approve = [sys.executable, "-c", "from toolgate.cli import main; main()", *command]
        subprocess.run(approve, env={**os.environ, **place.env}, check=True, stdout=subprocess.DEVNULL)
        assert place.piped("-m", "openai_chat", "Send").stdout == "Sent.\n"
        again = place.piped("-m", "openai_chat", "--url", place.stage.url, "Send", TOOLGATE_URL="http://127.0.0.1:9")
        assert f"`toolgate approvals approve --url {place.stage.url} mcpr_" in again.stderr
        assert len(place.tools["send"].calls) == 1

    def test_with_only_the_input_piped_the_person_is_asked_on_the_terminal(self, place: Place) -> None:
        place.stage.play([call("send", to="c")], "Sent.")
        with on_terminal("chat", "-m", "openai_chat", env=place.env, stdin=b"Send it\n") as program:
            program.expect("[y]es, [n]o")
            program.enter("y")
            program.expect("Sent.")
            assert program.wait() == 0
        assert len(place.tools["send"].calls) == 1

    def test_ctrl_c_ends_a_single_question(self, place: Place) -> None:
        place.stage.play("First words of a long answer.", pace=stuck_after(5))
        with place.chat("Tell me") as program:
            program.expect("First words")
            program.type("\x03")
            assert program.wait() == 130


def test_a_key_that_may_not_approve_is_told_who_may(tmp_path: Path) -> None:
    keys = (
        KeySettings(name="ann", key=Secret("ann-key-1"), scopes=("chat",)),
        KeySettings(name="root", key=Secret("root-key-1"), scopes=("chat", "tools", "admin")),
    )
    source = make_tools()
    with on_stage(source, keys=keys) as stage:
        place = Place(stage, source, tmp_path)
        stage.play([call("send", to="d")], "Sent.", [call("send", to="e")], "Not sent.")
        with place.chat(TOOLGATE_KEY="ann-key-1") as program:
            program.expect_prompt(1)
            program.enter("Send it")
            program.expect("[y]es, [n]o")
            program.enter("a")
            program.expect("A key without the scope tools can only answer y or n.")
            program.expect("[y]es, [n]o", 2)
            program.enter("y")
            shown = program.expect("Press Enter when it is approved")
            id = shown.rpartition("toolgate approvals approve ")[2].split()[0]
            approve = [sys.executable, "-c", "from toolgate.cli import main; main()", "approvals", "approve", id]
            env = {**os.environ, **place.env, "TOOLGATE_KEY": "root-key-1"}
            subprocess.run(approve, env=env, check=True, timeout=60, stdout=subprocess.DEVNULL)
            program.enter("")
            program.expect("Sent.")
            program.enter("Again")
            program.expect("[y]es, [n]o", 3)
            program.enter("n")
            program.expect("Not sent.")
        with place.chat(TOOLGATE_KEY="wrong") as program:
            program.expect("Set TOOLGATE_KEY, or use --key.")
            assert program.wait() == 1
    assert len(place.tools["send"].calls) == 1
