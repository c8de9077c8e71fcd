"""Shards of Pinion behind the config servers and the router of MongoDB 4.4: databases that are not
sharded, and collections whose chunks are placed when they are sharded."""

import os
import random

import pymongo
import pytest
from bson import SON

from mixed_cluster import MongoCluster, Mongos
from pinion_cluster import fails
from pinion_node import next_event, wait_until

pytestmark = pytest.mark.skipif("PINION_MONGOD" not in os.environ, reason="PINION_MONGOD does not name the folder with mongod and mongos")


@pytest.fixture(scope="module")
def cluster():
    with MongoCluster() as running:
        yield running
        for process in running.processes():
            assert process.alive(), "a process ended during the tests"
            assert not [line for line in process.log if "panick" in line.lower()]


@pytest.fixture
def client(cluster):
    with cluster.client() as client:
        yield client


@pytest.fixture
def db(client, request):
    """A database of the test's own."""
    name = request.node.name.translate(str.maketrans("[]", "__"))[:50]
    client.drop_database(name)
    yield client[name]
    client.drop_database(name)


def counts(cluster, collection):
    """How many documents each shard has."""
    found = []
    for shard in cluster.shards:
        with shard.member(shard.primary()) as client:
            found.append(client[collection.database.name][collection.name].count_documents({}))
    return found


def shard_hashed(client, collection, chunks=4):
    client.admin.command("enableSharding", collection.database.name)
    client.admin.command("shardCollection", collection.full_name, key={"_id": "hashed"}, numInitialChunks=chunks)


def test_shards_are_added(cluster, client):
    shards = client.admin.command("listShards")["shards"]
    assert [(shard["_id"], shard["state"]) for shard in shards] == [("s0", 1), ("s1", 1)]
    for shard in cluster.shards:
        with shard.member(shard.primary()) as member:
            assert member.admin.command("hello")["maxWireVersion"] == 9
            state = member.admin.command("shardingState")
            assert state["enabled"] and state["shardName"] == shard.name


def test_an_unsharded_database(cluster, client, db):
    people = db.people
    people.insert_many([{"_id": at, "n": at % 7} for at in range(200)])
    assert people.count_documents({}) == 200
    assert people.update_many({"n": 3}, {"$inc": {"n": 10}}).modified_count == people.count_documents({"n": 13})
    assert people.delete_many({"n": 13}).deleted_count > 0
    assert people.find_one_and_update({"_id": 1}, {"$set": {"x": 1}}, return_document=True)["x"] == 1
    assert people.replace_one({"_id": "new"}, {"y": 1}, upsert=True).upserted_id == "new"
    people.create_index([("n", 1)], name="by_n")
    assert "by_n" in people.index_information()
    assert [d["_id"] for d in people.find({"n": 2}).sort("_id", -1).limit(3)] == [198, 191, 184]
    assert {d["_id"] for d in people.aggregate([{"$group": {"_id": "$n"}}])} >= {0, 1, 2}
    assert set(people.distinct("n")) >= {0, 1, 2}
    assert sorted(db.list_collection_names()) == ["people"]
    people.rename("folk")
    assert db.folk.count_documents({"n": 2}) > 0
    db.folk.drop()
    assert db.list_collection_names() == []
    assert 0 in counts(cluster, people)


def test_a_view(db):
    db.base.insert_many([{"_id": at} for at in range(10)])
    db.create_collection("few", viewOn="base", pipeline=[{"$match": {"_id": {"$lt": 3}}}])
    assert [d["_id"] for d in db.few.find().sort("_id")] == [0, 1, 2]


def test_a_transaction_on_one_shard(client, db):
    db.accounts.insert_many([{"_id": 1, "n": 5}, {"_id": 2, "n": 5}])
    with client.start_session() as session:
        with session.start_transaction():
            db.accounts.update_one({"_id": 1}, {"$inc": {"n": -1}}, session=session)
            db.accounts.update_one({"_id": 2}, {"$inc": {"n": 1}}, session=session)
        assert [d["n"] for d in db.accounts.find().sort("_id")] == [4, 6]
        session.start_transaction()
        db.accounts.update_one({"_id": 1}, {"$set": {"n": 0}}, session=session)
        session.abort_transaction()
    assert db.accounts.find_one({"_id": 1})["n"] == 4


