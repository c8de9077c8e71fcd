"""Config servers keep the routing tables of sharded collections, and zones."""

import uuid

import pytest
from bson import Binary, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pinion_node import PATIENCE_MS, STEADY, ReplicaSet, wait_until
from pymongo.errors import OperationFailure

MAJORITY = {"w": "majority", "wtimeout": PATIENCE_MS}
SHARDS = ["s0", "s1"]


@pytest.fixture(scope="module")
def config():
    """A config server with two shards, of which nothing but the names is there."""
    with ReplicaSet(members=1, settings=STEADY, name="cfg", role="configsvr") as members:
        client = members.member(members.nodes[0])
        wait_until(lambda: client.config.version.find_one())
        for at, name in enumerate(SHARDS):
            client.config.shards.insert_one({"_id": name, "host": f"{name}/127.0.0.1:{at + 1}", "state": 1})
        yield client
        client.close()
        for node in members.nodes:
            assert not [line for line in node.log if "panic" in line.lower()]


@pytest.fixture
def ns():
    return f"d.c{uuid.uuid4().hex[:12]}"


def run(config, name, value, **more):
    return config.admin.command({name: value, **more, "writeConcern": MAJORITY})


def fails(config, name, value, code, text="", **more):
    with pytest.raises(OperationFailure) as caught:
        run(config, name, value, **more)
    assert caught.value.code == code, caught.value.details
    assert text in caught.value.details["errmsg"], caught.value.details


def document(ns, key=None):
    return {"_id": ns, "lastmodEpoch": ObjectId(), "lastmod": ObjectId().generation_time, "timestamp": Timestamp(7, 1),
            "uuid": Binary(uuid.uuid4().bytes, 4), "key": key or {"a": 1}, "unique": False, "noBalance": False}


def create(config, of, mins=(MinKey(), 5, 9), **more):
    chunks = [{"min": {"a": value}, "shard": SHARDS[at % 2]} for at, value in enumerate(mins)]
    return run(config, "_configsvrCommitCreateCollection", of["_id"], collection=of, chunks=chunks, **more)


def test_a_collection_is_made_and_forgotten(config, ns):
    of = document(ns)
    # What an earlier attempt has left is no part of it.
    config.config.chunks.insert_one({"uuid": of["uuid"], "min": {"a": 3}, "lastmod": Timestamp(9, 9)})
    for _ in range(2):
        create(config, of)
    assert config.config.collections.find_one({"_id": ns})["uuid"] == of["uuid"]
    chunks = list(config.config.chunks.find({"uuid": of["uuid"]}).sort("min", 1))
    assert [(chunk["min"]["a"], chunk["max"]["a"], chunk["shard"]) for chunk in chunks] == [
        (MinKey(), 5, "s0"), (5, 9, "s1"), (9, MaxKey(), "s0")]
    assert [chunk["lastmod"] for chunk in chunks] == [Timestamp(1, at) for at in range(3)]
    since = of["timestamp"]
    for chunk in chunks:
        assert chunk["onCurrentShardSince"] == since
        assert chunk["history"] == [{"validAfter": since, "shard": chunk["shard"]}]
        assert isinstance(chunk["_id"], ObjectId)
    other = document(ns)
    with pytest.raises(OperationFailure) as caught:
        create(config, other)
    assert caught.value.code == 117

    run(config, "_configsvrAddShardToZone", "s0", zone="made")
    run(config, "_configsvrUpdateZoneKeyRange", ns, min={"a": 1}, max={"a": 2}, zone="made")
    # Another collection's UUID takes nothing away.
    run(config, "_configsvrCommitDropCollection", ns, uuid=other["uuid"])
    assert config.config.chunks.count_documents({"uuid": of["uuid"]}) == 3
    assert config.config.tags.count_documents({"ns": ns}) == 1
    for _ in range(2):
        run(config, "_configsvrCommitDropCollection", ns, uuid=of["uuid"])
        for name, query in [("collections", {"_id": ns}), ("chunks", {"uuid": of["uuid"]}), ("tags", {"ns": ns})]:
            assert config.config[name].count_documents(query) == 0
    create(config, other)
    run(config, "_configsvrCommitDropCollection", ns, uuid=other["uuid"])
    noted = [entry["what"] for entry in config.config.changelog.find({"ns": ns})]
    made = ["shardCollection.start", "shardCollection.end", "dropCollection.start", "dropCollection"]
    assert noted == made * 2


def test_many_chunks_and_what_is_left_of_them(config, ns):
    of = document(ns)
    create(config, of, mins=[MinKey(), *range(5_000)])
    assert config.config.chunks.count_documents({"uuid": of["uuid"]}) == 5_001
    # As if the attempt had ended before its commit.
    config.config.collections.delete_one({"_id": ns})
    create(config, of, mins=[MinKey(), 7])
    assert config.config.chunks.count_documents({"uuid": of["uuid"]}) == 2
    config.config.collections.delete_one({"_id": ns})
    run(config, "_configsvrCommitDropCollection", ns, uuid=of["uuid"])
    assert config.config.chunks.count_documents({"uuid": of["uuid"]}) == 0


