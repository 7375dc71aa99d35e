"""The commands that a person types in a chat, such as `/model gpt`."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from toolgate.cli.api_client import ApiCallFailed
from toolgate.cli.chat.attachments import AttachmentRefused, read_attachment
from toolgate.cli.chat.prompt import edit_text
from toolgate.cli.chat.turn import ChatSession

_TEXT_HELP = (
    'A line that ends with \\ goes on in the next one, and Alt-Enter begins a new line. Lines between two """ are one '
    "message. Ctrl-C stops an answer; twice at the empty prompt, or Ctrl-D, ends the chat. #name in a message names a "
    "tool. A message that begins with / is written with //."
)


class ChatExitRequested(Exception):
    """The person wants to leave."""


class SlashCommand(NamedTuple):
    """A command, what may stand behind it, and what it does."""

    run: Callable[[str], None]
    argument: str
    help: str


class SlashCommands:
    """Carries out commands, and completes them and their arguments."""

    def __init__(self, session: ChatSession, models: list[str], tools: list[str]) -> None:
        self._session = session
        self._models = models
        self._tools = tools
        self._saved: Path | None = None
        self.commands = {
            "/help": SlashCommand(self._help, "", "show this list"),
            "/model": SlashCommand(self._model, "[NAME]", "show the models, or use another one"),
            "/tools": SlashCommand(
                self._use_tools, "[on|off|NAMES]", "show the server tools, or use all, none or some"
            ),
            "/system": SlashCommand(self._system, "[TEXT|off]", "show, change or remove the system prompt"),
            "/show": SlashCommand(self._show, "", "show the last tool calls whole"),
            "/retry": SlashCommand(self._retry, "", "ask the last question again"),
            "/attach": SlashCommand(self._attach, "FILE", "send an image or a text file with the next message"),
            "/edit": SlashCommand(self._edit, "", "write a message in your editor"),
            "/save": SlashCommand(self._save, "[FILE]", "save the chat as Markdown"),
            "/new": SlashCommand(self._new, "", "begin a new chat"),
            "/quit": SlashCommand(self._quit, "", "end the chat"),
        }

    def run(self, line: str) -> None:
        """Carry out the command of a line."""
        name, _, argument = line.partition(" ")
        command = self.commands.get({"/exit": "/quit", "/?": "/help"}.get(name, name))
        if command is None:
            self._print(f"There is no command {name}; /help lists them.", "bad")
            return
        command.run(argument.strip())

    def complete(self, line: str, word: str) -> Iterable[str]:
        """Return the completions of the last word of a line."""
        before = line[: len(line) - len(word)].strip()
        if word.startswith("#"):
            return [f"#{tool} " for tool in self._tools if tool.startswith(word[1:])]
        match before:
            case "" if word.startswith("/"):
                return [f"{name} " for name in self.commands if name.startswith(word)]
            case "/model":
                return [name for name in self._models if name.startswith(word)]
            case "/tools":
                done, _, last = word.rpartition(",")
                known = self._tools if done else ["on", "off", *self._tools]
                return [f"{done}{',' if done else ''}{name}" for name in known if name.startswith(last)]
            case "/save" | "/attach":
                return _paths(word)
        return []

    def _print(self, text: str, *styles: str) -> None:
        self._session.view.line(text, *styles)

    def _help(self, _: str) -> None:
        width = max([len(f"{name} {command.argument}") for name, command in self.commands.items()])
        for name, command in self.commands.items():
            self._session.view.term(f"{name} {command.argument}".rstrip(), width, command.help)
        self._print(_TEXT_HELP, "dim")

    def _model(self, name: str) -> None:
        client = self._session.client
        if not name:
            for one in self._models:
                self._print(f"{'*' if one == client.model else ' '} {one}")
            return
        # A warning only: the list has no aliases, and no patterns such as `gpt-*`.
        if self._models and name not in self._models:
            self._print(f"{name} is not in the list of models; the server may know it by another name.", "warning")
        client.model = name
        self._print(f"The next answers are by {name}.")

    def _use_tools(self, names: str) -> None:
        client = self._session.client
        if not names:
            try:
                listed = client.call("GET", "/v1/tools").get("data", [])
            except ApiCallFailed as error:
                self._print(str(error), "bad")
                listed = []
            for tool in listed:
                about = str(tool.get("userDescription") or tool.get("description") or "")
                self._print(f"{tool.get('name')}: {' '.join(about.split())[:160]}")
            self._print(f"In use: {describe_tools(client.tools)}.", "dim")
            return
        match names:
            case "on" | "all":
                client.tools = True
            case "off" | "none":
                client.tools = False
            case _:
                client.tools = [name.strip() for name in names.split(",") if name.strip()]
        self._print(f"Server tools: {describe_tools(client.tools)}.")

    def _system(self, text: str) -> None:
        client = self._session.client
        if text:
            client.instructions = None if text == "off" else text
        self._print(f"System prompt: {client.instructions or 'none'}")

    def _show(self, _: str) -> None:
        if not self._session.view.calls:
            self._print("The last answer has no tool calls.")
        for call in self._session.view.calls:
            self._print(f"{call.name} {call.arguments}", "bold")
            self._print(call.result or "(no output)", *(("bad",) if call.failed else ()))

    def _retry(self, _: str) -> None:
        if self._session.question is None:
            self._print("There is no question yet.")
        else:
            self._session.ask_again()

    def _attach(self, name: str) -> None:
        if not name:
            self._print("Name a file: /attach FILE")
            return
        try:
            count = self._session.attach(read_attachment(Path(name).expanduser()))
        except AttachmentRefused as error:
            self._print(str(error), "bad")
            return
        self._print(f"{count} {'file goes' if count == 1 else 'files go'} with the next message.")

    def _edit(self, _: str) -> None:
        text = edit_text("", ".md")
        if text is None:
            self._print("The editor could not be used; set EDITOR or VISUAL.", "bad")
        elif text.strip():
            self._print(text.strip(), "dim")
            self._session.ask(text.strip())

    def _save(self, name: str) -> None:
        now = time.localtime()
        path = Path(name).expanduser() if name else self._saved or Path(time.strftime("chat-%Y-%m-%d-%H%M%S.md", now))
        try:
            title = (
                f"Chat with {self._session.client.model or 'the default model'}, {time.strftime('%Y-%m-%d %H:%M', now)}"
            )
            # Only the file that this chat has written before is replaced.
            self._session.transcript.save(path, title, replace=path == self._saved)
        except FileExistsError:
            self._print(f"{path} exists already; name another file.", "bad")
            return
        except OSError as error:
            self._print(f"{path} cannot be written: {error.strerror}.", "bad")
            return
        self._saved = path
        self._print(f"Saved to {path}.")
        if previous := self._session.client.previous:
            self._print(f"To go on with it later:\n  toolgate chat --resume {previous}", "dim")

    def _new(self, _: str) -> None:
        self._session.restart()
        self._saved = None
        self._print("A new chat begins.")

    def _quit(self, _: str) -> None:
        raise ChatExitRequested


def describe_tools(tools: object) -> str:
    """Describe which server tools are used."""
    if isinstance(tools, list):
        return ", ".join(tools)
    return "all" if tools else "none"


def _paths(word: str) -> list[str]:
    path = Path(word).expanduser()
    folder, start = (path, "") if word.endswith("/") or not word else (path.parent, path.name)
    try:
        found = sorted([one for one in folder.iterdir() if one.name.startswith(start)])[:100]
    except OSError:
        return []
    head = word.removesuffix(start) if start else word
    return [f"{head}{one.name}{'/' if one.is_dir() else ''}" for one in found]
