"""Whatever clients do at the same time, the peer's conversation is the history that the client sent (spec: T8).

fault: M5. Clients continue, fork, edit, leave and come back with their histories replayed a little differently, while the
peer forgets and is restarted; each answer must have been given in a conversation that holds just what its client knows.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.upstreams.stateful_chat.peer_server import Stage, request, staged, until
from tests.upstreams.stateful_chat.test_history_turns import expanded

TOPICS = st.sampled_from(["one", "two\n  indented", "<turn>", "", "You said (1): one"])
RUDE = "/endless"


class Talks(RuleBasedStateMachine):
    """Histories of clients, and a real peer that must agree with them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.histories: list[list[str]] = [[]]
        self.asked = 0

    @initialize()
    def begin(self) -> None:
        self.stage: Stage = self.runner.run(self.stack.enter_async_context(staged()))

    @rule(topic=TOPICS)
    def start(self, topic: str) -> None:
        self.histories.append([])
        self.runner.run(self.go_on(self.histories[-1], topic))

    @rule(choices=st.lists(st.tuples(st.integers(0, 9), TOPICS), min_size=1, max_size=4))
    def several_go_on_at_once(self, choices: list[tuple[int, str]]) -> None:
        forks = [(list(self.histories[number % len(self.histories)]), topic) for number, topic in choices]
        self.histories += [fork for fork, _ in forks]

        async def all_at_once() -> None:
            await asyncio.gather(*[self.go_on(fork, topic) for fork, topic in forks])

        self.runner.run(all_at_once())

    @rule(number=st.integers(0, 9), topic=TOPICS)
    def one_goes_on(self, number: int, topic: str) -> None:
        self.runner.run(self.go_on(self.histories[number % len(self.histories)], topic))

    @precondition(lambda self: any(self.histories))
    @rule(number=st.integers(0, 9), place=st.integers(0, 9), text=TOPICS)
    def somebody_edits(self, number: int, place: int, text: str) -> None:
        history = self.histories[number % len(self.histories)]
        if history:
            history[place % len(history)] = text or "edited"

    @rule(number=st.integers(0, 9))
    def somebody_replays_it_with_other_blanks(self, number: int) -> None:
        history = self.histories[number % len(self.histories)]
        history[:] = [f"\n{text}  " for text in history]

    @rule(number=st.integers(0, 9))
    def somebody_leaves_in_the_middle(self, number: int) -> None:
        history = self.histories[number % len(self.histories)]

        async def leave() -> None:
            answer = await self.stage.model.ask(request(*history, RUDE))
            await answer.aclose()
            await until(lambda: self.stage.echo.open == 0)

        self.runner.run(leave())

    @rule()
    def the_peer_forgets(self) -> None:
        self.stage.echo.conversations.clear()

    async def go_on(self, history: list[str], topic: str) -> None:
        self.asked += 1
        new = f"{topic} #{self.asked}"
        answer = await self.stage.ask(*history, new)
        answered = [one for one in self.stage.conversations if one and one[-1][0] == "assistant"]
        [held] = [one for one in answered if one[-2][1].endswith(new)]
        (_, opening), *later = held
        history += [new, answer]
        assert output([*expanded(opening), *later]) == output(zip("ua" * (len(history) // 2), history, strict=True))

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()


def output(turns: Any) -> list[tuple[str, str]]:
    """Turns as they are compared: the user's text up to the blanks at their ends, the model's without blanks."""
    return [(who[0], text.strip() if who[0] == "u" else "".join(text.split())) for who, text in turns]


TestTalks = Talks.TestCase
# Over real sockets a smaller counterexample would take minutes to find.
TestTalks.settings = settings(max_examples=40, stateful_step_count=20, deadline=None, phases=[Phase.generate])
