"""A picture of nine megabytes in the data of a request, to upstreams of every dialect."""

from tests.laws.gateway import DIALECTS, Gateway

VARIANTS = DIALECTS


async def play(gateway: Gateway, upstream: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgoA" * 750_000}}
    content = [{"type": "text", "text": "Look."}, part]
    response = await gateway.ask("openai_chat", upstream, messages=[{"role": "user", "content": content}])
    assert response.status in (200, 400, 502)
