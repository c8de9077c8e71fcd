"""`fsync {lock: true}`: nothing is written anywhere until `fsyncUnlock`, and what is in the files
then can be copied."""

import contextlib
import hashlib
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import pymongo
import pytest
from bson import Int64
from pinion_node import ADMIN, PATIENCE_SECS, TEST_COMMANDS, FailPoint, Node, wait_until
from pymongo.errors import OperationFailure, PyMongoError

# How long a write that should be blocked is given to slip through.
A_WHILE = 0.4


@pytest.fixture(params=["1", "2"])
def node(request):
    with Node("--cpus", request.param, "--syncdelay", "1", *TEST_COMMANDS) as node:
        node.partitions = int(request.param)
        yield node


def lock(client, **options):
    return client.admin.command({"fsync": 1, "lock": True, **options})


def unlock(client):
    return client.admin.command("fsyncUnlock")


def code_of(act, *arguments, **options):
    with pytest.raises(OperationFailure) as raised:
        act(*arguments, **options)
    return raised.value.code


def waiting(client, *names):
    """The operations with these commands that are under way."""
    return [op for op in client.admin.command("currentOp")["inprog"] if any(name in op["command"] for name in names)]


class Writer(threading.Thread):
    """Does one thing on a connection of its own."""

    def __init__(self, node, act):
        super().__init__(daemon=True)
        self.client = node.client(maxPoolSize=1, retryWrites=False)
        self.client.admin.command("ping")
        self.act, self.error, self.done = act, None, False
        self.start()

    def run(self):
        try:
            self.act(self.client)
            self.done = True
        except PyMongoError as error:
            self.error = error

    def ended(self):
        self.join(PATIENCE_SECS)
        assert not self.is_alive()
        self.client.close()
        return self


def test_replies_and_counts(node):
    client, other = node.client(), node.client()
    assert code_of(unlock, client) == 20
    locked = lock(client)
    assert locked == {"info": "now locked against writes, use db.fsyncUnlock() to unlock", "lockCount": 1,
                      "seeAlso": "http://dochub.mongodb.org/core/fsynccommand", "ok": 1.0}
    assert isinstance(locked["lockCount"], Int64)
    assert lock(other, fsyncLockAcquisitionTimeoutMillis=-1)["lockCount"] == 2
    # It is of the node, not of the connection.
    other.close()
    reported = client.admin.command("currentOp")
    assert reported["fsyncLock"] is True and "db.fsyncUnlock()" in reported["info"]
    assert client.admin.command("fsync") == {"numFiles": node.partitions, "ok": 1.0}
    assert unlock(client) == {"info": "fsyncUnlock completed", "lockCount": 1, "ok": 1.0}
    assert client.admin.command("currentOp")["fsyncLock"] is True
    assert unlock(client)["lockCount"] == 0
    assert "fsyncLock" not in client.admin.command("currentOp")
    assert code_of(unlock, client) == 20
    client.t.c.insert_one({"_id": 1})


def test_arguments(node):
    client = node.client()
    assert code_of(lock, client, fsyncLockAcquisitionTimeoutMillis=Int64(100)) == 14
    assert code_of(lock, client, fsyncLockAcquisitionTimeoutMillis="100") == 14
    assert code_of(client.admin.command, {"fsync": 1, "lock": "yes"}) == 14
    assert code_of(lock, client, nosuch=1) == 40415
    assert code_of(client.t.command, {"fsync": 1, "lock": True}) == 13
    assert client.admin.command({"fsync": 1, "lock": 0}) == {"numFiles": node.partitions, "ok": 1.0}
    assert code_of(unlock, client) == 20
    lock(client)
    assert code_of(client.t.command, "fsyncUnlock") == 13
    assert code_of(client.admin.command, {"fsyncUnlock": 1, "writeConcern": {"w": 1}}) == 72
    assert client.admin.command({"fsyncUnlock": "x", "nosuch": 1})["lockCount"] == 0


