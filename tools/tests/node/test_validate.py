"""`validate` beside writers, over damaged pages, on members of a set, and while it runs."""

import pathlib
import random
import threading

import bson
import pymongo
import pytest
from bit_flips import checksummed, flip_bit
from bson.raw_bson import RawBSONDocument
from pinion_node import STEADY, Node, ReplicaSet, wait_until

EMPTY = ("errors", "warnings", "extraIndexEntries", "missingIndexEntries", "corruptRecords")


def validate(collection, **options):
    return collection.database.command("validate", collection.name, **options)


def code_of(act):
    with pytest.raises(pymongo.errors.OperationFailure) as caught:
        act()
    return caught.value.code


class Writer:
    """Inserts and deletes documents of a collection until it is left."""

    def __init__(self, collection):
        self.collection, self.ends = collection, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        turn = 0
        while not self.ends:
            turn += 1
            self.collection.insert_many({"a": j, "tags": [j, turn]} for j in range(100))
            self.collection.update_many({"a": turn % 100}, {"$inc": {"a": 1}})
            self.collection.delete_many({"_id": {"$lt": turn * 20}})

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()


def test_nothing_is_found_beside_writers(collection):
    collection.create_index("a")
    collection.create_index([("tags", 1), ("a", -1)])
    collection.insert_many({"_id": i, "a": i} for i in range(10_000))
    with Writer(collection):
        for options in ({}, {"full": True}, {"background": True}, {"enforceFastCount": True}) * 2:
            found = validate(collection, **options)
            assert found["valid"] and not any(found[name] for name in EMPTY), found
            assert ("readTimestamp" in found) == ("background" in options)
    found = validate(collection, full=True)
    assert found["valid"] and found["nrecords"] == collection.count_documents({})
    assert found["keysPerIndex"]["_id_"] == found["nrecords"]


def test_what_does_not_conform_is_counted_where_it_is_asked_for(collection):
    twice = bson.encode({"_id": 1, "q": 1, "r": 2}).replace(b"r\x00", b"q\x00")
    collection.insert_one(RawBSONDocument(twice))
    assert validate(collection)["nNonCompliantDocuments"] == 0
    for option in ("checkBSONConformance", "full"):
        found = validate(collection, **{option: True})
        assert (found["nNonCompliantDocuments"], found["valid"], len(found["warnings"])) == (1, True, 1), found
    assert code_of(lambda: validate(collection, full=True, checkBSONConformance=False)) == 72


def test_documents_that_break_the_validator_are_counted(collection):
    collection.insert_many([{"a": 1}, {"a": "one"}, {"a": 2}])
    collection.database.command("collMod", collection.name, validator={"a": {"$type": "int"}})
    found = validate(collection)
    assert (found["nNonCompliantDocuments"], found["valid"], len(found["warnings"])) == (1, True, 1)


def test_views_are_refused_and_series_are_not(client):
    database = client.pinion_validate
    client.drop_database(database.name)
    database.create_collection("view", viewOn="nothing", pipeline=[])
    assert code_of(lambda: validate(database.view)) == 166
    assert code_of(lambda: validate(database.nothing)) == 26
    database.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
    # Such an index keeps what was asked for beside what it is.
    database.series.create_index("m", name="partial", partialFilterExpression={"m": {"$gt": 1}})
    found = validate(database.series)
    assert found["ns"] == "pinion_validate.system.buckets.series"
    assert (found["valid"], found["errors"]) == (True, [])


def test_it_can_be_stopped_and_shows_how_far_it_is(client, collection):
    collection.create_index("$**")
    text = "word " * 200
    for start in range(0, 12_000, 4000):
        collection.insert_many({"_id": i, "a": {"b": i, "c": [i, -i]}, "text": text} for i in range(start, start + 4000))
    assert code_of(lambda: validate(collection, maxTimeMS=30)) == 50
    shown, caught = [], []

    def run():
        try:
            validate(collection)
        except pymongo.errors.OperationFailure as error:
            caught.append(error.code)

    thread = threading.Thread(target=run)
    thread.start()

    def is_shown():
        found = client.admin.command({"currentOp": 1, "command.validate": collection.name})["inprog"]
        shown.extend(operation for operation in found if operation.get("progress", {}).get("done", 0) > 0)
        return bool(shown) or not thread.is_alive()

    wait_until(is_shown)
    assert shown, "it ended before it was seen"
    progress = shown[0]["progress"]
    assert 0 < progress["done"] <= progress["total"] and shown[0]["msg"].startswith("Validate")
    client.admin.command("killOp", op=shown[0]["opid"])
    thread.join()
    assert caught == [11601]


