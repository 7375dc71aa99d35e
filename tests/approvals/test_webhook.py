"""Posting new approvals to a URL: signed, retried, and without delaying calls (spec: A2)."""

import asyncio
import base64
import hmac
import time
from collections.abc import Mapping

import msgspec
import pytest
from msgspec.structs import replace

from tests.approvals.builders import Clock, call, open_service
from tests.mcp.client.scripted_server import ReceivedRequest, ScriptedResponse, serving
from tests.tools.execution.toolwork import soon
from toolgate.app.tools import make_webhook
from toolgate.approvals import Approval
from toolgate.approvals.webhook import MAX_CONCURRENT, MAX_WAITING, PAUSES, NewApprovalWebhook
from toolgate.config import settings
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
URL = "http://127.0.0.1/hook"


class Receiver:
    """Answers by script and keeps what it got."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, Mapping[str, str], bytes]] = []

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        self.got.append((url, headers, body))
        output = self.answers.pop(0) if self.answers else 204
        if isinstance(output, Exception):
            raise output
        return output


async def question(now: Clock | None = None, caller: str = "ann") -> Approval:
    received: list[Approval] = []
    async with open_service(on_new=received.append, now=now) as service:
        await service.decide(call(arguments={"path": "\u202e"}, caller=caller))
    return received[0]


class Pauses:
    """Sleeps no longer than it takes to write down for how long."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


async def test_a_question_is_sent_as_an_approver_sees_it_with_a_signature_that_fits() -> None:
    receiver, clock = Receiver(), Clock()
    webhook = NewApprovalWebhook(URL, SECRET, receiver, now=clock)
    approval = await question(clock)
    webhook.announce(approval)
    await webhook.idle()
    [(url, headers, body)] = receiver.got
    assert url == URL
    output = msgspec.json.decode(body)
    assert (output["type"], output["data"]["id"], output["data"]["arguments"]) == (
        "approval.pending",
        approval.id,
        '{"path":"\\u202e"}',
    )
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"0123456789abcdef", signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-timestamp"] == "1000000"


async def test_it_is_tried_again_under_the_same_id_until_it_is_taken() -> None:
    receiver, pauses = Receiver(500, OSError("refused"), UpstreamUnavailable("down"), 200), Pauses()
    webhook = NewApprovalWebhook(URL, "any text", receiver, sleep=pauses, now=Clock())
    webhook.announce(await question())
    await webhook.idle()
    assert pauses.taken == list(PAUSES[:3])
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1


@pytest.mark.parametrize("answer", [302, 404, 503])
async def test_it_is_given_up_with_a_complaint(answer: int) -> None:
    complaints: list[str] = []
    receiver = Receiver(*[answer] * 10)
    webhook = NewApprovalWebhook(URL, SECRET, receiver, sleep=Pauses(), now=Clock(), on_failure=complaints.append)
    approval = await question()
    webhook.announce(approval)
    await webhook.idle()
    assert len(receiver.got) == 1 + len(PAUSES)
    assert complaints == [f"the webhook did not accept approval {approval.id}: it answered {answer}"]


async def test_what_expired_meanwhile_is_not_sent() -> None:
    clock, receiver, complaints = Clock(), Receiver(500), list[str]()

    async def sleep(_: float) -> None:
        clock.time += 3600

    webhook = NewApprovalWebhook(URL, SECRET, receiver, sleep=sleep, now=clock, on_failure=complaints.append)
    webhook.announce(await question(clock))
    await webhook.idle()
    assert len(receiver.got) == 1
    assert complaints[0].endswith("it expired")


async def test_a_receiver_that_hangs_delays_no_call_and_the_queue_is_bounded() -> None:
    complaints: list[str] = []
    forever = asyncio.Event()

    async def hang(url: str, headers: Mapping[str, str], body: bytes) -> int:
        await forever.wait()
        return 200

    webhook = NewApprovalWebhook(URL, SECRET, hang, now=Clock(), on_failure=complaints.append)
    approval = await question()
    for _ in range(MAX_WAITING + 3):
        webhook.announce(approval)
    assert len(complaints) == 3
    await webhook.aclose()
    assert complaints[3:] == [f"the server stops: {MAX_WAITING} approvals may not have been sent"]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "approval-webhook"]


@pytest.mark.parametrize("secret", ["whsec_not base64!", "whsec_"])
def test_a_secret_that_cannot_be_read_is_refused_at_once(secret: str) -> None:
    with pytest.raises(ValueError, match="must be Base64"):
        NewApprovalWebhook(URL, secret, Receiver())


async def test_without_a_secret_there_is_no_signature() -> None:
    """One with an empty key, which anyone can make, looked like one that proves something."""
    receiver = Receiver()
    webhook = NewApprovalWebhook(URL, "", receiver, now=Clock())
    webhook.announce(await question())
    await webhook.idle()
    assert [*receiver.got[0][1]] == ["content-type", "webhook-id", "webhook-timestamp"]


async def test_many_questions_of_one_caller_keep_no_other_caller_from_being_announced() -> None:
    complaints, emitted, go = list[str](), list[str](), asyncio.Semaphore(0)

    async def receive(url: str, headers: Mapping[str, str], body: bytes) -> int:
        emitted.append(msgspec.json.decode(body)["data"]["caller"])
        await go.acquire()
        return 200

    webhook = NewApprovalWebhook(URL, SECRET, receive, now=Clock(), on_failure=complaints.append)
    flood, other = await question(caller="flood"), await question(caller="other")
    for _ in range(MAX_WAITING + 3):
        webhook.announce(flood)
    await soon(lambda: len(emitted) == MAX_CONCURRENT)
    webhook.announce(other)
    assert (len(complaints), other.id in str(complaints)) == (4, False)
    go.release()  # for one that waited before, and then for the other's
    go.release()
    await soon(lambda: len(emitted) == MAX_CONCURRENT + 2)
    assert "other" in emitted[MAX_CONCURRENT:]
    await webhook.aclose()


async def test_the_webhook_has_no_budget_of_requests() -> None:
    async def receive(asked: ReceivedRequest) -> ScriptedResponse:
        return ScriptedResponse(204)

    async with serving(receive) as web:
        tools = ServerToolSettings(approvals=ApprovalSettings(webhook=settings.WebhookSettings(url=f"{web.url}/hook")))
        webhook = make_webhook(tools, Telemetry(Logger("error"), Metrics()))
        assert webhook is not None
        approval = replace(await question(), expires=time.time() + 3600)
        for _ in range(5):
            for _ in range(MAX_WAITING - 50):
                webhook.announce(approval)
            await webhook.idle()
        assert len(web.asked) == 5 * (MAX_WAITING - 50) > 1000