WRITES = {
    "insert": lambda client: client.t.c.insert_one({"_id": "new"}),
    "insert several": lambda client: client.t.c.insert_many([{"_id": f"several {i}"} for i in range(500)], ordered=False),
    "insert into a new collection": lambda client: client.t.made.insert_one({"_id": 1}),
    "insert into a new database": lambda client: client.other.made.insert_one({"_id": 1}),
    "update": lambda client: client.t.c.update_one({"_id": 1}, {"$inc": {"n": 1}}),
    "update by scan": lambda client: client.t.c.update_one({"k": 2}, {"$inc": {"n": 1}}),
    "update many": lambda client: client.t.many.update_many({}, {"$inc": {"n": 1}}),
    "upsert": lambda client: client.t.upserted.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True),
    "replace": lambda client: client.t.c.replace_one({"_id": 3}, {"n": 1}),
    "multikey": lambda client: client.t.c.insert_one({"_id": "array", "k": [1, 2]}),
    "delete": lambda client: client.t.c.delete_one({"_id": 4}),
    "delete many": lambda client: client.t.deleted.delete_many({}),
    "nothing to update": lambda client: client.t.c.update_one({"_id": "nobody"}, {"$inc": {"n": 1}}),
    "findAndModify": lambda client: client.t.c.find_one_and_update({"_id": 5}, {"$inc": {"n": 1}}),
    "create": lambda client: client.t.create_collection("created"),
    "drop": lambda client: client.t.dropped.drop(),
    "drop nothing": lambda client: client.t.nosuch.drop(),
    "createIndexes": lambda client: client.t.indexed.create_index("a"),
    "dropIndexes": lambda client: client.t.unindexed.drop_index("a_1"),
    "rename": lambda client: client.t.renamed.rename("by_another_name"),
    "dropDatabase": lambda client: client.drop_database("doomed"),
    "validate": lambda client: client.t.command("validate", "c"),
}
COMMANDS = ["insert", "update", "delete", "findAndModify", "create", "drop", "createIndexes", "dropIndexes", "renameCollection", "dropDatabase", "validate"]


def fill(client):
    client.t.c.insert_many({"_id": i, "k": i, "n": 0} for i in range(100))
    client.t.c.create_index("k")
    client.t.many.insert_many({"_id": i, "n": 0} for i in range(1_000))
    for name in ("deleted", "dropped", "indexed", "unindexed", "renamed"):
        client.t[name].insert_one({"_id": 1, "a": 1})
    client.t.unindexed.create_index("a")
    client.doomed.c.insert_one({"_id": 1})


def everything(client):
    """All that a client can see of the data: documents, collections, indexes."""
    found = {}
    for database in client.list_database_names():
        # Each start adds itself to the log of starts.
        for name in set(client[database].list_collection_names()) - ({"startup_log"} if database == "local" else set()):
            collection = client[database][name]
            found[database, name] = (list(collection.find()), sorted(collection.index_information()))
    return found


def test_no_write_passes_and_each_takes_place_once(node):
    client = node.client()
    fill(client)
    # By a connection that has sent just these before: repeated commands must not slip by.
    client.t.c.find_one({"_id": 1})
    lock(client)
    before = everything(client)
    writers = {name: Writer(node, act) for name, act in WRITES.items()}
    wait_until(lambda: len(waiting(client, *COMMANDS)) == len(writers))
    wait_until(lambda: all((op["waitingForLock"], op["locks"]) == (True, {"Global": "w"}) for op in waiting(client, *COMMANDS)))
    time.sleep(A_WHILE)
    assert [name for name, writer in writers.items() if writer.done or writer.error] == []
    assert everything(client) == before
    assert client.t.c.count_documents({"k": {"$gte": 50}}) == 50
    assert client.t.c.find_one({"_id": 1})["n"] == 0
    assert list(client.t.c.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}])) == [{"_id": None, "n": 100}]
    # A waiter uses no processor.
    used, began = node.cpu_secs(), time.monotonic()
    time.sleep(1)
    assert node.cpu_secs() - used < 0.15 * (time.monotonic() - began)
    unlock(client)
    errors = {name: writer.ended().error for name, writer in writers.items()}
    assert {name: error for name, error in errors.items() if error} == {}
    assert client.t.c.count_documents({"_id": {"$regex": "^several"}}) == 500
    assert [client.t.c.find_one({"_id": i})["n"] for i in (1, 2, 3, 5)] == [1, 1, 1, 1]
    assert client.t.c.find_one({"_id": 4}) is None
    assert client.t.c.count_documents({}) == 100 + 1 + 500 + 1 - 1
    assert client.t.many.count_documents({"n": 1}) == 1_000
    assert client.t.upserted.find_one() == {"_id": 1, "n": 1}
    names = set(client.t.list_collection_names())
    assert names >= {"made", "created", "by_another_name", "deleted"} and not names & {"dropped", "renamed"}
    assert "a_1" in client.t.indexed.index_information() and "a_1" not in client.t.unindexed.index_information()
    assert client.t.deleted.count_documents({}) == 0 and client.other.made.count_documents({}) == 1
    assert "doomed" not in client.list_database_names()
    assert client.t.command("validate", "c", full=True)["valid"]


