"""A stateless history over a peer that keeps the conversation itself (spec: U4, T8)."""

import asyncio

import pytest

from tests.text_tools.parsed import without_result_marks
from tests.upstreams.stateful_chat.peer_server import answer_text, emitted, history, request, staged, until
from tests.upstreams.transport.faulty import on_both_loops
from toolgate.conversation.errors import (
    GatewayOverloaded,
    InvalidRequest,
    InvalidUpstreamAnswer,
    UpstreamRejected,
    UpstreamUnavailable,
)
from toolgate.conversation.events import StepEnd, Usage
from toolgate.conversation.message import Media, Message, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, RequestSettings, ToolDef
from toolgate.upstreams.stateful_chat import StatefulChatModel


@on_both_loops
async def test_a_continued_history_sends_only_what_is_new() -> None:
    async with staged() as stage:
        first = await stage.ask("hello")
        second = await stage.ask("hello", first, "how are you")
        await stage.ask("hello", first, "how are you", second, "bye")
        [conversation] = stage.conversations
        assert [text for speaker, text in conversation if speaker == "user"] == ["hello", "how are you", "bye"]


async def test_the_answer_streams_and_carries_the_usage_the_peer_reported() -> None:
    async with staged() as stage:
        events = await emitted(await stage.model.ask(request("one two")))
        assert answer_text(events) == "You said (1): one two"
        assert events[-1] == StepEnd("stop", Usage(7, 5))


async def test_an_unknown_history_starts_a_conversation_with_the_transcript() -> None:
    async with staged() as stage:
        await stage.ask("hello", "I never said this", "what next")
        [[(_, opening), _]] = stage.conversations
        assert '<turn speaker="assistant">\nI never said this\n</turn>' in opening
        assert opening.endswith("\n\nwhat next")


@pytest.mark.parametrize(
    "edited",
    [("hullo", None, "on"), ("hello", "something else", "on"), ("  hello\n    indented", None, "on")],
    ids=["user", "assistant", "indentation"],
)
async def test_an_edited_history_starts_anew_and_leaves_the_old_conversation_alone(
    edited: tuple[str, str | None, str],
) -> None:
    async with staged() as stage:
        first = await stage.ask("hello")
        user, assistant, new = edited
        await stage.ask(user, first if assistant is None else assistant, new)
        assert len(stage.conversations) == 2
        assert stage.conversations[0] == [("user", "hello"), ("assistant", first)]
        assert await stage.ask("hello", first, "again") == "You said (2): again"


async def test_a_forked_history_gets_a_conversation_of_its_own() -> None:
    async with staged() as stage:
        first = await stage.ask("hello")
        await stage.ask("hello", first, "left")
        right = await stage.ask("hello", first, "right")
        assert right.endswith("right")
        assert [len(one) for one in stage.conversations] == [4, 2]


@on_both_loops
async def test_two_requests_that_continue_one_prefix_at_once_never_share_a_conversation() -> None:
    """fault: M5"""
    async with staged() as stage:
        first = await stage.ask("hello")
        await asyncio.gather(*[stage.ask("hello", first, f"branch {number}") for number in range(8)])
        assert len(stage.conversations) == 8
        for conversation in stage.conversations:
            branches = [text for speaker, text in conversation if speaker == "user" and "branch" in text]
            assert len(branches) == 1


async def test_a_peer_that_has_forgotten_is_sent_everything_once_more() -> None:
    async with staged() as stage:
        first = await stage.ask("hello")
        stage.echo.conversations.clear()
        second = await stage.ask("hello", first, "still there")
        [[(_, opening), _]] = stage.conversations
        assert "<conversation_so_far>" in opening
        assert await stage.ask("hello", first, "still there", second, "good") == "You said (2): good"


async def test_a_peer_that_forgets_what_it_just_created_is_not_asked_for_ever() -> None:
    async with staged() as stage:
        with pytest.raises(InvalidUpstreamAnswer, match="just created"):
            await stage.ask("/error unknown_conversation")