def test_what_makes_no_collection(config, ns):
    of = document(ns)
    name = "_configsvrCommitCreateCollection"
    first = {"min": {"a": MinKey()}, "shard": "s0"}

    def refused(code, text, chunks, collection=of):
        fails(config, name, ns, code, text, collection=collection, chunks=chunks)

    refused(2, "there are 0", [])
    refused(2, "not at the least key", [{"min": {"a": 1}, "shard": "s0"}])
    refused(2, "is not behind the one before it", [first, first])
    refused(70, "Shard none not found", [{**first, "shard": "none"}])
    refused(2, "the document is of d.other", [first], document("d.other"))
    refused(40414, "chunks.0.shard", [{"min": {"a": MinKey()}}])
    with pytest.raises(OperationFailure) as caught:
        config.admin.command({name: ns, "collection": of, "chunks": [first]})
    assert caught.value.code == 72
    run(config, "_configsvrAddShardToZone", "s0", zone="other")
    run(config, "_configsvrUpdateZoneKeyRange", ns, min={"b": 1}, max={"b": 2}, zone="other")
    refused(72, "does not match with the shard key of the existing zone", [first])
    assert config.config.chunks.count_documents({"uuid": of["uuid"]}) == 0
    assert config.config.collections.count_documents({"_id": ns}) == 0


def tags(config, shard):
    return config.config.shards.find_one({"_id": shard}).get("tags", [])


def test_shards_of_zones(config, ns):
    for _ in range(2):
        run(config, "_configsvrAddShardToZone", "s0", zone="eu")
    assert tags(config, "s0").count("eu") == 1
    fails(config, "_configsvrAddShardToZone", "s9", 70, "shard s9 does not exist", zone="eu")
    run(config, "_configsvrUpdateZoneKeyRange", ns, min={"a": 1}, max={"a": 2}, zone="eu")
    fails(config, "_configsvrRemoveShardFromZone", "s0", 163, "cannot remove a shard from zone", zone="eu")
    fails(config, "_configsvrRemoveShardFromZone", "s9", 70, "shard s9 does not exist", zone="eu")
    run(config, "_configsvrAddShardToZone", "s1", zone="eu")
    for _ in range(2):
        run(config, "_configsvrRemoveShardFromZone", "s0", zone="eu")
    assert "eu" not in tags(config, "s0") and "eu" in tags(config, "s1")
    run(config, "_configsvrUpdateZoneKeyRange", ns, min={"a": 1}, max={"a": 2}, zone=None)
    run(config, "_configsvrRemoveShardFromZone", "s1", zone="eu")
    assert "eu" not in tags(config, "s1")


def test_ranges_of_zones(config, ns):
    run(config, "_configsvrAddShardToZone", "s0", zone="us")
    name = "_configsvrUpdateZoneKeyRange"
    of = document(ns, {"a": 1, "b": "hashed"})
    chunks = [{"min": {"a": MinKey(), "b": MinKey()}, "shard": "s0"}]
    run(config, "_configsvrCommitCreateCollection", ns, collection=of, chunks=chunks)
    for _ in range(2):
        run(config, name, ns, min={"a": 1}, max={"a": 5}, zone="us")
    found = config.config.tags.find_one({"ns": ns})
    assert found.pop("_id") and found == {
        "ns": ns, "tag": "us", "min": {"a": 1, "b": MinKey()}, "max": {"a": 5, "b": MinKey()}}
    fails(config, name, ns, 178, "is overlapping with existing", min={"a": 4}, max={"a": 6}, zone="us")
    fails(config, name, ns, 177, "zone none does not exist", min={"a": 5}, max={"a": 6}, zone="none")
    fails(config, name, ns, 61, "is not a prefix of the shard key", min={"b": Int64(1)}, max={"a": 6}, zone="us")
    fails(config, name, ns, 72, "hashed field", min={"a": 5, "b": 1}, max={"a": 6, "b": 2}, zone="us")
    fails(config, name, ns, 9, "should be less than max", min={"a": 6}, max={"a": 6}, zone="us")
    fails(config, name, ns, 14, min={"a": 6}, max={"a": 7}, zone=1)
    fails(config, name, ns, 40414, min={"a": 6}, max={"a": 7})
    fails(config, name, "d", 73, min={"a": 6}, max={"a": 7}, zone="us")
    # A range that is none is taken out, too.
    run(config, name, ns, min={"a": 1}, max={"a": 4}, zone=None)
    assert config.config.tags.count_documents({"ns": ns}) == 1
    run(config, name, ns, min={"a": 1}, max={"a": 5}, zone=None)
    assert config.config.tags.count_documents({"ns": ns}) == 0
