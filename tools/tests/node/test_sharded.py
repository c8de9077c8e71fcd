"""Sharded collections behind routers: made, read, written, indexed, watched and dropped, with
documents that a shard has and does not own."""

import time

import pymongo
import pytest
from bson import Int64, MaxKey, MinKey, Timestamp
from pinion_cluster import Cluster, fails
from pinion_node import wait_until
from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteConcernError
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern


@pytest.fixture
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def db(cluster, client):
    """A database on the first shard, empty."""
    client.drop_database("d")
    cluster.make_database("d", 0, client)
    return client.d


def shard(client, ns, key, **options):
    reply = client.admin.command("shardCollection", ns, key=key, **options)
    assert reply["collectionsharded"] == ns
    return client.config.collections.find_one({"_id": ns})


def chunks_of(client, ns):
    uuid = client.config.collections.find_one({"_id": ns})["uuid"]
    return list(client.config.chunks.find({"uuid": uuid}).sort("min", 1))


def ids(cursor):
    return sorted(document["_id"] for document in cursor)


def distribution(client, ns):
    """The parts that shards have of a collection."""
    found, = client.admin.aggregate([{"$shardedDataDistribution": {}}, {"$match": {"ns": ns}}])
    return found["shards"]


def on_shard(cluster, at, name="c"):
    """The documents that a shard has, owned or not."""
    with cluster.shards[at].client() as direct:
        return list(direct.d[name].find())


@pytest.fixture
def hashed(db):
    """A collection with documents on both shards."""
    shard(db.client, "d.c", {"k": "hashed"})
    db.c.insert_many([{"_id": n, "k": n, "g": n % 5, "t": f"text {n}"} for n in range(200)])
    return db.c


def split_in_zones(client, ns, key, at):
    """Shards an empty collection: what is below `at` goes to s0, the rest to s1."""
    field = next(iter(key))
    client.admin.command("addShardToZone", "s0", zone="low")
    client.admin.command("addShardToZone", "s1", zone="high")
    client.admin.command("updateZoneKeyRange", ns, min={field: MinKey()}, max={field: at}, zone="low")
    client.admin.command("updateZoneKeyRange", ns, min={field: at}, max={field: MaxKey()}, zone="high")
    return shard(client, ns, key)


@pytest.fixture
def ranged(db):
    """A collection whose documents below 100 are on the first shard, the others on the second."""
    split_in_zones(db.client, "d.r", {"k": 1}, 100)
    db.r.insert_many([{"_id": n, "k": n, "g": n % 5} for n in range(200)])
    return db.r


def test_a_ranged_collection(cluster, db):
    entry = shard(db.client, "d.c", {"k": 1})
    assert entry["key"] == {"k": 1} and entry["unique"] is False
    assert {"lastmodEpoch", "lastmod", "timestamp", "uuid"} <= set(entry)
    chunk, = chunks_of(db.client, "d.c")
    assert chunk["min"] == {"k": MinKey()} and chunk["max"] == {"k": MaxKey()} and chunk["shard"] == "s0"
    assert chunk["lastmod"] == Timestamp(1, 0) and chunk["history"][0]["shard"] == "s0"
    assert "k_1" in db.c.index_information()
    db.c.insert_many([{"_id": n, "k": n} for n in range(50)])
    assert len(on_shard(cluster, 0)) == 50 and on_shard(cluster, 1) == []
    assert db.c.count_documents({}) == 50


def test_a_hashed_collection(cluster, hashed):
    client = hashed.database.client
    chunks = chunks_of(client, "d.c")
    assert {chunk["shard"] for chunk in chunks} == {"s0", "s1"}
    parts = [on_shard(cluster, at) for at in (0, 1)]
    assert all(len(part) > 40 for part in parts), [len(part) for part in parts]
    assert ids(parts[0] + parts[1]) == list(range(200))
    assert ids(hashed.find()) == list(range(200))
    assert "k_hashed" in hashed.index_information()


def test_sharding_again_does_nothing(db):
    client = db.client
    first = shard(client, "d.c", {"k": 1})
    assert shard(client, "d.c", {"k": 1})["lastmodEpoch"] == first["lastmodEpoch"]
    fails(lambda: shard(client, "d.c", {"other": 1}), 23)
    fails(lambda: shard(client, "d.c", {"k": 1}, unique=True), 23)


def test_what_is_not_sharded(db):
    client = db.client
    fails(lambda: shard(client, "d.c", {}), 2)
    fails(lambda: shard(client, "d.c", {"k": -1}), 2)
    fails(lambda: shard(client, "d.c", {"k": "hashed"}, unique=True), 72)
    db.full.insert_one({"k": 1})
    assert "create an index" in fails(lambda: shard(client, "d.full", {"k": 1}), 72)
    db.create_collection("capped", capped=True, size=4096)
    fails(lambda: shard(client, "d.capped", {"k": 1}), 72)
    fails(lambda: shard(client, "admin.c", {"k": 1}), 72)
    with pytest.raises(OperationFailure):
        client.d.command("shardCollection", "d.c", key={"k": 1})


def test_a_collection_with_documents(cluster, db):
    db.c.insert_many([{"_id": n, "k": n} for n in range(30)])
    db.c.create_index("k")
    uuid = db.command("listCollections", filter={"name": "c"})["cursor"]["firstBatch"][0]["info"]["uuid"]
    assert shard(db.client, "d.c", {"k": 1})["uuid"] == uuid
    assert db.c.count_documents({}) == 30 and len(chunks_of(db.client, "d.c")) == 1
    db.c.insert_one({"_id": 30, "k": 30})
    assert ids(db.c.find({"k": {"$gte": 28}})) == [28, 29, 30]


