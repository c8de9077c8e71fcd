"""More data than memory: load, checkpoint, restart, read all, update half, delete half, and once
more.

The campaign is the same test with more data: PINION_LARGE_MIB=4096 tools/test large.
"""

import hashlib
import os
import threading
import time

import pymongo
import pytest

from pinion_node import Node

MIB = int(os.environ.get("PINION_LARGE_MIB", "224"))
BUDGET_BYTES = 256 << 20
SLACK_BYTES = 256 << 20
DOCUMENT_BYTES = 1_000
COUNT = (MIB << 20) // 1_024
LOADERS = 4
# A campaign takes as long as its data asks for: some minutes for each 256 MiB on a busy machine.
PATIENCE_SECS = max(600, 3 * MIB)


def payload(key, version):
    """Bytes that do not compress and that can be made again from the key."""
    block = hashlib.shake_128(f"{key}-{version}".encode()).digest(DOCUMENT_BYTES)
    return block


class Watch(threading.Thread):
    """Looks at the resident memory for as long as the node runs."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node = node
        self.highest = 0
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(0.2):
            try:
                self.highest = max(self.highest, self.node.resident_bytes())
            except (FileNotFoundError, AttributeError):
                continue


def in_parallel(node, act):
    """Runs act(collection, keys) on several connections, each with its part of the keys."""
    errors = []

    def work(part):
        try:
            with node.client() as client:
                act(client.large.c, range(part, COUNT, LOADERS))
        except Exception as error:  # noqa: BLE001 - it fails the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(LOADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def chunks(keys, size=500):
    keys = list(keys)
    return (keys[i : i + size] for i in range(0, len(keys), size))


def load(collection, keys):
    for chunk in chunks(keys):
        collection.insert_many([{"_id": key, "n": key % 1_000, "v": 0, "p": payload(key, 0)} for key in chunk], ordered=False)


def check_by_key(collection, keys):
    for chunk in chunks(keys, 200):
        found = {d["_id"]: d for d in collection.find({"_id": {"$in": chunk}})}
        assert len(found) == len(chunk)
        for key in chunk:
            assert found[key]["p"] == payload(key, 0) and found[key]["n"] == key % 1_000, key


def update_half(collection, keys):
    for chunk in chunks([key for key in keys if key % 2 == 0]):
        done = collection.bulk_write([pymongo.UpdateOne({"_id": key}, {"$set": {"v": 1, "p": payload(key, 1)}}) for key in chunk], ordered=False)
        assert done.matched_count == len(chunk)


def delete_half(collection, keys):
    for chunk in chunks([key for key in keys if key % 2 == 1]):
        assert collection.delete_many({"_id": {"$in": chunk}}).deleted_count == len(chunk)


class Phases:
    """Prints how long each phase took, how many documents a second that was, and what it took of
    processor time."""

    def __init__(self, node):
        self.node = node
        self.began = self.now()

    def now(self):
        cpu = self.node.cpu_secs() if self.node.alive() else 0
        return time.monotonic(), cpu, time.process_time()

    def done(self, name, count=COUNT):
        now = self.now()
        took, node, client = (after - before for after, before in zip(now, self.began))
        print(f"  {name:20s} {took:6.1f} s {count / took:8,.0f} documents/s; CPU: node {max(node, 0):5.1f} s, client {client:5.1f} s", flush=True)
        self.began = now


def round_of(node):
    """One round; gives the size of the page files at its end, and of counters what matters: those
    of the page cache at its end, and how often writers were held up and ring segments reused."""
    phase = Phases(node)
    client = node.client()
    client.large.c.drop()
    client.large.c.create_index("n")
    phase.done("drop, index", 0)
    in_parallel(node, load)
    phase.done("load")
    client.admin.command("fsync")
    phase.done("checkpoint")
    loaded = client.admin.command("serverStatus")["pinion"]["storage"]
    assert node.stop(600) == 0
    phase.done("stop")
    node.start(600)
    client = node.client()
    phase.done("start")
    assert client.large.c.count_documents({}) == COUNT
    phase.done("count")
    in_parallel(node, check_by_key)
    phase.done("read by key")
    seen = 0
    for document in client.large.c.find({}, batch_size=2_000):
        seen += 1
        if seen % 50 == 0:
            assert document["p"] == payload(document["_id"], 0)
    assert seen == COUNT
    phase.done("scan")
    # Small documents made of larger ones, which all come in one batch or a few.
    assert sum(1 for _ in client.large.c.find({}, {"n": 1})) == COUNT
    phase.done("scan, projected")
    in_parallel(node, update_half)
    phase.done("update half", COUNT // 2)
    in_parallel(node, delete_half)
    phase.done("delete half", COUNT // 2)
    left = (COUNT + 1) // 2
    assert client.large.c.count_documents({}) == left
    assert client.large.c.count_documents({"n": {"$gte": 0}}) == left
    phase.done("counts", left)
    assert all(d["v"] == 1 and d["p"] == payload(d["_id"], 1) for d in client.large.c.find({"n": 500}).hint("n_1"))
    client.admin.command("fsync")
    phase.done("index, checkpoint")
    status = client.admin.command("serverStatus")
    changed = status["pinion"]["storage"]
    held_up, reused = (loaded[name] + changed[name] for name in ("delayedWrites", "ringSegmentsReused"))
    return file_bytes(node), status["wiredTiger"]["cache"], held_up, reused


def file_bytes(node, part="partition"):
    total = 0
    for folder, _, names in os.walk(node.directory / "data"):
        total += sum(os.path.getsize(os.path.join(folder, name)) for name in names if part in os.path.join(folder, name))
    return total


@pytest.mark.timeout(PATIENCE_SECS)
def test_more_data_than_memory():
    node = Node("--cpus", "2", "--wiredTigerCacheSizeGB", "0.25", "--syncdelay", "10")
    node.start()
    watch = Watch(node)
    watch.start()
    try:
        first, _, held_up, reused = round_of(node)
        rings = file_bytes(node, "ring")
        second, cache, again_held_up, again_reused = round_of(node)
        held_up, reused = held_up + again_held_up, reused + again_reused
        misses, evictions = cache["pages read into cache"], cache["unmodified pages evicted"]
        print(f"{COUNT} documents, resident at most {watch.highest >> 20} MiB, page files {first >> 20} then {second >> 20} MiB, "
              f"rings {rings >> 20} then {file_bytes(node, 'ring') >> 20} MiB, misses {misses}, evictions {evictions}, "
              f"writers held up {held_up} times, ring segments reused {reused} times")
        assert watch.highest <= BUDGET_BYTES + SLACK_BYTES
        assert second < first * 1.2
        assert file_bytes(node, "ring") < rings * 1.5 + (256 << 20)
        assert misses > 0 and evictions > 0
        assert reused > 0
    finally:
        watch.stopped.set()
        node.__exit__()
