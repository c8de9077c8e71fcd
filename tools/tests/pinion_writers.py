"""Clients that insert without retries while members of a set come and go, and what became of what
was acknowledged."""

import threading
import time

import pymongo


class Writer(threading.Thread):
    """Inserts numbered documents, and keeps the keys of those that were acknowledged."""

    def __init__(self, members, number, w=1):
        super().__init__(daemon=True)
        self.number = number
        self.w = w
        self.acknowledged = []
        self.errors = 0
        self.longest_secs = 0.0
        self.stopping = threading.Event()
        self.client = members.client(retryWrites=False, w=w)
        self.start()

    def run(self):
        documents, at, last = self.client.rolling.c, 0, time.monotonic()
        while not self.stopping.is_set():
            at += 1
            try:
                documents.insert_one({"_id": f"{self.number}-{at}", "n": at})
            except pymongo.errors.PyMongoError:
                self.errors += 1
                continue
            self.acknowledged.append(f"{self.number}-{at}")
            now = time.monotonic()
            self.longest_secs, last = max(self.longest_secs, now - last), now

    def end(self):
        self.stopping.set()
        self.join()
        self.client.close()

    def report(self, found):
        """Prints what became of its writes, given the keys that the set has; returns whether it
        wrote and nothing was lost."""
        lost = [key for key in self.acknowledged if key not in found]
        good = bool(self.acknowledged) and not lost
        print(
            f"{'passed' if good else 'FAILED'}: writer {self.number}, w: {self.w}: {len(self.acknowledged)} acknowledged, {len(lost)} lost, "
            f"{self.errors} errors, longest pause {self.longest_secs:.2f} s",
            flush=True,
        )
        return good


def report_all(members, writers):
    """Ends the writers, waits until the members are alike, and returns for each writer whether it
    wrote and nothing was lost."""
    for writer in writers:
        writer.end()
    members.wait_alike("rolling")
    with members.client() as client:
        found = {document["_id"] for document in client.rolling.c.find({}, {"_id": 1})}
    return [writer.report(found) for writer in writers]
