"""Sharded time series: their buckets are spread over shards by fields of the meta field and by
time, and clients see measurements."""

import datetime
import random
import threading
import time

import pytest
from bson import Int64, MaxKey, MinKey
from pinion_cluster import fails, inconsistencies
from pinion_node import Beside, FailPoint, wait_until
from pymongo import DeleteMany, DeleteOne, InsertOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.read_preferences import ReadPreference

BAD_VALUE = 2
ILLEGAL_OPERATION = 20
NAMESPACE_EXISTS = 48
INVALID_OPTIONS = 72
OTHER_SERIES = 5_731_500
TIME_NOT_LAST = 5_914_000
NO_FIELD_OF_KEY = 5_914_001
START = datetime.datetime(2026, 1, 1)
MINUTE = datetime.timedelta(minutes=1)
SERIES = {"timeField": "t", "metaField": "m"}


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
    db, _, name = ns.partition(".")
    return client.config.collections.find_one({"_id": f"{db}.system.buckets.{name}"})


def measurements(count=400, sources=8, step=MINUTE):
    """Some an hour and more apart, from sources in turn."""
    return [
        {"_id": n, "t": START + n * step, "m": {"s": n % sources, "room": f"r{n % 3}"}, "v": n * 7 % 100}
        for n in range(count)
    ]


def split_by_time(client, name, at, series=SERIES):
    """Shards a series that is not there: what begins before `at` goes to s0, the rest to s1."""
    field = f"control.min.{series['timeField']}"
    ns = f"d.system.buckets.{name}"
    client.admin.command("addShardToZone", "s0", zone="low")
    client.admin.command("addShardToZone", "s1", zone="high")
    client.admin.command("updateZoneKeyRange", ns, min={field: MinKey()}, max={field: at}, zone="low")
    client.admin.command("updateZoneKeyRange", ns, min={field: at}, max={field: MaxKey()}, zone="high")
    return shard(client, f"d.{name}", {series["timeField"]: 1}, timeseries=series)


@pytest.fixture
def hashed(db):
    """A series whose sources are on both shards."""
    shard(db.client, "d.h", {"m.s": "hashed"}, timeseries=SERIES)
    db.h.insert_many(measurements())
    return db.h


@pytest.fixture
def timed(db):
    """A series whose buckets of the first three hours are on the first shard."""
    split_by_time(db.client, "r", START + 180 * MINUTE)
    db.r.insert_many(measurements())
    return db.r


@pytest.fixture
def alone(cluster, client):
    """The same measurements in a series that is not sharded."""
    client.drop_database("e")
    cluster.make_database("e", 1, client)
    client.e.create_collection("a", timeseries=SERIES)
    client.e.a.insert_many(measurements())
    return client.e.a


def on_shard(cluster, at, name):
    with cluster.shards[at].client() as direct:
        return list(direct.d[name].find())


def canon(documents):
    return sorted(documents, key=repr)


def test_a_series_is_made_and_sharded(db):
    client = db.client
    entry = shard(client, "d.s", {"m.s": 1, "t": 1}, timeseries={**SERIES, "granularity": "minutes"})
    assert entry["key"] == {"meta.s": 1, "control.min.t": 1}
    assert entry["timeseriesFields"] == {
        "timeField": "t", "metaField": "m", "granularity": "minutes", "bucketMaxSpanSeconds": 86_400,
    }
    listed, = db.list_collections(filter={"name": "s"})
    assert listed["type"] == "timeseries" and listed["options"]["timeseries"]["granularity"] == "minutes"
    keys = [index["key"] for index in db.s.list_indexes()]
    assert {"m.s": 1, "t": 1} in keys
    # Sent again it is a success, with another key it is not.
    shard(client, "d.s", {"m.s": 1, "t": 1})
    shard(client, "d.s", {"m.s": 1, "t": 1}, timeseries={**SERIES, "granularity": "minutes"})
    fails(lambda: shard(client, "d.s", {"m.s": 1}), 23)
    fails(lambda: shard(client, "d.s", {"m.s": 1, "t": 1}, timeseries=SERIES), OTHER_SERIES)
    db.create_collection("s", check_exists=False, timeseries={**SERIES, "granularity": "minutes"})
    fails(lambda: db.create_collection("s", check_exists=False, timeseries=SERIES), NAMESPACE_EXISTS)
    stats = db.command("collStats", "s")
    assert stats["sharded"] and stats["timeseries"]["bucketsNs"] == "d.system.buckets.s"


def test_keys_that_a_series_cannot_have(db):
    client = db.client
    check = lambda key, code: fails(lambda: shard(client, "d.s", key, timeseries=SERIES), code)
    check({"t": 1, "m": 1}, TIME_NOT_LAST)
    check({"v": 1}, NO_FIELD_OF_KEY)
    check({"m.s": 1, "_id": 1}, NO_FIELD_OF_KEY)
    check({"t": "hashed"}, BAD_VALUE)
    fails(lambda: shard(client, "d.s", {"m": 1}, timeseries={"metaField": "m"}), 40414)
    fails(lambda: shard(client, "d.s", {"m": 1}, timeseries={"timeField": "t"}), NO_FIELD_OF_KEY)
    fails(lambda: shard(client, "d.s", {"m": 1}, timeseries=SERIES, unique=True), INVALID_OPTIONS)
    fails(lambda: client.admin.command("shardCollection", "d.system.buckets.s", key={"meta": 1}), 5_731_501)
    assert "s" not in db.list_collection_names()
    db.create_collection("plain")
    fails(lambda: shard(client, "d.plain", {"m": 1}, timeseries=SERIES), NAMESPACE_EXISTS)


