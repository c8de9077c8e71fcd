#!/usr/bin/env python3
"""Reports when a processor stood still for everybody: a virtual machine's host takes processors
away and need not say so.

On each processor a process of real-time priority, before which no other may run, looks at the clock
every 2 ms. Where more than 6 ms lie between two looks, the processor ran nothing for that time, or
the kernel let nothing else run.
"""

import os
import signal
import subprocess
import sys
import time

LOOK_SECS = 0.002
STILL_SECS = 0.006
PRIORITY = 50


class StillProcessors:
    """Watches while it is entered. `spans` then has, for each processor, the times (seconds since
    1970) from and to which it stood still.

    Without the right to real-time priority nothing is seen."""

    def __init__(self):
        self.spans = {}

    def __enter__(self):
        self.watchers = {
            cpu: subprocess.Popen([sys.executable, __file__, str(cpu)], stdout=subprocess.PIPE, text=True)
            for cpu in sorted(os.sched_getaffinity(0))
        }
        for watcher in self.watchers.values():
            # It says when it has started.
            watcher.stdout.readline()
        return self

    def __exit__(self, *_):
        for cpu, watcher in self.watchers.items():
            watcher.terminate()
            printed = watcher.communicate()[0]
            self.spans[cpu] = [tuple(map(float, line.split())) for line in printed.splitlines()]

    def still_secs(self, cpu, start, end):
        """For how long the processor stood still between two times, after the end of the watch."""
        return sum(max(0.0, min(end, until) - max(start, since)) for since, until in self.spans.get(cpu, []))


def watch(cpu):
    """Looks at the clock until SIGTERM or the parent's end, then prints the spans."""
    parent, ended = os.getppid(), []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    os.sched_setaffinity(0, {cpu})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return
    spans, last = [], time.time()
    print(flush=True)
    while not ended and os.getppid() == parent:
        time.sleep(LOOK_SECS)
        now = time.time()
        if now - last > STILL_SECS:
            spans.append((last, now))
        last = now
    print("".join(f"{since} {until}\n" for since, until in spans), end="")


if __name__ == "__main__":
    watch(int(sys.argv[1]))
