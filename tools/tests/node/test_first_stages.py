"""Stages that make their documents themselves: what they show, and where they are refused."""

import pymongo
import pytest
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
    (told,) = collection.aggregate([{"$collStats": asked}])
    reads, writes = told["latencyStats"]["reads"], told["latencyStats"]["writes"]
    assert (reads["ops"], writes["ops"]) == (3, 1), told
    assert sum(bucket["count"] for bucket in reads["histogram"]) == 3
    assert told["queryExecStats"]["collectionScans"] == {"total": 3, "nonTailable": 3}
    assert told["operationStats"]["insert"]["count"] == 1
    assert told["count"] == 20
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
    assert {"TTLMonitor", "clientcursormon"} <= tasks({"idleConnections": True})
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
