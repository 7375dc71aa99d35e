"""`toolgate chat`: its options, and whether it talks with a person or answers one question."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from toolgate.cli.api_client import ApiCallFailed, Key, Url, fail
from toolgate.cli.chat.approval_dialog import ApprovalDialog, NoTerminalForApproval
from toolgate.cli.chat.attachments import AttachmentRefused, read_attachment
from toolgate.cli.chat.conversation import ConversationClient
from toolgate.cli.chat.prompt import ReadlinePrompter, open_terminal
from toolgate.cli.chat.repl import talk
from toolgate.cli.chat.state_files import ChatStateFiles, state_folder
from toolgate.cli.chat.transcript import MarkdownTranscript
from toolgate.cli.chat.turn import ChatSession
from toolgate.cli.chat.view import AnswerView
from toolgate.cli.server_url import DEFAULT_URL

MAX_INPUT = 16 * 2**20
_USAGE = 2
# As shells report a program that SIGINT ended: 128 + 2.
_INTERRUPTED = 130


def chat(
    question: Annotated[
        list[str] | None, typer.Argument(help="A question; it is answered, and the command ends.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model; by default the server's.", envvar="TOOLGATE_MODEL")
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option("--tools", "-t", help="Only these server tools, separated by commas; by default all."),
    ] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="No server tools.")] = False,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system prompt.")] = None,
    attach: Annotated[
        list[Path] | None,
        typer.Option(
            "--attach", "-a", help="Send this image or text file with the question; may be given several times."
        ),
    ] = None,
    go_on: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the last chat.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on after the response with this id.", metavar="ID")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Chat with a model in the terminal, with the tools of the server; a question from a pipe is answered once."""
    names = [name.strip() for name in tools.split(",") if name.strip()] if tools else None
    client = ConversationClient(
        url.rstrip("/"),
        key,
        model=model,
        tools=False if no_tools else names if names is not None else True,
        instructions=system,
        session=f"chat-{os.urandom(8).hex()}",
    )
    state = ChatStateFiles(state_folder(os.environ))
    asked = _read_question(question)
    # On a terminal that is not UTF-8, a letter that it cannot show must not end the chat.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # it is a TextIOWrapper
    try:
        attached = [read_attachment(path) for path in attach or ()]
        transcript = _resumed(client, state, go_on, resume)
        if asked is None:
            talk(client, state, transcript, attached)
        else:
            _answer_once(client, state, transcript, asked, attached)
    except (ApiCallFailed, AttachmentRefused, NoTerminalForApproval) as error:
        fail(str(error))


def _read_question(words: list[str] | None) -> str | None:
    """Return the question of the command line and the input; None if a person is at the terminal to ask."""
    asked = " ".join(words or ())
    if not sys.stdin.isatty():
        # Bytes, so that input that is no UTF-8 is refused, whatever the locale.
        data = sys.stdin.buffer.read(MAX_INPUT + 1)
        if len(data) > MAX_INPUT:
            _refuse(f"The input has more than {MAX_INPUT // 2**20} MiB.")
        try:
            piped = data.decode()
        except UnicodeDecodeError:
            _refuse("The input is not text in UTF-8.")
        asked = f"{piped.rstrip()}\n\n{asked}".strip() if piped.strip() else asked
        if not asked:
            _refuse("There is no question on the command line or the input.")
    if asked:
        return asked
    if not sys.stdout.isatty():
        _refuse('A chat needs a terminal; for one answer give a question: toolgate chat "question"')
    return None


def _refuse(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(_USAGE)


def _resumed(client: ConversationClient, state: ChatStateFiles, go_on: bool, resume: str | None) -> MarkdownTranscript:
    """Go on with an earlier chat if that is wished; its turns are known then."""
    transcript = MarkdownTranscript()
    last = state.last(client.url) if go_on and resume is None else None
    if go_on and resume is None and last is None:
        raise ApiCallFailed(f"There is no chat with {client.url} to go on with.")
    id = resume or (last.id if last else None)
    if id is None:
        return transcript
    found = client.resume(id)
    client.model = client.model or str(found.get("model") or "") or None
    output = found.get("output")
    transcript.load([*client.earlier_items(id), *(output if isinstance(output, list) else [])])
    return transcript


def _answer_once(
    client: ConversationClient,
    state: ChatStateFiles,
    transcript: MarkdownTranscript,
    question: str,
    attached: Sequence[dict[str, Any]],
) -> None:
    """Answer one question; only the answer goes to standard output."""
    view = AnswerView(sys.stdout, sys.stderr, single=True)
    # In a pipe, approvals are asked for on the controlling terminal, if there is one.
    prompter = ReadlinePrompter(view.style) if sys.stdin.isatty() and sys.stdout.isatty() else open_terminal()
    session = ChatSession(client, view, ApprovalDialog(client, view, prompter), transcript, state, attached)
    complete = session.ask(question)
    if session.stopped:
        raise typer.Exit(_INTERRUPTED)
    if not complete:
        raise typer.Exit(1)
