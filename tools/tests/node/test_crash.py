"""SIGKILL under load: every acknowledged journaled write is there afterwards, and indexes agree
with documents."""

import os
import random
import threading

import pymongo
import pytest

from pinion_node import PATIENCE_SECS, Node, wait_until

ROUNDS = int(os.environ.get("PINION_CRASH_ROUNDS", "20"))
CONNECTIONS = 8
WRITES_OF_A_ROUND = 1_000


class Writer(threading.Thread):
    """One connection that inserts, updates and deletes keys of its own, and remembers what was
    acknowledged."""

    def __init__(self, node, number, state, seed):
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        # One that has nothing under way when the node is killed looks for it for so long.
        self.client = node.client(maxPoolSize=1, retryWrites=False, serverSelectionTimeoutMS=20_000)
        journaled = pymongo.WriteConcern(w=1, j=True)
        self.collection = self.client.crash.get_collection("c", write_concern=journaled)
        self.number = number
        self.state = state  # _id -> document as acknowledged last
        self.uncertain = set()  # _ids of the write that was in flight
        self.acknowledged = 0
        self.stopped = False

    def run(self):
        try:
            while not self.stopped:
                self.step()
        except pymongo.errors.PyMongoError as error:
            assert isinstance(error, pymongo.errors.ConnectionFailure), error

    def step(self):
        kind = self.random.random()
        if kind < 0.6 or not self.state:
            key = f"{self.number}-{len(self.state)}-{self.random.getrandbits(60):x}"
            document = {"_id": key, "n": self.random.randint(0, 50), "unique": key, "text": "x" * self.random.randint(0, 800)}
            self.uncertain = {key}
            self.collection.insert_one(document)
            self.state[key] = document
        elif kind < 0.85:
            key = self.random.choice(list(self.state))
            number = self.random.randint(0, 50)
            self.uncertain = {key}
            done = self.collection.update_one({"_id": key}, {"$set": {"n": number}, "$inc": {"updates": 1}})
            assert done.matched_count == 1
            old = self.state[key]
            self.state[key] = {**old, "n": number, "updates": old.get("updates", 0) + 1}
        else:
            key = self.random.choice(list(self.state))
            self.uncertain = {key}
            assert self.collection.delete_one({"_id": key}).deleted_count == 1
            del self.state[key]
        self.uncertain = set()
        self.acknowledged += 1


def test_every_acknowledged_journaled_write_survives_sigkill():
    node = Node("--cpus", "2", "--partitions", "3", "--syncdelay", "1")
    node.start()
    try:
        node.client().crash.c.create_index("n")
        node.client().crash.c.create_index("unique", unique=True)
        states = [{} for _ in range(CONNECTIONS)]
        total = 0
        for round_number in range(ROUNDS):
            writers = [Writer(node, i, states[i], round_number * 100 + i) for i in range(CONNECTIONS)]
            for writer in writers:
                writer.start()
            wait_until(lambda writers=writers: sum(writer.acknowledged for writer in writers) >= WRITES_OF_A_ROUND)
            in_flight = sum(1 for writer in writers if writer.uncertain)
            node.kill()
            for writer in writers:
                writer.stopped = True
                writer.join(PATIENCE_SECS)
                assert not writer.is_alive()
                writer.client.close()
            acknowledged = sum(writer.acknowledged for writer in writers)
            assert in_flight > 0
            total += acknowledged
            node.start()
            check(node, writers)
        print(f"{ROUNDS} rounds, {total} acknowledged journaled writes")
    finally:
        node.__exit__()


def check(node, writers):
    """Reads everything by scan and by both indexes and compares it with what was acknowledged."""
    collection = node.client().crash.c
    found = {document["_id"]: document for document in collection.find()}
    by_number = {document["_id"]: document for document in collection.find({"n": {"$gte": 0}}).hint("n_1")}
    by_unique = {document["_id"]: document for document in collection.find({"unique": {"$gt": ""}}).hint("unique_1")}
    assert found == by_number == by_unique
    assert collection.count_documents({}) == len(found) == collection.estimated_document_count()
    uncertain = set()
    for writer in writers:
        for key in writer.uncertain:
            uncertain.add(key)
            # What was in flight is there whole or not at all; either way it is the state from now
            # on.
            if key in found:
                writer.state[key] = found[key]
            else:
                writer.state.pop(key, None)
    expected = {key: document for writer in writers for key, document in writer.state.items()}
    missing = [key for key in expected if key not in found]
    extra = [key for key in found if key not in expected]
    assert not missing and not extra, (missing[:5], extra[:5])
    wrong = [key for key in expected if expected[key] != found[key] and key not in uncertain]
    assert not wrong, [(expected[key], found[key]) for key in wrong[:3]]


def device_flushes():
    """Completed flush requests of all block devices (the 16th number of a stat file counts
    them)."""
    total = 0
    for name in os.listdir("/sys/block"):
        fields = open(f"/sys/block/{name}/stat").read().split()
        if len(fields) >= 16:
            total += int(fields[15])
    return total


def test_a_journaled_write_waits_for_the_device():
    with Node("--cpus", "1", "--journalCommitInterval", "500") as node:
        client = node.client()
        journaled = client.test.get_collection("c", write_concern=pymongo.WriteConcern(j=True))
        journaled.insert_one({"_id": -1})
        runtime = lambda: client.admin.command("serverStatus")["pinion"]["runtime"]["deviceFlushes"]
        device_counts = device_flushes() > 0
        before, on_device = runtime(), device_flushes()
        for i in range(200):
            flushed = runtime()
            journaled.insert_one({"_id": i})
            assert runtime() > flushed
        assert runtime() - before >= 200
        if device_counts:
            assert device_flushes() - on_device >= 200
        else:
            pytest.skip("the block device does not count flushes")
