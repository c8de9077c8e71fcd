"""What a node says of parts that it has none of, and of its sessions, connections and
operations."""

import threading
import time

import pymongo
import pytest
from bson import Binary, SON
from pinion_node import Node, wait_until
from pymongo.errors import OperationFailure


def code(client, command, db="admin"):
    with pytest.raises(OperationFailure) as caught:
        client[db].command(SON(command))
    return caught.value.code


def test_what_a_standalone_has_no_part_in(client):
    for name in ("replSetStepDown", "replSetReconfig", "replSetInitiate", "replSetGetRBID"):
        assert code(client, {name: 1}) == 76
    assert code(client, {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}}) == 51300
    assert code(client, {"commitTransaction": 1}) == 125
    assert code(client, {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b""}) == 18
    assert code(client, {"saslContinue": 1, "conversationId": 1, "payload": b""}) == 17
    assert code(client, {"createSearchIndexes": "c", "indexes": []}, "test") == 31082
    assert client.admin.command("logout")["ok"] == 1
    version = client.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]["version"]
    assert code(client, {"setFeatureCompatibilityVersion": version}) == 7369100
    assert code(client, {"setFeatureCompatibilityVersion": "4.4", "confirm": True}) == 4926900
    assert client.admin.command("setFeatureCompatibilityVersion", version, confirm=True)["ok"] == 1


def test_sessions_are_killed_by_pattern(client):
    def sessions():
        pipeline = [{"$listLocalSessions": {"allUsers": True}}]
        return {bytes(one["_id"]["id"]) for one in client.admin.aggregate(pipeline)}

    started = [client.admin.command("startSession")["id"] for _ in range(3)]
    names = [bytes(one["id"]) for one in started]
    assert sessions() >= set(names)
    client.admin.command("killAllSessionsByPattern", [{"lsid": started[0]}])
    assert names[0] not in sessions() and sessions() >= set(names[1:])
    client.admin.command("killAllSessionsByPattern", [{"uid": Binary(b"x" * 32)}])
    assert sessions() >= set(names[1:])
    assert code(client, {"killAllSessionsByPattern": [{"nosuch": 1}]}) == 40415
    assert code(client, {"killAllSessionsByPattern": [{"users": [{"user": "a"}]}]}) == 40414
    client.admin.command("killAllSessionsByPattern", [])
    assert not sessions() & set(names)


def test_options_of_current_op():
    with Node() as node, node.client() as client:
        client.test.c.insert_many([{"_id": i} for i in range(10)])
        client.test.command("ping")
        shown = client.admin.command("currentOp", 1)["inprog"]
        assert all(one["active"] for one in shown)
        everything = client.admin.command(SON([("currentOp", 1), ("$all", True)]))["inprog"]
        assert len(everything) > len(shown) and not all(one["active"] for one in everything)
        filtered = client.admin.command(SON([("currentOp", 1), ("$or", [{"op": "nosuch"}, {"ns": "nosuch"}])]))
        assert filtered["inprog"] == []
        long = client.admin.command(SON([("currentOp", 1), ("$truncateOps", False), ("comment", "x" * 5000)]))["inprog"]
        assert any(one["command"].get("comment") == "x" * 5000 for one in long)


def status(client, *path):
    found = client.admin.command("serverStatus")
    for name in path:
        found = found[name]
    return found


def test_counters_of_operations_and_cursors_that_ended():
    with Node() as node, node.client() as client:
        collection = client.test.c
        collection.insert_many([{"_id": i} for i in range(10)])
        before = status(client, "metrics", "cursor")
        began = time.monotonic()
        assert len(list(collection.find(batch_size=3))) == 10
        took = time.monotonic() - began
        after = status(client, "metrics", "cursor")
        assert after["totalOpened"] == before["totalOpened"] + 1
        assert after["moreThanOneBatch"] == before["moreThanOneBatch"] + 1
        moved = [name for name, count in after["lifespan"].items() if count == before["lifespan"][name] + 1]
        assert sum(after["lifespan"].values()) == sum(before["lifespan"].values()) + 1
        assert moved == ["lessThan1Second"] or took > 1 and len(moved) == 1
        collection.insert_many([{"_id": i} for i in range(100, 50_000)])
        slow = {"$expr": {"$gt": [{"$reduce": {"input": {"$range": [0, 2000]}, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}, -1]}}
        with pytest.raises(OperationFailure) as caught:
            list(collection.find(slow, max_time_ms=1))
        assert caught.value.code == 50
        operations = status(client, "metrics", "operation")
        assert operations["killedDueToMaxTimeMSExpired"] == 1 and operations["killedDueToDefaultMaxTimeMSExpired"] == 0


def test_counters_of_the_network():
    with Node() as node, node.client() as plain, node.client(compressors="zlib") as client:
        client.test.c.insert_one({"_id": 1, "text": "x" * 10_000})
        assert client.test.c.find_one()["_id"] == 1
        network = status(plain, "network")
        zlib = network["compression"]["zlib"]
        assert zlib["decompressor"]["bytesOut"] > 10_000 > zlib["decompressor"]["bytesIn"] > 0
        assert zlib["compressor"]["bytesIn"] > 10_000 > zlib["compressor"]["bytesOut"] > 0
        assert network["compression"]["snappy"]["compressor"] == {"bytesIn": 0, "bytesOut": 0}
        assert network["bytesIn"] > 10_000 and network["numRequests"] > 2
        # The monitor of the driver waits for changes.
        wait_until(lambda: status(plain, "connections")["awaitingTopologyChanges"] >= 1)


def test_who_waits_in_front_of_a_lock():
    with Node() as node, node.client() as client:
        client.test.c.insert_one({"_id": 1})
        assert status(client, "globalLock", "currentQueue") == {"total": 0, "readers": 0, "writers": 0}
        client.admin.command("fsync", lock=True)
        writer = threading.Thread(target=lambda: pymongo.MongoClient(node.uri).test.c.insert_one({"_id": 2}))
        writer.start()
        wait_until(lambda: status(client, "globalLock", "currentQueue")["writers"] == 1)
        queue = status(client, "globalLock", "currentQueue")
        client.admin.command("fsyncUnlock")
        writer.join()
        assert queue == {"total": 1, "readers": 0, "writers": 1}


def test_what_a_collector_takes(client):
    data = client.admin.command("getDiagnosticData")["data"]
    machine = data["systemMetrics"]
    assert machine["cpu"]["num_cpus"] >= 1 and machine["cpu"]["user_ms"] > 0
    assert machine["memory"]["MemTotal_kb"] > machine["memory"]["MemFree_kb"] > 0
    assert data["serverStatus"]["uptimeMillis"] > 0 and data["start"] <= data["end"]


def test_the_version_is_stored(tmp_path):
    with Node(directory=tmp_path) as node, node.client() as client:
        version = client.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]["version"]
        assert client.admin["system.version"].find_one() == {"_id": "featureCompatibilityVersion", "version": version}
        assert client.list_database_names() == ["admin", "local"]
        reported = client.admin.command("getParameter", 1, syncdelay=1, localLogicalSessionTimeoutMinutes=1)
        assert reported["syncdelay"] == 60.0 and reported["localLogicalSessionTimeoutMinutes"] == 30
