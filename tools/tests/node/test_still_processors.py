"""What the stalls of a run are held against: the times for which a processor ran nothing."""

import os
import signal
import time

import pytest

from still_processors import StillProcessors


@pytest.mark.skipif(os.geteuid() != 0, reason="real-time priority needs root")
def test_a_processor_that_stands_still_is_seen():
    with StillProcessors() as processors:
        cpu, watcher = next(iter(processors.watchers.items()))
        stopped = time.time()
        watcher.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        watcher.send_signal(signal.SIGCONT)
        running = time.time()
        time.sleep(0.1)
    seen = processors.still_secs(cpu, stopped, running)
    assert 0.08 < seen <= running - stopped
    assert processors.still_secs(cpu, running + 1, running + 2) == 0
