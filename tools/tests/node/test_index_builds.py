"""Indexes built while clients read and write: what comes out, and all that can end a build."""

import threading
import time

import pymongo
import pytest
from pinion_node import TEST_COMMANDS, Beside, FailPoint, Node, wait_until
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

DOCUMENTS = 4_000
SCANS = "hangIndexBuildDuringCollectionScanPhaseAfterInsertion"


@pytest.fixture(params=["1", "2"])
def node(request):
    with Node("--cpus", request.param, *TEST_COMMANDS) as node:
        yield node


def fill(collection, documents=DOCUMENTS):
    """Documents with enough entries in a wildcard index that there is time to write while one is
    built."""
    fields = {"f%02d" % n: n for n in range(30)}
    for first in range(0, documents, 1000):
        collection.insert_many([{"_id": n, "n": n, "text": "t%d" % (n * 7919 % documents), **fields}
                                for n in range(first, first + 1000)])


def create(collection, *indexes, **options):
    """Creates indexes, on a connection of its own."""
    with pymongo.MongoClient(*collection.database.client.address) as client:
        return client[collection.database.name].command({"createIndexes": collection.name, "indexes": indexes, **options})


class Build:
    """A build of indexes beside the test, held up in its scan of the collection until it is to
    proceed."""

    def __init__(self, collection, *indexes):
        self.collection = collection
        self.point = FailPoint(collection.database.client, SCANS)
        self.call = Beside(lambda: create(collection, *indexes))
        self.point.wait()

    def proceed(self):
        self.point.off()

    def ended(self):
        """The error that it ended with, if it was one."""
        return self.call.ended().error

    def listed(self, **options):
        reply = self.collection.database.command({"listIndexes": self.collection.name, **options})
        return reply["cursor"]["firstBatch"]

    def fails(self, code):
        error = self.ended()
        assert isinstance(error, OperationFailure) and error.code == code, error
        return error


ALL = {"key": {"$**": 1}, "name": "all"}


def names(collection):
    return set(collection.index_information())


def operation(client, collection):
    found = client.admin.aggregate([{"$currentOp": {}}, {"$match": {"desc": {"$regex": "^IndexBuilds"}, "ns": collection.full_name}}])
    return next(found, None)


def is_valid(collection):
    reply = collection.database.command({"validate": collection.name, "full": True})
    assert reply["valid"], reply["errors"]
    return reply