def test_reads_over_shards(ranged):
    assert [d["_id"] for d in ranged.find().sort("k", -1).limit(3)] == [199, 198, 197]
    assert [d["_id"] for d in ranged.find().sort("k", 1).skip(95).limit(10)] == list(range(95, 105))
    assert ranged.count_documents({"g": 1}) == 40 and ranged.estimated_document_count() == 200
    assert ranged.distinct("g") == [0, 1, 2, 3, 4]
    groups = list(ranged.aggregate([{"$group": {"_id": "$g", "n": {"$sum": 1}, "max": {"$max": "$k"}}}, {"$sort": {"_id": 1}}]))
    assert groups == [{"_id": g, "n": 40, "max": 195 + g} for g in range(5)]
    assert len(list(ranged.find(batch_size=7))) == 200
    assert ranged.find_one({"k": 150})["_id"] == 150


def test_targets(ranged):
    def shards(filter):
        plan = ranged.find(filter).explain()["queryPlanner"]["winningPlan"]
        return plan["stage"], sorted(part["shardName"] for part in plan["shards"])

    assert shards({"k": 5}) == ("SINGLE_SHARD", ["s0"])
    assert shards({"k": {"$gte": 150}}) == ("SINGLE_SHARD", ["s1"])
    assert shards({"k": {"$in": [1, 101]}})[1] == ["s0", "s1"]
    assert shards({"g": 5})[1] == ["s0", "s1"]


def test_joins(db, ranged):
    db.plain.insert_many([{"_id": n, "g": n, "name": f"group {n}"} for n in range(5)])
    lookup = {"$lookup": {"from": "plain", "localField": "g", "foreignField": "g", "as": "of"}}
    found = list(ranged.aggregate([{"$match": {"k": {"$in": [3, 103]}}}, lookup, {"$sort": {"_id": 1}}]))
    assert [(d["_id"], d["of"][0]["name"]) for d in found] == [(3, "group 3"), (103, "group 3")]
    lookup = {"$lookup": {"from": "r", "localField": "g", "foreignField": "g", "as": "of"}}
    found = list(db.plain.aggregate([lookup, {"$project": {"n": {"$size": "$of"}}}, {"$sort": {"_id": 1}}]))
    assert found == [{"_id": g, "n": 40} for g in range(5)]
    union = list(db.plain.aggregate([{"$unionWith": "r"}, {"$count": "n"}]))
    assert union == [{"n": 205}]
    facet = list(ranged.aggregate([{"$facet": {"n": [{"$count": "n"}], "top": [{"$sort": {"k": -1}}, {"$limit": 1}]}}]))
    assert facet[0]["n"] == [{"n": 200}] and facet[0]["top"][0]["_id"] == 199


def test_inserts(cluster, ranged):
    with pytest.raises(DuplicateKeyError):
        ranged.insert_one({"_id": 5, "k": 5})
    with pytest.raises(BulkWriteError) as caught:
        ranged.insert_many([{"_id": 300, "k": 300}, {"_id": 5, "k": 5}, {"_id": 301, "k": 1}])
    details = caught.value.details
    assert details["nInserted"] == 1 and [error["index"] for error in details["writeErrors"]] == [1]
    with pytest.raises(BulkWriteError) as caught:
        ranged.insert_many([{"_id": 5, "k": 5}, {"_id": 302, "k": 2}, {"_id": 303, "k": 303}, {"_id": 150, "k": 150}], ordered=False)
    details = caught.value.details
    assert details["nInserted"] == 2 and [error["index"] for error in details["writeErrors"]] == [0, 3]
    assert {302, 300} & set(ids(on_shard(cluster, 0, "r"))) == {302}
    # A missing key is null.
    ranged.insert_one({"_id": "none"})
    assert "none" in [d["_id"] for d in on_shard(cluster, 0, "r")]
    assert ranged.find_one({"k": None})["_id"] == "none"
    fails(lambda: ranged.insert_one({"k": [1, 2]}), 61)


def test_updates(ranged):
    assert ranged.update_one({"k": 150}, {"$set": {"x": 1}}).modified_count == 1
    assert ranged.update_many({"g": 1}, {"$inc": {"n": 1}}).modified_count == 40
    assert ranged.update_many({}, {"$set": {"y": 1}}).matched_count == 200
    assert ranged.update_one({"_id": 120}, {"$set": {"z": 1}}).modified_count == 1
    assert ranged.find_one({"k": 120})["z"] == 1
    assert ranged.update_one({"g": 3}, {"$set": {"one": 1}}).modified_count == 1
    assert ranged.count_documents({"one": 1}) == 1
    assert ranged.replace_one({"k": 7}, {"k": 7, "g": 9}).modified_count == 1
    assert ranged.find_one({"k": 7}) == {"_id": 7, "k": 7, "g": 9}
    upserted = ranged.update_one({"k": 500}, {"$set": {"v": 1}}, upsert=True)
    assert upserted.upserted_id is not None and ranged.find_one({"k": 500})["v"] == 1
    again = ranged.update_one({"k": 500}, {"$set": {"v": 2}}, upsert=True)
    assert again.upserted_id is None and again.modified_count == 1
    assert ranged.update_one({"k": 99999}, {"$set": {"v": 1}}).matched_count == 0


