"""Commands as a user meets them: options with an effect, options refused, counters that move."""

import pymongo
import pytest
from bson import Binary, Int64
from bson.son import SON
from pinion_node import Beside, wait_until
from pymongo.errors import OperationFailure


def fails(database, command, code):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.code == code, caught.value.details
    return caught.value.details["errmsg"]


UNSUPPORTED = [
    ({"find": "c", "tailable": True}, "tailable"),
    ({"create": "n", "expireAfterSeconds": 10}, "expireAfterSeconds"),
]


@pytest.mark.parametrize("command,named", UNSUPPORTED, ids=lambda value: value if isinstance(value, str) else next(iter(value)))
def test_what_pinion_lacks_is_refused_by_name(client, command, named):
    database = client.refused
    database.c.insert_one({"a": 1})
    before = sorted(database.list_collection_names())
    reply = database.command(SON(command), check=False)
    if reply.get("ok"):
        errors = reply.get("writeErrors", [])
        assert errors, f"{command} was accepted: {reply}"
        text = errors[0]["errmsg"]
    else:
        text = reply["errmsg"]
    assert named.lower() in text.lower(), text
    assert sorted(database.list_collection_names()) == before
    assert list(database.c.find({}, {"_id": 0})) == [{"a": 1}] * database.c.count_documents({})
    database.drop_collection("c")


@pytest.mark.parametrize("command", ["atlasVersion", "replSetGetStatus2", "nosuch", "mapReduceX"])
def test_unknown_commands(client, command):
    assert command in fails(client.admin, {command: 1}, 59)


def test_unknown_fields_and_wrong_types(client):
    assert fails(client.test, {"find": "c", "foo": 1}, 40415) == "BSON field 'find.foo' is an unknown field."
    assert "'find.limit' is the wrong type 'string'" in fails(client.test, {"find": "c", "limit": "x"}, 14)
    assert "filter" in fails(client.test, {"find": "c", "filter": 1}, 14)
    assert "insert.documents" in fails(client.test, {"insert": "c"}, 40414)


def test_the_item_that_matched(collection):
    """findAndModify shows it in the document as it was."""
    for change in ({"update": {"$set": {"seen": 1}}}, {"update": {"n": 1}}, {"remove": True}):
        collection.replace_one({"_id": 1}, {"_id": 1, "items": [{"k": 1}, {"k": 2}, {"k": 3}]}, upsert=True)
        command = {"findAndModify": collection.name, "query": {"items.k": 2}, "fields": {"items.$": 1}, **change}
        assert collection.database.command(command)["value"] == {"_id": 1, "items": [{"k": 2}]}
    fails(collection.database, {**command, "remove": False, "update": {"$set": {"a": 1}}, "new": True}, 2)


def test_array_filters_and_pipelines(collection):
    collection.insert_one({"_id": 1, "grades": [80, 95, 100], "n": 2})
    collection.update_one({"_id": 1}, {"$set": {"grades.$[high]": 90}}, array_filters=[{"high": {"$gt": 90}}])
    assert collection.find_one()["grades"] == [80, 90, 90]
    after = collection.find_one_and_update(
        {"_id": 1}, [{"$set": {"total": {"$sum": "$grades"}, "by": "$$by"}}], let={"by": "x"}, return_document=True
    )
    assert after == {"_id": 1, "grades": [80, 90, 90], "n": 2, "total": 260, "by": "x"}
    database = collection.database
    constants = {"q": {}, "u": [{"$set": {"n": {"$add": ["$n", "$$step"]}}}], "c": {"step": 5}}
    assert database.command({"update": collection.name, "updates": [constants]})["nModified"] == 1
    assert collection.find_one()["n"] == 7
    made = collection.update_one({"_id": 2, "k": 1}, [{"$set": {"twice": {"$multiply": ["$k", 2]}}}], upsert=True)
    assert made.upserted_id == 2 and collection.find_one(2) == {"_id": 2, "k": 1, "twice": 2}
    statement = {"q": {}, "u": {"$set": {"a": 1}}, "c": {"x": 1}}
    assert database.command({"update": collection.name, "updates": [statement]}, check=False)["writeErrors"][0]["code"] == 51198


