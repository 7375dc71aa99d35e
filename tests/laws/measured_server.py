"""A server on a measured loop: `python -m tests.laws.measured_server FILE` serves the configuration of a file.

It writes its URL to standard output, and takes commands from standard input: `begin` forgets what was measured, `end` writes
the overruns since then as one line of JSON. When standard input ends, so does the process.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.laws.loop import PERIOD, MeasuredLoop, Monitor, encoded
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.serve import listener_options
from toolgate.app.startup_helpers import tune_garbage_collector
from toolgate.config import load
from toolgate.http.listener import serve


def main() -> None:
    """Serve until standard input ends."""
    path = Path(sys.argv[1])
    monitor = Monitor()
    gate = Toolgate(load(path, os.environ))

    def ready(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, gate.reload_soon, path)
        tune_garbage_collector()
        monitor.start()
        threading.Thread(target=_obey, args=(monitor,), daemon=True).start()
        _say(url)

    with asyncio.Runner(loop_factory=lambda: MeasuredLoop(monitor)) as runner:
        runner.run(serve(gate, on_ready=ready, **listener_options(gate)))


def _obey(monitor: Monitor) -> None:
    for line in sys.stdin:
        if line == "begin\n":
            gc.collect()  # what an earlier case left behind is not charged to this one
            time.sleep(4 * PERIOD)  # until the watch has seen even this
            monitor.clear()
            _say("begun")
        else:
            time.sleep(4 * PERIOD)
            _say(encoded(list(monitor.overruns)))
    os._exit(0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