def test_deletes(ranged):
    assert ranged.delete_one({"k": 5}).deleted_count == 1
    assert ranged.delete_one({"_id": 105}).deleted_count == 1
    assert ranged.delete_one({"g": 2}).deleted_count == 1
    assert ranged.delete_many({"g": 3}).deleted_count == 40
    assert ranged.count_documents({}) == 157
    assert ranged.delete_many({}).deleted_count == 157


def test_find_and_modify(ranged):
    before = ranged.find_one_and_update({"k": 150}, {"$set": {"x": 1}})
    assert before["_id"] == 150 and "x" not in before
    after = ranged.find_one_and_update({"g": 4}, {"$set": {"x": 2}}, sort=[("k", -1)], return_document=True)
    assert after["_id"] == 199 and after["x"] == 2
    assert ranged.find_one_and_delete({"k": 3})["_id"] == 3
    assert ranged.find_one({"k": 3}) is None
    made = ranged.find_one_and_update({"k": 777}, {"$set": {"x": 1}}, upsert=True, return_document=True)
    assert made["k"] == 777


def test_batches(ranged):
    result = ranged.bulk_write([
        InsertOne({"_id": 1000, "k": 1000}), UpdateOne({"k": 1}, {"$set": {"b": 1}}), UpdateMany({"g": 0}, {"$set": {"b": 2}}),
        DeleteOne({"k": 199}), ReplaceOne({"k": 2000}, {"k": 2000}, upsert=True),
    ])
    assert (result.inserted_count, result.modified_count, result.deleted_count, result.upserted_count) == (1, 41, 1, 1)
    assert list(result.upserted_ids) == [4]


def test_client_bulk_writes(ranged, db):
    reply = db.client.admin.command(
        "bulkWrite", 1, nsInfo=[{"ns": "d.r"}, {"ns": "d.plain"}],
        ops=[
            {"insert": 0, "document": {"_id": 400, "k": 400}}, {"insert": 0, "document": {"_id": 401, "k": 4}},
            {"insert": 1, "document": {"_id": 1}}, {"update": 0, "filter": {"g": 1}, "updateMods": {"$set": {"c": 1}}, "multi": True},
            {"delete": 0, "filter": {"k": 150}},
        ],
    )
    assert (reply["nInserted"], reply["nModified"], reply["nDeleted"], reply["nErrors"]) == (3, 40, 1, 0)
    assert [entry["idx"] for entry in reply["cursor"]["firstBatch"]] == [0, 1, 2, 3, 4]


def test_retried_statements_are_done_once(ranged, db):
    with db.client.start_session() as session:
        lsid = session.session_id
        command = {
            "update": "r", "updates": [{"q": {"k": k}, "u": {"$inc": {"n": 1}}} for k in (1, 150, 2, 160)],
            "lsid": lsid, "txnNumber": Int64(1),
        }
        assert db.command(command)["nModified"] == 4
        assert db.command(command)["nModified"] == 4
    assert {d["n"] for d in ranged.find({"n": {"$exists": True}})} == {1}


def test_keys_that_change(ranged):
    # It stays on its shard.
    assert ranged.update_one({"k": 5}, {"$set": {"k": 50.5}}).modified_count == 1
    assert ranged.find_one({"k": 50.5})["_id"] == 5
    for filter in ({"k": {"$lt": 50}}, {"g": 1}):
        assert "Multi-update" in fails(lambda: ranged.update_many(filter, {"$set": {"k": 3}}), 72)
    # Its new owner is another shard.
    fails(lambda: ranged.update_one({"k": 6}, {"$set": {"k": 150.5}}), 115)
    assert ranged.find_one({"_id": 6})["k"] == 6


def move_by_hand(cluster, client, ns, chunk, to, copies=True):
    """Gives a chunk to another shard as a migration does, and leaves the documents there too."""
    db, name = ns.split(".", 1)
    entry = client.config.collections.find_one({"_id": ns})
    with cluster.config.client() as config:
        newest = max(other["lastmod"] for other in chunks_of(client, ns))
        version = Timestamp(newest.time + 1, 0)
        now = config.admin.command("hello")["operationTime"]
        history = [{"validAfter": now, "shard": f"s{to}"}, *chunk["history"]]
        config.config.get_collection("chunks", write_concern=pymongo.WriteConcern("majority")).update_one(
            {"_id": chunk["_id"]},
            {"$set": {"shard": f"s{to}", "lastmod": version, "history": history, "onCurrentShardSince": now}},
        )
    if copies:
        field = next(iter(entry["key"]))
        low, high = chunk["min"][field], chunk["max"][field]
        bounds = {field: {"$gte": low, "$lt": high}}
        at = int(chunk["shard"][1:])
        with cluster.shards[at].client() as source, cluster.shards[to].client() as target:
            documents = list(source[db][name].find(bounds))
            if documents:
                target[db][name].insert_many(documents)
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            direct.admin.command("_flushRoutingTableCacheUpdates", ns)