def test_indexes_of_one_key_side_by_side(collection):
    collection.insert_many([{"_id": 1, "a": 1}, {"_id": 2}])
    collection.create_index("a", name="plain")
    collection.create_index("a", name="only_there", sparse=True)
    for name, options, code in [("other", {}, 85), ("plain", {"sparse": True}, 86)]:
        with pytest.raises(OperationFailure) as caught:
            collection.create_index("a", name=name, **options)
        assert caught.value.code == code
    assert [d["_id"] for d in collection.find().hint("only_there")] == [1]
    with pytest.raises(OperationFailure) as caught:
        list(collection.find().hint([("a", 1)]))
    assert caught.value.code == 27
    assert "only_there" in fails(collection.database, {"dropIndexes": collection.name, "index": {"a": 1}}, 181)
    fails(collection.database, {"dropIndexes": collection.name, "index": ["plain", "plain"]}, 27)
    collection.drop_index("plain")
    assert sorted(collection.index_information()) == ["_id_", "only_there"]


def test_local_sessions(client):
    with client.start_session() as session:
        client.test.command("ping", session=session)
        stage = lambda spec: [d["_id"]["id"] for d in client.admin.aggregate([{"$listLocalSessions": spec}])]
        assert session.session_id["id"] in stage({})
        assert stage({"users": [{"user": "nobody", "db": "admin"}]}) == []
        fails(client.admin, {"killAllSessions": [{"user": "nobody"}]}, 40414)
        client.admin.command({"killAllSessions": [{"user": "nobody", "db": "admin"}]})
        assert session.session_id["id"] in stage({"allUsers": True})
        both = {"allUsers": True, "users": [{"user": "nobody", "db": "admin"}]}
        fails(client.admin, {"aggregate": 1, "pipeline": [{"$listLocalSessions": both}], "cursor": {}}, 12)


def test_hint_decides_the_plan(collection):
    collection.insert_many({"_id": i, "a": i % 3, "b": i % 5} for i in range(30))
    collection.create_index("a")
    collection.create_index("b")
    stage = lambda hint: collection.find({"a": 1, "b": 1}).hint(hint).explain()["queryPlanner"]["winningPlan"]
    assert "'indexName': 'a_1'" in str(stage("a_1"))
    assert "'indexName': 'b_1'" in str(stage([("b", 1)]))
    assert "COLLSCAN" in str(stage([("$natural", 1)]))
    with pytest.raises(OperationFailure) as caught:
        list(collection.find().hint("nosuch"))
    assert caught.value.code == 2
    assert sorted(d["_id"] for d in collection.find({"a": 1, "b": 1}).hint("a_1")) == [1, 16]


def test_batch_size_decides_what_each_reply_holds(collection):
    collection.insert_many({"_id": i} for i in range(250))
    database = collection.database
    first = database.command({"find": collection.name})["cursor"]
    assert len(first["firstBatch"]) == 101 and first["id"] != 0
    second = database.command(SON([("getMore", first["id"]), ("collection", collection.name), ("batchSize", 7)]))["cursor"]
    assert len(second["nextBatch"]) == 7
    third = database.command(SON([("getMore", first["id"]), ("collection", collection.name)]))["cursor"]
    assert len(third["nextBatch"]) == 250 - 108 and third["id"] == 0
    empty = database.command({"find": collection.name, "batchSize": 0})["cursor"]
    assert empty["firstBatch"] == [] and empty["id"] != 0
    assert database.command({"find": collection.name, "batchSize": 5, "singleBatch": True})["cursor"]["id"] == 0


def test_max_time_stops_a_slow_operation(collection):
    collection.insert_many({"_id": i, "a": [i] * 100} for i in range(20_000))
    examined = lambda: collection.database.command("serverStatus")["metrics"]["queryExecutor"]["scannedObjects"]
    query = collection.find({"a": {"$elemMatch": {"$gt": 1_000_000}}, "b": {"$regex": "x.*y"}}).sort("z")
    before = examined()
    assert list(query.clone()) == [] and examined() - before == 20_000
    before = examined()
    with pytest.raises(pymongo.errors.ExecutionTimeout):
        list(query.max_time_ms(1))
    assert examined() - before < 20_000


