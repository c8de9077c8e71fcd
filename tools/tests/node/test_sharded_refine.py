"""Shard keys that become finer, moves that are forbidden, and changes of collections and indexes on
all shards: as clients of two routers see them, and with nodes that end in the middle."""

import pymongo
import pytest
from bson import Binary, MaxKey, MinKey
from pinion_cluster import Cluster, fails
from pinion_node import Beside, FailPoint, wait_until
from pymongo.errors import OperationFailure
from pymongo.read_preferences import ReadPreference


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


def split(client, ns, key, at):
    """Shards an empty collection by zones: what is below `at` goes to s0, the rest to s1."""
    field = next(iter(key))
    client.admin.command("addShardToZone", "s0", zone="low")
    client.admin.command("addShardToZone", "s1", zone="high")
    client.admin.command("updateZoneKeyRange", ns, min={field: MinKey()}, max={field: at}, zone="low")
    client.admin.command("updateZoneKeyRange", ns, min={field: at}, max={field: MaxKey()}, zone="high")
    client.admin.command("shardCollection", ns, key=key)


@pytest.fixture
def ranged(cluster, client):
    """A collection whose documents below 100 are on the first shard, which is the primary one of
    the database, and the others on the second."""
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    split(client, "d.r", {"k": 1}, 100)
    client.d.r.insert_many([{"_id": n, "k": n, "g": n % 5, "n": {"x": n % 3}} for n in range(200)])
    return client.d.r


def refine(client, ns, key, **options):
    return client.admin.command("refineCollectionShardKey", ns, key=key, **options)


def entry_of(client, ns):
    return client.config.collections.find_one({"_id": ns})


def chunks_of(client, ns):
    return list(client.config.chunks.find({"uuid": entry_of(client, ns)["uuid"]}).sort("min", 1))


def ids(cursor):
    return sorted(document["_id"] for document in cursor)


def shards_of(collection, filter):
    plan = collection.find(filter).explain()["queryPlanner"]["winningPlan"]
    return sorted(part["shardName"] for part in plan["shards"])


def left_of(cluster):
    """Definitions that run, and gates that are closed."""
    found = []
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            found += direct.config["system.sharding_ddl_coordinators"].find()
            found += direct.config.collectionCriticalSections.find()
    return found


def indexes_on(cluster, at, name="r"):
    with cluster.shards[at].client() as direct:
        return set(direct.d[name].index_information())


def options_on(cluster, at):
    with cluster.shards[at].client() as direct:
        info, = direct.d.list_collections(filter={"name": "r"})
        return info["options"]


def test_a_finer_key(cluster, client, ranged, other):
    assert ids(other.d.r.find()) == list(range(200))
    before, old = entry_of(client, "d.r"), chunks_of(client, "d.r")
    ranged.create_index([("k", 1), ("g", 1)])
    refine(client, "d.r", {"k": 1, "g": 1})
    entry, chunks = entry_of(client, "d.r"), chunks_of(client, "d.r")
    assert entry["key"] == {"k": 1, "g": 1} and entry["uuid"] == before["uuid"]
    assert entry["lastmodEpoch"] != before["lastmodEpoch"] and entry["timestamp"] > before["timestamp"]
    assert [(c["min"], c["max"], c["shard"]) for c in chunks] == [
        ({"k": MinKey(), "g": MinKey()}, {"k": 100, "g": MinKey()}, "s0"),
        ({"k": 100, "g": MinKey()}, {"k": MaxKey(), "g": MaxKey()}, "s1"),
    ]
    # Placements stay.
    assert [(c["lastmod"], c["history"]) for c in chunks] == [(c["lastmod"], c["history"]) for c in old]
    tags = list(client.config.tags.find({"ns": "d.r"}).sort("min", 1))
    assert [(t["min"], t["max"]) for t in tags] == [(c["min"], c["max"]) for c in chunks]
    assert left_of(cluster) == []
    assert shards_of(ranged, {"k": 5, "g": 0}) == ["s0"] and shards_of(ranged, {"k": 150}) == ["s1"]
    # The other router slept through it.
    for of in (other.d.r, ranged):
        assert ids(of.find()) == list(range(200)) and of.count_documents({}) == 200
        assert of.find_one({"k": 150, "g": 0})["_id"] == 150
    other.d.r.insert_one({"_id": 300, "k": 300, "g": 1})
    other.d.r.insert_one({"_id": 301, "k": 1})
    assert ranged.update_one({"k": 300, "g": 1}, {"$set": {"u": 1}}).modified_count == 1
    assert ranged.find_one({"k": 1, "g": None})["_id"] == 301
    fails(lambda: other.d.r.insert_one({"k": 1, "g": [1]}), 61)
    # Zones are of the finer key from here on.
    client.admin.command("updateZoneKeyRange", "d.r", min={"k": 100}, max={"k": MaxKey()}, zone=None)
    client.admin.command("updateZoneKeyRange", "d.r", min={"k": 100, "g": 7}, max={"k": MaxKey()}, zone="high")
    assert refine(client, "d.r", {"k": 1, "g": 1})["ok"] == 1
    assert entry_of(client, "d.r")["lastmodEpoch"] == entry["lastmodEpoch"]