def test_a_series_that_is_there_is_sharded(cluster, db):
    db.create_collection("s", timeseries=SERIES)
    db.s.insert_many(measurements(100))
    entry = shard(db.client, "d.s", {"m": 1})
    assert entry["key"] == {"meta": 1} and len(list(db.s.find())) == 100
    assert len(on_shard(cluster, 0, "s")) == 100 and on_shard(cluster, 1, "s") == []
    # With documents an index is not made.
    db.create_collection("u", timeseries=SERIES)
    db.u.insert_many(measurements(10))
    fails(lambda: shard(db.client, "d.u", {"m.room": 1}), INVALID_OPTIONS)
    db.u.create_index({"m.room": 1})
    shard(db.client, "d.u", {"m.room": 1})


def test_measurements_are_spread(cluster, hashed, timed):
    for name in ("h", "r"):
        parts = [on_shard(cluster, at, name) for at in (0, 1)]
        assert all(len(part) > 50 for part in parts), (name, [len(part) for part in parts])
        ids = sorted(found["_id"] for part in parts for found in part)
        assert ids == list(range(400)), name
    assert all(found["t"] < START + 240 * MINUTE for found in on_shard(cluster, 0, "r"))


FILTERS = [
    {}, {"m.s": 3}, {"m.s": {"$in": [1, 2]}}, {"m": {"s": 1, "room": "r1"}}, {"v": {"$gt": 90}}, {"_id": 77},
    {"t": START + 200 * MINUTE}, {"t": {"$gte": START + 150 * MINUTE, "$lt": START + 250 * MINUTE}},
    {"t": {"$lt": START + 10 * MINUTE}}, {"t": {"$gt": START + 390 * MINUTE}},
    {"t": {"$gt": START + 170 * MINUTE, "$lt": START + 182 * MINUTE}, "m.s": {"$lt": 4}},
    {"$or": [{"m.s": 1, "v": {"$lt": 30}}, {"t": START}]}, {"m.s": 99}, {"$expr": {"$gt": ["$v", 95]}},
]
PIPELINES = [
    [{"$group": {"_id": "$m.s", "n": {"$sum": 1}, "v": {"$sum": "$v"}}}, {"$sort": {"_id": 1}}],
    [{"$match": {"t": {"$gte": START + 100 * MINUTE}}}, {"$count": "n"}],
    [{"$sort": {"t": 1}}, {"$limit": 20}], [{"$sort": {"t": -1, "_id": 1}}, {"$skip": 5}, {"$limit": 7}],
    [{"$match": {"m.s": 2}}, {"$group": {"_id": None, "last": {"$last": "$v"}, "n": {"$sum": 1}}}, {"$unset": "last"}],
    [{"$setWindowFields": {"partitionBy": "$m.s", "sortBy": {"t": 1}, "output": {"run": {"$sum": "$v", "window": {
        "documents": ["unbounded", "current"]}}}}}, {"$sort": {"_id": 1}}],
    [{"$match": {"m.s": 1}}, {"$lookup": {"from": "SELF", "localField": "_id", "foreignField": "v", "as": "w"}},
     {"$project": {"n": {"$size": "$w"}}}, {"$sort": {"_id": 1}}],
    [{"$match": {"v": 5}}, {"$unionWith": {"coll": "SELF", "pipeline": [{"$match": {"v": 6}}]}}, {"$sort": {"_id": 1}}],
    [{"$facet": {"a": [{"$match": {"v": 1}}, {"$sort": {"_id": 1}}], "b": [{"$count": "n"}]}}],
    [{"$bucketAuto": {"groupBy": "$v", "buckets": 4}}],
]


def of(name, stages):
    """The pipeline with its own collection by name."""
    replaced = lambda value: name if value == "SELF" else value
    return [
        {stage: {key: replaced(value) for key, value in spec.items()} if isinstance(spec, dict) else spec
         for stage, spec in one.items()}
        for one in stages
    ]


@pytest.mark.parametrize("name", ["hashed", "timed"])
def test_reads(request, name, alone):
    series = request.getfixturevalue(name)
    for filter in FILTERS:
        expected = canon(alone.find(filter))
        assert canon(series.find(filter)) == expected, filter
        assert series.count_documents(filter) == len(expected), filter
        assert sorted(series.distinct("m.s", filter)) == sorted(alone.distinct("m.s", filter)), filter
        assert list(series.find(filter).sort([("t", -1), ("_id", 1)]).skip(2).limit(9)) == \
            list(alone.find(filter).sort([("t", -1), ("_id", 1)]).skip(2).limit(9)), filter
        count = lambda c: c.database.command("count", c.name, query=filter)["n"]
        assert count(series) == count(alone), filter
    assert series.estimated_document_count() == 400
    for stages in PIPELINES:
        assert list(series.aggregate(of(series.name, stages))) == list(alone.aggregate(of("a", stages))), stages
    assert len(list(series.find({}, batch_size=7))) == 400
    secondary = series.with_options(read_preference=ReadPreference.SECONDARY_PREFERRED)
    assert secondary.count_documents({"m.s": 3}) == 50


def shards_of(explained):
    return set(explained["shards"])