def test_current_op_lists_itself(client):
    assert any("currentOp" in op["command"] for op in client.admin.command("currentOp")["inprog"])
    listed = list(client.admin.aggregate([{"$currentOp": {}}]))
    assert any("aggregate" in op["command"] for op in listed), listed


def commented(client, comment):
    """The operations that are under way with this comment."""
    return [op for op in client.admin.command("currentOp")["inprog"] if op.get("command", {}).get("comment") == comment]


def test_a_comment_is_seen_in_current_op(client, collection):
    collection.insert_many({"_id": i, "a": list(range(200))} for i in range(20_000))
    seen = []

    def find():
        while not seen:
            list(collection.find({"a": {"$elemMatch": {"$gt": 1_000_000}}}).comment("look at me"))

    def look():
        seen.extend(commented(client, "look at me"))
        return bool(seen)

    finding = Beside(find)
    wait_until(look)
    assert finding.ended().error is None
    assert seen[0]["op"] == "query" and seen[0]["ns"].endswith(collection.name)


def test_kill_op_stops_an_operation(node, client, collection):
    collection.insert_many({"_id": i, "a": list(range(300))} for i in range(30_000))

    def slow():
        # Again where one has ended before it was killed.
        with node.client() as own:
            while True:
                list(own[collection.database.name][collection.name].find({"a": {"$elemMatch": {"$gt": 1e9}}}).comment("kill me"))

    finding = Beside(slow)

    def is_killed():
        for op in commented(client, "kill me"):
            client.admin.command({"killOp": 1, "op": op["opid"]})
        return not finding.is_alive()

    wait_until(is_killed)
    assert finding.error.code == 11601


def test_a_cursor_continues_on_another_connection_and_ends_with_its_session(node, client, collection):
    collection.insert_many({"_id": i} for i in range(300))
    with client.start_session() as session:
        reply = collection.database.command({"find": collection.name, "batchSize": 10}, session=session)
        cursor = reply["cursor"]["id"]
        with node.client(maxPoolSize=1) as other:
            database = other[collection.database.name]
            more = SON([("getMore", cursor), ("collection", collection.name), ("batchSize", 5), ("lsid", session.session_id)])
            raw = database.command(more, check=False)
            if raw.get("ok"):
                assert [d["_id"] for d in raw["cursor"]["nextBatch"]] == [10, 11, 12, 13, 14]
        collection.database.client.admin.command({"killSessions": [session.session_id]})
    reply = collection.database.command(SON([("getMore", cursor), ("collection", collection.name)]), check=False)
    assert reply["code"] == 43


def test_kill_cursors(collection):
    collection.insert_many({"_id": i} for i in range(300))
    database = collection.database
    cursor = database.command({"find": collection.name, "batchSize": 2})["cursor"]["id"]
    reply = database.command(SON([("killCursors", collection.name), ("cursors", [cursor, Int64(12345)])]))
    assert reply["cursorsKilled"] == [cursor] and reply["cursorsNotFound"] == [12345]


def test_write_errors_have_index_pattern_and_value(collection):
    collection.insert_one({"_id": 1, "u": 1})
    collection.create_index("u", unique=True)
    with pytest.raises(pymongo.errors.BulkWriteError) as caught:
        collection.insert_many([{"_id": 2}, {"_id": 1}, {"_id": 3, "u": 1}, {"_id": 4, "u": 4}], ordered=False)
    errors = caught.value.details["writeErrors"]
    assert [(e["index"], e["code"], e["keyPattern"], e["keyValue"]) for e in errors] == [
        (1, 11000, {"_id": 1}, {"_id": 1}), (2, 11000, {"u": 1}, {"u": 1})]
    assert caught.value.details["nInserted"] == 2
    with pytest.raises(pymongo.errors.BulkWriteError) as caught:
        collection.insert_many([{"_id": 5, "u": 5}, {"_id": 1}, {"_id": 6, "u": 6}])
    assert caught.value.details["nInserted"] == 1
    assert sorted(d["_id"] for d in collection.find()) == [1, 2, 4, 5]


