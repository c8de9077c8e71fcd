"""What a node has used and freed stays with it while it is busy, and goes back to the system when
it is quiet, unless memory is locked."""

import ctypes
import pathlib
import re
import resource
import subprocess
import time

from pinion_node import BINARY, Node, wait_until

MIB = 1024 * 1024
TEXT = "x" * (8 * MIB)
# From linux/prctl.h and linux/capability.h.
PR_CAPBSET_DROP = 24
CAP_IPC_LOCK = 14


def locked_bytes(node):
    """What the node has locked into memory."""
    text = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
    return int(re.search(r"VmLck:\s+(\d+) kB", text).group(1)) * 1024


def test_freed_memory_is_given_back_when_the_node_is_quiet():
    with Node("--cpus", "1", "--wiredTigerCacheSizeGB", "0.25") as node:
        client = node.client()
        collection = client.test.sorted
        collection.insert_many({"_id": i, "text": TEXT} for i in range(8))
        client.admin.command("fsync")
        # The sort holds 64 MiB, and its reply leaves in pieces of 16.
        cursor = collection.find().sort("key", 1).allow_disk_use(False)
        first = next(cursor)["_id"]
        busy = node.resident_bytes()
        assert [first, *(document["_id"] for document in cursor)] == list(range(8))
        wait_until(lambda: node.resident_bytes() <= busy - 32 * MIB)


def test_locked_memory_is_there_from_the_start_and_stays():
    with Node("--cpus", "1", "--wiredTigerCacheSizeGB", "0.25", "--lockMemory") as node:
        client = node.client()
        assert client.admin.command("getCmdLineOpts")["parsed"]["pinion"] == {"cpus": 1, "lockMemory": True}
        assert locked_bytes(node) >= 256 * MIB
        assert [message["attr"]["bytes"] for message in node.messages() if message["msg"] == "Memory locked"] == [256 * MIB]
        collection = client.test.sorted
        collection.insert_many({"_id": i, "text": TEXT} for i in range(8))
        client.admin.command("fsync")
        assert [document["_id"] for document in collection.find().sort("key", 1).allow_disk_use(False)] == list(range(8))
        time.sleep(8)  # Quiet for long enough that without the option what was freed has gone.
        assert locked_bytes(node) >= 256 * MIB and node.resident_bytes() >= 256 * MIB
        assert collection.count_documents({}) == 8


def test_memory_that_cannot_be_locked_stops_the_start(tmp_path):
    def may_lock_little():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
        # Root's way around the limit; other users have none, and the call fails.
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)

    done = subprocess.run(
        [BINARY, "--dbpath", str(tmp_path / "data"), "--port", "0", "--wiredTigerCacheSizeGB", "0.25", "--lockMemory"],
        capture_output=True, text=True, timeout=120, preexec_fn=may_lock_little,
    )
    assert done.returncode == 100
    assert done.stderr.splitlines() == [
        "256 MiB of memory cannot be locked: the limit is 8192 KiB; raise it with `ulimit -l unlimited`, "
        "LimitMEMLOCK=infinity of the service, or `--ulimit memlock=-1` of the container",
    ]