def test_the_event_of_a_finer_key(client, ranged):
    ranged.create_index([("k", 1), ("g", 1)])
    with ranged.watch(show_expanded_events=True, max_await_time_ms=500) as stream:
        refine(client, "d.r", {"k": 1, "g": 1})
        ranged.insert_one({"_id": "last", "k": 1, "g": 1})
        seen = []
        while not seen or seen[-1]["operationType"] != "insert":
            seen.append(stream.next())
        [event] = [event for event in seen if event["operationType"] == "refineCollectionShardKey"]
        assert event["ns"] == {"db": "d", "coll": "r"} and event["collectionUUID"]
        assert event["operationDescription"] == {"shardKey": {"k": 1, "g": 1}, "oldShardKey": {"k": 1}}


def test_what_is_not_refined(cluster, client, ranged):
    text = fails(lambda: refine(client, "d.r", {"g": 1, "k": 1}), 72)
    assert "does not extend the current shard key { k: 1 }" in text
    assert "before refining" in fails(lambda: refine(client, "d.r", {"k": 1, "g": 1}), 72)
    fails(lambda: refine(client, "d.r", {"k": 1, "g": -1}), 2)
    fails(lambda: refine(client, "d.nothing", {"k": 1}), 118)
    fails(lambda: refine(client, "nowhere.c", {"k": 1}), 118)
    fails(lambda: refine(client, "config.chunks", {"k": 1}), 118)
    client.d.create_collection("view", viewOn="r", pipeline=[])
    fails(lambda: refine(client, "d.view", {"k": 1}), 166)
    client.d.create_collection("series", timeseries={"timeField": "t"})
    fails(lambda: refine(client, "d.series", {"k": 1}), 118)
    with pytest.raises(OperationFailure):
        client.d.command("refineCollectionShardKey", "d.r", key={"k": 1})
    # One shard alone has an array.
    ranged.create_index([("k", 1), ("w", 1)])
    ranged.insert_one({"_id": "list", "k": 500, "w": [1, 2]})
    assert "on shard s1" in fails(lambda: refine(client, "d.r", {"k": 1, "w": 1}), 72)
    # An index that is unique by the key alone would not be so any more.
    ranged.create_index([("k", 1), ("g", 1)])
    ranged.create_index("k", unique=True, name="unique")
    assert "Uniqueness" in fails(lambda: refine(client, "d.r", {"k": 1, "g": 1}), 72)
    uuid, wrong = entry_of(client, "d.r")["uuid"], Binary(b"x" * 16, 4)
    fails(lambda: refine(client, "d.r", {"k": 1, "g": 1}, collectionUUID=wrong), 361)
    assert left_of(cluster) == []
    assert entry_of(client, "d.r")["key"] == {"k": 1} and ranged.count_documents({}) == 201
    refine(client, "d.r", {"k": 1, "g": 1}, enforceUniquenessCheck=False, collectionUUID=uuid)
    assert ranged.count_documents({}) == 201