@pytest.fixture
def moved(cluster, ranged, other):
    """The documents from 100 on have moved to the first shard, and the second has them still. The
    other router has the table of before."""
    assert ids(other.d.r.find()) == list(range(200))
    client = ranged.database.client
    chunk = next(chunk for chunk in chunks_of(client, "d.r") if chunk["shard"] == "s1")
    move_by_hand(cluster, client, "d.r", chunk, 0)
    assert len(on_shard(cluster, 1, "r")) == 100 and len(on_shard(cluster, 0, "r")) == 200
    return ranged


def test_orphans_are_not_read(cluster, moved, other):
    moved.create_index("g")
    moved.create_index([("g", 1), ("k", 1)])
    for of in (moved, other.d.r):
        assert ids(of.find()) == list(range(200))
        assert of.count_documents({}) == 200 and of.estimated_document_count() == 200
        assert of.count_documents({"g": 1}) == 40
        assert of.find_one({"k": 150})["_id"] == 150 and of.find_one({"_id": 150})["k"] == 150
        assert [d["_id"] for d in of.find().sort("k", -1).limit(2)] == [199, 198]
        assert list(of.find({"g": 1}, {"_id": 0, "g": 1, "k": 1}).sort("k", -1).limit(1)) == [{"g": 1, "k": 196}]
        assert list(of.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}])) == [{"_id": None, "n": 200}]
        assert list(of.aggregate([{"$count": "n"}])) == [{"n": 200}]
        assert of.distinct("k") == list(range(200))
    # What a shard has beside what it owns is seen by those that ask it without a version.
    with cluster.shards[1].client() as direct:
        assert direct.d.r.count_documents({}) == 100


def test_orphans_are_not_written(cluster, moved, other):
    for of in (moved, other.d.r):
        assert of.update_many({}, {"$inc": {"n": 1}}).modified_count == 200
        assert of.update_one({"_id": 150}, {"$inc": {"n": 1}}).modified_count == 1
        assert of.update_one({"k": 150}, {"$inc": {"n": 1}}).modified_count == 1
        assert of.find_one_and_update({"k": 150}, {"$inc": {"n": 1}}, return_document=True)["_id"] == 150
    assert not [d for d in on_shard(cluster, 1, "r") if "n" in d]
    assert moved.find_one({"k": 150})["n"] == 8
    assert other.d.r.delete_many({"k": {"$gte": 100}}).deleted_count == 100
    assert len(on_shard(cluster, 1, "r")) == 100 and moved.count_documents({}) == 100


def test_writes_by_an_old_table(cluster, ranged, other):
    assert ids(other.d.r.find()) == list(range(200))
    client = ranged.database.client
    chunk = next(chunk for chunk in chunks_of(client, "d.r") if chunk["shard"] == "s1")
    move_by_hand(cluster, client, "d.r", chunk, 0)
    result = other.d.r.bulk_write([
        InsertOne({"_id": 1000, "k": 1000}), UpdateOne({"k": 1}, {"$inc": {"n": 1}}), UpdateOne({"k": 150}, {"$inc": {"n": 1}}),
        UpdateMany({}, {"$inc": {"m": 1}}),
    ])
    assert (result.inserted_count, result.modified_count) == (1, 203)
    assert 1000 in ids(on_shard(cluster, 0, "r")) and 1000 not in ids(on_shard(cluster, 1, "r"))
    assert {d["n"] for d in ranged.find({"n": {"$exists": True}})} == {1}


def test_dropped_and_made_again(cluster, ranged, other):
    assert ids(other.d.r.find()) == list(range(200))
    ranged.drop()
    assert list(ranged.find()) == [] and on_shard(cluster, 1, "r") == []
    client = ranged.database.client
    assert client.config.collections.find_one({"_id": "d.r"}) is None
    assert client.config.chunks.count_documents({}) == 0 and client.config.tags.count_documents({"ns": "d.r"}) == 0
    assert list(other.d.r.find()) == []
    # It is another collection now, of the primary shard alone.
    other.d.r.insert_one({"_id": 1, "k": 150})
    assert on_shard(cluster, 1, "r") == [] and ranged.find_one({"k": 150})["_id"] == 1
    ranged.drop()
    shard(client, "d.r", {"k": "hashed"})
    other.d.r.insert_many([{"_id": n, "k": n} for n in range(100)])
    assert ids(ranged.find()) == list(range(100)) and len(on_shard(cluster, 1, "r")) > 10


def test_a_database_with_sharded_collections_is_dropped(cluster, hashed, other):
    assert other.d.c.count_documents({}) == 200
    client = hashed.database.client
    client.drop_database("d")
    assert client.config.collections.find_one({"_id": "d.c"}) is None
    assert client.config.databases.find_one({"_id": "d"}) is None
    assert on_shard(cluster, 0) == [] and on_shard(cluster, 1) == []
    assert other.d.c.count_documents({}) == 0
    other.d.c.insert_one({"k": 1})
    assert client.d.c.count_documents({}) == 1


def test_indexes(cluster, ranged):
    ranged.create_index("g")
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            assert "g_1" in direct.d.r.index_information()
    reply = ranged.database.command("createIndexes", "r", indexes=[{"key": {"h": 1}, "name": "h_1"}])
    assert len(reply["raw"]) == 2 and all(part["ok"] == 1 for part in reply["raw"].values())
    assert set(ranged.index_information()) == {"_id_", "k_1", "g_1", "h_1"}
    ranged.drop_index("g_1")
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            assert "g_1" not in direct.d.r.index_information()
    fails(lambda: ranged.create_index("u", unique=True), 67)
    ranged.create_index([("k", 1), ("u", 1)], unique=True)


