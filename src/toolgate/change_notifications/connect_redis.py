"""Connect to Redis or Valkey. The package `redis` is imported when the first client is made."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis


def redis_client(url: str, **options: Any) -> "Redis":
    """Make a client that never retries by itself; ValueError, with how to install it, if the package is missing."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        install = f"{sys.executable} -m pip install 'redis>=8'"
        raise ValueError(f"redis: needs the Python package redis, which is not installed: {install}") from error
    # By default `redis` sleeps and sends a failed command again, for longer than the callers here may wait.
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)
