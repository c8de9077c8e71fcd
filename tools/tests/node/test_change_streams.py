"""Change streams by PyMongo: what events report, where streams continue, and that a set's failover
loses none."""

import time

import bson
import pymongo
import pytest
from bson import ObjectId, Timestamp
from bson.codec_options import CodecOptions
from pinion_elections import elected
from pinion_node import STEADY, Node, ReplicaSet, next_event, wait_until
from pymongo.errors import OperationFailure
from pymongo.read_preferences import ReadPreference

MANUAL = CodecOptions(uuid_representation=bson.binary.UuidRepresentation.STANDARD)


def fails(database, command, code, label=None):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.details["code"] == code, caught.value.details
    if label:
        assert caught.value.has_error_label(label), caught.value.details
    return caught.value.details


@pytest.fixture(scope="module")
def alone():
    with ReplicaSet(1) as members:
        yield members


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY) as members:
        yield members


@pytest.fixture
def database(alone):
    client = alone.client(uuidRepresentation="standard")
    name = f"d{ObjectId()}"
    yield client[name]
    client.drop_database(name)


def take(stream, count):
    """The next `count` events."""
    return [next_event(stream) for _ in range(count)]


def quiet(stream):
    """Nothing more comes."""
    assert stream.try_next() is None


def kinds(events):
    return [event["operationType"] for event in events]


