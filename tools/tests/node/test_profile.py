"""The profiler: which operations it writes, and what of them."""

import pytest
from pinion_log import lines
from pinion_node import Node
from pymongo.errors import OperationFailure


@pytest.fixture
def database(client, request):
    name = f"profile_{request.node.name}"[:60]
    client.drop_database(name)
    yield client[name]
    client[name].command("profile", 0, filter="unset", slowms=100, sampleRate=1.0)


def written(database, **filter):
    return list(database["system.profile"].find({"ns": f"{database.name}.c", **filter}, {"_id": 0}))


def test_all_operations_are_written(database):
    database.c.insert_one({"_id": 1})
    assert database.command("profile", 2)["was"] == 0
    database.c.insert_one({"_id": 2})
    assert list(database.c.find({"a": 1})) == []
    for _ in range(3):
        database.c.find_one({"_id": 2})
    with pytest.raises(OperationFailure):
        database.command({"find": "c", "filter": {"$nope": 1}})
    inserted, scanned, *by_id, failed = written(database)
    assert inserted["op"] == "insert" and inserted["command"]["insert"] == "c"
    assert (scanned["planSummary"], scanned["docsExamined"], scanned["nreturned"]) == ("COLLSCAN", 2, 0)
    assert [entry["planSummary"] for entry in by_id] == ["IDHACK"] * 3 and by_id[2]["nreturned"] == 1
    assert failed["errCode"] == 2 and failed["ok"] == 0 and failed["millis"] >= 0
    (reported,) = database.list_collections(filter={"name": "system.profile"})
    assert reported["options"] == {"capped": True, "size": 1024 * 1024}
    with pytest.raises(OperationFailure, match="turn off profiling"):
        database["system.profile"].drop()
    database.command("profile", 0)
    database.c.find_one()
    assert len(written(database)) == 6


def test_statements_are_written_one_by_one(database):
    database.c.insert_many([{"_id": i, "a": i} for i in range(5)])
    database.command("profile", 2)
    database.command("update", "c", updates=[
        {"q": {"_id": 1}, "u": {"$set": {"b": 1}}},
        {"q": {"a": {"$gte": 1}}, "u": {"$set": {"b": 1}}, "multi": True},
        {"q": {"_id": 9}, "u": {"$set": {"b": 1}}, "upsert": True},
    ])
    database.command("delete", "c", deletes=[{"q": {"a": 2}, "limit": 1}, {"q": {}, "limit": 0}])
    by_id, several, upsert, one, every = written(database, op={"$in": ["update", "remove"]})
    assert by_id["command"] == {"q": {"_id": 1}, "u": {"$set": {"b": 1}}, "multi": False, "upsert": False}
    assert (by_id["planSummary"], by_id["keysExamined"], by_id["docsExamined"]) == ("IDHACK", 1, 1)
    assert (by_id["nMatched"], by_id["nModified"]) == (1, 1)
    assert (several["planSummary"], several["nMatched"], several["nModified"], several["docsExamined"]) == ("COLLSCAN", 4, 3, 5)
    assert (upsert["nMatched"], upsert["nUpserted"]) == (0, 1)
    assert (one["op"], one["ndeleted"], every["ndeleted"]) == ("remove", 1, 5)
    assert "responseLength" not in every


def stages(reported):
    while reported:
        yield reported["stage"], reported
        reported = reported.get("inputStage")


def test_stages_of_plans_are_written(database):
    database.c.create_index("a")
    database.c.insert_many([{"_id": i, "a": i % 5, "b": i} for i in range(50)])
    database.command("profile", 2)
    assert len(list(database.c.find({"a": 1, "b": {"$gt": 10}}, batch_size=5).sort("b", -1))) == 8
    database.c.find_one({"_id": 7})
    database.c.update_many({"a": {"$gte": 3}}, {"$set": {"c": 1}})
    database.c.delete_one({"_id": 3})
    assert database.c.count_documents({"a": 2}) == 10
    database.command("count", "c", query={"a": 2})
    database.command("count", "c")
    database.command("distinct", "c", key="a")
    found, more, by_id, updated, deleted, _, count, everything, distinct = written(database)
    plan = dict(stages(found["execStats"]))
    assert list(plan) == ["SORT", "FETCH", "IXSCAN"] and plan["SORT"]["nReturned"] == found["nreturned"] == 5
    assert (plan["IXSCAN"]["keysExamined"], plan["FETCH"]["docsExamined"], plan["FETCH"]["nReturned"]) == (10, 10, 8)
    assert plan["IXSCAN"]["indexBounds"] == {"a": ["[1, 1]"]} and plan["FETCH"]["filter"] == {"b": {"$gt": 10}}
    assert more["execStats"]["nReturned"] == 8 and more["queryHash"] == found["queryHash"]
    assert len(found["planCacheKey"]) == 8 and "queryHash" not in by_id
    assert dict(stages(by_id["execStats"]))["IDHACK"]["docsExamined"] == 1
    plan = dict(stages(updated["execStats"]))
    assert list(plan) == ["UPDATE", "FETCH", "IXSCAN"]
    assert (plan["UPDATE"]["nMatched"], plan["UPDATE"]["nWouldModify"], plan["FETCH"]["docsExamined"]) == (20, 20, 20)
    assert deleted["execStats"]["nWouldDelete"] == 1
    assert [stage for stage, _ in stages(count["execStats"])] == ["COUNT", "COUNT_SCAN"] and count["execStats"]["nCounted"] == 10
    assert everything["execStats"]["stage"] == everything["planSummary"] == "RECORD_STORE_FAST_COUNT"
    assert [stage for stage, _ in stages(distinct["execStats"])] == ["PROJECTION_COVERED", "DISTINCT_SCAN"]


