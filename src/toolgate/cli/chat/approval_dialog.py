"""Ask the person at the terminal about a tool call, and give the answer to the server."""

import json
import os
from contextlib import suppress
from typing import Any

from toolgate.cli.api_client import ApiCallFailed
from toolgate.cli.chat.conversation import ConversationClient, approval_response
from toolgate.cli.chat.prompt import ApprovalPrompter, edit_text
from toolgate.cli.chat.response_events import CliApprovalAsked
from toolgate.cli.chat.view import AnswerView
from toolgate.cli.server_url import DEFAULT_URL

CHOICES = "[y]es, [n]o, [s]ession, [a]lways, [e]dit, [?] "
EXPLAINED = (
    "y: run this call once. n: do not; text behind it is the reason, for the model. s: run all calls of this tool in this "
    "chat. a: run all its calls, always. e: change the arguments on a line, E: in your editor."
)
_STOPPED = "The person stopped the answer."
_LEVELS = {"y": "once", "yes": "once", "s": "session", "session": "session", "a": "always", "always": "always"}


class NoTerminalForApproval(Exception):
    """A call needs approval, and there is no terminal on which to ask."""


class ApprovalDialog:
    """Asks about the calls of one conversation."""

    def __init__(self, client: ConversationClient, view: AnswerView, prompter: ApprovalPrompter | None) -> None:
        self._client = client
        self._view = view
        self._prompter = prompter

    def answer(self, asked: CliApprovalAsked) -> list[dict[str, Any]]:
        """Ask until the server has taken an answer; return the items that the next request must send for it."""
        if self._prompter is None:
            raise NoTerminalForApproval(
                f"{asked.name} needs a person's approval, and there is no terminal to ask on. "
                f"Approve it with `{self._approve_command(asked)}` and ask again, "
                "or allow it in the configuration (docs/approvals.md)."
            )
        arguments = self._present(asked)
        while True:
            try:
                decision = self._ask(self._prompter, arguments)
                if decision is not None:
                    return self._send(asked, decision)
            except ApiCallFailed as error:
                self._view.line(str(error), "bad")
                # Asking again is of no use: this key may never answer its own calls.
                if error.code == "self_approval_forbidden":
                    return self.wait(asked)

    def deny(self, asked: CliApprovalAsked) -> None:
        """Deny a call because the person stopped the answer; if that fails, it stays open until it expires."""
        with suppress(ApiCallFailed):
            self._client.call("POST", f"/v1/approvals/{asked.id}", {"decision": "deny", "reason": _STOPPED})

    def _present(self, asked: CliApprovalAsked) -> str:
        """Show the whole question, and return the arguments as they can be edited."""
        try:
            approval = self._client.call("GET", f"/v1/approvals/{asked.id}")
        except ApiCallFailed:  # a key without the scope tools may answer, but not read approvals
            approval = {}
        question = approval.get("title") or approval.get("question") or f"Run {asked.name}?"
        self._view.question(question)
        if approval.get("message"):
            self._view.line(f"  {approval['message']}")
        if approval.get("tainted"):
            self._view.line("  Text from outside in this chat may have led the model to this call.", "bad")
        if approval.get("why"):
            self._view.line(f"  asked because {approval['why']}", "dim")
        # Those of the server have escapes for letters that look like others, or change the direction of the text.
        arguments = str(approval.get("arguments") or asked.arguments)
        self._view.line(f"  {asked.name} {arguments}")
        return arguments

    def _ask(self, prompter: ApprovalPrompter, arguments: str) -> dict[str, Any] | None:
        """Read an answer; None if it has to be asked again."""
        word, _, rest = prompter.ask(f"  {CHOICES}").strip().partition(" ")
        if word.lower() in _LEVELS:
            return {"decision": "approve", "level": _LEVELS[word.lower()]}
        if word.lower() in ("n", "no"):
            return {"decision": "deny", **({"reason": rest.strip()} if rest.strip() else {})}
        if word not in ("e", "E", "edit"):
            self._view.line(f"  {EXPLAINED}", "dim")
            return None
        if word == "E":
            edited = edit_text(json.dumps(json.loads(arguments), indent=2) + "\n", ".json")
        else:
            edited = prompter.ask("  arguments: ", arguments)
        try:
            value = json.loads(edited or "")
        except ValueError as error:
            self._view.line(f"  These arguments are not JSON ({error}); nothing was answered.", "bad")
            return None
        if not isinstance(value, dict):
            self._view.line("  The arguments must be a JSON object; nothing was answered.", "bad")
            return None
        # A person who leaves the editor without a change may have changed their mind: that approves nothing.
        if value == json.loads(arguments):
            self._view.line("  The arguments were not changed; nothing was answered.", "warning")
            return None
        return {"decision": "approve", "level": "once", "arguments": value}

    def _send(self, asked: CliApprovalAsked, decision: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            self._client.call("POST", f"/v1/approvals/{asked.id}", decision)
            if "arguments" in decision:
                self._view.edited(asked.name, asked.arguments, json.dumps(decision["arguments"]))
        except ApiCallFailed as error:
            if error.code == "missing_scope":
                # An answer within the conversation needs no scope, but can only approve or deny this call.
                if decision.get("level", "once") != "once" or "arguments" in decision:
                    raise ApiCallFailed("A key without the scope tools can only answer y or n.") from None
                approve = decision["decision"] == "approve"
                return [approval_response(asked.id, approve=approve, reason=decision.get("reason"))]
            if error.status not in (409, 410):  # it was answered elsewhere, or it has expired
                raise
            self._view.line(f"  {error}", "warning")
        return []

    def _approve_command(self, asked: CliApprovalAsked) -> str:
        """Return the command that approves a call once, with the URL if a command in this shell calls another."""
        default = os.environ.get("TOOLGATE_URL") or DEFAULT_URL
        option = "" if self._client.url == default else f"--url {self._client.url} "
        return f"toolgate approvals approve {option}{asked.id}"

    def wait(self, asked: CliApprovalAsked) -> list[dict[str, Any]]:
        """Let the person fetch the approval of another key, because the own one may not give it."""
        assert self._prompter is not None
        self._view.line(f"  With that key: {self._approve_command(asked)}", "dim")
        if self._prompter.ask("  Press Enter when it is approved, or n to deny it: ").strip().lower() in ("n", "no"):
            return self._send(asked, {"decision": "deny"})
        return []