def test_a_standalone_has_no_change_streams():
    with Node() as node:
        fails(node.client().test, {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, 40573)


def test_events_of_documents(database):
    collection = database.c
    with collection.watch(max_await_time_ms=200) as stream:
        quiet(stream)
        collection.insert_one({"_id": 1, "a": {"b": 1}, "l": [1, 2, 3]})
        collection.update_one({"_id": 1}, {"$set": {"a.b": 2, "n": 1}, "$unset": {"l": 1}})
        collection.replace_one({"_id": 1}, {"a": {"b": 2}, "n": 2, "long": "x" * 100})
        collection.delete_one({"_id": 1})
        database.other.insert_one({})
        events = take(stream, 4)
        quiet(stream)
    assert kinds(events) == ["insert", "update", "replace", "delete"]
    names = [list(event) for event in events]
    front = ["_id", "operationType", "clusterTime", "wallTime"]
    assert names[0] == [*front, "fullDocument", "ns", "documentKey"]
    assert names[1] == [*front, "ns", "documentKey", "updateDescription"]
    assert names[2] == names[0] and names[3] == [*front, "ns", "documentKey"]
    assert events[1]["updateDescription"] == {"updatedFields": {"a.b": 2, "n": 1}, "removedFields": ["l"], "truncatedArrays": []}
    assert events[2]["fullDocument"] == {"_id": 1, "a": {"b": 2}, "n": 2, "long": "x" * 100}
    assert all(event["documentKey"] == {"_id": 1} and event["ns"] == {"db": database.name, "coll": "c"} for event in events)
    times = [event["clusterTime"] for event in events]
    assert times == sorted(times)


def test_streams_of_databases_and_of_all(database):
    client = database.client
    with database.watch(max_await_time_ms=200) as of_one, client.watch(max_await_time_ms=200) as of_all:
        database.a.insert_one({"_id": 1})
        database.b.insert_one({"_id": 2})
        client["x" + database.name].c.insert_one({"_id": 3})
        client.config.junk.insert_one({})
        database.a.rename("c")
        database.c.drop()
        assert kinds(take(of_one, 4)) == ["insert", "insert", "rename", "drop"]
        client.drop_database("x" + database.name)
        client.drop_database(database.name)
        last = take(of_one, 3)
        assert kinds(last) == ["drop", "dropDatabase", "invalidate"]
        assert last[1]["ns"] == {"db": database.name}
        assert not of_one.alive
        seen = take(of_all, 9)
        assert kinds(seen) == ["insert", "insert", "insert", "rename", "drop", "drop", "dropDatabase", "drop", "dropDatabase"]
        assert seen[3]["to"] == {"db": database.name, "coll": "c"}
        quiet(of_all)


def test_expanded_events(database):
    with database.watch(show_expanded_events=True, max_await_time_ms=200) as stream:
        database.create_collection("c", capped=True, size=4096)
        database.c.create_index("a")
        database.c.insert_one({"_id": 1})
        database.command("collMod", "c", index={"name": "a_1", "hidden": True})
        database.c.drop_index("a_1")
        database.create_collection("v", viewOn="c", pipeline=[])
        events = take(stream, 6)
    assert kinds(events) == ["create", "createIndexes", "insert", "modify", "dropIndexes", "create"]
    uuid = events[0]["collectionUUID"]
    assert all(event["collectionUUID"] == uuid for event in events[:5])
    described = [event.get("operationDescription") for event in events]
    assert described[0]["capped"] is True and described[0]["idIndex"]["name"] == "_id_"
    assert described[1] == {"indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}]}
    assert described[3]["index"] == {"name": "a_1", "hidden": True}
    assert events[3]["stateBeforeChange"]["indexOptions"] == {"hidden": False}
    assert described[4]["indexes"][0]["name"] == "a_1"
    assert events[5]["nsType"] == "view" and described[5]["viewOn"] == "c"


def test_expanded_events_of_what_is_made_and_goes(database):
    with database.watch(show_expanded_events=True, max_await_time_ms=200) as stream, database.watch(max_await_time_ms=200) as plain:
        database.c.insert_one({"_id": 1, "a": 1, "b": 1})
        database.c.create_indexes([pymongo.IndexModel("a"), pymongo.IndexModel("b")])
        database.command("dropIndexes", "c", index="*")
        database.create_collection("target")
        database.c.rename("target", dropTarget=True)
        database.target.drop()
        events = take(stream, 2)
        while events[-1]["operationType"] != "drop" or events[-1]["ns"]["coll"] != "target":
            events += take(stream, 1)
        assert kinds(take(plain, 3)) == ["insert", "rename", "drop"]
        quiet(plain)
    assert kinds(events)[:2] == ["create", "insert"] and kinds(events)[-3:] == ["create", "rename", "drop"], kinds(events)
    made = [index["name"] for event in events if event["operationType"] == "createIndexes" for index in event["operationDescription"]["indexes"]]
    gone = [index["name"] for event in events if event["operationType"] == "dropIndexes" for index in event["operationDescription"]["indexes"]]
    assert sorted(made) == sorted(gone) == ["a_1", "b_1"]
    uuid, target = events[0]["collectionUUID"], events[-3]["collectionUUID"]
    renamed = events[-2]
    assert renamed["ns"]["coll"] == "c" and renamed["to"] == {"db": database.name, "coll": "target"} and renamed["collectionUUID"] == uuid
    assert renamed["operationDescription"] == {"to": {"db": database.name, "coll": "target"}, "dropTarget": target}
    assert events[-1]["collectionUUID"] == uuid and "operationDescription" not in events[-1]


def test_what_updates_report(database):
    collection = database.c
    collection.insert_one({"_id": 1, "l": [1, 2, 3], "n": {"0": 1, "a.b": 1, "x": {"y": 1}}, "0": {"z": 1}, "long": "x" * 100})
    with collection.watch(show_expanded_events=True, max_await_time_ms=200) as stream:
        def reported(update):
            collection.update_one({"_id": 1}, update)
            event = take(stream, 1)[0]
            assert event["operationType"] == "update"
            description = event["updateDescription"]
            assert list(description) == ["updatedFields", "removedFields", "truncatedArrays", "disambiguatedPaths"]
            return tuple(description.values())

        assert reported({"$push": {"l": 4}}) == ({"l.3": 4}, [], [], {})
        assert reported({"$set": {"l.0": 5}}) == ({"l.0": 5}, [], [], {})
        assert reported({"$pull": {"l": 5}}) == ({"l": [2, 3, 4]}, [], [], {})
        assert reported({"$inc": {"n.0": 1}}) == ({"n.0": 2}, [], [], {"n.0": ["n", "0"]})
        assert reported({"$set": {"n.x.y": 2}, "$unset": {"0.z": 1}}) == ({"n.x.y": 2}, ["0.z"], [], {})
        dotted = [{"$set": {"n": {"$setField": {"field": "a.b", "input": "$n", "value": 2}}, "l": [2, 3], "pad": "x"}}]
        updated, removed, truncated, paths = reported(dotted)
        assert (removed, truncated) == ([], [{"field": "l", "newSize": 2}])
        assert updated == {"n.a.b": 2, "pad": "x"} and paths == {"n.a.b": ["n", "a.b"]}


def test_collations(database):
    # That of the collection is none of a stream's.
    database.create_collection("c", collation={"locale": "en", "strength": 2})
    pipeline = [{"$changeStream": {}}, {"$match": {"fullDocument.s": "a"}}]
    opened = [database.command({"aggregate": "c", "pipeline": pipeline, "cursor": {}, **options})["cursor"]["id"]
              for options in ({"collation": {"locale": "en", "strength": 2}}, {})]
    database.c.insert_many([{"_id": i, "s": s} for i, s in enumerate("aAbBa")])
    for cursor, expected in zip(opened, ([0, 1, 4], [0, 4])):
        found = []
        while len(found) < len(expected):
            batch = database.command({"getMore": cursor, "collection": "c", "maxTimeMS": 5000})["cursor"]["nextBatch"]
            found += [event["documentKey"]["_id"] for event in batch]
        assert found == expected


def test_a_rename_ends_the_streams_of_both_names(database):
    database.a.insert_one({})
    with database.a.watch(max_await_time_ms=200) as of_old, database.b.watch(max_await_time_ms=200) as of_new:
        database.a.rename("b")
        for stream in (of_old, of_new):
            events = take(stream, 2)
            assert kinds(events) == ["rename", "invalidate"] and not stream.alive
    with database.b.watch(start_after=events[1]["_id"], max_await_time_ms=200) as stream:
        database.b.insert_one({"_id": 1})
        assert take(stream, 1)[0]["documentKey"] == {"_id": 1}


def test_an_invalidated_stream_is_started_after(database):
    collection = database.c
    collection.insert_one({"_id": 1})
    with collection.watch(max_await_time_ms=200) as stream:
        collection.drop()
        events = take(stream, 2)
        assert kinds(events) == ["drop", "invalidate"]
        assert not stream.alive
    token = events[1]["_id"]
    with pytest.raises(OperationFailure) as caught:
        collection.watch(resume_after=token)
    assert caught.value.code == 260
    collection.insert_one({"_id": 2})
    with collection.watch(start_after=token, max_await_time_ms=200) as stream:
        assert take(stream, 1)[0]["fullDocument"] == {"_id": 2}
    with collection.watch(resume_after=events[0]["_id"], max_await_time_ms=200) as stream:
        assert kinds(take(stream, 1)) == ["invalidate"]


def test_full_documents(database):
    collection = database.c
    collection.insert_one({"_id": 1, "a": 1})
    with collection.watch(full_document="updateLookup", max_await_time_ms=200) as stream:
        collection.update_one({"_id": 1}, {"$inc": {"a": 1}})
        assert take(stream, 1)[0]["fullDocument"] == {"_id": 1, "a": 2}
        collection.update_one({"_id": 1}, {"$inc": {"a": 1}})
        collection.delete_one({"_id": 1})
        assert take(stream, 2)[0]["fullDocument"] is None
    with collection.watch(full_document="required", max_await_time_ms=200) as stream:
        collection.insert_one({"_id": 2, "a": 1})
        take(stream, 1)
        collection.update_one({"_id": 2}, {"$inc": {"a": 1}})
        with pytest.raises(OperationFailure) as caught:
            take(stream, 1)
        assert caught.value.code == 47


def test_images(database):
    client = database.client
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    collection = database.c
    options = {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable", "max_await_time_ms": 200}
    with collection.watch(**options) as stream:
        collection.insert_one({"_id": 1, "a": 1})
        collection.update_one({"_id": 1}, {"$set": {"b": 1}})
        collection.update_one({"_id": 1}, {"$set": {"a": 2}})
        collection.replace_one({"_id": 1}, {"r": 1})
        collection.delete_one({"_id": 1})
        database.command("collMod", "c", changeStreamPreAndPostImages={"enabled": False})
        collection.insert_one({"_id": 2})
        collection.delete_one({"_id": 2})
        events = take(stream, 7)
    assert "fullDocumentBeforeChange" not in events[0]
    assert events[1]["fullDocumentBeforeChange"] == {"_id": 1, "a": 1}
    assert events[2]["fullDocumentBeforeChange"] == {"_id": 1, "a": 1, "b": 1}
    assert events[2]["fullDocument"] == {"_id": 1, "a": 2, "b": 1}
    assert events[3]["fullDocumentBeforeChange"] == {"_id": 1, "a": 2, "b": 1}
    assert events[4]["fullDocumentBeforeChange"] == {"_id": 1, "r": 1}
    assert events[6]["fullDocumentBeforeChange"] is None
    parameter = {"preAndPostImages": {"expireAfterSeconds": 1}}
    client.admin.command("setClusterParameter", {"changeStreamOptions": parameter})
    try:
        def is_gone():
            with collection.watch(resume_after=events[0]["_id"], **options) as stream:
                return take(stream, 1)[0]["fullDocumentBeforeChange"] is None

        wait_until(is_gone)
    finally:
        parameter["preAndPostImages"]["expireAfterSeconds"] = "off"
        client.admin.command("setClusterParameter", {"changeStreamOptions": parameter})


def test_streams_continue_where_they_were(database):
    collection = database.c
    with collection.watch(max_await_time_ms=200) as stream:
        collection.insert_many([{"_id": i} for i in range(10)])
        events = take(stream, 10)
        quiet(stream)
        last = stream.resume_token
    assert last["_data"] >= events[-1]["_id"]["_data"]
    for at, event in enumerate(events):
        with collection.watch(resume_after=event["_id"], max_await_time_ms=100) as stream:
            rest = take(stream, 9 - at)
            assert [event["documentKey"]["_id"] for event in rest] == list(range(at + 1, 10))
            quiet(stream)
    with collection.watch(start_at_operation_time=events[4]["clusterTime"], max_await_time_ms=100) as stream:
        assert take(stream, 1)[0]["clusterTime"] == events[4]["clusterTime"]
    # A quiet stream's token moves on with what others write.
    with collection.watch(max_await_time_ms=100) as stream:
        before = stream.resume_token["_data"]
        database.other.insert_many([{} for _ in range(10)])
        wait_until(lambda: stream.try_next() is None and stream.resume_token["_data"] > before)
        token = stream.resume_token
    collection.insert_one({"_id": "later"})
    with collection.watch(resume_after=token, max_await_time_ms=200) as stream:
        assert take(stream, 1)[0]["documentKey"] == {"_id": "later"}


def test_tokens_of_other_streams_and_times(database):
    client = database.client
    with database.a.watch(max_await_time_ms=200) as stream:
        database.a.insert_one({"_id": 1})
        database.b.insert_one({"_id": 1})
        token = take(stream, 1)[0]["_id"]
    # The event that this token is of is none of the other stream.
    with pytest.raises(OperationFailure) as caught, database.b.watch(resume_after=token, max_await_time_ms=200) as stream:
        take(stream, 1)
    assert caught.value.code == 280 and caught.value.has_error_label("NonResumableChangeStreamError")
    early = {"$changeStream": {"startAtOperationTime": Timestamp(1, 1)}}
    # Nothing was given up of the log of this set, so that there was nothing before it.
    assert client.test.command({"aggregate": "c", "pipeline": [early], "cursor": {}})["ok"] == 1


def test_stages_behind_a_stream(database):
    pipeline = [{"$match": {"operationType": "insert", "fullDocument.n": {"$gt": 1}}}, {"$project": {"fullDocument.n": 1}}, {"$set": {"x": 1}}]
    with database.c.watch(pipeline, max_await_time_ms=200) as stream:
        database.c.insert_many([{"n": n} for n in range(4)])
        database.c.delete_many({})
        events = take(stream, 2)
        quiet(stream)
    assert [(event["fullDocument"]["n"], event["x"]) for event in events] == [(2, 1), (3, 1)]
    with database.c.watch([{"$unset": "_id"}], max_await_time_ms=200) as stream, pytest.raises((OperationFailure, pymongo.errors.InvalidOperation)):
        database.c.insert_one({})
        take(stream, 1)

    def refused(stages, code, collection="c", **options):
        fails(database, {"aggregate": collection, "pipeline": stages, "cursor": {}, **options}, code)

    stream = {"$changeStream": {}}
    refused([stream, {"$group": {"_id": 1}}], 20)
    refused([stream, {"$out": "x"}], 20)
    lookup = {"from": "c", "localField": "a", "foreignField": "b", "as": "x"}
    for stage in ({"$sort": {"a": 1}}, {"$limit": 1}, {"$skip": 1}, {"$unwind": "$a"}, {"$lookup": lookup}, {"$count": "n"}, {"$sample": {"size": 1}},
                  {"$unionWith": "c"}, {"$bucketAuto": {"groupBy": "$a", "buckets": 2}}, {"$merge": "x"}, {"$facet": {"a": [{"$match": {}}]}}):
        refused([stream, stage], 20)
    kept = [{"$replaceRoot": {"newRoot": {"_id": "$_id", "key": "$documentKey"}}}, {"$redact": "$$KEEP"}, {"$addFields": {"y": 1}}]
    with database.c.watch(kept, max_await_time_ms=200) as kept_stream:
        database.c.insert_one({"_id": "kept"})
        event = take(kept_stream, 1)[0]
        assert event == {"_id": event["_id"], "key": {"_id": "kept"}, "y": 1}
    refused([{"$match": {}}, stream], 40602)
    refused([stream, stream], 40602)
    refused([{"$facet": {"a": [stream]}}], 40600)
    refused([stream, {"$nothing": 1}], 40324)
    refused([stream], 72, readConcern={"level": "local"})
    refused([stream], 73, collection="system.js")
    refused([{"$changeStream": {"allChangesForCluster": True}}], 72, collection=1)
    database.create_collection("v", viewOn="c", pipeline=[])
    refused([stream], 166, collection="v")
    for name in ("admin", "config", "local"):
        fails(database.client[name], {"aggregate": 1, "pipeline": [stream], "cursor": {}}, 73)
    fails(database, {"create": "w", "viewOn": "c", "pipeline": [stream]}, 167)


def test_cursors_of_streams(database):
    opened = database.command({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 2}})["cursor"]
    assert list(opened) == ["firstBatch", "postBatchResumeToken", "id", "ns"] and opened["id"]
    database.c.insert_many([{"_id": i} for i in range(5)])

    def more(**options):
        return database.command({"getMore": opened["id"], "collection": "c", "maxTimeMS": 200, **options})["cursor"]

    first = more(batchSize=2)
    assert [event["documentKey"]["_id"] for event in first["nextBatch"]] == [0, 1]
    assert first["postBatchResumeToken"] == first["nextBatch"][-1]["_id"]
    rest = more()
    assert len(rest["nextBatch"]) == 3
    started = time.monotonic()
    assert more()["nextBatch"] == []
    assert time.monotonic() - started > 0.15
    assert database.command({"killCursors": "c", "cursors": [opened["id"]]})["cursorsKilled"] == [opened["id"]]
    fails(database, {"getMore": opened["id"], "collection": "c"}, 43)


def test_events_that_are_too_large(database):
    collection = database.c
    half = "x" * (9 << 20)
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    collection.insert_one({"_id": 1, "a": half})
    pipeline = [{"$set": {"copy": "$fullDocument.a"}}]
    with collection.watch([*pipeline, {"$changeStreamSplitLargeEvent": {}}], max_await_time_ms=500) as stream:
        collection.replace_one({"_id": 1}, {"a": half, "b": 1})
        parts = take(stream, 2)
        quiet(stream)
    assert [part["splitEvent"] for part in parts] == [{"fragment": 1, "of": 2}, {"fragment": 2, "of": 2}]
    whole = {name: value for part in parts for name, value in part.items() if name not in ("_id", "splitEvent")}
    assert whole["operationType"] == "replace" and whole["copy"] == half and whole["fullDocument"]["a"] == half
    with collection.watch([*pipeline, {"$changeStreamSplitLargeEvent": {}}], resume_after=parts[0]["_id"], max_await_time_ms=500) as stream:
        assert take(stream, 1) == parts[1:]
    with pytest.raises(OperationFailure) as caught:
        collection.watch(pipeline, resume_after=parts[0]["_id"])
    assert caught.value.code == 280
    with collection.watch(pipeline, max_await_time_ms=500) as stream:
        collection.replace_one({"_id": 1}, {"a": half, "b": 2})
        with pytest.raises(OperationFailure) as caught:
            take(stream, 1)
        assert caught.value.code == 10334


def test_a_log_that_does_not_go_back_that_far():
    with ReplicaSet(1, options=("--oplogSize", "1", "--syncdelay", "1")) as members:
        client = members.client()
        collection = client.test.c
        with collection.watch(max_await_time_ms=100) as stream:
            collection.insert_one({"_id": "first"})
            token = take(stream, 1)[0]["_id"]
        # One that has not started to read, and one that is not asked while more comes than is kept
        # for it.
        not_started = client.test.command({"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": token}}], "cursor": {"batchSize": 0}})
        not_asked = client.test.command({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})
        first = client.local["oplog.rs"].find_one()["ts"]

        def is_gone():
            collection.insert_many([{"x": "y" * 100_000} for _ in range(100)])
            return client.local["oplog.rs"].find_one()["ts"] > token_time

        token_time = first
        wait_until(is_gone)
        with pytest.raises(OperationFailure) as caught:
            collection.watch(resume_after=token)
        assert caught.value.code == 286 and caught.value.has_error_label("NonResumableChangeStreamError")
        for opened in (not_started, not_asked):
            with pytest.raises(OperationFailure) as caught:
                for _ in range(2):
                    client.test.command({"getMore": opened["cursor"]["id"], "collection": "c", "maxTimeMS": 1000})
            assert caught.value.code == 286 and caught.value.has_error_label("NonResumableChangeStreamError")