def test_what_was_under_way_has_ended_when_the_lock_is_there(node):
    """Writers on many connections; each time the node is locked there is exactly what was
    acknowledged."""
    client = node.client()
    client.t.c.create_index("w")
    client.t.many.insert_many({"_id": i, "n": 0} for i in range(20_000))
    stop = threading.Event()
    reported = [0] * 8

    def write(number):
        def act(client):
            while not stop.is_set():
                at = reported[number]
                client.t.c.insert_many([{"w": number, "at": at, "i": i} for i in range(7)])
                reported[number] += 1
        return act

    writers = [Writer(node, write(number)) for number in range(len(reported))]
    many = Writer(node, lambda client: [client.t.many.update_many({}, {"$inc": {"n": 1}}) for _ in iter(stop.is_set, True)])
    for _ in range(5):
        time.sleep(0.2)
        lock(client)
        counts = {doc["_id"]: doc["n"] for doc in client.t.c.aggregate([{"$group": {"_id": "$w", "n": {"$sum": 1}}}])}
        # The last replies are on their way still.
        wait_until(lambda counts=counts: [counts.get(number, 0) for number in range(len(reported))] == [7 * n for n in reported])
        total = [{"$group": {"_id": None, "n": {"$sum": "$n"}}}]
        sums = [list(client.t.many.aggregate(total)) for _ in range(2)]
        assert sums[0] == sums[1]
        unlock(client)
    stop.set()
    for writer in [*writers, many]:
        assert writer.ended().error is None
    assert sum(reported) > 0 and client.t.c.count_documents({}) == 7 * sum(reported)
    # Each document was met once by each update, however often the lock came between.
    assert len(client.t.many.distinct("n")) == 1


def test_a_waiting_writer_can_be_stopped_and_has_done_nothing(node):
    client = node.client()
    fill(client)
    lock(client)
    for act in (
        lambda: client.t.command("insert", "c", documents=[{"_id": "late"}], maxTimeMS=100),
        lambda: client.t.command("insert", "latecomer", documents=[{"_id": "late"}], maxTimeMS=100),
        lambda: client.t.command("update", "c", updates=[{"q": {}, "u": {"$set": {"late": 1}}, "multi": True}], maxTimeMS=100),
        lambda: client.t.command("delete", "c", deletes=[{"q": {"_id": 1}, "limit": 1}], maxTimeMS=100),
        lambda: client.t.command("drop", "c", maxTimeMS=100),
        lambda: client.t.command("createIndexes", "c", indexes=[{"key": {"late": 1}, "name": "late"}], maxTimeMS=100),
        lambda: client.t.command("validate", "c", maxTimeMS=100),
    ):
        assert code_of(act) == 50
    killed = [Writer(node, lambda client: client.t.c.insert_one({"_id": "killed"})), Writer(node, lambda client: client.t.c.drop())]
    wait_until(lambda: len(waiting(client, "insert", "drop")) == 2)
    for op in waiting(client, "insert", "drop"):
        client.admin.command("killOp", op=op["opid"])
    assert [writer.ended().error.code for writer in killed] == [11601, 11601]
    # A client that leaves while it waits: its write may take place later, but nothing is left
    # behind.
    left = Writer(node, lambda client: client.t.left.insert_one({"_id": 1}))
    wait_until(lambda: len(waiting(client, "insert")) == 1)
    before = everything(client)
    unlock(client)
    assert left.ended().error is None
    after = everything(client)
    assert after.pop(("t", "left")) == ([{"_id": 1}], ["_id_"])
    assert after == before