def test_an_upsert_that_cannot_succeed_fails(collection):
    """The filter names a taken key and more: trying again could never help."""
    collection.insert_one({"_id": 1, "b": 1})
    collection.create_index("u", unique=True, sparse=True)
    collection.insert_one({"_id": 2, "u": 7})
    for filter_, change in (({"_id": 1, "b": 2}, {"$set": {"c": 1}}), ({"_id": 3}, {"$set": {"u": 7}}), ({"u": 7, "b": 1}, {"$set": {"c": 1}})):
        with pytest.raises(pymongo.errors.DuplicateKeyError):
            collection.update_one(filter_, change, upsert=True)
    assert collection.count_documents({}) == 2


def test_write_concern(client, collection):
    options = lambda **wc: collection.with_options(write_concern=pymongo.WriteConcern(**wc))
    options(w=0).insert_one({"_id": "unacknowledged"})
    options(w="majority").insert_one({"_id": "majority"})
    options(j=True).insert_one({"_id": "journaled"})
    with pytest.raises(OperationFailure) as caught:
        options(w=2).insert_one({"_id": "two"})
    assert caught.value.code == 2
    wait_until(lambda: collection.find_one("unacknowledged"))
    assert {d["_id"] for d in collection.find()} >= {"unacknowledged", "majority", "journaled"}
    # A client that takes a reply all the same learns nothing of the outcome.
    again = SON([("insert", collection.name), ("documents", [{"_id": "majority"}]), ("writeConcern", {"w": 0})])
    assert collection.database.command(again) == {"ok": 1.0}
    again["writeConcern"]["j"] = True
    assert collection.database.command(again)["writeErrors"][0]["code"] == 11000


def test_a_transaction_number_is_refused_as_a_standalone_does(collection):
    command = SON([("insert", collection.name), ("documents", [{"_id": 1}]), ("txnNumber", Int64(1))])
    with collection.database.client.start_session() as session:
        reply = collection.database.command(SON([*command.items(), ("lsid", session.session_id)]), check=False)
    assert reply["code"] == 20


def test_counters_move(client, collection):
    status = lambda: client.admin.command("serverStatus")
    before = status()
    collection.insert_many({"_id": i} for i in range(10))
    list(collection.find({"_id": 3}))
    list(collection.find().batch_size(2))
    collection.update_many({}, {"$set": {"a": 1}})
    collection.delete_one({"_id": 1})
    with pytest.raises(OperationFailure):
        client.test.command("find", "c", nosuch=1)
    after = status()
    moved = lambda *path: get(after, path) - get(before, path)
    assert moved("opcounters", "insert") == 10
    assert moved("opcounters", "query") >= 2 and moved("opcounters", "getmore") >= 4
    assert moved("opcounters", "update") >= 1 and moved("opcounters", "delete") >= 1 and moved("opcounters", "command") >= 1
    assert moved("network", "bytesIn") > 0 and moved("network", "bytesOut") > 0 and moved("network", "numRequests") > 10
    assert moved("metrics", "document", "inserted") == 10 and moved("metrics", "document", "deleted") == 1
    assert moved("metrics", "document", "updated") == 10 and moved("metrics", "document", "returned") >= 11
    assert moved("metrics", "commands", "find", "total") >= 3 and moved("metrics", "commands", "find", "failed") == 1
    assert moved("opLatencies", "reads", "ops") >= 2 and moved("opLatencies", "writes", "ops") >= 3
    assert moved("opLatencies", "reads", "latency") > 0
    for path in [("connections", "current"), ("mem", "resident"), ("wiredTiger", "cache", "bytes currently in the cache"),
                 ("globalLock", "totalTime"), ("uptimeMillis",), ("metrics", "cursor", "open", "total")]:
        get(after, path)
    client.admin.command("fsync")
    checkpoints = ("wiredTiger", "transaction", "transaction checkpoints")
    assert get(status(), checkpoints) > get(after, checkpoints)


def get(value, path):
    for name in path:
        value = value[name]
    return value


def test_nothing_of_a_replica_set_or_router_is_reported(client):
    hello = client.admin.command("hello")
    for name in ("setName", "hosts", "primary", "me", "msg", "electionId", "lastWrite", "secondary"):
        assert name not in hello
    for name in ("isWritablePrimary", "topologyVersion", "maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize",
                 "localTime", "logicalSessionTimeoutMinutes", "connectionId", "minWireVersion", "maxWireVersion", "readOnly", "ok"):
        assert name in hello
    assert hello["maxWireVersion"] == 25 and hello["minWireVersion"] == 0
    build = client.admin.command("buildInfo")
    assert build["version"].startswith("8.0.")