def test_a_stream_continues_after_a_restart():
    with ReplicaSet(1) as members:
        node = members.nodes[0]
        collection = members.client().test.c
        with collection.watch(max_await_time_ms=200) as stream:
            collection.insert_many([{"_id": i} for i in range(5)])
            token = take(stream, 3)[-1]["_id"]
        node.stop()
        node.start()
        members.primary()
        client = members.client()
        with client.test.c.watch(resume_after=token, max_await_time_ms=200) as stream:
            client.test.c.insert_one({"_id": 5})
            assert [event["documentKey"]["_id"] for event in take(stream, 3)] == [3, 4, 5]


def test_secondaries_show_the_same(three):
    primary = three.client(w="majority")
    primary.test.create_collection("same", changeStreamPreAndPostImages={"enabled": True})
    options = {"full_document_before_change": "whenAvailable", "max_await_time_ms": 500}
    of_secondaries = [three.member(node).test.get_collection("same", read_preference=ReadPreference.SECONDARY_PREFERRED)
                      for node in three.secondaries()]
    streams = [collection.watch(**options) for collection in [primary.test.same, *of_secondaries]]
    for i in range(5):
        primary.test.same.insert_one({"_id": i, "n": 0})
        primary.test.same.update_one({"_id": i}, {"$set": {"n": 1}})
        primary.test.same.delete_one({"_id": i})
    reported = [take(stream, 15) for stream in streams]
    assert reported[0] == reported[1] == reported[2]
    assert reported[0][1]["fullDocumentBeforeChange"] == {"_id": 0, "n": 0}
    for stream in streams:
        stream.close()


