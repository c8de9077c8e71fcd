"""Writes that come one after another, as of a service whose requests do not wait for each other:
for how long does none succeed?"""

import threading
import time

import pymongo


class Arrivals:
    """A driver with its default settings; a new write begins every so often, in a thread of its
    own, whatever became of those before.

    What was sent to a process that is silent waits for it until the driver gives the process up:
    that is the driver's own time, and the writes that begin later do not have it.
    """

    def __init__(self, client, every_secs=0.05):
        self.collection = client.test.arrivals
        self.every_secs = every_secs
        # When those began and ended that were acknowledged, in seconds of the monotonic clock, and
        # their numbers.
        self.acknowledged = []
        self.failures = []
        self.ended = threading.Event()
        self.arriving = threading.Thread(target=self._arrive, daemon=True)

    def _arrive(self):
        at = 0
        while not self.ended.is_set():
            threading.Thread(target=self._write, args=(at,), daemon=True).start()
            at += 1
            time.sleep(self.every_secs)

    def _write(self, at):
        began = time.monotonic()
        try:
            self.collection.insert_one({"_id": at})
        except pymongo.errors.PyMongoError as error:
            return self.failures.append(error)
        self.acknowledged.append((began, time.monotonic(), at))

    def first_after(self, moment):
        """When the first write was acknowledged that began after a moment; `None` as long as none
        is."""
        ends = [ended for began, ended, _ in list(self.acknowledged) if began > moment]
        return min(ends, default=None)

    def __enter__(self):
        self.arriving.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.arriving.join()