def test_filters_go_to_the_shards_that_have_the_buckets(hashed, timed):
    explain = lambda series, filter: shards_of(series.find(filter).explain())
    assert explain(hashed, {}) == explain(timed, {}) == {"s0", "s1"}
    assert all(len(explain(hashed, {"m.s": source})) == 1 for source in range(8))
    assert explain(timed, {"t": {"$lt": START + 60 * MINUTE}}) == {"s0"}
    assert explain(timed, {"t": {"$gt": START + 300 * MINUTE}}) == {"s1"}
    # A bucket of the first shard may have an hour more.
    assert explain(timed, {"t": START + 200 * MINUTE}) == {"s0", "s1"}


def test_random_measurements(db):
    """Against a model: inserts of any order, deletes of any filter, reads by both routers."""
    rng = random.Random(11)
    split_by_time(db.client, "x", START + 500 * MINUTE)
    shard(db.client, "d.y", {"m": "hashed"}, timeseries=SERIES)
    shard(db.client, "d.z", {"m.s": 1, "t": 1}, timeseries=SERIES)
    for name in ("x", "y", "z"):
        series, model, number = db[name], {}, 0
        for _ in range(25):
            batch = []
            for _ in range(rng.randrange(1, 40)):
                batch.append({"_id": number, "t": START + rng.randrange(1000) * MINUTE,
                              "m": {"s": rng.randrange(5)}, "v": rng.randrange(10)})
                number += 1
            series.insert_many(batch, ordered=rng.random() < 0.5)
            model.update((one["_id"], one) for one in batch)
            low = START + rng.randrange(1000) * MINUTE
            filter = rng.choice([
                {"m.s": rng.randrange(5)}, {"v": rng.randrange(10)}, {"_id": rng.randrange(number)},
                {"t": {"$gte": low, "$lt": low + 40 * MINUTE}},
            ])
            matched = {found["_id"] for found in series.find(filter)}
            if rng.random() < 0.4:
                done = series.delete_many(filter)
                assert done.deleted_count == len(matched)
                for id in matched:
                    del model[id]
            elif matched and rng.random() < 0.5:
                done = series.delete_one(filter)
                left = {found["_id"] for found in series.find({})}
                assert done.deleted_count == 1 and len(model.keys() - left) == 1
                gone, = model.keys() - left
                assert gone in matched
                del model[gone]
            found = {one["_id"]: one for one in series.find({})}
            assert found == model, name


def test_updates(hashed, timed):
    done = timed.update_many({"m.s": 2}, {"$set": {"m.room": "other"}})
    assert (done.matched_count, done.modified_count) == (50, 50)
    assert timed.count_documents({"m.room": "other"}) == 50
    done = hashed.update_many({"m.room": "r1"}, {"$set": {"m.floor": 1}})
    assert done.modified_count == hashed.count_documents({"m.floor": 1}) == 133
    # What is of the key stays.
    fails(lambda: hashed.update_many({"m.s": 2}, {"$set": {"m.s": 3}}), INVALID_OPTIONS)
    assert hashed.count_documents({"m.s": 2}) == 50
    for series in (hashed, timed):
        fails(lambda: series.update_one({"m.s": 2}, {"$set": {"m.x": 3}}), INVALID_OPTIONS)
        fails(lambda: series.update_one({"m.s": 777}, {"$set": {"m.x": 3}}), INVALID_OPTIONS)
        fails(lambda: series.update_many({"m.s": 777}, {"$set": {"m.x": 3}}, upsert=True), INVALID_OPTIONS)
        fails(lambda: series.update_many({"v": 2}, {"$set": {"m.x": 3}}), INVALID_OPTIONS)
        fails(lambda: series.find_one_and_update({"m.s": 2}, {"$set": {"m.x": 3}}), INVALID_OPTIONS)
        assert series.count_documents({"m.x": 3}) == 0


def test_deletes(hashed, timed):
    for series in (hashed, timed):
        assert series.delete_many({"m.s": 1}).deleted_count == 50
        assert series.delete_one({"v": 14}).deleted_count == 1
        assert series.delete_one({"v": 1000}).deleted_count == 0
        assert series.delete_one({"_id": 300}).deleted_count == 1
        found = series.find_one_and_delete({"_id": 10})
        assert found["_id"] == 10 and found["t"] == START + 10 * MINUTE
        assert series.find_one_and_delete({"_id": 10}) is None
        low, high = START + 150 * MINUTE, START + 220 * MINUTE
        expected = series.count_documents({"t": {"$gte": low, "$lt": high}})
        assert series.delete_many({"t": {"$gte": low, "$lt": high}}).deleted_count == expected > 50
        assert series.delete_many({}).deleted_count == 400 - 50 - 3 - expected


