"""Telling a URL of new questions: signed, retried, and never in anybody's way (A2)."""

import asyncio
import base64
import hmac
from collections.abc import Mapping

import msgspec
import pytest

from tests.tools.approvals.asking import Clock, call, open_desk
from toolgate.conversation.errors import Unavailable
from toolgate.server.workshop.webhook import MOST_WAITING, PAUSES, Webhook
from toolgate.tools.approvals import Approval

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
URL = "http://127.0.0.1/hook"


class Receiver:
    """Answers by script and keeps what it got."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, Mapping[str, str], bytes]] = []

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        self.got.append((url, headers, body))
        said = self.answers.pop(0) if self.answers else 204
        if isinstance(said, Exception):
            raise said
        return said


async def question(now: Clock | None = None) -> Approval:
    heard: list[Approval] = []
    async with open_desk(announce=heard.append, now=now) as desk:
        await desk.decide(call(arguments={"path": "\u202e"}))
    return heard[0]


class Pauses:
    """Sleeps no longer than it takes to write down for how long."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


async def test_a_question_is_sent_as_an_approver_sees_it_with_a_signature_that_fits() -> None:
    receiver, clock = Receiver(), Clock()
    webhook = Webhook(URL, SECRET, receiver, now=clock)
    approval = await question(clock)
    webhook.announce(approval)
    await webhook.idle()
    [(url, headers, body)] = receiver.got
    assert url == URL
    said = msgspec.json.decode(body)
    assert (said["type"], said["data"]["id"], said["data"]["arguments"]) == (
        "approval.pending",
        approval.id,
        '{"path":"\\u202e"}',
    )
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"0123456789abcdef", signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-timestamp"] == "1000000"


async def test_it_is_tried_again_under_the_same_id_until_it_is_taken() -> None:
    receiver, pauses = Receiver(500, OSError("refused"), Unavailable("down"), 200), Pauses()
    webhook = Webhook(URL, "any text", receiver, sleep=pauses, now=Clock())
    webhook.announce(await question())
    await webhook.idle()
    assert pauses.taken == list(PAUSES[:3])
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1


@pytest.mark.parametrize("answer", [302, 404, 503])
async def test_it_is_given_up_with_a_complaint(answer: int) -> None:
    complaints: list[str] = []
    receiver = Receiver(*[answer] * 10)
    webhook = Webhook(URL, SECRET, receiver, sleep=Pauses(), now=Clock(), complain=complaints.append)
    approval = await question()
    webhook.announce(approval)
    await webhook.idle()
    assert len(receiver.got) == 1 + len(PAUSES)
    assert complaints == [f"the webhook did not take approval {approval.id}: it answered {answer}"]


async def test_what_expired_meanwhile_is_not_sent() -> None:
    clock, receiver, complaints = Clock(), Receiver(500), list[str]()

    async def sleep(_: float) -> None:
        clock.time += 3600

    webhook = Webhook(URL, SECRET, receiver, sleep=sleep, now=clock, complain=complaints.append)
    webhook.announce(await question(clock))
    await webhook.idle()
    assert len(receiver.got) == 1
    assert complaints[0].endswith("it expired")


async def test_a_receiver_that_hangs_holds_nobody_up_and_no_more_than_so_many_wait() -> None:
    complaints: list[str] = []
    forever = asyncio.Event()

    async def hang(url: str, headers: Mapping[str, str], body: bytes) -> int:
        await forever.wait()
        return 200

    webhook = Webhook(URL, SECRET, hang, now=Clock(), complain=complaints.append)
    approval = await question()
    for _ in range(MOST_WAITING + 3):
        webhook.announce(approval)
    assert len(complaints) == 3
    await webhook.aclose()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "approval-webhook"]


def test_a_secret_that_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="must be Base64"):
        Webhook(URL, "whsec_not base64!", Receiver())