def test_an_index_has_what_was_written_while_it_was_built(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    second = Build(collection, {"key": {"n": 1}, "name": "n_1", "unique": True})
    writes = 0
    while build.call.is_alive() or second.call.is_alive():
        writes += 1
        if writes == 100:
            build.proceed()
        collection.update_one({"_id": writes * 37 % DOCUMENTS}, {"$set": {"n": -writes}, "$unset": {"f01": 1}})
        collection.delete_one({"_id": writes * 41 % DOCUMENTS})
        collection.insert_one({"_id": DOCUMENTS + writes, "n": DOCUMENTS + writes, "f01": [writes]})
    assert writes >= 100 and (build.ended(), second.ended()) == (None, None)
    keys = is_valid(collection)["keysPerIndex"]
    assert keys["n_1"] == collection.count_documents({})
    for field, value in (("n", {"$lt": 0}), ("f01", {"$gte": 0}), ("n", {"$gte": DOCUMENTS})):
        by_index = sorted(found["_id"] for found in collection.find({field: value}, {"_id": 1}).hint("all"))
        by_scan = sorted(found["_id"] for found in collection.find({field: value}, {"_id": 1}).hint([("$natural", 1)]))
        assert by_index == by_scan and by_index


def test_a_build_is_seen(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    listed = {index["spec"]["name"] if "spec" in index else index["name"]: index for index in build.listed(includeIndexBuildInfo=True)}
    seen = operation(client, collection)
    assert seen["command"]["createIndexes"] == "c" and seen["msg"].startswith("Index Build: ")
    assert 0 <= seen["progress"]["done"] <= seen["progress"]["total"]
    info = listed["all"]["indexBuildInfo"]
    assert info["buildUUID"] == seen["command"]["buildUUID"] and info["method"] == "Hybrid" and info["opid"] == seen["opid"]
    assert "all" in {index["name"] for index in build.listed()}
    assert [found.get("building") for found in collection.aggregate([{"$indexStats": {}}])] == [None, True]
    assert client.builds.command("collStats", "c")["indexBuilds"] == ["all"]
    with pytest.raises(OperationFailure, match="hint provided does not correspond to an existing index"):
        collection.find_one({"n": 1}, hint="all")
    for refused in ({"collMod": "c", "index": {"name": "all", "hidden": True}}, {"reIndex": "c"}):
        with pytest.raises(OperationFailure) as raised:
            client.builds.command(refused)
        assert raised.value.code == 12587
    with pytest.raises(OperationFailure) as raised:
        collection.rename("d")
    assert raised.value.code == 12587
    build.proceed()
    assert build.ended() is None and operation(client, collection) is None


def test_the_same_index_is_built_once(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    again = Beside(lambda: create(collection, ALL))
    commands = [{"$currentOp": {}}, {"$match": {"command.createIndexes": "c", "connectionId": {"$exists": True}}}]
    wait_until(lambda: len(list(client.admin.aggregate(commands))) == 2)
    assert again.is_alive()
    build.proceed()
    reply = again.ended().answer
    assert reply["note"] == "all indexes already exist" and reply["numIndexesAfter"] == 2
    assert build.ended() is None


@pytest.mark.parametrize("end", ["dropIndexes", "star", "killOp of the build", "killOp of the command", "drop", "dropDatabase"])
def test_builds_are_ended(node, end):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    if end == "dropIndexes":
        collection.drop_index("all")
    elif end == "star":
        assert client.builds.command({"dropIndexes": "c", "index": "*"})["nIndexesWas"] == 2
    elif end == "killOp of the build":
        client.admin.command({"killOp": 1, "op": operation(client, collection)["opid"]})
    elif end == "killOp of the command":
        running = client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.createIndexes": "c", "connectionId": {"$exists": True}}}])
        client.admin.command({"killOp": 1, "op": next(running)["opid"]})
    elif end == "drop":
        collection.drop()
    else:
        client.drop_database("builds")
    error = build.fails(11601 if end == "killOp of the command" else 276)
    assert "Index build failed: " in str(error)
    build.proceed()
    if end.startswith("drop") and end != "dropIndexes":
        assert client.builds.list_collection_names() == []
        return
    assert names(collection) == {"_id_"} and operation(client, collection) is None
    collection.update_one({"_id": 1}, {"$set": {"n": 7}})
    is_valid(collection)
    collection.create_index("n", name="all")
    assert collection.find_one({"n": 7}, hint="all")["_id"] in (1, 7)


def test_one_of_several_indexes_of_a_build_is_not_dropped(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)

    build = Build(collection, ALL, {"key": {"n": 1}, "name": "n_1"})
    with pytest.raises(OperationFailure) as raised:
        collection.drop_index("n_1")
    assert raised.value.code == 12587
    build.proceed()
    assert build.ended() is None
    assert names(collection) == {"_id_", "all", "n_1"}


def test_a_unique_build_judges_what_is_there_at_its_end(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    # Before the build there are two that share their value, and no more when it ends.
    collection.update_one({"_id": 5}, {"$set": {"n": 6}})
    build = Build(collection, ALL, {"key": {"n": 1}, "name": "u", "unique": True})
    collection.delete_one({"_id": 6})
    collection.insert_one({"_id": "new", "n": "new"})
    build.proceed()
    assert build.ended() is None
    with pytest.raises(OperationFailure) as raised:
        collection.insert_one({"n": "new"})
    assert raised.value.code == 11000
    # One that comes while the index is built is found at the end, and named.
    collection.drop_index("all")
    build = Build(collection, ALL, {"key": {"text": 1}, "name": "text_1", "unique": True})
    collection.insert_one({"_id": "late", "text": "t0"})
    build.proceed()
    error = build.fails(11000)
    assert error.details["keyPattern"] == {"text": 1} and error.details["keyValue"] == {"text": "t0"}
    assert "dup key: { text: \"t0\" }" in str(error)
    assert names(collection) == {"_id_", "u"}
    is_valid(collection)


def test_a_build_ends_with_its_time(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    FailPoint(client, SCANS)
    with pytest.raises(OperationFailure) as raised:
        create(collection, ALL, maxTimeMS=50)
    assert raised.value.code == 50
    assert names(collection) == {"_id_"}


def test_a_build_needs_room_on_the_disk(node):
    client = node.client()
    collection = client.builds.c
    collection.insert_one({"a": 1})
    client.admin.command({"setParameter": 1, "indexBuildMinAvailableDiskSpaceMB": 8 * 1024 * 1024})
    with pytest.raises(OperationFailure) as raised:
        collection.create_index("a")
    assert raised.value.code == 14031 and "available disk space of" in str(raised.value)
    client.admin.command({"setParameter": 1, "indexBuildMinAvailableDiskSpaceMB": 1, "maxIndexBuildMemoryUsageMegabytes": 50})
    collection.create_index("a")
    for wrong in ({"maxIndexBuildMemoryUsageMegabytes": 49}, {"indexBuildMinAvailableDiskSpaceMB": -1}):
        with pytest.raises(OperationFailure) as raised:
            client.admin.command({"setParameter": 1, **wrong})
        assert raised.value.code == 2


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_ends_no_build(node, how):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    collection.with_options(write_concern=WriteConcern(j=True)).update_one({"_id": 1}, {"$set": {"n": -1}})
    getattr(node, how)()
    assert build.ended() is not None
    node.start()
    client = node.client()
    collection = client.builds.c
    # The build ends by itself.
    wait_until(lambda: operation(client, collection) is None)
    assert names(collection) == {"_id_", "all"} and collection.find_one({"_id": 1})["n"] == -1
    assert collection.find_one({"n": -1}, hint="all")["_id"] == 1
    is_valid(collection)


def test_a_finished_build_outlives_the_node(node):
    client = node.client()
    collection = client.builds.c
    fill(collection, 5000)
    stopped = threading.Event()

    def write():
        own = node.client()
        n = 0
        while not stopped.is_set():
            n += 1
            own.builds.c.update_one({"_id": n % 5000}, {"$inc": {"n": 100_000}})

    thread = threading.Thread(target=write)
    thread.start()
    client.builds.command({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}], "writeConcern": {"w": 1, "j": True}})
    stopped.set()
    thread.join()
    node.kill()
    node.start()
    collection = node.client().builds.c
    assert names(collection) == {"_id_", "n_1"}
    is_valid(collection)


def test_writers_continue(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    # It would wait for its end, which does not come, if it had to.
    collection.update_one({"_id": 3}, {"$set": {"n": -3}})
    build.proceed()
    assert build.ended() is None


def test_a_locked_node_holds_a_build_up(node):
    client = node.client()
    collection = client.builds.c
    fill(collection)
    build = Build(collection, ALL)
    client.admin.command({"fsync": 1, "lock": True})
    build.proceed()
    time.sleep(2)
    assert "all" in {index["spec"]["name"] for index in build.listed(includeBuildUUIDs=True) if "spec" in index}
    client.admin.command({"fsyncUnlock": 1})
    assert build.ended() is None
    is_valid(collection)
