"""Configurations that are read by a reload: many models, deep nesting, aliases that double, long texts, garbage."""

import json

from tests.laws.gateway import Gateway

VARIANTS = ("models", "deep", "doubling", "text", "garbage", "keys")


async def play(gateway: Gateway, kind: str) -> None:
    plain = gateway.configuration()
    many = [{"name": f"m{number}", "upstream": "openai_chat"} for number in range(1_000)]
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    keys = [{"name": f"k{number}", "key": f"key-of-somebody-{number}"} for number in range(1_000)]
    text = {
        "models": json.dumps({**plain, "models": [*plain["models"], *many]}),
        "deep": "[" * 100_000,
        "doubling": f"a0: &a0 [x]\n{levels}",
        "text": json.dumps({**plain, "text": {"instructions": "word " * 400_000}}),
        "garbage": ": - ? !\n" * 50_000,
        "keys": json.dumps({**plain, "keys": [*plain["keys"], *keys]}),
    }[kind]
    try:
        await gateway.reload(text)
    finally:
        await gateway.reload()