def test_statistics(ranged):
    stats = ranged.database.command("collStats", "r")
    assert stats["sharded"] is True and stats["count"] == 200 and set(stats["shards"]) == {"s0", "s1"}
    parts = list(ranged.aggregate([{"$collStats": {"count": {}}}]))
    assert sorted((part["shard"], part["count"]) for part in parts) == [("s0", 100), ("s1", 100)]
    assert {part["shard"] for part in ranged.aggregate([{"$indexStats": {}}])} == {"s0", "s1"}
    parts = distribution(ranged.database.client, "d.r")
    assert sorted((part["shardName"], part["numOwnedDocuments"]) for part in parts) == [("s0", 100), ("s1", 100)]


def test_change_streams(ranged):
    with ranged.watch(max_await_time_ms=1000) as stream:
        for k in (1, 150, 2, 160):
            ranged.update_one({"k": k}, {"$set": {"w": k}})
        seen = [stream.next()["updateDescription"]["updatedFields"]["w"] for _ in range(4)]
        assert seen == [1, 150, 2, 160]
        token = stream.resume_token
    ranged.insert_one({"_id": 900, "k": 900})
    with ranged.watch(resume_after=token, max_await_time_ms=1000) as stream:
        change = stream.next()
        assert change["operationType"] == "insert" and change["documentKey"] == {"k": 900, "_id": 900}


def groups(spec):
    return [{"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$merge": spec}]


def test_keys_of_an_index_in_their_order(hashed):
    hashed.create_index([("g", 1), ("k", 1)])
    found = hashed.find({"g": {"$gte": 3}}, return_key=True).sort([("g", -1), ("k", -1)]).hint("g_1_k_1")
    expected = sorted(((n % 5, n) for n in range(200) if n % 5 >= 3), reverse=True)
    assert list(found) == [{"g": g, "k": k} for g, k in expected]


def test_a_drop_is_seen_once(hashed, db):
    with db.watch(max_await_time_ms=500) as stream:
        hashed.drop()
        db.plain.insert_one({"_id": 1})
        assert [(stream.next()["operationType"]) for _ in range(2)] == ["drop", "insert"]


def test_expanded_events_of_a_cluster(cluster, db):
    client = db.client
    db.plain.insert_one({"_id": 1})
    with client.watch(show_expanded_events=True, max_await_time_ms=500) as stream:
        shard(client, "d.c", {"k": "hashed"}, numInitialChunks=4)
        event = next(event for event in stream if event["operationType"] == "shardCollection")
        assert event["ns"] == {"db": "d", "coll": "c"} and event["collectionUUID"]
        assert event["operationDescription"] == {
            "shardKey": {"k": "hashed"}, "unique": False, "numInitialChunks": 4, "presplitHashedZones": False}
        client.drop_database("d")
        cluster.make_database("d", 0, client)
        client.d.last.insert_one({"_id": 1})
        seen = []
        while not seen or seen[-1] != ("insert", "last"):
            event = stream.next()
            seen.append((event["operationType"], event["ns"].get("coll")))
        drops = [event for event in seen if event[0] in ("drop", "dropDatabase")]
        assert sorted(drops, key=str) == [("drop", "c"), ("drop", "plain"), ("dropDatabase", None)], seen
    with client.watch(max_await_time_ms=500) as stream:
        shard(client, "d.e", {"k": 1})
        client.d.e.insert_one({"_id": 1, "k": 1})
        assert stream.next()["operationType"] == "insert"


def test_own_operations(db):
    admin = db.client.admin
    own = [{"$currentOp": {"localOps": True}}, {"$match": {"command.aggregate": 1}}, {"$project": {"opid": 1, "op": 1}}]
    found, = admin.aggregate(own)
    assert isinstance(found["opid"], int) and found["op"] == "command"
    counted = list(admin.aggregate([{"$currentOp": {}}, {"$group": {"_id": "$shard", "n": {"$sum": 1}}}]))
    assert {one["_id"] for one in counted} == {"s0", "s1"} and all(one["n"] > 0 for one in counted)
    fails(lambda: list(db.aggregate([{"$currentOp": {"localOps": True}}])), 73)


def test_documents_into_shards(ranged, db):
    documents = [{"_id": n, "k": n, "new": True} for n in (5, 150, 300)]
    list(db.aggregate([{"$documents": documents}, {"$merge": {"into": "r", "whenMatched": "replace"}}]))
    assert ids(ranged.find({"new": True})) == [5, 150, 300]
    fails(lambda: list(db.aggregate([{"$documents": documents}, {"$out": "r"}])), 28769)


def test_snapshots_of_the_routers_choice(ranged, db):
    level = {"level": "snapshot"}
    reply = db.command("find", "r", filter={}, batchSize=3, readConcern=level)["cursor"]
    at = reply["atClusterTime"]
    ranged.delete_many({})
    more = db.command("getMore", reply["id"], collection="r", batchSize=1000)["cursor"]
    assert len(reply["firstBatch"]) + len(more["nextBatch"]) == 200
    again = {"level": "snapshot", "atClusterTime": at}
    counted = db.command("aggregate", "r", pipeline=[{"$count": "n"}], cursor={}, readConcern=again)["cursor"]
    assert counted["firstBatch"] == [{"n": 200}] and counted["atClusterTime"] == at
    values = db.command("distinct", "r", key="g", readConcern=again)
    assert values["values"] == [0, 1, 2, 3, 4] and values["atClusterTime"] == at
    with db.client.start_session(snapshot=True) as session:
        assert ids(ranged.find({}, session=session)) == []
        ranged.insert_one({"_id": 1, "k": 1})
        assert list(ranged.aggregate([{"$count": "n"}], session=session)) == []