def test_batches(hashed):
    t = START + 1000 * MINUTE
    done = hashed.bulk_write([
        InsertOne({"_id": 1000, "t": t, "m": {"s": 1}}), InsertOne({"_id": 1001, "t": t, "m": {"s": 2}}),
        DeleteMany({"m.s": 3}), UpdateMany({"m.s": 4}, {"$set": {"m.x": 1}}), DeleteOne({"_id": 1000}),
    ])
    assert (done.inserted_count, done.deleted_count, done.modified_count) == (2, 51, 50)
    bad = [{"_id": 2000 + n, "t": t if n != 3 else "no time", "m": {"s": n}} for n in range(6)]
    with pytest.raises(BulkWriteError) as ordered:
        hashed.insert_many(bad)
    assert [error["index"] for error in ordered.value.details["writeErrors"]] == [3]
    assert ordered.value.details["nInserted"] == 3
    again = [{**one, "_id": one["_id"] + 100} for one in bad]
    with pytest.raises(BulkWriteError) as unordered:
        hashed.insert_many(again, ordered=False)
    assert unordered.value.details["nInserted"] == 5
    reply = hashed.database.client.admin.command({
        "bulkWrite": 1, "ops": [
            {"insert": 0, "document": {"_id": 3000, "t": t, "m": {"s": 5}}},
            {"insert": 0, "document": {"_id": 3001, "t": t, "m": {"s": 6}}},
            {"delete": 0, "filter": {"_id": 3000}, "multi": False},
            {"delete": 0, "filter": {"m.s": 7}, "multi": True},
        ], "nsInfo": [{"ns": "d.h"}],
    })
    assert (reply["nErrors"], reply["nInserted"], reply["nDeleted"]) == (0, 2, 51), reply
    with pytest.raises(BulkWriteError) as refused:
        hashed.bulk_write([UpdateOne({"m.s": 1}, {"$set": {"m.x": 1}})])
    assert refused.value.details["writeErrors"][0]["code"] == INVALID_OPTIONS


def test_views_and_other_collections(hashed, timed, db):
    db.create_collection("v", viewOn="h", pipeline=[{"$match": {"v": {"$lt": 50}}}, {"$addFields": {"w": "$v"}}])
    assert db.v.count_documents({}) == hashed.count_documents({"v": {"$lt": 50}})
    assert db.v.find_one({"_id": 1}) == {**hashed.find_one({"_id": 1}), "w": 7}
    db.rooms.insert_many([{"_id": n, "name": f"room {n}"} for n in range(8)])
    joined = list(db.rooms.aggregate([
        {"$lookup": {"from": "h", "localField": "_id", "foreignField": "m.s", "as": "of"}},
        {"$project": {"n": {"$size": "$of"}}},
    ]))
    assert all(one["n"] == 50 for one in joined) and len(joined) == 8
    both = list(db.h.aggregate([{"$unionWith": "r"}, {"$group": {"_id": "$m.s", "n": {"$sum": 1}}}]))
    assert all(one["n"] == 100 for one in both) and len(both) == 8
    db.h.aggregate([{"$match": {"m.s": 1}}, {"$out": "copied"}])
    assert db.copied.count_documents({}) == 50
    db.h.aggregate([{"$group": {"_id": "$m.s", "n": {"$sum": 1}}}, {"$merge": "merged"}])
    assert db.merged.count_documents({"n": 50}) == 8
    for stage in ({"$out": "r"}, {"$merge": "r"}):
        with pytest.raises(OperationFailure):
            db.rooms.aggregate([stage])
    assert timed.count_documents({}) == 400


def test_definitions(cluster, hashed, other):
    db = hashed.database
    hashed.create_index({"v": 1}, name="by_value")
    hashed.create_index([("m.room", 1), ("t", -1)])
    names = lambda: {index["name"] for index in hashed.list_indexes()}
    assert {"by_value", "m.room_1_t_-1"} <= names()
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            assert "by_value" in direct.d.h.index_information(), at
    assert other.d.h.find({"v": 7}).hint("by_value").explain()
    assert other.d.h.count_documents({"v": 7}) == 4
    hashed.drop_index("by_value")
    hashed.drop_index([("m.room", 1), ("t", -1)])
    assert not {"by_value", "m.room_1_t_-1"} & names()
    db.command("collMod", "h", expireAfterSeconds=10**9)
    for at in (0, 1):
        with cluster.shards[at].client() as direct:
            listed, = direct.d.list_collections(filter={"name": "h"})
            assert listed["options"]["expireAfterSeconds"] == 10**9
    fails(lambda: hashed.rename("x"), 166)
    fails(lambda: db.command("convertToCapped", "h", size=4096), ILLEGAL_OPERATION)
    assert db.command("validate", "h")["valid"]
    stats, = hashed.aggregate([{"$collStats": {"count": {}}}, {"$group": {"_id": None, "shards": {"$addToSet": "$shard"}}}])
    assert sorted(stats["shards"]) == ["s0", "s1"]
    with pytest.raises(OperationFailure):
        hashed.watch().try_next()
    assert inconsistencies(db.client) == []


def test_nothing_of_a_dropped_series_stays_on_other_shards(cluster, db, alone):
    """The collection of the views goes with the last of them; on the primary shard it stays, as on
    a set without shards."""
    for name in ("h", "i"):
        shard(db.client, f"d.{name}", {"m.s": "hashed"}, timeseries=SERIES)
    names = lambda at: names_on(cluster, at, "d")
    both = ["h", "i", "system.buckets.h", "system.buckets.i", "system.views"]
    assert names(0) == both and names(1) == both
    db.h.drop()
    assert names(0) == names(1) == ["i", "system.buckets.i", "system.views"]
    db.i.drop()
    assert names(0) == ["system.views"] and names(1) == []
    alone.drop()
    assert names_on(cluster, 1, "e") == ["system.views"]
    # It is made again with the next one.
    shard(db.client, "d.h", {"m.s": "hashed"}, timeseries=SERIES)
    db.h.insert_many(measurements())
    assert "system.views" in names(1) and db.h.count_documents({}) == 400
    assert inconsistencies(db.client) == []


def names_on(cluster, at, db):
    with cluster.shards[at].client() as direct:
        return sorted(direct[db].list_collection_names())


