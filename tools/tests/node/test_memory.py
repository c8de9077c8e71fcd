"""What a node has used and freed stays with it while it is busy, and goes back to the system when it is quiet."""

import time

from pinion_node import Node

MIB = 1024 * 1024
TEXT = "x" * (8 * MIB)


def test_freed_memory_is_given_back_when_the_node_is_quiet():
    with Node("--cpus", "1", "--wiredTigerCacheSizeGB", "0.25") as node:
        client = node.client()
        collection = client.test.sorted
        collection.insert_many({"_id": i, "text": TEXT} for i in range(8))
        client.admin.command("fsync")
        # The sort holds 64 MiB, and its reply leaves in pieces of 16.
        assert [document["_id"] for document in collection.find().sort("key", 1).allow_disk_use(False)] == list(range(8))
        busy = node.resident_bytes()
        end = time.monotonic() + 30
        while node.resident_bytes() > busy - 32 * MIB:
            assert time.monotonic() < end, f"{node.resident_bytes() >> 20} of {busy >> 20} MiB are still resident"
            time.sleep(0.5)