@on_both_loops
async def test_a_client_that_leaves_cancels_the_answer_and_the_conversation_is_not_used_again() -> None:
    """fault: C1, U11"""
    async with staged() as stage:
        first = await stage.ask("hello")
        answer = await stage.model.ask(request("hello", first, "/endless"))
        await answer.aclose()
        await until(lambda: stage.echo.open == 0)
        assert len(stage.echo.cancelled) == 1
        await stage.ask("hello", first, "again")
        assert len(stage.conversations) == 2


async def test_a_client_that_leaves_before_the_first_word_cancels_too() -> None:
    """fault: C1"""
    async with staged() as stage:
        asking = asyncio.create_task(stage.model.ask(request("/silent")))
        await until(lambda: stage.echo.open == 1)
        asking.cancel()
        await until(lambda: stage.echo.open == 0)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_an_answer_left_in_the_middle_of_reading_is_cancelled() -> None:
    """fault: C1"""
    async with staged() as stage:
        answer = await stage.model.ask(request("/endless"))
        events = answer.events()
        await anext(events)
        await events.aclose()
        await until(lambda: stage.echo.open == 0)


async def test_an_empty_answer_is_an_answer_and_the_conversation_goes_on() -> None:
    async with staged() as stage:
        assert await stage.ask("/empty") == ""
        assert len(stage.conversations) == 1
        await stage.ask("/empty", "", "and now")
        assert len(stage.conversations) == 1


async def test_a_conversation_is_continued_by_its_owner_alone() -> None:
    async with staged() as stage:
        first = await stage.ask("hello", user="ann")
        await stage.ask("hello", first, "me too", user="bob")
        assert len(stage.conversations) == 2
        await stage.ask("hello", first, "me first", user="ann")
        assert len(stage.conversations) == 2


async def test_the_owner_may_be_anything_the_server_knows_of_a_request() -> None:
    async with staged(owner=lambda request: "one key") as stage:
        first = await stage.ask("hello", user="ann")
        await stage.ask("hello", first, "same key", user="bob")
        assert len(stage.conversations) == 1


async def test_two_models_of_one_peer_share_the_connection_and_no_conversation() -> None:
    async with staged() as stage:
        other = StatefulChatModel(stage.peer, "other", stage.store)
        first = await stage.ask("hello")
        await emitted(await other.ask(request("hello", first, "you there")))
        assert len(stage.conversations) == 2


async def test_many_conversations_share_one_connection() -> None:
    async with staged() as stage:
        connection = await stage.peer.connection()
        answers = await asyncio.gather(*[stage.ask(f"number {number}") for number in range(50)])
        assert sorted(answers) == sorted([f"You said (1): number {number}" for number in range(50)])
        assert await stage.peer.connection() is connection


async def test_a_system_message_stands_in_the_first_message_and_changing_it_starts_anew() -> None:
    def asked(system: str, *texts: str) -> ModelRequest:
        return ModelRequest("bot", (Message("system", (Text(system),)), *history(*texts)))

    async with staged() as stage:
        first = answer_text(await emitted(await stage.model.ask(asked("Be kind.", "hello"))))
        await emitted(await stage.model.ask(asked("Be kind.", "hello", first, "on")))
        await emitted(await stage.model.ask(asked("Be rude.", "hello", first, "on")))
        kind, rude = stage.conversations
        assert [text for _, text in kind][::2] == ["<system_context>\nBe kind.\n</system_context>\n\nhello", "on"]
        assert rude[0][1].partition(">\n")[2].startswith("Be rude.\n</system_context")


async def test_results_go_back_by_id_and_one_that_matches_no_call_is_ignored_with_a_warning() -> None:
    """spec: X7"""
    call = Message("assistant", (ToolCall("c1", "look", '{"b": 1, "a": 2}'),))
    result = Message("tool", (ToolResult("c1", (Text("found"),)),))
    stale = Message("tool", (ToolResult("gone", (Text("old"),)),))
    async with staged() as stage:
        answer = await stage.model.ask(ModelRequest("bot", (*history("go"), call, stale, result)))
        await emitted(answer)
        [[(_, opening), _]] = stage.conversations
        assert 'Tool Call: look({"a":2,"b":1})' in opening
        assert without_result_marks(opening).endswith("Tool Call: look\nResult [SUCCESS]\nfound")
        assert "old" not in opening
        assert answer.warnings == ("a tool result for gone matches no earlier call and was ignored",)