def test_first_writes_beside_the_making_of_a_series(cluster, db, other):
    """They wait, and go into the series; or come first, so that it is refused."""
    made = 0
    for n in range(12):
        name, writer = f"x{n}", (db, other.d)[n % 2]
        writing = [Beside(lambda at=at: writer[name].insert_one(measurements()[at])) for at in range(4)]
        making = Beside(lambda: shard(db.client, f"d.{name}", {"m.s": "hashed"}, timeseries=SERIES))
        for call in (*writing, making):
            call.join()
        assert [call.error for call in writing] == [None] * 4
        made += making.error is None
        assert making.error is None or making.error.code in (48, 72, 117), making.error
        assert writer[name].count_documents({}) == 4
    print(f"{made} of 12 series were made")
    assert inconsistencies(db.client) == []


def test_chunks(timed):
    client = timed.database.client
    ns = "d.system.buckets.r"
    uuid = client.config.collections.find_one({"_id": ns})["uuid"]
    chunks = lambda: list(client.config.chunks.find({"uuid": uuid}).sort("min", 1))
    assert len(chunks()) == 2
    client.admin.command("split", "d.r", middle={"control.min.t": START + 60 * MINUTE})
    client.admin.command("split", ns, middle={"control.min.t": START + 300 * MINUTE})
    assert len(chunks()) == 4 and timed.count_documents({}) == 400
    client.admin.command("mergeChunks", "d.r", bounds=[{"control.min.t": MinKey()}, {"control.min.t": START + 180 * MINUTE}])
    assert len(chunks()) == 3 and timed.count_documents({}) == 400
    assert client.admin.command("balancerCollectionStatus", "d.r")["balancerCompliant"]
    shown = client.admin.command("getShardVersion", "d.r", fullMetadata=True)
    assert len(shown["chunks"]) == 3


def test_a_finer_key(hashed, db):
    shard(db.client, "d.f", {"m.s": 1}, timeseries=SERIES)
    db.f.insert_many(measurements(50))
    refine = lambda key: db.client.admin.command("refineCollectionShardKey", "d.f", key=key)
    fails(lambda: refine({"m.s": 1, "v": 1}), NO_FIELD_OF_KEY)
    db.f.create_index([("m.s", 1), ("t", 1)])
    refine({"m.s": 1, "t": 1})
    entry = db.client.config.collections.find_one({"_id": "d.system.buckets.f"})
    assert entry["key"] == {"meta.s": 1, "control.min.t": 1}
    assert entry["timeseriesFields"]["timeField"] == "t"
    db.f.insert_many([{**one, "_id": one["_id"] + 50} for one in measurements(50)])
    assert db.f.count_documents({}) == 100


def test_another_router_hears_of_it(db, other):
    """One that knew the series unsharded, sharded, dropped, and a collection of its name."""
    db.create_collection("s", timeseries=SERIES)
    db.s.insert_many(measurements(20))
    assert other.d.s.count_documents({}) == 20
    shard(db.client, "d.s", {"m": 1})
    other.d.s.insert_many([{**one, "_id": one["_id"] + 100} for one in measurements(20)])
    assert other.d.s.count_documents({}) == db.s.count_documents({}) == 40
    db.s.drop()
    assert other.d.s.find_one() is None
    assert db.client.config.collections.find_one({"_id": "d.system.buckets.s"}) is None
    shard(db.client, "d.s", {"m.s": "hashed"}, timeseries=SERIES)
    other.d.s.insert_many(measurements(40))
    assert db.s.count_documents({}) == 40
    other.d.s.drop()
    assert db.s.count_documents({}) == 0
    db.s.insert_one({"_id": 1})
    assert other.d.s.find_one() == {"_id": 1}
    shard(other, "d.s", {"_id": 1})
    db.s.insert_many([{"_id": n} for n in range(2, 40)])
    assert other.d.s.count_documents({}) == 39
    db.s.drop()
    other.d.create_collection("s", timeseries=SERIES)
    db.s.insert_many(measurements(5))
    assert other.d.s.count_documents({}) == 5
    for at in (db, other.d):
        assert at.list_collection_names(filter={"name": "s"}) == ["s"]


def test_a_router_forgets_where_the_buckets_were(db, other):
    """It had them on both shards, and they are on one by now."""
    split_by_time(db.client, "r", START + 180 * MINUTE)
    other.d.r.insert_many(measurements())
    late = {"t": {"$gte": START + 300 * MINUTE}}
    assert other.d.r.count_documents(late) == 100
    db.r.drop()
    db.client.admin.command("updateZoneKeyRange", "d.system.buckets.r", min={"control.min.t": MinKey()},
                            max={"control.min.t": MaxKey()}, zone="low")
    shard(db.client, "d.r", {"t": 1}, timeseries=SERIES)
    other.d.r.insert_one({"_id": 1, "t": START + 350 * MINUTE, "m": {"s": 1}})
    assert other.d.r.count_documents(late) == db.r.count_documents(late) == 1
    other.d.r.delete_many(late)
    assert list(other.d.r.find(late)) == []


