"""Old versions, and changes above the commit point, are on disk: snapshots last, and writes
continue, far beyond the memory for them."""

from pinion_elections import takes_over
from pinion_node import STEADY, Node, ReplicaSet, wait_until
from pymongo import WriteConcern

# 40 % of it may be changes.
CACHE = ("--wiredTigerCacheSizeGB", "0.25", "--cpus", "1")
# Nor does a snapshot end by its age.
LASTING = ("--setParameter", "minSnapshotHistoryWindowInSeconds=3600")
PADDING = "x" * 1000


def storage_of(client):
    return client.admin.command("serverStatus")["pinion"]["storage"]


def insert(collection, megabytes, first=0):
    for batch in range(first, first + megabytes):
        collection.insert_many([{"_id": batch * 1000 + n, "v": 0, "p": PADDING} for n in range(1000)])


def test_a_snapshot_lasts_whatever_others_write():
    with ReplicaSet(1, options=(*CACHE, *LASTING)) as members, members.client() as client:
        collection = client.test.c
        insert(collection, 40)
        with client.start_session(snapshot=True) as session:
            assert collection.find_one({"_id": 5}, session=session)["v"] == 0
            for _ in range(4):
                collection.update_many({}, {"$inc": {"v": 1}})
            status = storage_of(client)
            assert status["snapshotDiskBytes"] > 0 and status["snapshotsEnded"] == 0
            assert collection.find_one({"_id": 39005}, session=session)["v"] == 0
            values = collection.aggregate([{"$group": {"_id": "$v", "n": {"$sum": 1}}}], session=session)
            assert list(values) == [{"_id": 0, "n": 40000}]
        assert collection.count_documents({"v": 4}) == 40000


def test_writes_continue_while_the_commit_point_stands_still():
    arbiter = Node("--replSet", "rs0", "--cpus", "1")
    with ReplicaSet(2, STEADY, options=CACHE) as members, members.client() as client:
        arbiter.start()
        try:
            client.admin.command("setDefaultRWConcern", defaultWriteConcern={"w": 1})
            member = {"_id": 2, "host": f"127.0.0.1:{arbiter.port}", "arbiterOnly": True, "priority": 0}
            members.reconfigure(lambda config: config["members"].append(member))
            wait_until(lambda: members.state(members.nodes[0]) == 1)
            collection = client.test.get_collection("c", write_concern=WriteConcern(1))
            insert(collection, 1)
            members.nodes[1].kill()
            insert(collection, 200, first=1)
            collection.update_many({"_id": {"$lt": 5000}}, {"$inc": {"v": 1}})
            status = storage_of(client)
            assert status["layersAboveStable"] > 0 and status["layerDiskBytes"] > 0
            assert status["deltaBytes"] <= status["deltaBudgetBytes"]
            assert collection.count_documents({}) == 201_000
            assert collection.count_documents({"v": 1}) == 5000
            assert collection.find_one({"_id": 3})["v"] == 1
            # All of it is there after a crash, and comes into the base when the other member is
            # back.
            members.nodes[0].kill()
            members.nodes[0].start()
            members.nodes[1].start()
            wait_until(lambda: takes_over(members, members.nodes[0]))
            assert collection.count_documents({}) == 201_000
            members.wait_alike()
            client.admin.command("fsync")
            wait_until(lambda: storage_of(client)["layersAboveStable"] == 0)
            assert collection.count_documents({"v": 1}) == 5000
        finally:
            arbiter.__exit__()