def test_a_failover_loses_no_event(three):
    # So long the stream asks the member that is gone.
    client = three.client(w="majority", retryWrites=True, serverSelectionTimeoutMS=30_000)
    collection = client.test.failover
    with collection.watch(max_await_time_ms=500) as stream:
        for i in range(50):
            collection.insert_one({"_id": i})
            if i == 20:
                first = take(stream, 10)
                primary = three.primary()
                primary.kill()
                elected(three)
        rest = take(stream, 40)
        token = stream.resume_token
    primary.start()
    three.primary()
    assert [event["documentKey"]["_id"] for event in first + rest] == list(range(50))
    with collection.watch(resume_after=first[-1]["_id"], max_await_time_ms=500) as stream:
        assert take(stream, 40) == rest
    assert token["_data"] >= rest[-1]["_id"]["_data"]


def test_what_no_majority_has_is_not_shown(three):
    primary = three.primary()
    others = [node for node in three.nodes if node is not primary]
    client = three.member(primary, w=1)
    collection = client.test.alone
    collection.with_options(write_concern=pymongo.WriteConcern("majority")).insert_one({"_id": 0})
    with collection.watch(max_await_time_ms=500) as stream:
        for node in others:
            node.suspend()
        try:
            collection.insert_one({"_id": 1})
            for _ in range(3):
                quiet(stream)
        finally:
            for node in others:
                node.resume()
        # It may have been taken back meanwhile, or is shown now.
        collection = three.client(w="majority").test.alone
        wait_until(lambda: collection.insert_one({"_id": ObjectId()}).acknowledged)
