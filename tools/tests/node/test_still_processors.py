"""What the stalls of a run are held against: the times for which a processor ran nothing."""

import os
import pathlib
import signal
import sys
import time

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from still_processors import StillProcessors


@pytest.mark.skipif(os.geteuid() != 0, reason="real-time priority needs root")
def test_a_processor_that_stands_still_is_seen():
    with StillProcessors() as processors:
        cpu, watcher = next(iter(processors.watchers.items()))
        stopped = time.time()
        watcher.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        watcher.send_signal(signal.SIGCONT)
        going_on = time.time()
        time.sleep(0.1)
    seen = processors.still_secs(cpu, stopped, going_on)
    assert 0.08 < seen <= going_on - stopped
    assert processors.still_secs(cpu, going_on + 1, going_on + 2) == 0
