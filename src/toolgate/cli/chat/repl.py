"""Chat with the person at the terminal: greet, read messages and commands, and answer them until the person leaves."""

import signal
import sys
from collections.abc import Sequence
from typing import Any

from toolgate.cli.api_client import ApiCallFailed
from toolgate.cli.chat.approval_dialog import ApprovalDialog
from toolgate.cli.chat.conversation import ConversationClient
from toolgate.cli.chat.prompt import ReadlinePrompter, echo
from toolgate.cli.chat.response_events import CliTextDelta
from toolgate.cli.chat.slash_commands import ChatExitRequested, SlashCommands, describe_tools
from toolgate.cli.chat.state_files import ChatStateFiles
from toolgate.cli.chat.transcript import MarkdownTranscript
from toolgate.cli.chat.turn import ChatSession
from toolgate.cli.chat.view import AnswerView

# As shells report a program that SIGTERM ended: 128 + 15.
_TERMINATED = 143


def talk(
    client: ConversationClient,
    state: ChatStateFiles,
    transcript: MarkdownTranscript,
    attached: Sequence[dict[str, Any]] = (),
) -> None:
    """Chat until the person leaves; what is attached is sent with the first message."""
    # The default would end the process at once, and leave a terminal that does not show what is typed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    view = AnswerView(sys.stdout, sys.stdout)
    try:
        status: dict[str, Any] = client.call("GET", "/v1/status")
    except ApiCallFailed as error:
        # A server of an older version has no such path.
        if error.status != 404:
            raise
        status = {}
    models = [str(model.get("id")) for model in client.call("GET", "/v1/models").get("data", [])]
    try:
        tools = [str(tool.get("name")) for tool in client.call("GET", "/v1/tools").get("data", [])]
    except ApiCallFailed:
        # Tools are listed for completion only: a key that may not list tools can still use them.
        tools = []
    client.model = client.model or status.get("default_model") or (models[0] if models else None)
    prompter = ReadlinePrompter(view.style, state.questions())
    session = ChatSession(client, view, ApprovalDialog(client, view, prompter), transcript, state, attached)
    slash = SlashCommands(session, models, tools)
    prompter.complete_with(slash.complete)
    _greet(session, status)
    while (text := _read(prompter, view)) is not None:
        prompter.remember(text)
        state.add_question(text)
        try:
            # What is typed during an answer is not shown within it, and stands at the next prompt.
            with echo(sys.stdin, False):
                if text.startswith("/") and not text.startswith("//"):
                    slash.run(text.strip())
                else:
                    session.ask(text.removeprefix("/") if text.startswith("//") else text)
        except ChatExitRequested:
            return
        except KeyboardInterrupt:
            view.line("Stopped.", "warning")


def _greet(session: ChatSession, status: dict[str, Any]) -> None:
    """Say who answers, and where an earlier chat ended."""
    client, view, turns = session.client, session.view, session.transcript.turns
    model = client.model or "The default model"
    view.line(f"{model} at {client.url}, server tools: {describe_tools(client.tools)}.", "bold")
    view.line("/help lists the commands, Ctrl-D ends the chat.", "dim")
    match status.get("local_model"):
        case {"state": "downloading" | "loading", "message": str(message)}:
            view.line(f"The local model is not ready yet: {message}", "warning")
    if turns:
        which = "the last message:" if len(turns) == 1 else f"{len(turns)} messages, of which the last is:"
        view.line(f"\nGoing on after {which}\n\n> {turns[-1].question}\n", "dim")
        view.show(CliTextDelta(turns[-1].answer, "earlier"))
    view.line("")


def _read(prompter: ReadlinePrompter, view: AnswerView) -> str | None:
    """Read a message that is not blank; None if the person leaves: with Ctrl-D, or Ctrl-C twice at the empty prompt."""
    interrupted = False
    while True:
        try:
            text = prompter.read_message()
            if text.strip():
                return text
            interrupted = False
        except EOFError:
            view.line("")
            return None
        except KeyboardInterrupt:
            view.line("")
            # Ctrl-C on a line with text only discards the text, as in a shell.
            empty = not prompter.typed()
            if interrupted and empty:
                return None
            interrupted = empty
            if empty:
                view.line("Press Ctrl-C again or Ctrl-D to end the chat.", "dim")
