"""Commands of administrators and their tools: what they count, set and refuse."""

import hashlib

import pymongo
import pytest
from bson import encode
from gridfs import GridFS
from pymongo.errors import OperationFailure
from pinion_node import PATIENCE_MS, Node


def fails(database, command, code):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.code == code, caught.value.details


def test_data_size_of_a_range(collection):
    collection.insert_many([{"_id": n, "x": n} for n in range(100)])
    collection.create_index("x")
    size = lambda **options: collection.database.command({"dataSize": collection.full_name, **options})
    assert size()["numObjects"] == 100 and size()["size"] == 100 * len(encode({"_id": 1, "x": 1}))
    ranged = size(keyPattern={"x": 1}, min={"x": 10}, max={"x": 20})
    assert ranged["numObjects"] == 10 and ranged["size"] == 10 * len(encode({"_id": 1, "x": 1}))
    assert size(min={"_id": 5}, max={"_id": 6})["numObjects"] == 1
    assert size(keyPattern={"x": 1}, min={"x": 20}, max={"x": 10})["numObjects"] == 0
    assert size(maxObjects=5)["maxReached"] is True
    fails(collection.database, {"dataSize": collection.full_name, "min": {"x": 1}}, 2)
    fails(collection.database, {"dataSize": collection.full_name, "min": {"z": 1}, "max": {"z": 2}}, 96)


def test_digests(client, collection):
    documents = [{"_id": n, "x": "y" * n} for n in range(50)]
    collection.insert_many(documents)
    digests = collection.database.command({"dbHash": 1, "collections": [collection.name]})
    assert digests["collections"] == {collection.name: hashlib.md5(b"".join(map(encode, documents))).hexdigest()}
    name, data = client.pinion_files, b"some bytes" * 100_000
    id = GridFS(name).put(data)
    found = name.command({"filemd5": id, "root": "fs"})
    assert found["md5"] == hashlib.md5(data).hexdigest() and found["numChunks"] == 4


def test_compact_merges_what_waits(client, collection):
    collection.insert_many([{"_id": n, "x": "y" * 1000} for n in range(1000)])
    assert collection.database.command("compact", collection.name)["bytesFreed"] >= 0
    assert client.admin.command("serverStatus")["pinion"]["storage"]["deltaBytes"] < 100_000
    fails(collection.database, {"compact": "nosuch"}, 26)
    fails(collection.database, {"compact": collection.name, "freeSpaceTargetMB": 0}, 2)
    client.admin.command({"autoCompact": True})
    fails(client.admin, {"autoCompact": True}, 314)
    client.admin.command({"autoCompact": False})


def test_indexes_made_again(client, collection):
    collection.insert_many([{"_id": n, "x": n % 7, "u": n} for n in range(500)])
    collection.create_index("x")
    collection.create_index("u", unique=True)
    made = collection.database.command("reIndex", collection.name)
    assert made["nIndexesWas"] == made["nIndexes"] == 3 and [index["name"] for index in made["indexes"]] == ["_id_", "x_1", "u_1"]
    assert collection.count_documents({"x": 3}, hint="x_1") == len([n for n in range(500) if n % 7 == 3])
    assert collection.database.command("validate", collection.name, full=True)["valid"]
    with pytest.raises(pymongo.errors.DuplicateKeyError):
        collection.insert_one({"u": 3})
    fails(collection.database, {"reIndex": "nosuch"}, 26)


def test_commands_describe_themselves(client):
    assert client.admin.command({"reIndex": "c", "help": True})["help"].startswith("help for: reIndex ")
    assert client.admin.command({"shutdown": 1, "help": True})["ok"] == 1


def test_cluster_parameters_are_kept():
    with Node("--cpus", "2") as node:
        with node.client() as client:
            client.admin.command({"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 1}}})
            client.d.c.insert_many([{"_id": n, "x": "y" * 100} for n in range(20_000)])
        node.stop()
        node.start()
        with node.client() as client:
            (parameter,) = client.admin.command({"getClusterParameter": "defaultMaxTimeMS"})["clusterParameters"]
            assert parameter["readOperations"] == 1
            # It is the time of reads that name none.
            slow = [{"$match": {"x": {"$regex": "z$"}}}, {"$sort": {"x": 1}}]
            with pytest.raises(pymongo.errors.ExecutionTimeout):
                for _ in range(100):
                    list(client.d.c.aggregate(slow))
            assert list(client.d.c.aggregate(slow, maxTimeMS=PATIENCE_MS)) == []
            fails(client.admin, {"setClusterParameter": {"nosuch": {}}}, 4)


def test_log_components_have_a_verbosity(node, client, collection):
    lines = lambda: sum("Command failed" in line for line in client.admin.command({"getLog": "global"})["log"])
    fails(client.admin, {"setParameter": 1, "logComponentVerbosity": {"nosuch": {"verbosity": 1}}}, 2)
    before = lines()
    fails(collection.database, {"count": collection.name, "nosuch": 1}, 40415)
    assert lines() == before
    client.admin.command({"setParameter": 1, "logComponentVerbosity": {"command": {"verbosity": 1}}})
    fails(collection.database, {"count": collection.name, "nosuch": 1}, 40415)
    assert lines() == before + 1
    reported = client.admin.command({"getParameter": 1, "logComponentVerbosity": 1})["logComponentVerbosity"]
    assert reported["verbosity"] == 0 and reported["command"]["verbosity"] == 1 and reported["storage"]["recovery"]["verbosity"] == -1
    client.admin.command({"setParameter": 1, "logComponentVerbosity": {"command": {"verbosity": -1}}})


def test_what_monitors_read(client, collection):
    status = client.admin.command("serverStatus")
    assert status["extra_info"]["page_faults"] >= 0 and status["extra_info"]["user_time_us"] > 0
    passed = status["locks"]["Collection"]["acquireCount"]["w"]
    collection.insert_one({})
    status = client.admin.command("serverStatus")
    assert status["locks"]["Collection"]["acquireCount"]["w"] > passed
    assert status["catalogStats"]["collections"] >= 1
    builds = status["indexBuilds"]["total"]
    collection.create_index("built")
    status = client.admin.command("serverStatus")["indexBuilds"]
    assert set(status.pop("phases").values()) == {0}
    assert status == {"total": builds + 1, "killedDueToInsufficientDiskSpace": 0, "failedDueToDataCorruption": 0}
    assert client.admin.command("getDiagnosticData")["data"]["serverStatus"]["opcounters"]["insert"] >= 1
    assert client.admin.command("lockInfo")["lockInfo"] == []
    host = client.admin.command("hostInfo")["system"]
    assert host["numCores"] >= host["numPhysicalCores"] >= host["numCpuSockets"] >= 1
    assert client.admin.command("usersInfo", 1)["users"] == [] and client.admin.command("rolesInfo", 1)["roles"] == []
    fails(client.admin, {"usersInfo": True}, 2)