def test_buckets_by_their_own_name(cluster, timed, other):
    """As a tool that dumps and restores has them."""
    db = timed.database
    raw = list(db["system.buckets.r"].find())
    assert {document["control"]["version"] for document in raw} == {1} and len(raw) > 16
    early = [bucket for bucket in raw if bucket["control"]["min"]["t"] < START + 60 * MINUTE]
    assert db["system.buckets.r"].count_documents({"control.min.t": {"$lt": START + 60 * MINUTE}}) == len(early) > 0
    one = max(raw, key=lambda bucket: bucket["control"]["min"]["t"])
    held = len(one["data"]["t"])
    assert other.d["system.buckets.r"].delete_one({"_id": one["_id"]}).deleted_count == 1
    assert timed.count_documents({}) == 400 - held
    other.d["system.buckets.r"].insert_one(one)
    assert timed.count_documents({}) == 400
    db.command("collMod", "system.buckets.r", timeseries={"granularity": "hours"})
    assert entry_of(db.client, "r")["timeseriesFields"]["granularity"] == "hours"
    assert other.d.r.count_documents({"t": {"$lt": START + 60 * MINUTE}}) == 60
    fails(lambda: db.client.admin.command("refineCollectionShardKey", "d.system.buckets.r",
                                          key={"control.min.t": 1, "control.max.t": 1}), 5_731_501)


def entry_of(client, name):
    return client.config.collections.find_one({"_id": f"d.system.buckets.{name}"})


def versions_of(client, name):
    """The major version of each shard."""
    found = {}
    for chunk in client.config.chunks.find({"uuid": entry_of(client, name)["uuid"]}):
        found[chunk["shard"]] = max(found.get(chunk["shard"], 0), chunk["lastmod"].time)
    return found


def options_on(cluster, at, name):
    with cluster.shards[at].client() as direct:
        listed, = direct.d.list_collections(filter={"name": name})
        buckets, = direct.d.list_collections(filter={"name": f"system.buckets.{name}"})
        assert buckets["options"]["timeseries"] == listed["options"]["timeseries"]
        return listed["options"]


def left_of(cluster):
    """Definitions that run, and gates that are closed."""
    found = []
    for shard_of_cluster in cluster.shards:
        with shard_of_cluster.client() as direct:
            found += direct.config["system.sharding_ddl_coordinators"].find()
            found += direct.config.collectionCriticalSections.find()
    return found


def lengthen(series, **buckets):
    return series.database.command("collMod", series.name, timeseries=buckets)


MINUTES = {"timeField": "t", "metaField": "m", "granularity": "minutes",
           "bucketMaxSpanSeconds": 86_400}


def test_buckets_become_longer(cluster, timed, other):
    """What both routers wrote before and after it is where each of them looks for it."""
    client = timed.database.client
    of_times = lambda low, high: {"t": {"$gte": START + low * MINUTE, "$lt": START + high * MINUTE}}
    shards = lambda series, filter: shards_of(series.find(filter).explain())
    assert other.d.r.count_documents(of_times(300, 400)) == 100
    assert shards(other.d.r, of_times(300, 400)) == {"s1"}
    before = versions_of(client, "r")
    reply = lengthen(timed, granularity="minutes")
    assert len(reply["raw"]) == 2 and all(part["ok"] == 1 for part in reply["raw"].values())
    assert entry_of(client, "r")["timeseriesFields"] == MINUTES
    after = versions_of(client, "r")
    assert all(after[name] > before[name] for name in before) and len(after) == 2
    for at in (0, 1):
        assert options_on(cluster, at, "r")["timeseries"] == MINUTES
    # The other router knows the former buckets: a measurement goes where the hour begins.
    half_past = START + 210 * MINUTE
    other.d.r.insert_many([{"_id": f"late {n}", "t": half_past + n * MINUTE, "m": {"s": 70 + n}}
                           for n in range(20)])
    begin = START + 180 * MINUTE
    with cluster.shards[1].client() as direct:
        started = list(direct.d["system.buckets.r"].find({"meta.s": {"$gte": 70}}))
        assert len(started) == 20
        assert all(bucket["control"]["min"]["t"] == begin for bucket in started)
    # A bucket of the first shard may have a day of measurements by now.
    for series in (timed, other.d.r):
        assert shards(series, of_times(300, 400)) == {"s0", "s1"}
        assert shards(series, of_times(2000, 2001)) == {"s1"}
        assert series.count_documents(of_times(300, 400)) == 100
        assert series.count_documents(of_times(210, 230)) == 40
        assert series.count_documents({}) == 420
    early = [{"_id": f"early {n}", "t": START + n * MINUTE, "m": {"s": 90}} for n in range(500)]
    other.d.r.insert_many(early)
    for low in range(0, 500, 100):
        found = timed.count_documents({**of_times(low, low + 100), "m.s": 90})
        assert found == 100, low
    # Sent again it is a success, and changes nothing.
    lengthen(other.d.r, granularity="minutes")
    assert versions_of(client, "r") == after
    assert left_of(cluster) == [] and inconsistencies(client) == []


def code_of(call):
    try:
        call()
    except OperationFailure as error:
        return error.code
    return 0


BAD_BUCKETS = [
    {"granularity": "days"}, {"granularity": 1}, {"timeField": "x"},
    {"bucketMaxSpanSeconds": 7200}, {"bucketRoundingSeconds": 7200},
    {"bucketMaxSpanSeconds": 0, "bucketRoundingSeconds": 0},
    {"bucketMaxSpanSeconds": 7200, "bucketRoundingSeconds": 3600},
    {"bucketMaxSpanSeconds": 60, "bucketRoundingSeconds": 60},
    {"granularity": "hours", "bucketMaxSpanSeconds": 86_400},
    {"bucketMaxSpanSeconds": 40_000_000, "bucketRoundingSeconds": 40_000_000},
]
GOOD_BUCKETS = [
    {}, {"granularity": "seconds"},
    {"bucketMaxSpanSeconds": 7200, "bucketRoundingSeconds": 7200}, {"granularity": "minutes"},
    {"bucketMaxSpanSeconds": 100_000, "bucketRoundingSeconds": 100_000},
    {"granularity": "hours", "bucketMaxSpanSeconds": 2_592_000},
]


