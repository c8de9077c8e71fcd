"""What change streams report of transactions: their operations in their order, at one time, with
the session's name and number."""

import pytest
from bson import ObjectId
from pinion_node import STEADY, ReplicaSet, next_event, wait_until
from pymongo import WriteConcern
from pymongo.read_preferences import ReadPreference

IMAGES = {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"}


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY) as members:
        yield members


@pytest.fixture
def database(three):
    client = three.client(w="majority", uuidRepresentation="standard")
    yield client[f"d{ObjectId()}"]
    client.close()


def take(stream, count):
    return [next_event(stream) for _ in range(count)]


def reported(events):
    return [(event["operationType"], event["ns"]["coll"], event["documentKey"]["_id"]) for event in events]


def test_operations_come_in_their_order_at_one_time(database):
    database.a.insert_one({"_id": 0, "n": 0})
    database.create_collection("b")
    with database.watch(max_await_time_ms=100) as stream, database.b.watch(max_await_time_ms=100) as of_b:
        with database.client.start_session() as session:
            with session.start_transaction():
                database.b.insert_many([{"_id": i} for i in range(3)], session=session)
                database.a.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session)
                database.a.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session)
                database.b.delete_one({"_id": 1}, session=session)
                database.a.replace_one({"_id": 0}, {"r": 1}, session=session)
                database.a.insert_one({"_id": "last"}, session=session)
            number = session._server_session.transaction_id
            lsid = session.session_id["id"]
        database.a.insert_one({"_id": "alone"})
        events = take(stream, 9)
        of_b_events = take(of_b, 4)
    assert reported(events) == [
        ("insert", "b", 0), ("insert", "b", 1), ("insert", "b", 2), ("update", "a", 0), ("update", "a", 0), ("delete", "b", 1),
        ("replace", "a", 0), ("insert", "a", "last"), ("insert", "a", "alone"),
    ]
    inside, alone = events[:8], events[8]
    assert len({event["clusterTime"] for event in inside}) == 1 and alone["clusterTime"] > inside[0]["clusterTime"]
    assert all(event["txnNumber"] == number and event["lsid"]["id"] == lsid.as_uuid() for event in inside)
    assert set(inside[0]["lsid"]) == {"id", "uid"}
    assert list(inside[0])[:6] == ["_id", "operationType", "clusterTime", "wallTime", "txnNumber", "lsid"]
    # A retryable write is none of a transaction.
    assert "lsid" not in alone and "txnNumber" not in alone
    assert inside[3]["updateDescription"]["updatedFields"] == {"n": 1}
    assert inside[4]["updateDescription"]["updatedFields"] == {"n": 2}
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(tokens) and len(set(tokens)) == 9
    # One that shows less of it has the same events, with the same tokens.
    assert of_b_events == [events[at] for at in (0, 1, 2, 5)]
    # Each place in the middle of it is one to continue from.
    for at in range(8):
        with database.watch(resume_after=events[at]["_id"], max_await_time_ms=100) as stream:
            assert take(stream, 8 - at) == events[at + 1:]


def test_nothing_is_reported_of_what_was_aborted(database):
    database.create_collection("c")
    with database.c.watch(max_await_time_ms=100) as stream, database.client.start_session() as session:
        session.start_transaction()
        database.c.insert_many([{"x": "y" * (5 << 20)} for _ in range(4)], session=session)
        session.abort_transaction()
        database.c.insert_one({"_id": 1})
        assert reported(take(stream, 1)) == [("insert", "c", 1)]


def test_a_transaction_of_several_entries(database):
    database.create_collection("c")
    with database.watch(max_await_time_ms=500) as stream, database.client.start_session() as session:
        with session.start_transaction():
            for i in range(7):
                database.c.insert_one({"_id": i, "x": "y" * (5 << 20)}, session=session)
            database.other.insert_one({"_id": "z"}, session=session)
        database.c.insert_one({"_id": "behind"})
        events = take(stream, 9)
    entries = database.client.local["oplog.rs"].find({"txnNumber": events[0]["txnNumber"], "lsid.id": events[0]["lsid"]["id"]})
    assert len(list(entries)) == 3
    assert [key for _, _, key in reported(events)] == [*range(7), "z", "behind"]
    assert len({event["clusterTime"] for event in events[:8]}) == 1
    assert all(len(event["fullDocument"]["x"]) == 5 << 20 for event in events[:7])
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(tokens)
    for at in (0, 3, 6, 7):
        with database.watch(resume_after=events[at]["_id"], max_await_time_ms=500) as stream:
            assert reported(take(stream, 8 - at)) == reported(events[at + 1:])


def test_images_of_what_a_transaction_changes(three, database):
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_many([{"_id": 1, "n": 0}, {"_id": 2, "n": 0}])
    with database.c.watch(**IMAGES, max_await_time_ms=100) as stream:
        with database.client.start_session() as session, session.start_transaction():
            database.c.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
            database.c.update_one({"_id": 1}, {"$set": {"n": 2, "m": 1}}, session=session)
            database.c.replace_one({"_id": 1}, {"r": 1}, session=session)
            database.c.delete_one({"_id": 1}, session=session)
            database.c.update_one({"_id": 2}, [{"$set": {"p": {"$add": ["$n", 5]}}}], session=session)
            database.c.insert_one({"_id": 3}, session=session)
        events = take(stream, 6)
    before = [event.get("fullDocumentBeforeChange", "none") for event in events]
    assert before == [{"_id": 1, "n": 0}, {"_id": 1, "n": 1}, {"_id": 1, "n": 2, "m": 1}, {"_id": 1, "r": 1}, {"_id": 2, "n": 0}, "none"]
    after = [event.get("fullDocument", "none") for event in events]
    assert after == [{"_id": 1, "n": 1}, {"_id": 1, "n": 2, "m": 1}, {"_id": 1, "r": 1}, "none", {"_id": 2, "n": 0, "p": 5}, {"_id": 3}]
    required = {"full_document": "required", "full_document_before_change": "required"}
    with database.c.watch(**required, resume_after=events[0]["_id"], max_await_time_ms=100) as stream:
        assert take(stream, 5) == events[1:]
    for node in three.secondaries():
        secondary = three.member(node, uuidRepresentation="standard")[database.name].get_collection("c", read_preference=ReadPreference.SECONDARY_PREFERRED)
        with secondary.watch(**IMAGES, resume_after=events[0]["_id"], max_await_time_ms=500) as stream:
            assert take(stream, 5) == events[1:]


def test_a_committed_transaction_is_reported_once_whichever_member_is_primary(three, database):
    database.create_collection("c")
    collection = database.c.with_options(write_concern=WriteConcern("majority"))
    with collection.watch(max_await_time_ms=500) as stream:
        for round_ in range(3):
            def insert(session, round_=round_):
                collection.insert_many([{"_id": f"{round_}.{i}"} for i in range(5)], session=session)

            with database.client.start_session() as session:
                session.with_transaction(insert)
            heir = three.secondaries()[0]
            with three.member(three.primary()) as client:
                client.admin.command("replSetStepDown", 5, force=True)
            wait_until(lambda heir=heir: three.steps_up(heir))
        events = take(stream, 15)
    assert [event["documentKey"]["_id"] for event in events] == [f"{round_}.{i}" for round_ in range(3) for i in range(5)]
    with collection.watch(resume_after=events[1]["_id"], max_await_time_ms=500) as stream:
        assert take(stream, 13) == events[2:]
