"""Images of documents that have no room in the entry of their change: they are there on every
member, as long as the change is."""

import pytest
from bson import ObjectId
from pinion_node import STEADY, ReplicaSet, next_event, wait_until
from pymongo import DeleteMany, ReplaceOne, UpdateMany
from pymongo.errors import OperationFailure
from pymongo.read_preferences import ReadPreference

MB = 1 << 20
SPLIT = [{"$changeStreamSplitLargeEvent": {}}]
BOTH = {"full_document": "required", "full_document_before_change": "required"}


@pytest.fixture(scope="module")
def members():
    # Documents of this size are no reason for an election.
    with ReplicaSet(2, STEADY) as two:
        yield two


@pytest.fixture
def database(members):
    client = members.client(w="majority")
    name = f"d{ObjectId()}"
    client[name].create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    yield client[name]
    client.drop_database(name)
    client.close()


def take(stream, count):
    """The next `count` events, put together of their parts."""
    events, parts = [], {}
    while len(events) < count:
        part = next_event(stream)
        parts |= part
        split = part.get("splitEvent")
        if split is None or split["fragment"] == split["of"]:
            events.append(parts)
            parts = {}
    return events


def summaries(events):
    """What events are, with a letter and a size for each large text."""
    def short(document):
        return document and (document["_id"], document["x"][0], len(document["x"]))
    return [(event["operationType"], short(event.get("fullDocumentBeforeChange")), short(event.get("fullDocument"))) for event in events]


def large(letter, size=9 * MB):
    return letter * size


def change_everything(collection):
    """Changes by all kinds of statements, and what streams show of them."""
    size, near = 9 * MB, 16 * MB - 4096
    collection.insert_one({"_id": 1, "x": large("a", near)})
    collection.update_one({"_id": 1}, {"$set": {"x": large("b", near)}})
    collection.find_one_and_replace({"_id": 1}, {"x": large("c", near)})
    collection.insert_one({"_id": 2, "x": large("d")})
    # An image that has room in its entry.
    collection.replace_one({"_id": 1}, {"x": "e"})
    collection.bulk_write([
        ReplaceOne({"_id": 1}, {"x": large("f")}), UpdateMany({}, {"$set": {"x": large("g")}}), DeleteMany({}),
    ])
    return [
        ("insert", None, (1, "a", near)),
        ("update", (1, "a", near), (1, "b", near)),
        ("replace", (1, "b", near), (1, "c", near)),
        ("insert", None, (2, "d", size)),
        ("replace", (1, "c", near), (1, "e", 1)),
        ("replace", (1, "e", 1), (1, "f", size)),
        ("update", (1, "f", size), (1, "g", size)),
        ("update", (2, "d", size), (2, "g", size)),
        ("delete", (1, "g", size), None),
        ("delete", (2, "g", size), None),
    ]


def of_member(members, database, node):
    wait_until(lambda: all(members.state(node) in (1, 2) for node in members.nodes))
    return members.member(node)[database.name].get_collection("c", read_preference=ReadPreference.SECONDARY_PREFERRED)


def test_every_member_has_them_also_after_a_restart(members, database):
    with database.c.watch(SPLIT, **BOTH, max_await_time_ms=500) as stream:
        begin = stream.resume_token
        expected = change_everything(database.c)
        assert summaries(take(stream, len(expected))) == expected
    node = members.secondaries()[0]
    for restarts in (False, True):
        if restarts:
            node.stop()
            node.start()
        collection = of_member(members, database, node)
        with collection.watch(SPLIT, **BOTH, resume_after=begin, max_await_time_ms=500) as stream:
            assert summaries(take(stream, len(expected))) == expected


def test_a_member_that_joins_has_those_of_what_it_follows(members, database):
    database.c.insert_one({"_id": 1, "x": large("a")})
    node = members.add()
    collection = of_member(members, database, node)
    with collection.watch(SPLIT, **BOTH, max_await_time_ms=500) as stream:
        database.c.update_one({"_id": 1}, {"$set": {"x": large("b")}})
        assert summaries(take(stream, 1)) == [("update", (1, "a", 9 * MB), (1, "b", 9 * MB))]


def test_transactions(members, database):
    collection, size = database.c, 9 * MB
    collection.insert_many([{"_id": 1, "x": large("a")}, {"_id": 2, "x": large("b")}])
    with collection.watch(SPLIT, **BOTH, max_await_time_ms=500) as stream:
        begin = stream.resume_token
        with database.client.start_session() as session, session.start_transaction():
            collection.insert_one({"_id": 3, "x": "c"}, session=session)
            collection.update_many({"_id": {"$lt": 3}}, {"$set": {"x": large("d")}}, session=session)
            collection.update_one({"_id": 3}, {"$set": {"x": "e"}}, session=session)
            collection.delete_one({"_id": 1}, session=session)
        events = take(stream, 5)
    expected = [
        ("insert", None, (3, "c", 1)),
        ("update", (1, "a", size), (1, "d", size)),
        ("update", (2, "b", size), (2, "d", size)),
        ("update", (3, "c", 1), (3, "e", 1)),
        ("delete", (1, "d", size), None),
    ]
    assert summaries(events) == expected
    secondary = of_member(members, database, members.secondaries()[0])
    with secondary.watch(SPLIT, **BOTH, resume_after=begin, max_await_time_ms=500) as stream:
        assert summaries(take(stream, 5)) == expected
    with collection.watch(SPLIT, **BOTH, resume_after=events[1]["_id"], max_await_time_ms=500) as stream:
        assert summaries(take(stream, 3)) == expected[2:]


def test_an_event_that_is_too_large_is_refused_where_it_is_not_split(database):
    collection = database.c
    collection.insert_one({"_id": 1, "x": large("a")})
    with collection.watch(**BOTH, max_await_time_ms=500) as stream:
        begin = stream.resume_token
        collection.update_one({"_id": 1}, {"$set": {"x": large("b")}})
        with pytest.raises(OperationFailure) as caught:
            take(stream, 1)
    assert caught.value.code == 10334
    # The image alone has room.
    pipeline = [{"$project": {"operationType": 1, "fullDocumentBeforeChange": 1}}]
    with collection.watch(pipeline, **BOTH, resume_after=begin, max_await_time_ms=500) as stream:
        assert summaries(take(stream, 1)) == [("update", (1, "a", 9 * MB), None)]


def test_a_write_that_does_not_match_leaves_no_image_in_the_log(database):
    collection = database.c
    collection.insert_many([{"_id": 1, "x": large("a"), "u": 1}, {"_id": 2, "u": 2}])
    collection.create_index("u", unique=True)
    with pytest.raises(OperationFailure) as caught:
        collection.update_one({"_id": 1}, {"$set": {"x": large("b"), "u": 2}})
    assert caught.value.code == 11000
    of_images = {"op": "n", "ns": collection.full_name}
    assert database.client.local["oplog.rs"].count_documents(of_images) == 0
    collection.update_one({"_id": 1}, {"$set": {"x": large("b"), "u": 3}})
    image, change = database.client.local["oplog.rs"].find({"ns": collection.full_name, "op": {"$in": ["n", "u"]}}).sort("$natural", 1)
    assert (image["op"], image["preImage"]["x"][0], change["op"], change["preImageApart"]) == ("n", "a", "u", True)
    assert image["ui"] == change["ui"] and image["ts"] < change["ts"] and "preImage" not in change
