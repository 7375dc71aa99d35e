"""One approval, fifty answers at once, two processes: one of them counts (spec: A2; fault: M1)."""

import asyncio
import os
from collections import Counter

from tests.races.pair import CHAT, RUN, Pair, crowd, obeying, output

ROUNDS, ANSWERS = int(os.environ.get("TOOLGATE_ROUNDS", "12")), 50


async def test_of_fifty_answers_through_two_processes_one_wins_and_decides_about_the_tool(pair: Pair) -> None:
    """fault: M1"""
    pair.play(obeying)
    bodies = [{"decision": ("approve", "deny")[number % 4 // 2]} for number in range(ANSWERS)]
    async with crowd(pair.urls, ANSWERS) as many:
        for number in range(ROUNDS):
            place = f"Rome{number}"
            asked = asyncio.create_task(pair.request(number % 2, "POST", CHAT, output(f"book {place}", **RUN)))
            id = await pending(pair)
            response = await many.volley(f"/v1/approvals/{id}", bodies[number % 4 :] + bodies[: number % 4], "ann-key")
            assert Counter(one.status for one in response) == {200: 1, 409: ANSWERS - 1}, [one.body for one in response]
            [state] = [one.json["state"] for one in response if one.status == 200]
            emitted = {one.json["approval"]["state"] for one in response if one.status == 409}
            assert emitted <= ({state} if state == "denied" else {state, "consumed"})
            answer = (await asked).json["choices"][0]["message"]["content"]
            assert (f"{place} is booked" in answer) == (state == "approved")
            assert pair.ran.count(place) == (state == "approved")


async def pending(pair: Pair) -> str:
    async with asyncio.timeout(30):
        while True:
            waiting = (await pair.request(0, "GET", "/v1/approvals?state=pending")).json["data"]
            if waiting:
                return str(waiting[0]["id"])
            await asyncio.sleep(0.005)
