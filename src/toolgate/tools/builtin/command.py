"""The tool `run_command`: run a program in a granted folder, without a shell. It is off by default and needs approval.

The program sees little of the server's environment, but all files that the server's user may see: this is no sandbox.
"""

import asyncio
import os
import shlex
from collections.abc import Mapping
from subprocess import STDOUT

from toolgate.conversation.message import Text
from toolgate.processes.child import ChildProcess
from toolgate.tools.builtin.granted_folders import GrantedFolders
from toolgate.tools.tool import (
    Annotations,
    CallPreview,
    ServerToolDefinition,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)

# The beginning and the end are kept, because a program prints its errors last.
MAX_OUTPUT = 128 * 1024
# What a program needs to find others and to write text, and nothing that could be a key.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")

SPEC = ServerToolDefinition(
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


class CommandTool:
    """Runs programs."""

    spec = SPEC

    def __init__(self, roots: GrantedFolders, environment: Mapping[str, str] | None = None) -> None:
        self._roots = roots
        self._environment = os.environ if environment is None else environment

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Describe the command as a person would type it, and its folder."""
        command = _command(invocation)
        where = str(invocation.arguments.get("cwd", "."))
        line = shlex.join(command)
        return CallPreview(message=f"Run {line}"[:2000], title=f"Run {command[0]}?", question=f"{line}\nin {where}")

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Run the program and return what it printed; an exit code other than 0 is an error."""
        command, where = _command(invocation), str(invocation.arguments.get("cwd", "."))
        folder = await asyncio.to_thread(self._folder, where)
        output = _BoundedOutput()
        environment = {name: self._environment[name] for name in _ENVIRONMENT if name in self._environment}
        try:
            process = ChildProcess(command, stdout=output, stderr=STDOUT, env=environment, cwd=folder)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "the words cannot be used"
            raise ToolCallFailed(f"{command[0]} could not be started: {why}") from None
        try:
            code = await process.wait()
            await output.complete  # which follows at once: the output ends with the program
        finally:  # also when the call is cancelled: this kills the program and all that it started
            await process.aclose()
        assert code is not None  # there is no time limit here
        verdict = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        return ToolOutput((Text(f"{output.text()}[{verdict}]"),), is_error=code != 0, structured={"exit_code": code})

    def _folder(self, where: str) -> str:
        if where.strip() in ("", "."):
            return self._roots.top()[0].real
        place = self._roots.place(where)
        with self._roots.folder(place):  # raises unless it is a folder and no link
            return place.real


class _BoundedOutput(asyncio.Protocol):
    """Keeps the beginning and the end of a program's output; `complete` is done when the output has ended."""

    def __init__(self) -> None:
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def data_received(self, piece: bytes) -> None:
        """Append a piece; the middle of the output is dropped when it is too long."""
        room = MAX_OUTPUT // 2 - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        surplus = len(self._tail) - MAX_OUTPUT // 2
        if surplus > 0:
            del self._tail[:surplus]
            self._dropped += surplus

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark the output as complete."""
        if not self.complete.done():
            self.complete.set_result(None)

    def text(self) -> str:
        """Return the text, with a note where something is missing."""
        mark = f"\n[… {self._dropped} bytes left out …]\n" if self._dropped else ""
        parts = (self._head, self._tail) if self._dropped else (self._head + self._tail,)
        text = mark.join(part.decode("utf-8", "replace") for part in parts)
        return text if not text or text.endswith("\n") else f"{text}\n"


def _command(invocation: ToolCallInput) -> list[str]:
    command = [str(word) for word in invocation.arguments["command"]]
    if not command[0] or any("\0" in word for word in command):
        raise ToolCallFailed("the command names no program, or contains a NUL character")
    return command