def test_a_hashed_key_with_more_fields(client, ranged, other):
    client.admin.command("shardCollection", "d.h", key={"k": "hashed"}, numInitialChunks=6)
    collection = client.d.h
    collection.insert_many([{"_id": n, "k": n, "g": n % 5} for n in range(100)])
    assert other.d.h.count_documents({}) == 100
    collection.create_index([("k", "hashed"), ("g", 1)])
    refine(client, "d.h", {"k": "hashed", "g": 1})
    assert len(chunks_of(client, "d.h")) == 6
    for of in (collection, other.d.h):
        assert ids(of.find()) == list(range(100)) and len(shards_of(of, {"k": 7})) == 1
        assert of.find_one({"k": 7, "g": 2})["_id"] == 7


def test_a_primary_that_ends_meanwhile(cluster, client, ranged, other):
    ranged.create_index([("k", 1), ("g", 1)])
    primary = cluster.shards[0].nodes[0]
    commit = "_configsvrCommitRefineCollectionShardKey"
    with cluster.config.client() as config:
        point = FailPoint(config, "failCommand", failCommands=[commit], failInternalCommands=True, errorCode=91)
        running = Beside(lambda: refine(client, "d.r", {"k": 1, "g": 1}))
        point.wait(2)
        # The gates of both shards are closed.
        late = Beside(lambda: other.d.r.insert_many([{"_id": n, "k": n, "g": 1} for n in (400, -400)]))
        primary.kill()
        primary.start()
        wait_until(lambda: cluster.shards[0].primary() is primary)
        point.off()
    wait_until(lambda: entry_of(client, "d.r")["key"] == {"k": 1, "g": 1})
    running.ended()
    late.ended()
    refine(client, "d.r", {"k": 1, "g": 1})
    wait_until(lambda: left_of(cluster) == [])
    for of in (ranged, other.d.r):
        assert set(range(200)) <= set(ids(of.find()))
        assert of.find_one({"k": 150, "g": 0})["_id"] == 150
    assert late.error is not None or {400, -400} <= set(ids(ranged.find()))


def test_a_commit_that_is_refused(cluster, client, ranged):
    ranged.create_index([("k", 1), ("g", 1)])
    commit = "_configsvrCommitRefineCollectionShardKey"
    with cluster.config.client() as config:
        point = FailPoint(config, "failCommand", {"times": 1}, failCommands=[commit], failInternalCommands=True, errorCode=117)
        fails(lambda: refine(client, "d.r", {"k": 1, "g": 1}), 117)
        point.off()
    assert left_of(cluster) == []
    assert entry_of(client, "d.r")["key"] == {"k": 1} and ranged.count_documents({}) == 200
    ranged.insert_one({"k": 500})


def test_moves_that_are_not_allowed(cluster, client, ranged, other):
    version = max(chunk["lastmod"] for chunk in chunks_of(client, "d.r"))
    client.admin.command("setAllowMigrations", "d.r", allowMigrations=False)
    assert entry_of(client, "d.r")["permitMigrations"] is False
    raised = max(chunk["lastmod"] for chunk in chunks_of(client, "d.r"))
    assert (raised.time, raised.inc) == (version.time, version.inc + 1)
    other.admin.command("setAllowMigrations", "d.r", allowMigrations=False)
    assert max(chunk["lastmod"] for chunk in chunks_of(client, "d.r")) == raised
    assert other.d.r.count_documents({}) == 200
    other.admin.command("setAllowMigrations", "d.r", allowMigrations=True)
    assert "permitMigrations" not in entry_of(client, "d.r")
    fails(lambda: client.admin.command("setAllowMigrations", "d.none", allowMigrations=True), 118)
    fails(lambda: client.admin.command("setAllowMigrations", "d.r"), 40414)
    assert left_of(cluster) == []