def test_transactions_that_join(ranged, db):
    split_in_zones(db.client, "d.other", {"k": 1}, 100)
    db.other.insert_many([{"_id": n, "k": n, "to": (n * 37) % 200} for n in range(0, 200, 10)])
    db.create_collection("seen", viewOn="r", pipeline=[{"$match": {"g": 0}}])
    lookup = {"$lookup": {"from": "other", "localField": "k", "foreignField": "to", "as": "found"}}
    viewed = {"$lookup": {"from": "seen", "localField": "k", "foreignField": "k", "as": "found"}}
    with db.client.start_session() as session:
        for level in ("local", "snapshot"):
            with session.start_transaction(read_concern=pymongo.read_concern.ReadConcern(level)):
                cursor = ranged.aggregate([lookup, {"$match": {"found": {"$ne": []}}}], session=session, batchSize=2)
                assert len(list(cursor)) == 20
                union = [{"$unionWith": "other"}, {"$count": "n"}]
                assert list(ranged.aggregate(union, session=session)) == [{"n": 220}]
                ranged.insert_one({"_id": 1000, "k": 50}, session=session)
                assert list(ranged.aggregate(union, session=session)) == [{"n": 221}]
                session.abort_transaction()
        db.plain.insert_many([{"_id": k, "k": k} for k in (1, 5, 150)])
        with session.start_transaction():
            found = db.plain.aggregate([viewed, {"$match": {"found": {"$ne": []}}}], session=session)
            assert ids(found) == [5, 150]


def test_partial_results_in_time(cluster, ranged, db):
    with cluster.shards[1].client() as direct:
        block = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 4000, "failInternalCommands": True}
        direct.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=block)
        try:
            reply = db.command("find", "r", batchSize=1000, allowPartialResults=True, maxTimeMS=1000)["cursor"]
            assert reply["partialResultsReturned"] and len(reply["firstBatch"]) == 100
            fails(lambda: db.command("find", "r", maxTimeMS=500), 50)
        finally:
            direct.admin.command("configureFailPoint", "failCommand", mode="off")


def test_codes_of_refusals(ranged, db):
    fails(lambda: list(ranged.aggregate([{"$documents": []}])), 73)
    fails(lambda: list(ranged.aggregate([{"$currentOp": {}}])), 73)
    with db.client.start_session() as session:
        session.start_transaction()
        fails(lambda: ranged.create_index("zz", session=session), 263)


def test_merge_into(ranged, db):
    db.plain.insert_many([{"_id": n, "k": n} for n in range(1000, 1010)])
    assert list(db.plain.aggregate([{"$merge": "r"}])) == []
    assert ranged.count_documents({"k": {"$gte": 1000}}) == 10
    # The ten that came have no group, and null is no `_id` to merge by.
    fails(lambda: ranged.aggregate(groups("summary")), 51132)
    ranged.aggregate([{"$match": {"k": {"$lt": 1000}}}, *groups("summary")])
    assert db.summary.count_documents({}) == 5 and db.summary.find_one({"_id": 1}) == {"_id": 1, "n": 40}
    # Sharded into sharded, by the values of the other's key, and into itself.
    shard(db.client, "d.other", {"h": "hashed"})
    ranged.aggregate([{"$project": {"h": "$k", "g": 1}}, {"$merge": "other"}])
    ranged.aggregate([{"$project": {"h": "$k", "twice": {"$multiply": ["$k", 2]}}}, {"$merge": {"into": "other", "whenNotMatched": "fail"}}])
    assert db.other.count_documents({"$expr": {"$eq": ["$twice", {"$multiply": ["$h", 2]}]}}) == 210
    assert db.other.find_one({"h": 150}) == {"_id": 150, "h": 150, "g": 0, "twice": 300}
    ranged.aggregate([{"$set": {"self": "$k"}}, {"$merge": "r"}])
    assert ranged.count_documents({"$expr": {"$eq": ["$self", "$k"]}}) == 210


def test_merge_and_out_by_an_old_table(db, other):
    """A router that takes the target for an unsharded one hears of it before it writes."""
    db.plain.insert_many([{"_id": n, "k": n} for n in range(200)])
    assert other.d.late.count_documents({}) == 0 and other.d.plain.count_documents({}) == 200
    split_in_zones(db.client, "d.late", {"k": 1}, 100)
    other.d.plain.aggregate([{"$merge": "late"}])
    assert sorted(part["numOwnedDocuments"] for part in distribution(db.client, "d.late")) == [100, 100]
    assert other.d.result.count_documents({}) == 0
    split_in_zones(db.client, "d.result", {"k": 1}, 100)
    fails(lambda: other.d.plain.aggregate([{"$out": "result"}]), 28769)
    # A source that became sharded, into what is not.
    shard(db.client, "d.plain", {"_id": 1})
    other.d.plain.aggregate([{"$merge": "copy"}])
    other.d.plain.aggregate([{"$out": "copied"}])
    assert db.copy.count_documents({}) == db.copied.count_documents({}) == 200


