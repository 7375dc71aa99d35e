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
    CliAnswerEnded,
    CliAnswerStarted,
    CliApprovalAsked,
    CliTextDelta,
    CliToolEnded,
    CliToolStarted,
)
from toolgate.cli.chat.state_files import ChatStateFiles, LastChatResponse
from toolgate.cli.chat.transcript import MarkdownTranscript
from toolgate.cli.chat.view import AnswerView

_FORBIDDEN = "self_approval_forbidden"


class ChatSession:
    """One conversation and its view."""

    def __init__(
        self,
        client: ConversationClient,
        view: AnswerView,
        dialog: ApprovalDialog,
        transcript: MarkdownTranscript,
        state: ChatStateFiles,
        attached: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.client = client
        self.view = view
        self.transcript = transcript
        # The last question.
        self.question: str | None = None
        # Parts that are sent with the next question: images and files.
        self._attached = list(attached)
        self._message: dict[str, Any] = {}
        # Whether the person stopped the answer to the last question.
        self.stopped = False
        # Where the conversation stood before the last question: its last response, and what was unsent.
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
            # The server has stored no end of the turn, and perhaps a call that waits for an answer. The turn is taken
            # back there, and what was received of it is sent again with the next question.
            for asked in turn.asked if turn.stored else ():
                self._dialog.deny(asked)
            self.client.previous, unsent = self._before
            self.client.unsent = [*unsent, self._message, *turn.items_so_far()]
            self.stopped = True
            self._keep(turn)
            self.view.end(None)
            return True
        except ApiCallFailed as error:
            ended = CliAnswerEnded("", str(error), True, 0, 0)
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
        # Without the text of the question, which is the last part.
        self._attached = self._message["content"][:-1]
        self.transcript.drop_last()
        return self.ask(self.question)

    def _answer(self, turn: "_Turn") -> CliAnswerEnded:
        """Show one response after the other until no call waits for approval."""
        while True:
            turn.ended = None
            try:
                with closing(self.client.send(turn.items)) as events:
                    for event in events:
                        self.view.show(event)
                        turn.add(event)
            except ApiCallFailed as error:
                # An approval that was sent within the conversation is refused here, when the server reads it.
                if error.code != _FORBIDDEN or not turn.asked:
                    raise
                self.view.line(str(error), "bad")
                turn.items = [item for asked in turn.asked for item in self._dialog.wait(asked)]
                continue
            ended = turn.ended
            assert ended is not None, "the events of an answer end with CliAnswerEnded"
            # A failed response cannot be continued: the conversation stays where it was.
            if not ended.failed:
                self.client.previous, self.client.unsent = ended.id, []
                turn.stored = True
            if ended.failed or not turn.asked:
                return ended
            turn.items = [item for asked in turn.asked for item in self._dialog.answer(asked)]
            self.view.go_on()

    def _keep(self, turn: "_Turn") -> None:
        """Keep the turn in the transcript, and the end of the conversation for `--continue`."""
        self.transcript.end(self.view.calls, "".join(turn.text))
        if turn.stored and not self.stopped and self.client.previous:
            self._state.keep(self.client.url, LastChatResponse(self.client.previous, self.client.model))


class _Turn:
    """What a question has led to so far, in one response or several."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        # What the next request sends.
        self.items = items
        # Whether the server has stored the last response.
        self.stored = False
        self.ended: CliAnswerEnded | None = None
        self.asked: list[CliApprovalAsked] = []
        self.text: list[str] = []
        # Texts and calls as items, for a next request; `_kept` says how many pieces of the text are among them.
        self._received: list[dict[str, Any]] = []
        self._running: dict[str, CliToolStarted] = {}
        self._kept = 0

    def add(self, event: AnswerEvent) -> None:
        """Keep what an event brings."""
        match event:
            case CliAnswerStarted():
                self.asked, self.stored = [], False
            case CliTextDelta(text=text):
                self.text.append(text)
            case CliToolStarted():
                self._running[event.id] = event
            case CliToolEnded(item=item):
                self._running.pop(event.id, None)
                self._end_text()
                self._received.append(dict(item))
            case CliApprovalAsked():
                self.asked.append(event)
            case CliAnswerEnded():
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