def test_a_validator_on_all_shards(cluster, client, ranged):
    reply = client.d.command("collMod", "r", validator={"g": {"$lt": 9}}, validationLevel="strict")
    assert len(reply["raw"]) == 2 and all(part["ok"] == 1 for part in reply["raw"].values())
    for at in (0, 1):
        assert options_on(cluster, at)["validator"] == {"g": {"$lt": 9}}
    for k in (50, 150):
        fails(lambda: ranged.insert_one({"k": k, "g": 10}), 121)
    # What the primary shard refuses changes nothing.
    with pytest.raises(OperationFailure) as caught:
        client.d.command("collMod", "r", validator={"$nothing": 1})
    assert "s0" in caught.value.details["errmsg"] and len(caught.value.details["raw"]) == 1
    fails(lambda: client.d.command("collMod", "r", cappedSize=4096), 72)
    fails(lambda: client.d.command("collMod", "r", nothing=1), 40415)
    fails(lambda: client.d.command("collMod", "none", validator={}), 26)
    for at in (0, 1):
        assert options_on(cluster, at)["validator"] == {"g": {"$lt": 9}}
    uuid = entry_of(client, "d.r")["uuid"]
    client.d.command("collMod", "r", validator={}, collectionUUID=uuid)
    wrong = Binary(b"x" * 16, 4)
    fails(lambda: client.d.command("collMod", "r", validator={"a": 1}, collectionUUID=wrong), 361)
    for at in (0, 1):
        assert not options_on(cluster, at).get("validator")
    assert left_of(cluster) == []


def test_an_index_that_one_shard_cannot_change(cluster, client, ranged):
    """A shard that is not the first one refuses its part before any other has done its own."""
    ranged.create_index([("k", 1), ("u", 1)])
    ranged.insert_many([{"_id": f"twice {n}", "k": 150, "u": 1} for n in (1, 2)])
    index = {"keyPattern": {"k": 1, "u": 1}}
    client.d.command("collMod", "r", index={**index, "prepareUnique": True})
    with pytest.raises(OperationFailure) as caught:
        client.d.command("collMod", "r", index={**index, "unique": True})
    assert caught.value.code == 359 and "s1" in caught.value.details["errmsg"], caught.value.details
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            assert "unique" not in direct.d.r.index_information()["k_1_u_1"]
    ranged.delete_many({"k": 150})
    reply = client.d.command("collMod", "r", index={**index, "unique": True})
    assert reply["unique_new"] is True
    client.d.command("collMod", "r", index={"name": "k_1_u_1", "hidden": True})
    fails(lambda: client.d.command("collMod", "r", index={"name": "none", "hidden": True}), 27)
    fails(lambda: client.d.command("collMod", "r", index={"name": "k_1", "hidden": True}), 72)
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            assert direct.d.r.index_information()["k_1_u_1"]["hidden"] is True


def test_a_coll_mod_that_is_resumed(cluster, client, ranged):
    primary = cluster.shards[0].nodes[0]
    with cluster.shards[1].client() as second:
        # The first time to check, and then to change.
        part = "_shardsvrCollModParticipant"
        point = FailPoint(second, "failCommand", {"skip": 1}, failCommands=[part], failInternalCommands=True, errorCode=91)
        running = Beside(lambda: client.d.command("collMod", "r", validator={"g": {"$lt": 7}}))
        point.wait(2)
        assert options_on(cluster, 0)["validator"] and "validator" not in options_on(cluster, 1)
        primary.kill()
        primary.start()
        wait_until(lambda: cluster.shards[0].primary() is primary)
        point.off()
    running.ended()
    wait_until(lambda: options_on(cluster, 1).get("validator") == {"g": {"$lt": 7}})
    wait_until(lambda: left_of(cluster) == [])


def test_indexes_are_dropped_on_all_shards(cluster, client, ranged, other):
    for name in ("g", "h", "i"):
        other.d.r.create_index(name)
    reply = client.d.command("dropIndexes", "r", index="g_1")
    assert reply["nIndexesWas"] == 5 and len(reply["raw"]) == 2
    for at in (0, 1):
        assert indexes_on(cluster, at) == {"_id_", "k_1", "h_1", "i_1"}
    assert "[g_1]" in fails(lambda: ranged.drop_index("g_1"), 27)
    fails(lambda: client.d.command("dropIndexes", "r", index=["h_1", "g_1"]), 27)
    fails(lambda: client.d.command("dropIndexes", "r", index={"g": 1}), 27)
    fails(lambda: client.d.command("dropIndexes", "r", index="_id_"), 72)
    fails(lambda: client.d.command("dropIndexes", "r"), 40414)
    fails(lambda: client.d.command("dropIndexes", "none", index="*"), 26)
    assert "shard key" in fails(lambda: ranged.drop_index("k_1"), 370)
    for at in (0, 1):
        assert indexes_on(cluster, at) == {"_id_", "k_1", "h_1", "i_1"}
    # One shard has lost it already.
    with cluster.shards[0].client() as direct:
        direct.d.r.drop_index("h_1")
    ranged.drop_index("h_1")
    client.d.command("dropIndexes", "r", index="*")
    for at in (0, 1):
        assert indexes_on(cluster, at) == {"_id_", "k_1"}
    assert left_of(cluster) == []


