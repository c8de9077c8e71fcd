"""What a node's watchdog reports of tasks that held a core, less what is not the node's doing."""

import datetime
import json
import os


def is_stall(line):
    """Whether a line of the log is the watchdog's (core/runtime/src/real): of a task that came
    back, or of one that has not."""
    return "held its core" in line or "holds its core" in line


def logged_at(line):
    """When a line was logged, in seconds since 1970."""
    return datetime.datetime.fromisoformat(json.loads(line)["t"]["$date"]).timestamp()


class Stall:
    """When it ended, for how long the task held its core, for how long of that the processor stood
    still, and for how long the kernel worked for it: a machine that others share finds memory late
    for the thread that touches it first."""

    def __init__(self, line, processors):
        self.line = line
        attributes = json.loads(line)["attr"]
        self.end = logged_at(line)
        self.held_ms, self.kernel_ms = (number(attributes.get(name, 0)) for name in ("heldMillis", "kernelMillis"))
        # A node of N cores runs on the first N processors that it may use.
        cpu = sorted(os.sched_getaffinity(0))[attributes["core"]]
        still = processors.still_secs(cpu, self.end - self.held_ms / 1000, self.end)
        self.still_ms = min(self.held_ms, round(still * 1000))

    @property
    def own_ms(self):
        """A processor that stands still may do so in the kernel."""
        return self.held_ms - max(self.still_ms, self.kernel_ms)

    def __repr__(self):
        return f"{self.own_ms} ms of {self.line.strip()} (its processor stood still for {self.still_ms} ms)"


def number(value):
    return int(value["$numberLong"]) if isinstance(value, dict) else value