def test_a_sharded_collection_is_on_all_shards(cluster, client, db):
    docs = db.docs
    shard_hashed(client, docs)
    docs.insert_many([{"_id": at, "n": at} for at in range(1000)])
    found = counts(cluster, docs)
    assert sum(found) == 1000 and min(found) > 300
    entry = client.config.collections.find_one({"_id": docs.full_name})
    assert entry["key"] == {"_id": "hashed"} and not entry["dropped"]
    chunks = list(client.config.chunks.find({"ns": docs.full_name}))
    assert len(chunks) == 4 and {chunk["shard"] for chunk in chunks} == {"s0", "s1"}
    assert docs.count_documents({}) == 1000 and docs.estimated_document_count() == 1000
    assert [d["_id"] for d in docs.find().sort("n", -1).skip(5).limit(5)] == [994, 993, 992, 991, 990]
    assert docs.find_one({"_id": 77})["n"] == 77
    assert docs.update_many({"n": {"$lt": 10}}, {"$set": {"low": True}}).modified_count == 10
    assert docs.update_one({"_id": 500}, {"$set": {"x": 1}}).modified_count == 1
    assert docs.delete_many({"n": {"$gte": 990}}).deleted_count == 10
    assert docs.find_one_and_delete({"_id": 3})["n"] == 3
    assert docs.update_one({"_id": 5000}, {"$set": {"n": 5000}}, upsert=True).upserted_id == 5000
    assert docs.count_documents({}) == 990
    assert len(list(docs.find({}, batch_size=10))) == 990


def test_by_ranges_and_zones(cluster, client, db):
    docs = db.docs
    client.admin.command("enableSharding", db.name)
    for shard, zone, low, high in (("s0", "west", 0, 100), ("s1", "east", 100, 200)):
        client.admin.command("addShardToZone", shard, zone=zone)
        client.admin.command("updateZoneKeyRange", docs.full_name, min={"k": low}, max={"k": high}, zone=zone)
    client.admin.command("shardCollection", docs.full_name, key={"k": 1})
    docs.insert_many([{"_id": at, "k": at} for at in range(200)])
    assert counts(cluster, docs) == [100, 100]
    assert [d["k"] for d in docs.find({"k": {"$gte": 95, "$lt": 105}}).sort("k")] == list(range(95, 105))
    assert docs.update_many({"k": {"$gte": 95, "$lt": 105}}, {"$set": {"m": 1}}).modified_count == 10
    plan = docs.find({"k": 5}).explain()["queryPlanner"]["winningPlan"]
    assert plan["stage"] == "SINGLE_SHARD", plan
    for zone in ("west", "east"):
        low, high = (0, 100) if zone == "west" else (100, 200)
        client.admin.command("updateZoneKeyRange", docs.full_name, min={"k": low}, max={"k": high}, zone=None)


def test_a_split(client, db):
    docs = db.docs
    client.admin.command("enableSharding", db.name)
    client.admin.command("shardCollection", docs.full_name, key={"k": 1})
    docs.insert_many([{"_id": at, "k": at} for at in range(100)])
    client.admin.command("split", docs.full_name, middle={"k": 50})
    assert client.config.chunks.count_documents({"ns": docs.full_name}) == 2
    assert docs.count_documents({"k": {"$gte": 40, "$lt": 60}}) == 20
    docs.insert_one({"_id": "x", "k": 77})
    assert docs.find_one({"k": 77, "_id": "x"})


def test_a_collection_with_documents_is_sharded(cluster, client, db):
    docs = db.docs
    docs.insert_many([{"_id": at, "k": at % 10} for at in range(100)])
    docs.create_index("k")
    client.admin.command("enableSharding", db.name)
    client.admin.command("shardCollection", docs.full_name, key={"k": 1})
    assert docs.count_documents({}) == 100 and sorted(counts(cluster, docs)) == [0, 100]
    message = fails(lambda: client.admin.command("shardCollection", docs.full_name, key={"_id": 1}), 23)
    assert "already" in message