def test_merge_modes(ranged, db):
    db.plain.insert_many([{"_id": n, "k": n, "new": n} for n in (5, 150, 500)])

    def merge(source=db.plain, **spec):
        return list(source.aggregate([{"$project": {"k": 1, "new": 1}}, {"$merge": {"into": "r", **spec}}]))

    fails(lambda: merge(whenNotMatched="fail"), 13113)
    merge(whenNotMatched="discard")
    assert ranged.find_one({"k": 5}) == {"_id": 5, "k": 5, "g": 0, "new": 5} and ranged.find_one({"k": 500}) is None
    merge(whenMatched=[{"$set": {"new": {"$add": ["$new", "$$new.new", "$$x"]}}}], let={"x": "$k", "new": "$$ROOT"})
    assert ranged.find_one({"k": 150})["new"] == 450 and ranged.find_one({"k": 500}) == {"_id": 500, "k": 500, "new": 500}
    merge(whenMatched="keepExisting")
    assert ranged.find_one({"k": 150})["new"] == 450
    merge(whenMatched="replace")
    assert ranged.find_one({"k": 150}) == {"_id": 150, "k": 150, "new": 150}
    assert "E11000" in fails(lambda: merge(whenMatched="fail"), 11000)
    db.plain.insert_one({"_id": 1})
    assert "'on' field" in fails(merge, 51132)
    db.plain.delete_one({"_id": 1})
    fails(lambda: merge(on="k"), 51183)
    fails(lambda: merge(on=["_id", "k"]), 51183)
    ranged.create_index([("k", 1), ("_id", 1)], unique=True)
    db.plain.update_many({}, {"$inc": {"new": 1}})
    merge(on=["_id", "k"])
    assert ranged.find_one({"k": 500})["new"] == 501
    ranged.create_index("k", unique=True, name="unique_k")
    # The field identifies the documents here, and an update keeps the rest.
    db.plain.aggregate([{"$project": {"_id": 0, "k": 1, "by": "$k"}}, {"$merge": {"into": "r", "on": "k"}}])
    assert ranged.find_one({"k": 5}) == {"_id": 5, "k": 5, "new": 6, "by": 5}
    assert ranged.count_documents({}) == 201


def test_merge_and_out_between_shards(cluster, ranged, db):
    client = db.client
    client.drop_database("e")
    cluster.make_database("e", 1, client)
    ranged.aggregate([{"$match": {"g": 1}}, {"$merge": {"into": {"db": "e", "coll": "m"}}}])
    assert client.e.m.count_documents({}) == 40
    db.plain.insert_many([{"_id": n, "t": "x" * 1000} for n in range(2500)])
    db.plain.aggregate([{"$set": {"u": 1}}, {"$merge": {"into": {"db": "e", "coll": "m"}, "whenMatched": "replace"}}])
    assert client.e.m.count_documents({"u": 1}) == 2500
    db.plain.aggregate([{"$out": {"db": "e", "coll": "o"}}])
    assert client.e.o.count_documents({}) == 2500
    client.e.r.insert_one({"_id": 1, "k": 700})
    client.e.r.aggregate([{"$merge": {"into": {"db": "d", "coll": "r"}}}])
    assert ranged.find_one({"k": 700}) == {"_id": 1, "k": 700}
    # Strings compare as in the source.
    folded = db.create_collection("folded", collation={"locale": "en", "strength": 2})
    folded.insert_many([{"_id": 1, "w": "Cat"}, {"_id": 2, "w": "dog"}])
    folded.aggregate([{"$match": {"w": "CAT"}}, {"$out": {"db": "e", "coll": "words"}}])
    assert client.e.words.distinct("w") == ["Cat"]
    client.e.words.drop()
    with cluster.shards[1].client() as direct:
        assert direct.e.o.count_documents({}) == 2500
    assert sorted(client.e.list_collection_names()) == ["m", "o", "r"]


def test_out_after_merge_of_shards(ranged, db):
    """The output of several shards has the options and the indexes of what there was."""
    db.create_collection("result", validator={"g": {"$lt": 3}}, collation={"locale": "de"})
    db.result.create_index("g", name="by_g")
    db.result.create_index("k", unique=True)
    db.result.insert_one({"_id": "old", "g": 0})
    ranged.aggregate([{"$match": {"g": 1}}, {"$out": "result"}])
    assert ids(db.result.find()) == list(range(1, 200, 5))
    info, = db.list_collections(filter={"name": "result"})
    assert info["options"]["validator"] == {"g": {"$lt": 3}} and info["options"]["collation"]["locale"] == "de"
    assert "temp" not in info["options"]
    assert set(db.result.index_information()) == {"_id_", "by_g", "k_1"} and db.result.index_information()["k_1"]["unique"]
    fails(lambda: ranged.aggregate([{"$out": "result"}]), 121)
    ranged.aggregate([{"$out": "result"}], bypassDocumentValidation=True)
    assert db.result.count_documents({}) == 200
    ranged.insert_one({"_id": "twice", "k": 5})
    fails(lambda: ranged.aggregate([{"$out": "result"}], bypassDocumentValidation=True), 11000)
    assert db.result.count_documents({}) == 200
    wait_until(lambda: sorted(db.list_collection_names()) == ["r", "result"], 30)
    db.create_collection("capped", capped=True, size=4096)
    fails(lambda: ranged.aggregate([{"$out": "capped"}]), 17152)
    assert fails(lambda: db.result.aggregate([{"$out": "r"}]), 28769) == "$out to a sharded collection is not allowed"
    db.command("explain", {"aggregate": "r", "pipeline": groups("nothing"), "cursor": {}})
    db.command("aggregate", "r", pipeline=[{"$out": "nothing"}], explain=True)
    assert "nothing" not in db.list_collection_names()
    two = ranged.with_options(write_concern=WriteConcern(2, wtimeout=100))
    for stage in ({"$merge": "far"}, {"$out": "away"}):
        with pytest.raises(WriteConcernError):
            two.aggregate([{"$match": {"k": {"$lt": 5}}}, stage])
    with db.client.start_session() as session:
        session.start_transaction()
        fails(lambda: ranged.aggregate(groups("summary"), session=session), 263)