def test_the_memory_of_its_sums_is_a_parameter(client, collection):
    collection.create_index("a")
    collection.insert_many({"a": i} for i in range(2000))
    before = client.admin.command("getParameter", maxValidateMemoryUsageMB=1)["maxValidateMemoryUsageMB"]
    assert before == 200
    client.admin.command("setParameter", maxValidateMemoryUsageMB=1)
    assert validate(collection)["valid"]
    assert code_of(lambda: client.admin.command("setParameter", maxValidateMemoryUsageMB=0)) == 2
    client.admin.command("setParameter", maxValidateMemoryUsageMB=before)


def test_what_cannot_be_read_is_reported_and_the_rest_is_checked():
    with Node("--cpus", "2", "--partitions", "2") as node:
        with node.client() as client:
            damaged = client.t.damaged
            damaged.create_index("a")
            damaged.insert_many({"_id": i, "a": i, "text": "x" * 300} for i in range(20_000))
            client.t.sound.insert_many({"_id": i} for i in range(10))
            client.admin.command("fsync")
        node.stop()
        data = node.directory / "data"
        # Most of the pages are leaves of the one collection.
        pages = [page for page in checksummed(data)["page"] if page[2] > 4096]
        stream = random.Random(7)
        flipped = []
        for file, offset, length in stream.sample(pages, 3):
            bit = (offset + stream.randrange(100, length)) * 8
            flip_bit(data / pathlib.Path(file), bit)
            flipped.append((file, offset, bit))
        node.start()
        with node.client() as client:
            found = validate(client.t.damaged, full=True)
            assert not found["valid"] and found["errors"], found
            for error in found["errors"]:
                assert "is corrupt at offset" in error, error
            named = [any(f"offset {offset}:" in error for error in found["errors"]) for _, offset, _ in flipped]
            assert any(named), (flipped, found["errors"])
            # What the damaged pages had is not taken for missing.
            assert found["extraIndexEntries"] == found["missingIndexEntries"] == []
            assert 15_000 < found["nrecords"] < 20_000 or not found["indexDetails"]["a_1"]["valid"]
            assert validate(client.t.sound, full=True)["valid"]
        node.stop()
        for file, _, bit in flipped:
            flip_bit(data / pathlib.Path(file), bit)
        node.start()
        with node.client() as client:
            found = validate(client.t.damaged, full=True)
            assert found["valid"] and found["nrecords"] == 20_000, found


def test_members_validate_and_mend_nothing():
    with ReplicaSet(2, STEADY) as replica_set:
        primary = replica_set.primary()
        with replica_set.client() as client:
            collection = client.test.get_collection("c", write_concern=pymongo.WriteConcern(w=2))
            collection.create_index("a")
            collection.insert_many({"_id": i, "a": i} for i in range(5000))
            for node in replica_set.nodes:
                with replica_set.member(node) as member:
                    there = member.test.c
                    for option in ("repair", "fixMultikey"):
                        assert code_of(lambda: validate(there, **{option: True})) == 72
                    with Writer(collection):
                        for options in ({}, {"background": True}, {"enforceFastCount": True}) * 2:
                            found = validate(there, **options)
                            assert found["valid"] and not found["errors"], found
        with replica_set.member(primary) as member:
            log = member.local["oplog.rs"]
            found = validate(log, full=True)
            assert found["valid"] and found["nrecords"] > 5000, found
            assert (found["nIndexes"], found["keysPerIndex"]) == (0, {})
            assert abs(found["nrecords"] - log.count_documents({})) <= 50