def test_big_messages(collection):
    text = "x" * (15 * 1024 * 1024)
    collection.insert_many({"_id": i, "text": text} for i in range(6))
    assert sum(len(d["text"]) for d in collection.find()) == 6 * len(text)
    with pytest.raises((pymongo.errors.PyMongoError, pymongo.errors.DocumentTooLarge)):
        collection.insert_one({"text": "x" * (17 * 1024 * 1024)})
    collection.drop()
    collection.insert_many([{"_id": i} for i in range(100_000)])
    assert collection.count_documents({}) == 100_000


def test_index_builds_over_existing_data(collection):
    collection.insert_many({"_id": i, "a": [i, i + 1], "u": i % 7} for i in range(2_000))
    collection.create_index([("a", -1)])
    assert collection.count_documents({"a": 5}) == 2
    assert [d["_id"] for d in collection.find({"a": {"$gte": 1998}}).sort("a", -1).hint("a_-1")] == [1999, 1998, 1997]
    with pytest.raises(OperationFailure) as caught:
        collection.create_index("u", unique=True)
    assert caught.value.code == 11000
    assert set(collection.index_information()) == {"_id_", "a_-1"}
    collection.drop_index("a_-1")
    assert set(collection.index_information()) == {"_id_"}


def test_empty_timestamps_are_filled_in_unless_the_command_says_otherwise(client, collection):
    from bson import Timestamp

    database, name, empty = client["pinion_test"], collection.name, Timestamp(0, 0)
    for keep in (False, True):
        extra = {"bypassEmptyTsReplacement": True} if keep else {}
        collection.delete_many({})
        database.command({"insert": name, "documents": [{"_id": 1, "t": empty}], **extra})
        database.command({"insert": name, "documents": [{"_id": 2}, {"_id": 3}]})
        database.command({"update": name, "updates": [{"q": {"_id": 2}, "u": {"t": empty}}], **extra})
        database.command({"update": name, "updates": [{"q": {"_id": 4}, "u": {"t": empty}, "upsert": True}], **extra})
        database.command({"findAndModify": name, "query": {"_id": 3}, "update": {"t": empty}, **extra})
        found = {document["_id"]: document["t"] for document in collection.find()}
        assert set(found) == {1, 2, 3, 4} and all((t == empty) == keep for t in found.values()), found
    with pytest.raises(OperationFailure, match="bypassEmptyTsReplacement"):
        database.command({"delete": name, "deletes": [{"q": {}, "limit": 0}], "bypassEmptyTsReplacement": True})


def test_unknown_index_options_are_dropped_where_asked(client, collection):
    database, name = client["pinion_test"], collection.name
    spec = {"key": {"a": 1}, "name": "a_1", "unique": True, "safe": None, "nosuch": 5}
    with pytest.raises(OperationFailure, match="safe"):
        database.command({"createIndexes": name, "indexes": [spec]})
    database.command({"createIndexes": name, "indexes": [spec], "ignoreUnknownIndexOptions": True})
    assert collection.index_information()["a_1"] == {"v": 2, "key": [("a", 1)], "unique": True}
    # What is meant for another engine is kept, if it is right.
    engine = lambda settings: {"createIndexes": name, "ignoreUnknownIndexOptions": True,
                               "indexes": [{"key": {"b": 1}, "name": "b_1", "storageEngine": settings}]}
    fails(database, engine({"other": {}}), 72)
    database.command(engine({"wiredTiger": {}}))
    assert collection.index_information()["b_1"]["storageEngine"] == {"wiredTiger": {}}