def test_the_lock_gives_up_on_what_keeps_writers_out(node):
    client = node.client()
    client.t.c.insert_many({"_id": i, "a": i % 97, "b": "x" * 100} for i in range(1_000))
    client.t.c.create_index("a")
    point = FailPoint(client, "pauseCollectionValidationWithLock")
    checker = Writer(node, lambda client: client.t.command("validate", "c", full=True))
    point.wait()
    assert code_of(lock, client, fsyncLockAcquisitionTimeoutMillis=1) == 24
    assert code_of(lock, client, maxTimeMS=20) == 50
    # A checkpoint that is not waited for any more continues to its end.
    with contextlib.suppress(OperationFailure):
        client.admin.command("fsync", maxTimeMS=1)
    assert not checker.done
    # Nothing of it is left.
    assert "fsyncLock" not in client.admin.command("currentOp")
    assert code_of(unlock, client) == 20
    client.t.other.insert_one({"_id": 1})
    # With the time it needs it comes behind the check; one that asks beside it has its turn.
    also = Writer(node, lock)
    point.off()
    assert lock(client)["lockCount"] in (1, 2)
    assert checker.ended().error is None and also.ended().error is None
    assert [unlock(client)["lockCount"] for _ in range(2)] == [1, 0]
    client.t.other.insert_one({"_id": 2})


def test_an_index_build_lets_the_lock_pass(node):
    client = node.client()
    client.t.c.insert_many({"_id": i, "a": i % 97, "b": "x" * 100} for i in range(1_000))
    point = FailPoint(client, "hangIndexBuildDuringCollectionScanPhaseAfterInsertion")
    builder = Writer(node, lambda client: client.t.c.create_index([("b", 1), ("a", 1)]))
    point.wait()
    lock(client)
    assert not builder.done
    point.off()
    unlock(client)
    assert builder.ended().error is None
    assert "b_1_a_1" in client.t.c.index_information()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_locked_node_ends_and_comes_back_unlocked(node, end):
    client = node.client()
    fill(client)
    before = everything(client)
    lock(client)
    lock(client)
    writers = [Writer(node, lambda client, i=i: client.t.c.insert_one({"_id": f"waits {i}"})) for i in range(8)]
    wait_until(lambda: len(waiting(client, "insert")) == len(writers))
    if end == "stop":
        assert node.stop() == 0
        # It was not the time limit for commands that do not end.
        assert not [line for line in node.messages() if line["id"] == 7_100_002]
    else:
        node.kill()
    assert all(writer.ended().error is not None for writer in writers)
    node.start()
    client = node.client()
    assert everything(client) == before
    assert code_of(unlock, client) == 20
    client.t.c.insert_one({"_id": "free"})


def hashes(data):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(data.rglob("*")) if path.is_file()}


@contextlib.contextmanager
def copied(data):
    with tempfile.TemporaryDirectory(prefix="pinion-test-copy-") as folder:
        shutil.copytree(data, pathlib.Path(folder) / "data")
        yield pathlib.Path(folder)


@pytest.mark.parametrize("spilled", [False, True])
def test_a_copy_under_the_lock_is_the_node_as_it_was_locked(node, spilled):
    client = node.client()
    fill(client)
    documents = client.t.large
    documents.insert_many({"_id": i, "n": i, "text": "x" * 1_000} for i in range(8_000))
    if spilled:
        # Far apart among pages that are written: a checkpoint keeps these apart from them.
        client.admin.command("fsync")
        documents.update_many({"_id": {"$mod": [100, 0]}}, {"$set": {"n": -1}})
    # Not journaled: that it was acknowledged before the lock is enough.
    documents.with_options(write_concern=pymongo.WriteConcern(w=1, j=False)).insert_one({"_id": "last"})
    lock(client)
    data = node.directory / "data"
    files = hashes(data)
    expected = everything(client)
    writers = [Writer(node, lambda client, i=i: client.t.large.insert_one({"_id": f"waits {i}"})) for i in range(4)]
    wait_until(lambda: len(waiting(client, "insert")) == len(writers))
    # Time for flushes, and for checkpoints, which are due each second; and one that is asked for.
    client.admin.command("fsync")
    time.sleep(2.5)
    assert everything(client) == expected
    with copied(data) as folder:
        assert hashes(data) == files and hashes(folder / "data") == files
        unlock(client)
        assert all(writer.ended().error is None for writer in writers)
        assert documents.count_documents({}) == 8_000 + 1 + len(writers)
        verified = subprocess.run([ADMIN, "verify", "--dbpath", folder / "data"], capture_output=True, text=True)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        with Node("--cpus", node.options[1], directory=folder) as restored:
            there = restored.client()
            assert everything(there) == expected
            assert all(there.t.command("validate", name, full=True)["valid"] for name in there.t.list_collection_names())
    # Checkpoints come again; nothing else changes the superblock.
    superblock = (data / "superblock").read_bytes()
    documents.insert_one({"_id": "after"})
    wait_until(lambda: (data / "superblock").read_bytes() != superblock)
