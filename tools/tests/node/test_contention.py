"""A node whose processors are wanted by others: it is slow, and no core of it falls asleep over its
work.

What this looks for depends on when the kernel takes a thread off its processor, so a run may miss
it; without the bound on glommio's sleep a core slept for ever within seconds.
"""

import multiprocessing
import os
import threading
import time

from pinion_node import PATIENCE_MS, Node

SECONDS = 15


def burn(until):
    while time.monotonic() < until:
        pass


def test_no_core_sleeps_over_its_work_on_a_crowded_machine():
    errors, batches = [], [0] * 4
    # A checkpoint each second keeps the background queue busy beside the foreground.
    with Node("--syncdelay", "1") as node:
        until = time.monotonic() + SECONDS
        burners = [multiprocessing.Process(target=burn, args=(until,)) for _ in range(3 * os.cpu_count())]
        for burner in burners:
            burner.start()

        def work(number):
            try:
                collection = node.client(socketTimeoutMS=PATIENCE_MS, retryWrites=False).crowd.c
                # Each has one to write at least, however late it comes to that.
                while not batches[number] or time.monotonic() < until:
                    at = batches[number]
                    collection.insert_many([{"_id": f"{number}-{at}-{i}", "p": os.urandom(500)} for i in range(200)])
                    batches[number] += 1
            except Exception as error:  # noqa: BLE001 - it fails the test below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads + burners:
            thread.join()
        assert not errors, errors[0]
        assert all(count > 0 for count in batches)
        assert node.client().crowd.c.count_documents({}) == 200 * sum(batches)