@pytest.mark.parametrize("explained", [
    {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}, {"delete": "c", "deletes": [{"q": {}, "limit": 1}]},
    {"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "a"}, {"findAndModify": "c", "remove": True},
    {"aggregate": "c", "pipeline": [], "cursor": {}},
])
def test_an_explained_command_is_read_as_strictly_as_one_that_runs(client, explained):
    database = client["pinion_test"]
    assert database.command({"explain": explained})["ok"] == 1
    with pytest.raises(OperationFailure, match="nosuch") as caught:
        database.command({"explain": {**explained, "nosuch": 1}})
    assert caught.value.code == 40415
    with pytest.raises(OperationFailure, match="let|query|key") as caught:
        database.command({"explain": {**explained, **({"query": 5} if {"count", "distinct"} & set(explained) else {"let": 5})}})
    assert caught.value.code == 14


@pytest.mark.parametrize(
    "command, code, named",
    [
        ({"find": "c", "filter": {"$where": "true"}}, 2, "$where"),
        ({"aggregate": "c", "pipeline": [{"$project": {"x": {"$function": {"body": "f", "args": [], "lang": "js"}}}}], "cursor": {}}, 31264, "$function"),
        ({"aggregate": "c", "pipeline": [{"$group": {"_id": 1, "x": {"$accumulator": {}}}}], "cursor": {}}, 31264, "$accumulator"),
        ({"mapReduce": "c", "map": "f", "reduce": "f", "out": {"inline": 1}}, 31264, "mapReduce"),
    ],
)
def test_javascript_is_switched_off(client, command, code, named):
    assert named in fails(client.refused, command, code)


def test_variables_of_commands_have_names_and_no_document(client):
    database = client.lets
    database.c.insert_one({"_id": 1, "a": 2})
    commands = [{"find": "c"}, {"aggregate": "c", "pipeline": [], "cursor": {}}, {"delete": "c", "deletes": [{"q": {"_id": 9}, "limit": 1}]},
                {"update": "c", "updates": [{"q": {"_id": 9}, "u": {"$set": {"b": 1}}}]}, {"findAndModify": "c", "query": {"_id": 9}, "remove": True}]
    for command in commands:
        for name in ["1", "", "A", "_x", "$a", "a.b", "x-y", "NOW"]:
            fails(database, {**command, "let": {name: 1}}, 9)
        for value in ["$a", "$$ROOT", {"$add": [1, "$a"]}, {"$getField": "a"}]:
            fails(database, {**command, "let": {"x": value}}, 4890500)
        assert database.command({**command, "let": {"x": {"$add": [1, 2]}, "y": "$$x", "é": "$$NOW", "CURRENT": 5}})["ok"] == 1


def test_reads_take_the_uuid_of_a_collection(client):
    database = client.uuids
    database.c.insert_many([{"_id": n} for n in range(3)])
    uuid = next(database.list_collections())["info"]["uuid"]
    assert len(database.command({"find": uuid})["cursor"]["firstBatch"]) == 3
    assert database.command({"count": uuid})["n"] == 3
    assert database.command({"distinct": uuid, "key": "_id"})["values"] == [0, 1, 2]
    assert database.command({"listIndexes": uuid})["cursor"]["ns"] == "uuids.c"
    fails(client.elsewhere, {"find": uuid}, 26)
    fails(database, {"find": Binary(b"short", 4)}, 207)
    fails(database, {"insert": uuid, "documents": [{}]}, 73)


def test_a_projection_shows_how_documents_were_found(client):
    database = client.metas
    collection = database.c
    collection.insert_many([{"_id": n, "a": n, "b": [n, n + 1]} for n in range(3)])
    collection.create_index("a")
    shown = lambda kind, **asked: [d.get("k") for d in database.command(
        {"find": "c", "projection": {"_id": 1, "k": {"$meta": kind}}, **asked})["cursor"]["firstBatch"]]
    assert shown("indexKey", hint="a_1") == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert shown("indexKey", filter={"_id": 1}) == [{"_id": 1}]
    assert shown("indexKey") == [None] * 3
    assert shown("sortKey", sort={"b": -1}) == [[3], [2], [1]]
    assert shown("sortKey", sort={"a": 1, "x": 1}, limit=1) == [[0, None]]
    fails(database, {"find": "c", "projection": {"k": {"$meta": "sortKey"}}}, 2)
    records = database.command({"find": "c", "showRecordId": True})["cursor"]["firstBatch"]
    assert shown("recordId") == [d["$recordId"] for d in records]
    fails(database, {"findAndModify": "c", "update": {"$set": {"z": 1}}, "fields": {"k": {"$meta": "recordId"}}}, 115)
