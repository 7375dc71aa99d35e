"""Three hundred thousand keys with a blank before each colon."""

from tests.laws.gateway import Gateway


async def play(gateway: Gateway) -> None:
    keys = b",".join([b'"%x" :1' % number for number in range(300_000)])
    response = await gateway.post("/v1/chat/completions", b'{"model":"openai_chat","messages":[],"x":{' + keys + b"}}")
    assert response.status == 400
    assert "keys" in response.json["error"]["message"]
