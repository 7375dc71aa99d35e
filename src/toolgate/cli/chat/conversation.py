"""One conversation over the Responses API: which response it continues, with which model, tools and instructions.

The server stores the turns, so a request sends only what is new. Turns of an answer that was stopped are not stored there;
they are kept here and sent with the next question.
"""

from collections.abc import Generator, Sequence
from typing import Any

from toolgate.cli.api_client import ApiCallFailed, request_json
from toolgate.cli.chat.response_events import AnswerEvent, answer_events
from toolgate.cli.event_stream import stream_events

NOT_RUN = "The person stopped the answer; the call was not run."
UNKNOWN = "The person stopped the answer while the call was running; whether it took effect is not known."
# A server that always says that there is more must not hold the chat forever.
_MAX_PAGES = 100


class ConversationClient:
    """Sends the turns of a conversation. `model` None is the server's default; `tools` is True, False or a list."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        model: str | None,
        tools: bool | Sequence[str],
        instructions: str | None,
        session: str,
    ) -> None:
        self.url = url
        self.key = key
        self.model = model
        self.tools = tools
        self.instructions = instructions
        self.previous: str | None = None
        # Items of stopped answers, which the server has not stored.
        self.unsent: list[dict[str, Any]] = []
        self._session = session

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call another endpoint of the server, or raise ApiCallFailed."""
        return request_json(self.url, self.key, method, path, body)

    def send(self, items: Sequence[dict[str, Any]]) -> Generator[AnswerEvent]:
        """Send items that continue the conversation, and yield the events of the answer."""
        # The server's own defaults may turn tools on, so that the fields are sent in any case.
        body: dict[str, Any] = {
            "input": list(items),
            "stream": True,
            "tool_execution": "none",
            "use_server_tools": False,
        }
        if self.tools:
            chosen = True if self.tools is True else list(self.tools)
            body |= {"tool_execution": "auto", "use_server_tools": chosen}
        given = {
            "model": self.model,
            "instructions": self.instructions,
            "previous_response_id": self.previous,
        }
        body |= {field: value for field, value in given.items() if value is not None}
        # An approval for the session covers the requests with this header.
        headers = {"x-toolgate-session": self._session}
        return answer_events(stream_events(self.url, self.key, "POST", "/v1/responses", body, headers))

    def restart(self) -> None:
        """Begin a new conversation."""
        self.previous = None
        self.unsent = []

    def resume(self, id: str) -> dict[str, Any]:
        """Continue after a stored response, and return it."""
        found: dict[str, Any] = self.call("GET", f"/v1/responses/{id}")
        if found.get("object") != "response":
            raise ApiCallFailed(f"There is no response {id}.")
        self.previous = str(found.get("id"))
        return found

    def earlier_items(self, id: str) -> list[dict[str, Any]]:
        """List all items before the answer of a response, oldest first."""
        items: list[dict[str, Any]] = []
        for _ in range(_MAX_PAGES):
            after = f"&after={items[-1]['id']}" if items else ""
            page = self.call("GET", f"/v1/responses/{id}/input_items?order=asc&limit=100{after}")
            items += [item for item in page.get("data", []) if isinstance(item, dict)]
            if not page.get("has_more"):
                break
        return items


def user_message(text: str, attached: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Make the item of a question, after what is attached to it."""
    return {"type": "message", "role": "user", "content": [*attached, {"type": "input_text", "text": text}]}


def assistant_message(text: str) -> dict[str, Any]:
    """Make the item of an answer, or of the part of it that was received."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def approval_response(id: str, *, approve: bool, reason: str | None = None) -> dict[str, Any]:
    """Make the item that answers an approval within the conversation."""
    item: dict[str, Any] = {"type": "mcp_approval_response", "approval_request_id": id, "approve": approve}
    return item | ({"reason": reason} if reason else {})


def failed_call(id: str, name: str, arguments: str, error: str) -> dict[str, Any]:
    """Make the item of a call that has no result."""
    # The id of an approval begins with `mcpr_`, that of its call with `mcp_`.
    item = {"id": f"mcp_{id.partition('_')[2]}", "type": "mcp_call", "server_label": "toolgate", "status": "failed"}
    return {**item, "name": name, "arguments": arguments, "output": None, "error": error}
