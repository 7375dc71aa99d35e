"""A message of megabytes that refers to tools, or seems to, in every word; in one part or in thousands."""

from tests.laws.gateway import Gateway, chat_answer

WORDS = {"words": "#a ", "ticks": "`#a", "hashes": "###", "known": "#clock "}
VARIANTS = (*WORDS, "parts")


async def play(gateway: Gateway, kind: str) -> None:
    content = (
        WORDS[kind] * (9_000_000 // len(WORDS[kind])) if kind in WORDS else [{"type": "text", "text": "#a"}] * 30_000
    )
    gateway.play(chat_answer())
    assert (await gateway.ask_with_tools(messages=[{"role": "user", "content": content}])).status == 200
