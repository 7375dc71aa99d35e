"""Ask questions and show their answers, with approvals in between, and keep what happened."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from toolgate.cli.api_client import ApiCallFailed
from toolgate.cli.chat.approval_dialog import ApprovalDialog
from toolgate.cli.chat.conversation import (
    NOT_RUN,
    UNKNOWN,
    ConversationClient,
    assistant_message,
    failed_call,
    user_message,
)
from toolgate.cli.chat.response_events import (
    AnswerEvent,
    TerminalAnswerEnded,
    TerminalAnswerStarted,
    TerminalApprovalAsked,
    TerminalTextDelta,
    TerminalToolEnded,
    TerminalToolStarted,
)
from toolgate.cli.chat.state_files import ChatResumePoint, ChatStateFiles
from toolgate.cli.chat.transcript import Transcript
from toolgate.cli.chat.view import AnswerView

_FORBIDDEN = "self_approval_forbidden"


class ChatSession:
    """One conversation and its view."""

    def __init__(
        self,
        client: ConversationClient,
        view: AnswerView,
        dialog: ApprovalDialog,
        transcript: Transcript,
        state: ChatStateFiles,
        attached: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.client = client
        self.view = view
        self.transcript = transcript
        self.question: str | None = None
        """The last question."""
        self._attached = list(attached)
        """Parts that are sent with the next question: images and files."""
        self._message: dict[str, Any] = {}
        self.stopped = False
        """Whether the person stopped its answer."""
        self._before: tuple[str | None, list[dict[str, Any]]] = (None, [])
        self._dialog = dialog
        self._state = state

    def ask(self, question: str) -> bool:
        """Ask a question and show the answer; return whether there is one, whole or stopped by the person."""
        self.question, self._before = question, (self.client.previous, list(self.client.unsent))
        self._message, self._attached = user_message(question, self._attached), []
        self.stopped = False
        self.transcript.ask(question)
        turn = _Turn([*self.client.unsent, self._message])
        self.view.begin()
        try:
            ended = self._answer(turn)
        except (KeyboardInterrupt, EOFError):  # Ctrl-C, or Ctrl-D at a question
            self._stop(turn)
            return True
        except ApiCallFailed as error:
            ended = TerminalAnswerEnded("", str(error), True, 0, 0)
        self._keep(turn)
        self.view.end(ended)
        return not ended.failed

    def attach(self, part: dict[str, Any]) -> int:
        """Send a part with the next question; return how many it has."""
        self._attached.append(part)
        return len(self._attached)

    def restart(self) -> None:
        """Begin a new conversation."""
        self.client.restart()
        self.transcript.clear()
        self.question, self._attached = None, []

    def ask_again(self) -> bool:
        """Ask the last question again, in place of the first time."""
        assert self.question is not None
        self.client.previous, self.client.unsent = self._before[0], list(self._before[1])
        self._attached = self._message["content"][:-1]
        self.transcript.drop_last()
        return self.ask(self.question)

    def _answer(self, turn: "_Turn") -> TerminalAnswerEnded:
        """Show one response after the other until no call waits for approval."""
        while True:
            try:
                ended = self._show(turn)
            except ApiCallFailed as error:
                if error.code != _FORBIDDEN or not turn.asked:
                    raise
                self.view.line(str(error), "bad")
                turn.items = [item for asked in turn.asked for item in self._dialog.wait(asked)]
                continue
            if ended.failed or not turn.asked:
                return ended
            turn.items = [item for asked in turn.asked for item in self._dialog.answer(asked)]
            self.view.go_on()

    def _show(self, turn: "_Turn") -> TerminalAnswerEnded:
        """Show one response; if it completes, the conversation goes on from it."""
        turn.ended = None
        with closing(self.client.send(turn.items)) as events:
            for event in events:
                self.view.show(event)
                turn.add(event)
        ended = turn.ended
        assert ended is not None, "the events of an answer end with TerminalAnswerEnded"
        if not ended.failed:
            self.client.previous, self.client.unsent = ended.id, []
            turn.stored = True
        return ended

    def _stop(self, turn: "_Turn") -> None:
        """Take the turn back from the server, and keep what was received of it for the next question.

        The server has stored no end of it, and perhaps a call that waits for an answer.
        """
        for asked in turn.asked if turn.stored else ():
            self._dialog.deny(asked)
        self.client.previous, unsent = self._before
        self.client.unsent = [*unsent, self._message, *turn.items_so_far()]
        self.stopped = True
        self._keep(turn)
        self.view.end(None)

    def _keep(self, turn: "_Turn") -> None:
        """Keep the turn in the transcript, and the end of the conversation for `--continue`."""
        self.transcript.end(self.view.calls, "".join(turn.text))
        if turn.stored and not self.stopped and self.client.previous:
            self._state.keep(self.client.url, ChatResumePoint(self.client.previous, self.client.model))


class _Turn:
    """What a question has led to so far, in one response or several."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items
        """What the next request sends."""
        self.stored = False
        """Whether the server has stored the last response."""
        self.ended: TerminalAnswerEnded | None = None
        self.asked: list[TerminalApprovalAsked] = []
        self.text: list[str] = []
        self._received: list[dict[str, Any]] = []
        self._running: dict[str, TerminalToolStarted] = {}
        self._kept = 0

    def add(self, event: AnswerEvent) -> None:
        """Keep what an event brings."""
        match event:
            case TerminalAnswerStarted():
                self.asked, self.stored = [], False
            case TerminalTextDelta(text=text):
                self.text.append(text)
            case TerminalToolStarted():
                self._running[event.id] = event
            case TerminalToolEnded(item=item):
                self._running.pop(event.id, None)
                self._end_text()
                self._received.append(dict(item))
            case TerminalApprovalAsked():
                self.asked.append(event)
            case TerminalAnswerEnded():
                self.ended = event

    def items_so_far(self) -> list[dict[str, Any]]:
        """Return all that was received, as items; calls that were stopped say so."""
        self._end_text()
        waiting = [failed_call(asked.id, asked.name, asked.arguments, NOT_RUN) for asked in self.asked]
        running = [failed_call(one.id, one.name, one.arguments, UNKNOWN) for one in self._running.values()]
        return [*self._received, *running, *waiting]

    def _end_text(self) -> None:
        """Make an item of the text since the last one."""
        if text := "".join(self.text[self._kept :]):
            self._received.append(assistant_message(text))
        self._kept = len(self.text)