PIPELINES = {
    "sums": [{"$group": {"_id": "$g", "s": {"$sum": "$n"}, "d": {"$sum": "$x"}, "c": {"$sum": 1}}}],
    "averages": [{"$group": {"_id": "$g", "a": {"$avg": "$n"}, "d": {"$avg": "$x"}}}],
    "deviations": [{"$group": {"_id": "$g", "p": {"$stdDevPop": "$n"}, "s": {"$stdDevSamp": "$n"}}}],
    "extremes": [{"$group": {"_id": "$g", "low": {"$min": "$n"}, "high": {"$max": "$x"}}}],
    "sets": [{"$group": {"_id": "$g", "all": {"$addToSet": "$m"}}}],
    "a sort": [{"$sort": {"n": -1}}, {"$limit": 20}],
    "a sort by two": [{"$sort": {"g": 1, "n": -1}}, {"$skip": 3}, {"$limit": 20}],
    "a group behind a sort": [{"$sort": {"n": 1}}, {"$group": {"_id": "$g", "first": {"$first": "$n"}, "last": {"$last": "$n"}}}],
    "counts": [{"$match": {"g": 2}}, {"$count": "n"}],
    "sorted counts": [{"$sortByCount": "$m"}],
    "facets": [{"$facet": {"a": [{"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "b": [{"$count": "n"}]}}],
    "a bucket": [{"$bucket": {"groupBy": "$n", "boundaries": [0, 100, 300], "default": "more"}}],
    "an unwind": [{"$unwind": "$l"}, {"$group": {"_id": "$l", "n": {"$sum": 1}}}],
    "a projection": [{"$project": {"g": 1, "twice": {"$multiply": ["$n", 2]}}}, {"$sort": {"_id": 1}}],
    "now": [{"$match": {"$expr": {"$lt": ["$n", "$$NOW"]}}}, {"$group": {"_id": None, "n": {"$sum": 1}}}],
}


@pytest.fixture(scope="module")
def both(cluster):
    """The same documents in a collection that is sharded, and in one that is not."""
    with cluster.client() as client:
        db = client.pipelines
        client.drop_database(db.name)
        draw = random.Random(5)
        documents = [{
            "_id": at, "n": draw.randrange(500), "x": draw.randrange(1000) / 8, "g": draw.randrange(5), "m": draw.randrange(9),
            "l": [draw.randrange(4) for _ in range(3)],
        } for at in range(600)]
        shard_hashed(client, db.sharded)
        for collection in (db.sharded, db.whole):
            collection.insert_many(documents)
        yield db


def sorted_by_id(documents):
    """Documents in an order; sets have none."""
    def plain(value):
        return sorted(value, key=repr) if isinstance(value, list) else value

    return sorted(({name: plain(value) for name, value in document.items()} for document in documents), key=repr)


def nearly(value):
    """Numbers but for the order in which they were added."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: nearly(inner) for name, inner in value.items()}
    return [nearly(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(both, name):
    sharded, whole = (nearly(list(collection.aggregate(PIPELINES[name]))) for collection in (both.sharded, both.whole))
    if "$sort" in PIPELINES[name][0] and "$group" not in PIPELINES[name][-1]:
        keys = [key for key in PIPELINES[name][0]["$sort"]]
        assert [[d[key] for key in keys] for d in sharded] == [[d[key] for key in keys] for d in whole]
    else:
        assert sorted_by_id(sharded) == sorted_by_id(whole)


def test_sorted_finds(both):
    for sort in ([("n", 1), ("_id", 1)], [("g", -1), ("x", 1), ("_id", -1)]):
        sharded, whole = (list(collection.find({}, {"n": 1, "g": 1}).sort(sort).skip(7).limit(50)) for collection in (both.sharded, both.whole))
        assert sharded == whole
        assert list(both.sharded.find().sort(sort).batch_size(9)) == list(both.whole.find().sort(sort))


def test_distinct_values(both):
    assert sorted(both.sharded.distinct("m", {"g": 1})) == sorted(both.whole.distinct("m", {"g": 1}))


def test_a_sharded_collection_is_dropped_and_made_again(cluster, client, db):
    docs = db.docs
    for attempt in range(3):
        shard_hashed(client, docs)
        docs.insert_many([{"_id": at, "attempt": attempt} for at in range(100)])
        assert docs.count_documents({"attempt": attempt}) == docs.count_documents({}) == 100
        docs.drop()
        assert counts(cluster, docs) == [0, 0]
    docs.insert_one({"_id": "unsharded"})
    assert list(docs.find()) == [{"_id": "unsharded"}]
    client.drop_database(db.name)
    assert counts(cluster, docs) == [0, 0]


def test_two_routers_of_which_one_is_stale(client, cluster, db):
    """A router that has read the collection as unsharded learns that it is sharded now."""
    docs = db.docs
    docs.insert_many([{"_id": at} for at in range(50)])
    with Mongos(cluster.config.connection_string) as other, other.client() as through_other:
        same = through_other[db.name].docs
        assert same.count_documents({}) == 50
        docs.drop()
        shard_hashed(client, docs)
        docs.insert_many([{"_id": at} for at in range(80)])
        assert same.count_documents({}) == 80
        assert same.insert_many([{"_id": at} for at in range(80, 100)], ordered=False).inserted_ids == list(range(80, 100))
        assert docs.count_documents({}) == 100
        docs.drop()
        docs.insert_one({"_id": 1})
        same.update_one({"_id": 1}, {"$set": {"x": 1}})
        assert list(same.find()) == [{"_id": 1, "x": 1}]


def test_a_change_stream(client, db):
    docs = db.docs
    shard_hashed(client, docs)
    with docs.watch() as stream:
        docs.insert_many([{"_id": at} for at in range(20)])
        docs.update_one({"_id": 4}, {"$set": {"x": 1}})
        events = [next_event(stream) for _ in range(21)]
        assert sorted(event["documentKey"]["_id"] for event in events[:20]) == list(range(20))
        assert events[20]["operationType"] == "update"
        token = events[9]["_id"]
    with docs.watch(resume_after=token) as stream:
        rest = [next_event(stream) for _ in range(11)]
        assert [event["documentKey"] for event in rest] == [event["documentKey"] for event in events[10:]]


def test_a_finer_key(cluster, client, db):
    docs = db.docs
    client.admin.command("enableSharding", db.name)
    client.admin.command("shardCollection", docs.full_name, key={"k": 1})
    docs.insert_many([{"_id": at, "k": at % 10, "g": at} for at in range(100)])
    with pytest.raises(pymongo.errors.OperationFailure):
        client.admin.command("refineCollectionShardKey", docs.full_name, key={"k": 1, "g": 1})
    docs.create_index([("k", 1), ("g", 1)])
    client.admin.command("refineCollectionShardKey", docs.full_name, key={"k": 1, "g": 1})
    assert client.config.collections.find_one({"_id": docs.full_name})["key"] == {"k": 1, "g": 1}
    assert docs.count_documents({"k": 3}) == 10 and docs.find_one({"k": 3, "g": 13})["_id"] == 13
    docs.insert_one({"_id": "new", "k": 3, "g": 1000})
    assert docs.count_documents({"k": 3}) == 11


def test_keys_stay_where_an_update_names_none(client, db):
    """Such an update goes to all shards, and its document would be on the wrong one afterwards."""
    docs = db.docs
    client.admin.command("enableSharding", db.name)
    client.admin.command("shardCollection", docs.full_name, key={"k": "hashed"}, numInitialChunks=4)
    docs.insert_many([{"_id": at, "k": at, "x": at} for at in range(20)])
    for update in ({"$set": {"k": 100}}, {"$inc": {"k": 1}}, {"$unset": {"k": 1}}, [{"$set": {"k": 100}}]):
        fails(lambda update=update: docs.update_one({"_id": 3}, update), 31025)
        fails(lambda update=update: docs.update_many({"x": {"$lt": 5}}, update), 72)
    assert sorted((d["_id"], d["k"]) for d in docs.find()) == [(at, at) for at in range(20)]
    assert docs.update_one({"_id": 3}, {"$set": {"x": 7}}).modified_count == 1


def test_hints_and_ids_of_records(both):
    both.sharded.create_index("n", name="by_n")
    assert both.sharded.count_documents({"n": {"$gte": 0}}, hint="by_n") == 600
    assert len(list(both.sharded.find({"n": {"$lt": 100}}, hint="by_n"))) == both.whole.count_documents({"n": {"$lt": 100}})
    assert list(both.sharded.aggregate([{"$count": "n"}], hint="by_n")) == [{"n": 600}]
    assert both.sharded.update_many({"n": -1}, {"$set": {"x": 1}}, hint="by_n").matched_count == 0
    assert both.sharded.delete_many({"n": -1}, hint="by_n").deleted_count == 0
    assert all("$recordId" in d for d in both.whole.find({}, show_record_id=True).limit(3))


def test_streams_that_look_documents_up(client, db):
    docs = db.docs
    shard_hashed(client, docs)
    docs.insert_one({"_id": 1})
    with docs.watch(full_document="updateLookup") as stream:
        docs.update_one({"_id": 1}, {"$set": {"x": 1}})
        assert next_event(stream)["fullDocument"] == {"_id": 1, "x": 1}


def test_beside_a_shard_of_mongodb():
    """Databases have their primary on either, and each collection has chunks on both."""
    with MongoCluster(shards=1, of_mongodb=1) as cluster, cluster.client() as client:
        primaries = set()
        for at in range(6):
            docs = client[f"d{at}"].docs
            shard_hashed(client, docs)
            primaries.add(client.config.databases.find_one({"_id": docs.database.name})["primary"])
            docs.insert_many([{"_id": n, "n": n, "g": n % 3, "x": n / 8, "pad": "x" * 2000} for n in range(400)])
            found = counts(cluster, docs)
            assert sum(found) == 400 and min(found) > 100
            assert [d["n"] for d in docs.find().sort("n", -1).limit(5)] == [399, 398, 397, 396, 395]
            averages = {d["_id"]: (d["a"], d["s"]) for d in docs.aggregate([
                {"$group": {"_id": "$g", "a": {"$avg": "$x"}, "s": {"$stdDevPop": "$n"}}}])}
            for group in range(3):
                of_group = [n for n in range(400) if n % 3 == group]
                mean = sum(of_group) / len(of_group)
                deviation = (sum((n - mean) ** 2 for n in of_group) / len(of_group)) ** 0.5
                assert averages[group] == (pytest.approx(mean / 8), pytest.approx(deviation))
            assert docs.update_many({"g": 1}, {"$inc": {"n": 1000}}).modified_count == 133
            assert docs.delete_many({"g": 2}).deleted_count == 133 and docs.count_documents({}) == 267
            with docs.watch() as stream:
                docs.insert_many([{"_id": 1000 + n} for n in range(10)])
                assert sorted(next_event(stream)["documentKey"]["_id"] for _ in range(10)) == list(range(1000, 1010))
        assert primaries == {"s0", "s1"}
        client.drop_database("d0")
        assert "d0" not in client.list_database_names()


def test_a_primary_of_the_shard_dies():
    with MongoCluster(shards=1, members=3) as cluster, cluster.client(serverSelectionTimeoutMS=60_000) as client:
        docs = client.test.docs
        shard_hashed(client, docs)
        docs.insert_many([{"_id": at} for at in range(100)])
        [shard] = cluster.shards
        old = shard.primary()
        old.kill()
        acknowledged = set(range(100))
        wait_until(lambda: shard.primary() is not old, 60)
        for at in range(100, 200):
            try:
                docs.insert_one({"_id": at})
                acknowledged.add(at)
            except pymongo.errors.DuplicateKeyError:
                acknowledged.add(at)
            except pymongo.errors.PyMongoError:
                # While its router does not know the new primary yet.
                continue
        assert len(acknowledged) > 150
        assert acknowledged <= {d["_id"] for d in docs.find()}
        old.start()
        wait_until(lambda: shard.state(old) in (1, 2), 60)
        with client.start_session(causal_consistency=True) as session:
            docs.insert_one({"_id": "last"}, session=session)
            secondary = docs.with_options(read_preference=pymongo.ReadPreference.SECONDARY)
            assert secondary.find_one({"_id": "last"}, session=session) == {"_id": "last"}


def test_what_is_not_supported_is_refused(client, db):
    docs = db.docs
    shard_hashed(client, docs)
    other = {"s0": "s1", "s1": "s0"}[client.config.databases.find_one({"_id": db.name})["primary"]]
    with pytest.raises(pymongo.errors.OperationFailure):
        client.admin.command("movePrimary", db.name, to=other)
    docs.insert_one({"_id": 1})
    assert docs.count_documents({}) == 1


def test_statistics(client, db):
    docs = db.docs
    shard_hashed(client, docs)
    docs.insert_many([{"_id": at} for at in range(100)])
    stats = db.command("collStats", "docs")
    assert stats["sharded"] and stats["count"] == 100 and set(stats["shards"]) == {"s0", "s1"}
    assert db.command("dbStats")["objects"] == 100
    assert db.validate_collection("docs")
    assert db.command(SON([("dataSize", docs.full_name), ("keyPattern", {"_id": "hashed"})]))["numObjects"] == 100