def test_locks_are_written(database):
    database.command("profile", 2)
    database.c.insert_one({"_id": 1})
    list(database.c.find({"a": 1}))
    inserted, found = written(database)
    assert found["locks"] == {"Collection": {"acquireCount": {"r": 1}}}
    assert inserted["locks"]["Collection"]["acquireCount"]["w"] >= 1


def test_cursors_are_followed(database):
    database.c.insert_many([{"_id": i, "a": i} for i in range(5)])
    database.command("profile", 2)
    assert len(list(database.c.find(batch_size=3, comment="why"))) == 5
    assert [one["a"] for one in database.c.find().sort("a", -1)] == [4, 3, 2, 1, 0]
    first, more, sorted_ = written(database)
    assert first["cursorid"] and first["command"]["comment"] == "why" and "cursorExhausted" not in first
    assert (more["op"], more["nreturned"], more["cursorExhausted"]) == ("getmore", 2, True)
    assert more["originatingCommand"]["find"] == "c"
    assert sorted_["hasSortStage"] and sorted_["client"] == "127.0.0.1"


def test_slow_ones_and_filters(database):
    database.command("profile", 1, slowms=100_000)
    database.c.find_one()
    assert written(database) == []
    database.command("profile", 1, slowms=-1)
    database.c.find_one()
    assert len(written(database)) == 1
    database.command("profile", 1, sampleRate=0.0)
    database.c.find_one()
    assert len(written(database)) == 1
    database.command("profile", 1, filter={"op": "insert"})
    database.c.insert_one({})
    database.c.find_one()
    assert [entry["op"] for entry in written(database)] == ["query", "insert"]
    reported = database.command("profile", -1, filter="unset")
    assert reported["filter"] == {"op": {"$eq": "insert"}} and reported["was"] == 1
    assert "filter" in database.command("profile", 0, filter="unset")
    assert "filter" not in database.command("profile", -1)


def test_what_was_chosen_decides_on_the_log_too():
    with Node("--slowms", "0") as node:
        database = node.client().d
        database.command("profile", 0, filter={"op": "insert"})
        database.c.insert_one({"_id": 1})
        database.c.find_one()
        database.command("profile", 0, filter="unset", sampleRate=0.0)
        database.c.insert_one({"_id": 2})
        slow = [line["attr"]["command"] for line in lines(node, msg="Slow query")]
        of_data = [command for command in slow if command["$db"] == "d" and "profile" not in command]
        assert len(of_data) == 1 and of_data[0]["insert"] == "c"
        (changed, _) = lines(node, msg="Profiler settings changed")
        assert changed["attr"]["db"] == "d" and '"op"' in changed["attr"]["to"]


def test_a_database_is_not_made_by_what_only_asks():
    with Node("--profile", "all") as node:
        client = node.client()
        assert client.d.c.find_one() is None
        assert "d" not in client.list_database_names()
        client.d.c.insert_one({})
        assert client.d["system.profile"].find_one({"op": "insert"})["ninserted"] == 1
        client.drop_database("d")
        assert "d" not in client.list_database_names()
        with pytest.raises(OperationFailure, match="exists but isn't capped"):
            client.e["system.profile"].create_index("a") and client.e.command("profile", 1)


def test_a_node_starts_with_a_mode():
    with Node("--profile", "2", "--slowOpSampleRate", "0.5") as node:
        client = node.client()
        assert client.d.command("profile", -1) == {"was": 2, "slowms": 100, "sampleRate": 0.5, "ok": 1.0}
        client.d.c.insert_one({"_id": 1})
        assert client.d["system.profile"].find_one({"op": "insert"})["ns"] == "d.c"