def test_zones(db):
    client = db.client
    fails(lambda: client.admin.command("addShardToZone", "none", zone="z"), 70)
    fails(lambda: client.admin.command("updateZoneKeyRange", "d.z", min={"k": 1}, max={"k": 2}, zone="nowhere"), 177)
    split_in_zones(client, "d.z", {"k": 1}, 10)
    chunks = [(chunk["min"], chunk["shard"]) for chunk in chunks_of(client, "d.z")]
    assert chunks == [({"k": MinKey()}, "s0"), ({"k": 10}, "s1")]
    assert set(client.config.shards.find_one({"_id": "s0"})["tags"]) == {"low"}


def test_transactions(ranged, db):
    with db.client.start_session() as session:
        with session.start_transaction():
            ranged.update_one({"k": 1}, {"$set": {"t": 1}}, session=session)
            assert ranged.find_one({"k": 150}, session=session)["_id"] == 150
            assert ranged.count_documents({"t": 1}, session=session) == 1
        assert ranged.count_documents({"t": 1}) == 1
        session.start_transaction()
        ranged.update_one({"k": 1}, {"$set": {"t": 2}}, session=session)
        fails(lambda: ranged.update_one({"k": 150}, {"$set": {"t": 2}}, session=session), 115)
    assert ranged.count_documents({"t": 2}) == 0


def test_secondaries_and_elections():
    with Cluster(shards=2, members=3) as small, small.client(retryWrites=True) as client:
        small.make_database("d", 0, client)
        shard(client, "d.c", {"k": "hashed"})
        client.d.get_collection("c", write_concern=pymongo.WriteConcern(3)).insert_many([{"_id": n, "k": n} for n in range(100)])
        secondaries = client.get_database("d", read_preference=ReadPreference.SECONDARY)
        assert ids(secondaries.c.find()) == list(range(100))
        # A shard that has nothing to write reaches the time of a write of another one all the same.
        with client.start_session(causal_consistency=True) as session:
            client.d.c.update_one({"k": 7}, {"$set": {"n": 1}}, session=session)
            began = time.monotonic()
            assert len(list(secondaries.c.find(session=session))) == 100
            assert time.monotonic() - began < 5
        for members in small.shards:
            members.primary().client().admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=4)
        assert ids(client.d.c.find()) == list(range(100))
        client.d.c.insert_many([{"_id": n, "k": n} for n in range(100, 150)])
        assert client.d.c.count_documents({}) == 150
        wait_until(lambda: ids(secondaries.c.find()) == list(range(150)))


def test_one_time_for_all_updates_of_a_command(hashed):
    """Whichever shards execute them."""
    client = hashed.database.client
    set_time = [{"$set": {"at": "$$NOW"}}]
    ops = [{"update": 0, "filter": {"k": n}, "updateMods": set_time, "multi": False} for n in range(40)]
    ops.append({"update": 0, "filter": {"k": {"$gte": 100}}, "updateMods": set_time, "multi": True})
    reply = client.admin.command({"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "d.c"}]})
    assert reply["nModified"] == 140
    assert len(hashed.distinct("at")) == 1
    hashed.bulk_write([UpdateMany({"k": n}, set_time) for n in range(40)])
    assert len(hashed.distinct("at", {"k": {"$lt": 40}})) == 1


def test_a_transaction_by_an_old_table(ranged, client, other):
    """A router that takes a sharded collection for one of the primary shard would find a second
    shard written by a transaction that writes on one."""
    assert other.d.late.find_one() is None
    split_in_zones(client, "d.late", {"k": 1}, 0)
    assert other.d.bulk.find_one() is None
    split_in_zones(client, "d.bulk", {"k": 1}, 0)
    with other.start_session() as session, session.start_transaction():
        assert other.d.r.update_one({"k": 120}, {"$set": {"x": 1}}, session=session).modified_count == 1
        other.d.late.insert_one({"k": 5}, session=session)
        other.bulk_write([InsertOne({"k": 6}, namespace="d.bulk")], session=session)
    assert client.d.late.count_documents({"k": 5}) == client.d.bulk.count_documents({"k": 6}) == 1
    assert client.d.r.find_one({"k": 120})["x"] == 1
    with other.start_session() as session:
        session.start_transaction()
        other.d.r.update_one({"k": 120}, {"$set": {"x": 2}}, session=session)
        message = fails(lambda: other.d.late.insert_one({"k": -5}, session=session), 115)
        assert "writes on several shards" in message
    assert client.d.late.count_documents({}) == 1 and client.d.r.find_one({"k": 120})["x"] == 1