async def test_a_conversation_with_results_goes_on_whatever_their_marks_were() -> None:
    """The marks of a process die with it; what the peer holds is compared without them."""
    call = Message("assistant", (ToolCall("c1", "look", "{}"),))
    result = Message("tool", (ToolResult("c1", (Text("found"),)),))
    asked = (*history("go"), call, result)
    async with staged() as stage:
        output = answer_text(await emitted(await stage.model.ask(ModelRequest("bot", asked))))
        restarted = StatefulChatModel(stage.peer, "bot", stage.store)
        again = (*asked, Message("assistant", (Text(output),)), *history("on"))
        await emitted(await restarted.ask(ModelRequest("bot", again)))
        [conversation] = stage.conversations
        assert conversation[-2] == ("user", "on")


async def test_an_answer_is_recognised_as_a_wrapper_replays_it() -> None:
    """A wrapper that reads calls in the text writes them in its own way; `retell` says how."""
    async with staged(replay=lambda text: text.replace("<<", "").replace(">>", "")) as stage:
        first = await stage.ask("<<hello>>")
        await stage.ask("<<hello>>", first.replace("<<", "").replace(">>", ""), "on")
        assert len(stage.conversations) == 1


async def test_what_the_peer_cannot_be_sent_is_a_warning() -> None:
    """spec: C8"""
    asked = ModelRequest(
        "bot", history("hi"), tools=(ToolDef("t"),), settings=RequestSettings(temperature=0.5, stop=("x",), user="ann")
    )
    async with staged() as stage:
        answer = await stage.model.ask(asked)
        await emitted(answer)
        dropped = [warning.split()[0] for warning in answer.warnings]
        assert dropped == ["temperature", "stop", "tools"]


async def test_what_is_new_must_be_text_and_the_users() -> None:
    picture = Message("user", (Media("image", data="AAAA"),))
    async with staged() as stage:
        with pytest.raises(InvalidRequest, match="text only"):
            await stage.model.ask(ModelRequest("bot", (picture,)))
        with pytest.raises(InvalidRequest, match="cannot continue an answer"):
            await stage.model.ask(request("hello", "I beg"))
        with pytest.raises(InvalidRequest, match="n must be 1"):
            await stage.model.ask(ModelRequest("bot", history("hi"), settings=RequestSettings(choices=2)))
        earlier = await stage.model.ask(ModelRequest("bot", (picture, *history("and", "a dog", "sure?")[1:])))
        await emitted(earlier)
        assert earlier.warnings == ("image content was left out: the model's upstream takes text only",)
        assert not stage.echo.open


async def test_a_storage_that_fails_costs_the_memory_and_not_the_answer() -> None:
    """fault: K-I"""

    class Full:
        async def take(self, peer: str, owner: str, digest: str) -> str | None:
            raise GatewayOverloaded("The disk is full.")

        async def keep(self, peer: str, owner: str, digest: str, conversation: str) -> None:
            raise GatewayOverloaded("The disk is full.")

    async with staged() as stage:
        model = StatefulChatModel(stage.peer, "bot", Full())
        first = answer_text(await emitted(await model.ask(request("hello"))))
        assert answer_text(await emitted(await model.ask(request("hello", first, "on")))).endswith("on")


@pytest.mark.parametrize(
    ("code", "fault", "status"),
    [
        ("rejected", UpstreamRejected, 400),
        ("too_long", UpstreamRejected, 400),
        ("busy", UpstreamUnavailable, 503),
        ("rate_limited", UpstreamUnavailable, 429),
        ("unauthorized", UpstreamUnavailable, 502),
        ("whatever", UpstreamUnavailable, 502),
    ],
)
async def test_the_peers_refusals_are_faults_of_their_kind(code: str, fault: type[Exception], status: int) -> None:
    async with staged() as stage:
        with pytest.raises(fault, match="As you wish") as raised:
            await stage.ask(f"/error {code}")
        assert raised.value.status == status  # type: ignore[attr-defined]  # all of ours have one
        assert stage.notes == [("box", raised.value.code)]  # type: ignore[attr-defined]
