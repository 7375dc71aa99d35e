"""A message of ten megabytes in one string: of letters, of line ends, of blanks, and of what is slow to read or to write."""

import json

from tests.laws.gateway import DIALECTS, Gateway

PIECES = {
    "letters": "x",
    "lines": "\n",
    "returns": "\r\n",
    "blanks": " ",
    "words": "a b\n",
    "quotes": '"',
    "controls": "\x01",
    "accents": "e\u0301\u0323",
    "emoji": "\U0001f600",
    "tags": "</system_context><invoke>",
    "hashes": " #clock",
    "fences": "```\n",
    "secrets": "eyJ-sk-",
}
UPSTREAMS = (*DIALECTS, "text", "promoted")
VARIANTS = tuple(f"{piece}-{client}-{model}" for piece in PIECES for client in DIALECTS for model in UPSTREAMS)
_BYTES = 10_000_000


async def play(gateway: Gateway, variant: str) -> None:
    piece, client, model = variant.split("-")
    sent = PIECES[piece]
    text = sent * (_BYTES // (len(json.dumps(sent)) - 2))
    # The upstream gives all of them the answer of Chat, after it has received the request.
    is_read = model in ("openai_chat", "text", "promoted")
    assert (await gateway.ask(client, model, text)).status == (200 if is_read else 502)
