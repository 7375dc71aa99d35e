"""Running a program in a granted folder: a list of words, never a shell's line. Asks first; off unless it is turned on.

The program sees little of our environment and nothing of our files but what its user may see: it is not a sandbox.
"""

import asyncio
import os
import shlex
from collections.abc import Mapping
from subprocess import STDOUT

from toolgate.conversation.message import Text
from toolgate.processes.child import ChildProcess
from toolgate.tools.builtin.roots import Roots
from toolgate.tools.tool import Annotations, Invocation, Output, Preparation, ToolFailure, ToolSpec

MAX_OUTPUT = 128 * 1024
# Nothing that holds a key: what a program needs to find others and to write text.
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")

SPEC = ToolSpec(
    name="run_command",
    description=(
        "Runs a program and returns what it prints and its exit code. The command is a list: the program, then each "
        "argument on its own. There is no shell, so pipes, redirections, globs and variables are not understood."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "command": {
                "type": "array",
                "description": 'Program and arguments, such as ["git", "log", "-5"].',
                "items": {"type": "string", "maxLength": 32_768},
                "minItems": 1,
                "maxItems": 256,
            },
            "cwd": {"type": "string", "description": "Folder to run it in. Default: the top.", "default": "."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    display_name="Run a command",
    reference_name="runCommand",
    user_description="Runs programs on the server, after asking.",
    icon="terminal",
    tags=("builtin", "commands"),
    annotations=Annotations(read_only=False, destructive=True, idempotent=False, open_world=True),
    approval="ask",
    timeout=60.0,
)


class RunCommand:
    """Runs programs."""

    spec = SPEC

    def __init__(self, roots: Roots, environment: Mapping[str, str] | None = None) -> None:
        self._roots = roots
        self._environment = os.environ if environment is None else environment

    async def prepare(self, invocation: Invocation) -> Preparation:
        """The command as a person would type it, and where it runs."""
        words = _words(invocation)
        where = str(invocation.arguments.get("cwd", "."))
        line = shlex.join(words)
        return Preparation(message=f"Run {line}"[:2000], title=f"Run {words[0]}?", question=f"{line}\nin {where}")

    async def invoke(self, invocation: Invocation) -> Output:
        """What it printed; a code other than 0 makes it an error."""
        words, where = _words(invocation), str(invocation.arguments.get("cwd", "."))
        folder = await asyncio.to_thread(self._folder, where)
        output = _Kept()
        process = self._start(words, folder, output)
        try:
            code = await process.wait()
            await output.complete  # which follows at once: the output ends with the program
        finally:
            await process.aclose()
        assert code is not None  # it was waited for without a limit
        verdict = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        return Output((Text(f"{output.text()}[{verdict}]"),), is_error=code != 0, structured={"exit_code": code})

    def _folder(self, where: str) -> str:
        if where.strip() in ("", "."):
            return self._roots.top()[0].real
        place = self._roots.place(where)
        with self._roots.folder(place):  # it is one, and no link
            return place.real

    def _start(self, words: list[str], folder: str, output: asyncio.Protocol) -> ChildProcess:
        environment = {name: self._environment[name] for name in _KEPT if name in self._environment}
        try:
            return ChildProcess(words, stdout=output, stderr=STDOUT, env=environment, cwd=folder)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "the words cannot be used"
            raise ToolFailure(f"{words[0]} could not be started: {why}") from None


class _Kept(asyncio.Protocol):
    """The beginning and the end of some output, which is `complete` when there will be no more."""

    def __init__(self) -> None:
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def data_received(self, piece: bytes) -> None:
        """Keep it, or as much of it as there is room for."""
        room = MAX_OUTPUT // 2 - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        surplus = len(self._tail) - MAX_OUTPUT // 2
        if surplus > 0:
            del self._tail[:surplus]
            self._dropped += surplus

    def connection_lost(self, exc: Exception | None) -> None:
        """There will be no more."""
        if not self.complete.done():
            self.complete.set_result(None)

    def text(self) -> str:
        """What was kept, with a mark where something is missing."""
        mark = f"\n[… {self._dropped} bytes left out …]\n" if self._dropped else ""
        parts = (self._head, self._tail) if self._dropped else (self._head + self._tail,)
        text = mark.join(part.decode("utf-8", "replace") for part in parts)
        return text if not text or text.endswith("\n") else f"{text}\n"


def _words(invocation: Invocation) -> list[str]:
    words = [str(word) for word in invocation.arguments["command"]]
    if not words[0] or any("\0" in word for word in words):
        raise ToolFailure("the command names no program, or holds a NUL character")
    return words
