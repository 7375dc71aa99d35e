"""Sharing what is scarce among callers. Knows keys and futures; it must not know what is shared.

`FairSlots` is for short work and bounds how many wait: callers take turns. `FairSemaphore` is for work that may take long:
it counts what each caller holds, and keeps a slot for one who holds none.
"""

from toolgate.scheduling.caller import CALLER
from toolgate.scheduling.fair_queue import FairQueue
from toolgate.scheduling.fair_semaphore import FairSemaphore
from toolgate.scheduling.fair_slots import FairSlots, QueueFull

__all__ = ["CALLER", "FairQueue", "FairSemaphore", "FairSlots", "QueueFull"]