def test_buckets_that_a_series_cannot_have(cluster, timed, alone, other):
    """Refused as of a series that is not sharded, and then nothing has changed."""
    client, db = timed.database.client, timed.database
    minutes = {"granularity": "minutes"}
    for bad in ({"nothing": 1}, {"validator": {}}, {"expireAfterSeconds": -1}, {"dryRun": True}):
        both = lambda of: of.database.command("collMod", of.name, timeseries=minutes, **bad)
        code = code_of(lambda: both(alone))
        assert code != 0 and code_of(lambda: both(timed)) == code, bad
        assert entry_of(client, "r")["timeseriesFields"]["granularity"] == "seconds"
    for good in GOOD_BUCKETS:
        assert code_of(lambda: lengthen(alone, **good)) == 0, good
        lengthen(timed, **good)
        listed, = alone.database.list_collections(filter={"name": "a"})
        known = entry_of(client, "r")["timeseriesFields"]
        assert known == listed["options"]["timeseries"], good
        version = versions_of(client, "r")
        assert other.d.r.count_documents({"t": {"$gte": START + 300 * MINUTE}}) == 100
        is_short = good in ({}, {"granularity": "seconds"})
        for bad in BAD_BUCKETS + ([] if is_short else [{"granularity": "seconds"}]):
            code = code_of(lambda: lengthen(alone, **bad))
            assert code != 0, (good, bad)
            assert code_of(lambda: lengthen(timed, **bad)) == code, (good, bad)
            assert entry_of(client, "r")["timeseriesFields"] == known, bad
        assert versions_of(client, "r") == version
        for at in (0, 1):
            assert options_on(cluster, at, "r")["timeseries"] == known
    db.create_collection("plain")
    db.client.admin.command("shardCollection", "d.plain", key={"a": 1})
    fails(lambda: lengthen(db.plain, granularity="hours"), INVALID_OPTIONS)
    assert left_of(cluster) == []


def test_buckets_and_what_else_is_changed(cluster, hashed):
    db = hashed.database
    hashed.create_index({"v": 1}, name="by_value")
    hide = {"name": "by_value", "hidden": True}
    reply = db.command("collMod", "h", timeseries={"granularity": "minutes"}, index=hide,
                       expireAfterSeconds=10**9)
    assert reply["hidden_new"] is True
    for at in (0, 1):
        options = options_on(cluster, at, "h")
        assert options["timeseries"] == MINUTES and options["expireAfterSeconds"] == 10**9
        with cluster.shards[at].client() as direct:
            assert direct.d.h.index_information()["by_value"]["hidden"]
    # What the primary shard refuses changes nothing.
    fails(lambda: db.command("collMod", "h", timeseries={"granularity": "hours"},
                             index={"name": "none", "hidden": True}), 27)
    assert entry_of(db.client, "h")["timeseriesFields"] == MINUTES
    assert hashed.count_documents({}) == 400 and inconsistencies(db.client) == []


def test_buckets_become_longer_under_writes(cluster, db, other):
    """Writers and readers at both routers, while a series gets longer and longer buckets."""
    split_by_time(db.client, "w", START + 3000 * MINUTE)
    db.w.insert_one({"_id": "first", "t": START, "m": {"s": 0}})
    stop, step = threading.Event(), datetime.timedelta(minutes=7)

    def write(series, name):
        number = 0
        while not stop.is_set():
            batch = [
                {"_id": f"{name} {at}", "t": START + at * step, "m": {"s": at % 3}}
                for at in range(number, number + 20)
            ]
            series.insert_many(batch)
            assert series.count_documents({"t": batch[7]["t"], "_id": batch[7]["_id"]}) == 1
            number += 20
        return number

    writers = [Beside(lambda: write(db.w, "one")), Beside(lambda: write(other.d.w, "two"))]
    for change in GOOD_BUCKETS:
        time.sleep(0.5)
        lengthen(other.d.w, **change)
    stop.set()
    counts = [writer.ended() for writer in writers]
    assert all(writer.error is None and writer.answer for writer in counts)
    assert sum(writer.answer for writer in counts) + 1 == db.w.count_documents({})
    for series in (db.w, other.d.w):
        for name, writer in zip(("one", "two"), counts):
            for number in range(0, writer.answer, 97):
                at = START + number * step
                found = [one["_id"] for one in series.find({"t": {"$gte": at, "$lt": at + step}})]
                assert f"{name} {number}" in found, number
    assert left_of(cluster) == [] and inconsistencies(db.client) == []


