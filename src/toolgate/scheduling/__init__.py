"""Share slots and threads fairly among callers. Knows keys and futures; it must not know what the slots stand for.

`FairSlots` is for short work: waiting callers take turns, and the queue is bounded. `FairSemaphore` is for long work: it
counts the slots of each caller, and reserves one for a caller without any. `FairThreads` is the thread pool of a process.
"""

from toolgate.scheduling.caller import CALLER
from toolgate.scheduling.fair_queue import FairQueue
from toolgate.scheduling.fair_semaphore import FairSemaphore
from toolgate.scheduling.fair_slots import FairSlots, QueueFull
from toolgate.scheduling.fair_threads import FairThreads

__all__ = ["CALLER", "FairQueue", "FairSemaphore", "FairSlots", "FairThreads", "QueueFull"]
