"""Chat with the person at the terminal: greet, read messages and commands, and answer them until the person leaves."""

import signal
import sys
from collections.abc import Sequence
from typing import Any

from toolgate.cli.api_client import ApiCallFailed
from toolgate.cli.chat.approval_dialog import ApprovalDialog
from toolgate.cli.chat.conversation import ConversationClient
from toolgate.cli.chat.prompt import LinePrompter, echo
from toolgate.cli.chat.response_events import TerminalTextDelta
from toolgate.cli.chat.slash_commands import ChatExitRequested, SlashCommands, describe_tools
from toolgate.cli.chat.state_files import ChatStateFiles
from toolgate.cli.chat.transcript import Transcript
from toolgate.cli.chat.turn import ChatSession
from toolgate.cli.chat.view import AnswerView

_TERMINATED = 143


def talk(
    client: ConversationClient, state: ChatStateFiles, transcript: Transcript, attached: Sequence[dict[str, Any]] = ()
) -> None:
    """Chat until the person leaves; what is attached is sent with the first message."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that the terminal gets its settings back
    view = AnswerView(sys.stdout, sys.stdout)
    status = _status(client)
    models, tools = _known(client)
    client.model = client.model or status.get("default_model") or (models[0] if models else None)
    prompter = LinePrompter(view.style, state.questions())
    session = ChatSession(client, view, ApprovalDialog(client, view, prompter), transcript, state, attached)
    slash = SlashCommands(session, models, tools)
    prompter.complete_with(slash.complete)
    _greet(session, status)
    while (text := _read(prompter, view)) is not None:
        prompter.remember(text)
        state.add_question(text)
        try:
            with echo(sys.stdin, False):  # what is typed during an answer stands at the next prompt
                _carry_out(text, session, slash)
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
        view.show(TerminalTextDelta(turns[-1].answer, "earlier"))
    view.line("")


def _read(prompter: LinePrompter, view: AnswerView) -> str | None:
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
            empty = not prompter.typed()
            if interrupted and empty:
                return None
            interrupted = empty
            if empty:
                view.line("Press Ctrl-C again or Ctrl-D to end the chat.", "dim")


def _carry_out(text: str, session: ChatSession, slash: SlashCommands) -> None:
    if text.startswith("/") and not text.startswith("//"):
        slash.run(text.strip())
    else:
        session.ask(text.removeprefix("/") if text.startswith("//") else text)


def _known(client: ConversationClient) -> tuple[list[str], list[str]]:
    """List the models and tools, for completion; a key that may not list tools can still use them."""
    models = client.call("GET", "/v1/models").get("data", [])
    try:
        tools = client.call("GET", "/v1/tools").get("data", [])
    except ApiCallFailed:
        tools = []
    return [str(model.get("id")) for model in models], [str(tool.get("name")) for tool in tools]


def _status(client: ConversationClient) -> dict[str, Any]:
    try:
        found: dict[str, Any] = client.call("GET", "/v1/status")
    except ApiCallFailed as error:
        if error.status != 404:
            raise
        return {}  # a server of an older version
    return found
