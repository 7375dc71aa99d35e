"""Signed reasoning in `reasoning_details`, as clients keep it in their histories."""

import base64

from toolgate.conversation.message import Reasoning, ReasoningSignature
from toolgate.dialects.openai_chat.reasoning_details import (
    ReasoningDetailEncoder,
    SignedReasoning,
    decode_details,
)

SIGNATURE = ReasoningSignature("anthropic", {"signature": "s"})
STORED = b'{"text":"Hm.","seal":{"dialect":"anthropic","fields":{"signature":"s"}},"characters":2,"calls":1}'


def test_an_entry_of_an_earlier_version_is_decoded() -> None:
    entry = {"format": "toolgate-v2", "data": base64.urlsafe_b64encode(STORED).decode()}
    assert decode_details([entry], "") == [SignedReasoning("Hm.", SIGNATURE, 2, 1)]


def test_an_entry_keeps_the_field_names_of_earlier_versions() -> None:
    entry = ReasoningDetailEncoder().encode(Reasoning("Hm.", SIGNATURE))
    assert entry is not None
    assert base64.urlsafe_b64decode(entry["data"]).startswith(b'{"text":"Hm.","seal":{"dialect":"anthropic"')