def test_an_index_is_dropped_while_it_is_made(cluster, client, ranged, other):
    """All shards have it in the end, or none."""
    for n in range(12):
        name = f"f{n}"
        making = Beside(lambda: ranged.create_index(name))
        dropping = Beside(lambda: other.d.r.drop_index(f"{name}_1"))
        made, error = making.ended().error, dropping.ended().error
        assert error is None or error.code == 27, error
        if made is not None:
            # A build that was under way was ended.
            assert made.code == 276, made
            continue
        assert (f"{name}_1" in indexes_on(cluster, 0)) == (f"{name}_1" in indexes_on(cluster, 1))


def test_a_finer_key_while_others_write(cluster, client, ranged, other):
    ranged.create_index([("k", 1), ("g", 1)])
    ranged.create_index([("k", 1), ("g", 1), ("_id", 1)])

    def write():
        for n in range(1000, 1300):
            other.d.r.insert_one({"_id": n, "k": n % 200, "g": n % 5})
        return "all"

    writing = Beside(write)
    refine(client, "d.r", {"k": 1, "g": 1})
    refine(client, "d.r", {"k": 1, "g": 1, "_id": 1})
    assert writing.ended().answer == "all", writing.error
    assert ids(ranged.find()) == [*range(200), *range(1000, 1300)]
    assert ids(other.d.r.find({"k": {"$gte": 150}, "g": 2})) == ids(d for d in ranged.find() if d["k"] >= 150 and d["g"] == 2)
    assert left_of(cluster) == []


def test_nested_fields_and_secondaries():
    with Cluster(shards=2, members=3) as small, small.client() as client:
        small.make_database("d", 0, client)
        split(client, "d.r", {"k": 1}, 100)
        of_all = client.d.get_collection("r", write_concern=pymongo.WriteConcern(3))
        of_all.insert_many([{"_id": n, "k": n, "n": {"x": n % 3}} for n in range(200)])
        # A secondary reads its identity after it has applied it.
        members = [set_.member(node) for set_ in small.shards for node in set_.nodes]
        for direct in members:
            wait_until(lambda direct=direct: direct.admin.command("shardingState")["enabled"])
        secondaries = client.get_database("d", read_preference=ReadPreference.SECONDARY)
        assert ids(secondaries.r.find()) == list(range(200))
        client.d.r.create_index([("k", 1), ("n.x", 1)])
        refine(client, "d.r", {"k": 1, "n.x": 1})
        assert chunks_of(client, "d.r")[0]["max"] == {"k": 100, "n.x": MinKey()}
        wait_until(lambda: ids(secondaries.r.find()) == list(range(200)))
        assert secondaries.r.find_one({"k": 150, "n.x": 0})["_id"] == 150
        assert len(shards_of(client.d.r, {"k": 150, "n.x": 0})) == 1
        of_all.insert_one({"_id": 200, "k": 200, "n": {"x": 7}})
        for direct in members:
            def has_it(direct=direct):
                # A secondary learns the table when it is read.
                assert len(list(secondaries.r.find())) == 201
                known = direct.admin.command("getShardVersion", "d.r", fullMetadata=True)["metadata"]
                return known.get("keyPattern") == {"k": 1, "n.x": 1}
            wait_until(has_it)
            direct.close()
        for set_ in small.shards:
            set_.primary().client().admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=4)
        assert client.d.r.find_one({"k": 200, "n.x": 7})["_id"] == 200
        assert ids(client.d.r.find()) == list(range(201))
