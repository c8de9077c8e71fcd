"""What a member of a set answers and logs, in the small: keys of inserts, empty timestamps, series
in transactions, reIndex."""

import datetime

import pytest
from bson import Timestamp
from pinion_node import ReplicaSet
from pymongo.errors import OperationFailure

EMPTY = Timestamp(0, 0)


@pytest.fixture(scope="module")
def members():
    with ReplicaSet(1) as members:
        yield members


@pytest.fixture
def client(members):
    with members.client() as client:
        client.drop_database("answers")
        yield client


def fails(code, run, *args, **options):
    with pytest.raises(OperationFailure) as caught:
        run(*args, **options)
    assert caught.value.code == code, caught.value.details
    return caught.value.details


def test_entries_of_inserts_name_the_key(client):
    collection = client.answers.create_collection("c")
    collection.insert_one({"a": 1, "_id": 7})
    collection.insert_many([{"_id": "x"}, {"_id": {"k": 1}}])
    collection.update_one({"_id": 8}, {"$set": {"a": 1}}, upsert=True)
    with client.start_session() as session, session.start_transaction():
        collection.insert_one({"_id": 9}, session=session)
    log = client.local["oplog.rs"]
    written = [entry for entry in log.find({"ns": "answers.c", "op": "i"})]
    written += [op for entry in log.find({"o.applyOps.ns": "answers.c"}) for op in entry["o"]["applyOps"]]
    assert len(written) == 5
    assert all(op["o2"] == {"_id": op["o"]["_id"]} for op in written), written
    # A dumped oplog has them too.
    client.admin.command({"applyOps": [{"op": "i", "ns": "answers.c", "o": {"_id": 10}, "o2": {"_id": 10}}]})
    assert collection.count_documents({}) == 6


def test_each_empty_timestamp_has_a_time_of_its_own(client):
    collection = client.answers.stamps
    empty = {"a": EMPTY, "b": EMPTY, "c": EMPTY}
    collection.insert_one({"_id": 1, **empty, "in": {"a": EMPTY}})
    collection.insert_one({"_id": 2, "text": "x" * 200_000, **empty})
    collection.replace_one({"_id": 3}, empty, upsert=True)
    collection.replace_one({"_id": 3}, empty)
    now = {"$currentDate": {"a": {"$type": "timestamp"}, "b": {"$type": "timestamp"}, "c": {"$type": "timestamp"}}}
    collection.update_one({"_id": 4}, now, upsert=True)
    found = list(collection.find())
    assert len(found) == 4
    for document in found:
        assert len({document["a"], document["b"], document["c"]}) == 3, document
        assert EMPTY not in (document["a"], document["b"], document["c"])
    assert found[0]["a"] < found[0]["b"] < found[0]["c"] and found[0]["in"] == {"a": EMPTY}
    client.answers.command({"insert": "stamps", "documents": [{"_id": 5, **empty}], "bypassEmptyTsReplacement": True})
    assert collection.find_one({"_id": 5}) == {"_id": 5, **empty}


def test_writes_of_a_series_in_a_transaction(client):
    at = datetime.datetime(2024, 1, 1)
    client.answers.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
    series = client.answers.series
    series.insert_one({"t": at, "m": 1})
    writes = {
        "Cannot insert into a time-series collection in a multi-document transaction: answers.series": [
            lambda session: series.insert_one({"t": at, "m": 1}, session=session),
            lambda session: series.insert_many([{"t": at}, {"t": at}], session=session),
        ],
        "Cannot write to a time-series collection in a multi-document transaction: answers.series": [
            lambda session: series.update_many({"m": 1}, {"$set": {"m": 2}}, session=session),
            lambda session: series.delete_many({"m": 1}, session=session),
        ],
    }
    for message, runs in writes.items():
        for run in runs:
            with client.start_session() as session:
                session.start_transaction()
                details = fails(263, run, session)
                assert details["errmsg"] == message
    with client.start_session() as session:
        session.start_transaction()
        fails(50791, client.answers["system.buckets.series"].delete_many, {}, session=session)
    assert series.count_documents({}) == 1


def test_members_do_not_make_indexes_again(client):
    client.answers.c.create_index("a")
    details = fails(20, client.answers.command, "reIndex", "c")
    assert details["errmsg"].startswith("reIndex is only allowed on a standalone mongod instance. Cannot reIndex 'answers.c'")
