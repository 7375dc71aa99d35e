"""Which fan-out a server has: as wide a one as there is a means for."""

from toolgate.config import Config
from toolgate.server.fanout import Fanout, LocalFanout, SharedFanout
from toolgate.server.supervisor.foreman import Foreman
from toolgate.telemetry.logs import Log


def open_fanout(config: Config, log: Log, foreman: Foreman | None = None) -> Fanout:
    """A fan-out over all nodes of this Redis, else over the workers of this machine, else over this process."""
    if config.redis is not None:
        return SharedFanout(config.redis.reveal(), on_trouble=lambda what: log.warning("redis", problem=what))
    return foreman.fanout if foreman else LocalFanout()
