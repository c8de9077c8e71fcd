"""Finds by `_id` that repeat one another on a connection: they are run without being read again,
and no client can see it."""

import datetime
import uuid

import bson
import pymongo
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pinion_node import Node, wait_until
from pymongo.errors import OperationFailure

IDS = {
    "text": ["a", "b", "", "a longer text than those before it", "\u00e4\u00f6", "nul \x00 inside"],
    "int": [1, 2, -3],
    "long": [Int64(1 << 40), Int64(-(1 << 41)), Int64(2)],
    "double": [1.5, -2.25, 1.0],
    "decimal": [Decimal128("7.5"), Decimal128("1")],
    "oid": [ObjectId(), ObjectId()],
    "uuid": [Binary.from_uuid(uuid.uuid4()), Binary.from_uuid(uuid.uuid4())],
    "binary": [Binary(b"", 0), Binary(b"four", 0), Binary(b"a longer one", 0), Binary(b"old", 2), Binary(b"older", 2)],
    "date": [datetime.datetime(2020, 1, 1), datetime.datetime(1960, 1, 1)],
    "bool": [True, False],
    "timestamp": [bson.Timestamp(1, 2), bson.Timestamp(3, 4)],
}


@pytest.fixture(scope="module", params=["1", "2"])
def node(request):
    with Node("--cpus", request.param) as node:
        yield node


@pytest.fixture
def client(node):
    # One connection, so that each command meets what the one before it left.
    with node.client(maxPoolSize=1) as client:
        client.drop_database("repeats")
        yield client


def by_id(collection, document_id, **options):
    return collection.find_one({"_id": document_id}, **options)


@pytest.mark.parametrize("kind", IDS)
def test_each_finds_its_own(client, kind):
    collection = client.repeats.c
    ids = IDS[kind]
    collection.insert_many([{"_id": each, "n": n} for n, each in enumerate(ids)])
    for _ in range(3):
        for n, each in enumerate(ids):
            assert by_id(collection, each)["n"] == n
    missing = {"text": "no such", "int": 9, "bool": None}.get(kind, 12345)
    assert by_id(collection, missing) is None


def test_it_sees_what_has_changed(client):
    collection = client.repeats.c
    assert by_id(collection, 1) is None
    assert by_id(collection, 2) is None
    collection.insert_one({"_id": 1, "v": 0})
    for v in range(1, 5):
        collection.update_one({"_id": 1}, {"$set": {"v": v}})
        assert by_id(collection, 1) == {"_id": 1, "v": v}
    collection.delete_one({"_id": 1})
    assert by_id(collection, 1) is None
    collection.insert_one({"_id": 1, "v": "again"})
    assert by_id(collection, 1)["v"] == "again"
    client.admin.command("fsync")
    assert by_id(collection, 1)["v"] == "again"
    collection.drop()
    assert by_id(collection, 1) is None
    collection.insert_one({"_id": 1, "v": "anew"})
    assert by_id(collection, 1)["v"] == "anew"


def test_others_are_not_taken_for_it(client):
    collection, other = client.repeats.c, client.repeats.d
    collection.insert_many({"_id": i, "a": i * 10, "b": 1} for i in range(5))
    other.insert_one({"_id": 1, "other": True})
    for i in range(5):
        assert by_id(collection, i)["a"] == i * 10
    assert by_id(other, 1) == {"_id": 1, "other": True}
    assert by_id(client.repeatt.c, 1) is None
    assert by_id(collection, 1, projection={"a": 1, "_id": 0}) == {"a": 10}
    assert by_id(collection, 2, projection={"a": 1, "_id": 0}) == {"a": 20}
    assert by_id(collection, 2, skip=1) is None
    assert collection.find_one({"_id": 2, "b": 2}) is None
    assert collection.find_one({"_id": {"$gt": 3}})["a"] == 40
    assert list(collection.find({"_id": 2}))[0]["a"] == 20
    assert list(collection.find({"_id": 3}).batch_size(1))[0]["a"] == 30
    with pytest.raises(OperationFailure) as refused:
        client.repeats.command("find", "c", filter={"_id": 3}, limit=1, nosuch=1)
    assert refused.value.code == 40415


def test_arguments_hold_for_each(client):
    collection = client.repeats.c
    collection.insert_many({"_id": i} for i in range(4))
    for i in range(4):
        with client.start_session() as session:
            assert by_id(collection, i, session=session, max_time_ms=10_000, comment="c") == {"_id": i}
    for i in range(4):
        with pytest.raises(OperationFailure) as refused:
            client.repeats.command("find", "c", filter={"_id": i}, limit=1, readConcern={"level": "linearizable"})
        assert refused.value.code == 123


def test_they_are_counted(client):
    collection = client.repeats.c
    collection.insert_many({"_id": i} for i in range(10))

    def counts():
        status = client.admin.command("serverStatus")
        top = client.admin.command("top")["totals"].get("repeats.c", {})
        uses = next(iter(collection.aggregate([{"$indexStats": {}}])))["accesses"]["ops"]
        return [
            status["opcounters"]["query"],
            status["metrics"]["commands"]["find"]["total"],
            status["metrics"]["document"]["returned"],
            status["metrics"]["queryExecutor"]["scannedObjects"],
            status["opLatencies"]["reads"]["ops"],
            top["queries"]["count"],
            uses,
        ]

    before = counts()
    again = counts()
    for i in range(10):
        assert by_id(collection, i) == {"_id": i}
    grown = [late - early for late, early in zip(counts(), again)]
    idle = [late - early for late, early in zip(again, before)]
    found = [late - early for late, early in zip(grown, idle)]
    assert found == [10] * len(found), (found, idle)


def test_they_are_requests(client):
    # The driver's monitor sends requests too, so there may be more.
    def requests():
        return client.admin.command("serverStatus")["network"]["numRequests"]

    collection = client.repeats.c
    before = requests()
    for i in range(100):
        by_id(collection, i)
    assert requests() - before > 100


def test_slow_ones_are_logged(node, client):
    collection = client.repeats.c
    # Nothing is slow by itself.
    client.admin.command("profile", 0, slowms=1_000_000)
    collection.insert_many({"_id": f"slow{i}"} for i in range(5))
    by_id(collection, "slow0")
    client.admin.command("profile", 0, slowms=-1)
    for i in range(5):
        by_id(collection, f"slow{i}")
    client.admin.command("profile", 0, slowms=100)
    def logged(name):
        return [line for line in node.messages() if line.get("msg") == "Slow query" and name in str(line)]

    # A reply does not wait for the log to be written.
    wait_until(lambda: logged("slow4"))
    assert [len(logged(f"slow{i}")) for i in range(5)] == [1] * 5


@pytest.mark.parametrize("compressor", ["zlib", "snappy"])
def test_compressed_ones(node, compressor):
    with node.client(maxPoolSize=1, compressors=compressor) as client:
        collection = client.repeats.compressed
        collection.drop()
        collection.insert_many({"_id": i, "v": "x" * 500} for i in range(5))
        for i in range(5):
            assert by_id(collection, i) == {"_id": i, "v": "x" * 500}
