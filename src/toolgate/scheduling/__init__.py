"""Sharing what is scarce among callers, who take turns. Knows keys and futures; it must not know what is shared."""

from toolgate.scheduling.caller import CALLER
from toolgate.scheduling.fair_queue import FairQueue
from toolgate.scheduling.fair_slots import FairSlots, QueueFull

__all__ = ["CALLER", "FairQueue", "FairSlots", "QueueFull"]
