"""Stages that make their documents themselves: what they show, and where they are refused."""

import pymongo
import pytest
from pinion_node import wait_until
from pymongo.errors import OperationFailure


def fails(database, collection, stage, code, **options):
    with pytest.raises(OperationFailure) as caught:
        database.command({"aggregate": collection, "pipeline": [stage], "cursor": {}, **options})
    assert caught.value.code == code, caught.value.details
    return caught.value.details["errmsg"]


def test_coll_stats_count_what_a_collection_was_used_for(client):
    collection = client.first.used
    collection.insert_many([{"_id": i} for i in range(20)])
    for _ in range(3):
        assert list(collection.find({"a": 1})) == []
    asked = {"latencyStats": {"histograms": True}, "queryExecStats": {}, "operationStats": {}, "count": {}}
    (reported,) = collection.aggregate([{"$collStats": asked}])
    reads, writes = reported["latencyStats"]["reads"], reported["latencyStats"]["writes"]
    assert (reads["ops"], writes["ops"]) == (3, 1), reported
    assert sum(bucket["count"] for bucket in reads["histogram"]) == 3
    assert reported["queryExecStats"]["collectionScans"] == {"total": 3, "nonTailable": 3}
    assert reported["operationStats"]["insert"]["count"] == 1
    assert reported["count"] == 20
    assert "buckets" in fails(client.first, "none", {"$collStats": {"buckets": {}}}, 40415)
    assert "queryExecStats" in fails(client.first, "none", {"$collStats": {"queryExecStats": {}}}, 26)


def test_idle_connections_are_shown_where_they_are_asked_for(client, node):
    with pymongo.MongoClient(node.uri, appname="idler") as other:
        other.admin.command("ping")
        # What monitors the server for the driver waits in a hello, which is at work.
        idle = lambda spec: [op for op in client.admin.aggregate([{"$currentOp": spec}])
                             if op.get("appName") == "idler" and not op["active"]]
        assert idle({}) == []
        shown = idle({"idleConnections": True})
        assert shown and all("opid" not in op for op in shown)
    tasks = lambda spec: {op.get("desc") for op in client.admin.aggregate([{"$currentOp": spec}]) if not op["active"]}
    # Each is at work now and then.
    for task in ("TTLMonitor", "clientcursormon"):
        wait_until(lambda task=task: task in tasks({"idleConnections": True}))
    assert "TTLMonitor" not in tasks({})
    fails(client.first, 1, {"$currentOp": {}}, 73)


def test_the_catalog_is_listed(client):
    client.first.listed.create_index("a")
    client.other.listed.insert_one({})
    listed = lambda name: [c["ns"] for c in client[name].aggregate([{"$listClusterCatalog": {}}])]
    assert "first.listed" in listed("first") and "other.listed" not in listed("first")
    assert {"first.listed", "other.listed"} <= set(listed("admin"))
    (row,) = client.first.listed.aggregate([{"$listCatalog": {}}])
    assert [index["spec"]["name"] for index in row["md"]["indexes"]] == ["_id_", "a_1"]
    assert list(row)[:7] == ["db", "name", "type", "md", "idxIdent", "ns", "ident"]
    client.first.create_collection("some", viewOn="listed", pipeline=[{"$match": {"a": 1}}], collation={"locale": "fr"})
    (view,) = [row for row in client.admin.aggregate([{"$listCatalog": {}}]) if row["ns"] == "first.some"]
    assert list(view) == ["db", "name", "type", "ns", "_id", "viewOn", "pipeline", "collation"]
    assert view["_id"] == "first.some" and view["viewOn"] == "listed"


def test_the_catalog_knows_which_components_are_arrays_and_explain_says_the_same(client):
    collection = client.first.arrays
    keys = {"plain": [("a.b", 1), ("c", -1)], "sphere": [("p", "2dsphere")], "hash": [("h", "hashed")]}
    for name, key in keys.items():
        collection.create_index(key, name=name)

    def rows():
        (row,) = collection.aggregate([{"$listCatalog": {}}])
        return {index["spec"]["name"]: index for index in row["md"]["indexes"]}

    def explained(name, query):
        command = {"find": "arrays", "filter": query, "hint": name}
        plan = client.first.command("explain", command, verbosity="queryPlanner")["queryPlanner"]["winningPlan"]
        while plan["stage"] != "IXSCAN":
            plan = plan["inputStage"]
        return plan["isMultiKey"], plan.get("multiKeyPaths")

    known = rows()
    assert list(known["plain"]) == ["spec", "ready", "multikey", "multikeyPaths", "head", "backgroundSecondary"]
    assert {name: index.get("multikeyPaths") for name, index in known.items()} == {
        "_id_": {"_id": b"\0"}, "plain": {"a.b": b"\0\0", "c": b"\0"}, "sphere": {"p": b"\0"}, "hash": None}
    assert not any(index["multikey"] for index in known.values())
    assert explained("plain", {"a.b": 1}) == (False, {"a.b": [], "c": []})
    assert explained("hash", {"h": 1}) == (False, None)
    collection.insert_many([{"a": [{"b": 1}]}, {"c": [1, 2]}])
    known = rows()
    assert known["plain"]["multikey"] and known["plain"]["multikeyPaths"] == {"a.b": b"\1\0", "c": b"\1"}
    assert explained("plain", {"a.b": 1}) == (True, {"a.b": ["a"], "c": ["c"]})
    assert not known["hash"]["multikey"] and not known["sphere"]["multikey"]


def test_stages_are_refused_by_read_concern_api_version_and_place(client):
    database = client.first
    database.listed.insert_one({})
    strict = {"apiVersion": "1", "apiStrict": True}
    fails(database, "listed", {"$indexStats": {}}, 323, **strict)
    fails(database, "listed", {"$collStats": {"storageStats": {}}}, 323, **strict)
    database.command({"aggregate": "listed", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}, **strict})
    fails(client.admin, 1, {"$currentOp": {}}, 72, readConcern={"level": "majority"})
    fails(database, "listed", {"$changeStream": {}}, 40573)
    fails(database, "listed", {"$vectorSearch": {}}, 31082)
    fails(database, "listed", {"$unionWith": {"coll": "c", "pipeline": [{"$listSessions": {}}]}}, 73)
    inner = {"$unionWith": "c"}
    for _ in range(20):
        inner = {"$unionWith": {"coll": "c", "pipeline": [inner]}}
    fails(database, "listed", inner, 232)