def test_a_primary_that_ends_while_buckets_become_longer(cluster, timed, other):
    client = timed.database.client
    primary = cluster.shards[0].nodes[0]
    with cluster.config.client() as config:
        point = FailPoint(config, "failCommand", failCommands=["_configsvrCollMod"],
                          failInternalCommands=True, errorCode=91)
        running = Beside(lambda: lengthen(timed, granularity="minutes"))
        point.wait(2)
        # The gates of both shards are closed.
        measured = {"_id": "late", "t": START + 500 * MINUTE, "m": {"s": 1}}
        late = Beside(lambda: other.d.r.insert_one(measured))
        primary.kill()
        primary.start()
        wait_until(lambda: cluster.shards[0].primary() is primary)
        assert entry_of(client, "r")["timeseriesFields"]["granularity"] == "seconds"
        point.off()
    wait_until(lambda: entry_of(client, "r")["timeseriesFields"] == MINUTES)
    running.ended()
    late.ended()
    lengthen(timed, granularity="minutes")
    wait_until(lambda: left_of(cluster) == [])
    for at in (0, 1):
        assert options_on(cluster, at, "r")["timeseries"] == MINUTES
    assert late.error is not None or other.d.r.count_documents({"_id": "late"}) == 1
    assert other.d.r.count_documents({"t": {"$lt": START + 400 * MINUTE}}) == 400
    assert inconsistencies(client) == []


def test_a_change_of_buckets_that_the_catalog_refuses(cluster, timed):
    client = timed.database.client
    with cluster.config.client() as config:
        point = FailPoint(config, "failCommand", {"times": 1}, failCommands=["_configsvrCollMod"],
                          failInternalCommands=True, errorCode=117)
        fails(lambda: lengthen(timed, granularity="minutes"), 117)
        point.off()
    assert left_of(cluster) == []
    assert entry_of(client, "r")["timeseriesFields"]["granularity"] == "seconds"
    timed.insert_one({"_id": "open", "t": START, "m": {"s": 1}})
    assert timed.count_documents({}) == 401


def test_zones_by_the_name_of_the_series(db):
    """Before it is sharded they are of that name, and the series ignores them."""
    client = db.client
    client.admin.command("addShardToZone", "s1", zone="high")
    bounds = {"min": {"t": MinKey()}, "max": {"t": MaxKey()}}
    client.admin.command("updateZoneKeyRange", "d.z", zone="high", **bounds)
    shard(client, "d.z", {"t": 1}, timeseries=SERIES)
    assert client.config.tags.count_documents({"ns": "d.z"}) == 1
    chunk, = client.config.chunks.find({"uuid": entry_of(client, "z")["uuid"]})
    assert chunk["shard"] == "s0"
    assert client.config.tags.count_documents({"ns": "d.system.buckets.z"}) == 0
    db.z.drop()
    client.admin.command("updateZoneKeyRange", "d.z", zone=None, **bounds)
    assert client.config.tags.count_documents({"ns": "d.z"}) == 0


def test_one_of_several_with_the_same_id(db):
    """An update or a delete of one measurement is of one shard."""
    shard(db.client, "d.s", {"m.s": "hashed"}, timeseries=SERIES)
    db.s.insert_many([{"_id": 7, "t": START, "m": {"s": n}} for n in range(20)])
    assert db.s.delete_one({"_id": 7}).deleted_count == 1
    assert db.s.count_documents({"_id": 7}) == 19


def test_a_name_that_is_too_long(db):
    fails(lambda: shard(db.client, "d." + "s" * 220, {"m": 1}, timeseries=SERIES), 73)
    fails(lambda: db.client.admin.command("shardCollection", "d." + "c" * 234, key={"a": 1}), 73)
    assert db.list_collection_names() == []


def test_measurements_of_another_shard_are_not_seen(cluster, timed):
    """A bucket that a shard has and does not own is not read, and takes no measurements."""
    late = START + 600 * MINUTE
    with cluster.shards[0].client() as direct:
        direct.d.r.insert_one({"_id": "orphan", "t": late, "m": {"s": 1}})
    assert timed.find_one({"_id": "orphan"}) is None and timed.count_documents({}) == 400
    timed.insert_one({"_id": "owned", "t": late, "m": {"s": 1}})
    assert timed.find_one({"_id": "owned"}) is not None
    assert timed.delete_many({"t": late}).deleted_count == 1
    # The other way round: the second shard has an open bucket of the first one's time.
    early = START + 5 * MINUTE
    with cluster.shards[1].client() as direct:
        direct.d.r.insert_one({"_id": "orphan", "t": early, "m": {"s": 77}})
    timed.insert_many([{"_id": f"owned {n}", "t": early + n * MINUTE, "m": {"s": 77}} for n in range(5)])
    assert timed.count_documents({"m.s": 77}) == 5
    assert timed.update_many({"m.s": 77}, {"$set": {"m.x": 1}}).modified_count == 5


def test_the_database_moves(cluster, hashed):
    client = hashed.database.client
    client.admin.command("movePrimary", "d", to="s1")
    assert hashed.count_documents({}) == 400
    hashed.insert_many([{**one, "_id": one["_id"] + 400} for one in measurements(100)])
    assert hashed.count_documents({"m.s": 3}) == 63
    listed, = client.d.list_collections(filter={"name": "h"})
    assert listed["type"] == "timeseries"
    client.admin.command("movePrimary", "d", to="s0")
    assert hashed.count_documents({}) == 500
    assert inconsistencies(client) == []
    client.drop_database("d")
    for at in (0, 1):
        assert on_shard(cluster, at, "h") == []
        with cluster.shards[at].client() as direct:
            assert direct.d.list_collection_names() == [], at


def test_numbers_of_chunks(db):
    shard(db.client, "d.n", {"m": "hashed"}, timeseries=SERIES, numInitialChunks=Int64(6))
    uuid = db.client.config.collections.find_one({"_id": "d.system.buckets.n"})["uuid"]
    assert db.client.config.chunks.count_documents({"uuid": uuid}) == 6
