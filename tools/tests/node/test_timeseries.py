"""Time series: the same answers as a collection of the measurements, and what their buckets are
like."""

import datetime
import random

import pytest
from bson import Int64, ObjectId
from pinion_node import Node, wait_until
from pymongo import DeleteMany, DeleteOne, InsertOne, UpdateMany
from pymongo.errors import BulkWriteError, OperationFailure

BEGIN = datetime.datetime(2024, 2, 29, 23, 0)
SERIES = {"timeField": "t", "metaField": "m"}


@pytest.fixture(params=["1", "2"])
def node(request):
    with Node("--cpus", request.param) as node:
        yield node


def at(secs):
    return BEGIN + datetime.timedelta(seconds=secs)


def code_of(act, *arguments, **options):
    with pytest.raises(OperationFailure) as raised:
        act(*arguments, **options)
    return raised.value.code


def random_value(chance, depth=0):
    kind = chance.randrange(10 if depth < 2 else 7)
    if kind < 3:
        return chance.randrange(8)
    if kind == 3:
        return chance.choice([0.5, float("nan"), -1.5, Int64(3)])
    if kind == 4:
        return chance.choice(["", "a", "b", "ab"])
    if kind == 5:
        return chance.choice([True, False, None])
    if kind == 6:
        return at(chance.randrange(100))
    if kind < 9:
        return {"b": random_value(chance, depth + 1)}
    return [random_value(chance, depth + 1) for _ in range(chance.randrange(3))]


def random_measurement(chance, number):
    measurement = {"_id": number, "t": at(chance.randrange(-20_000, 200_000))}
    if chance.randrange(10):
        measurement["m"] = chance.choice(["a", "b", 1, {"s": 1, "u": "x"}, {"s": 2}, [1, 2], None])
    for name in ("a", "c"):
        if chance.randrange(4):
            measurement[name] = random_value(chance)
    return measurement


def random_filter(chance, depth=0):
    kind = chance.randrange(12 if depth < 2 else 8)
    operator = chance.choice(["$eq", "$lt", "$lte", "$gt", "$gte"])
    if kind < 3:
        return {"t": {operator: at(chance.randrange(-30_000, 210_000))}}
    if kind == 3:
        return {chance.choice(["m", "m.s", "m.u"]): chance.choice(["a", 1, 2, "x", None, {"s": 1, "u": "x"}])}
    if kind == 4:
        return {"_id": {operator: chance.randrange(600)}}
    if kind == 5:
        return {chance.choice(["a", "c", "a.b"]): {"$in": [random_value(chance, 2), random_value(chance, 2)]}}
    if kind < 8:
        return {chance.choice(["a", "c", "a.b", "a.b.b", "c.0"]): {operator: random_value(chance, 1)}}
    if kind == 8:
        return {"a": {"$exists": bool(chance.randrange(2))}}
    return {chance.choice(["$and", "$or", "$nor"]): [random_filter(chance, depth + 1) for _ in range(2)]}


def normal(documents):
    return sorted((repr(sorted(document.items(), key=lambda item: item[0])) for document in documents))


def same(plain, series, query):
    assert normal(series.find(query)) == normal(plain.find(query)), query
    assert series.count_documents(query) == plain.count_documents(query), query


def test_a_series_answers_as_its_measurements_do(node):
    for seed in range(3):
        chance = random.Random(seed)
        db = node.client()[f"random{seed}"]
        db.create_collection("series", timeseries={**SERIES, "granularity": chance.choice(["seconds", "minutes"])})
        plain, series = db.plain, db.series
        if seed:
            series.create_index([("m.s", 1), ("t", -1)])
        number = 0
        while number < 500:
            batch = [random_measurement(chance, number + i) for i in range(chance.choice([1, 3, 60]))]
            number += len(batch)
            plain.insert_many(batch, ordered=bool(chance.randrange(2)))
            series.insert_many(batch, ordered=bool(chance.randrange(2)))
        for _ in range(150):
            same(plain, series, random_filter(chance))
        for sort in ([("t", 1), ("_id", 1)], [("_id", -1)]):
            ours, theirs = (list(found.find({}, {"t": 1}).sort(sort).limit(40)) for found in (series, plain))
            assert [document["_id"] for document in ours] == [document["_id"] for document in theirs]
        assert sorted(series.distinct("_id")) == sorted(plain.distinct("_id"))
        group = [{"$group": {"_id": {"$type": "$m"}, "n": {"$sum": 1}, "last": {"$max": "$t"}}}]
        assert normal(series.aggregate(group)) == normal(plain.aggregate(group))
        for field in ("a", "c"):
            ends = [{"$group": {"_id": "$m.s", "least": {"$min": f"${field}"}, "greatest": {"$max": f"${field}"}}}]
            assert normal(series.aggregate(ends)) == normal(plain.aggregate(ends)), ends
        for _ in range(40):
            query, direction, most = random_filter(chance), chance.choice([1, -1]), chance.choice([1, 2, 30, 400])
            ours, theirs = ([document["t"] for document in found.find(query).sort("t", direction).limit(most)] for found in (series, plain))
            assert ours == theirs, (query, direction, most)
        for _ in range(25):
            query = random_filter(chance)
            if chance.randrange(3) and series.count_documents(query) < 200:
                assert series.delete_many(query).deleted_count == plain.delete_many(query).deleted_count
        same(plain, series, {})
        query = {"m.s": 1}
        change = {"$set": {"m.u": "changed"}, "$inc": {"m.s": 5}}
        ours, theirs = (found.update_many(query, change).raw_result for found in (series, plain))
        assert (ours["n"], ours["nModified"]) == (theirs["n"], theirs["nModified"])
        same(plain, series, {})
        assert db.command("validate", "series", full=True)["valid"]


def test_buckets(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    buckets = db["system.buckets.series"]
    db.series.insert_many([{"t": at(n % 600), "m": {"b": 1, "a": 2}, "n": n} for n in range(2500)])
    db.series.insert_one({"t": at(0), "m": {"a": 2, "b": 1}, "n": -1})
    found = list(buckets.find())
    assert sum(len(bucket["data"]["t"]) for bucket in found) == 2501
    assert all(len(bucket["data"]["t"]) <= 1000 for bucket in found) and len(found) == 4
    for bucket in found:
        least = bucket["control"]["min"]["t"]
        assert bucket["control"]["version"] == 1 and bucket["meta"] == {"a": 2, "b": 1}
        assert bucket["_id"].generation_time.replace(tzinfo=None) == least
        values = list(bucket["data"]["n"].values())
        assert (bucket["control"]["min"]["n"], bucket["control"]["max"]["n"]) == (min(values), max(values))
    # A time that no bucket spans, and an earlier one, which have their own.
    db.series.insert_one({"t": at(36000), "m": {"a": 2, "b": 1}})
    db.series.insert_one({"t": at(-1), "m": {"a": 2, "b": 1}})
    assert buckets.count_documents({}) == 6
    # Another process continues with the bucket.
    db.series.insert_one({"t": at(50_000), "m": "q"})
    node.stop()
    node.start()
    db = node.client().data
    db.series.insert_one({"t": at(50_001), "m": "q"})
    assert db["system.buckets.series"].count_documents({"meta": "q"}) == 1
    assert db.series.count_documents({}) == 2505


def test_a_time_range_does_not_unpack_all(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    db.series.insert_many([{"t": at(3600 * n), "m": n % 5, "n": n} for n in range(200)])
    explained = db.command("explain", {"find": "series", "filter": {"t": {"$gte": at(3600 * 190)}}})
    examined = explained["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"]
    assert 10 <= examined <= 12
    explained = db.command("explain", {"find": "series", "filter": {"m": 3, "t": {"$lt": at(3600 * 100)}}})
    examined = explained["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"]
    assert 20 <= examined <= 100
    assert [stage for stage in explained["stages"] if "$_internalUnpackBucket" in stage]


def test_what_is_refused(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    series = db.series
    series.insert_one({"t": at(0), "m": 1, "x": 1})
    assert code_of(series.insert_one, {"x": 1}) == 2
    assert code_of(series.insert_one, {"t": "2024"}) == 2
    with pytest.raises(BulkWriteError) as raised:
        series.insert_many([{"t": at(1)}, {"t": 1}, {"t": at(2)}])
    assert (raised.value.details["nInserted"], raised.value.details["writeErrors"][0]["index"]) == (1, 1)
    with pytest.raises(BulkWriteError) as raised:
        series.insert_many([{"t": at(1)}, {"t": 1}, {"t": at(2)}], ordered=False)
    assert raised.value.details["nInserted"] == 2
    assert code_of(series.update_one, {"m": 1}, {"$set": {"m": 2}}) == 72
    assert code_of(series.update_many, {"m": 1}, {"$set": {"m": 2}}, upsert=True) == 72
    assert code_of(series.update_many, {"x": 1}, {"$set": {"m": 2}}) == 72
    assert code_of(series.update_many, {"m": 1}, {"$set": {"x": 2}}) == 72
    assert code_of(series.update_many, {"m": 1}, [{"$set": {"m": 2}}]) == 72
    assert code_of(series.replace_one, {"m": 1}, {"t": at(0)}) == 72
    assert code_of(series.rename, "other") == 166
    assert code_of(db["system.buckets.series"].rename, "other") == 20
    assert code_of(db["system.views"].drop) == 20
    assert code_of(series.create_index, "x", unique=True) == 72
    assert code_of(series.create_index, "x", sparse=True) == 72
    assert code_of(series.create_index, "t", expireAfterSeconds=1) == 72
    assert code_of(series.create_index, [("x", "text")]) == 72
    assert code_of(series.create_index, [("x", "hashed")]) == 67
    assert code_of(db.create_collection, "series", check_exists=False, capped=True, size=9) == 48
    assert code_of(db.command, "collMod", "series", validator={}) == 72
    assert code_of(db.command, "collMod", "series", timeseries={"bucketMaxSpanSeconds": 1, "bucketRoundingSeconds": 1}) == 72
    assert code_of(db.plain.aggregate, [{"$merge": "series"}]) == 166


def test_several_writes_at_once(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    done = db.series.bulk_write([InsertOne({"_id": n, "t": at(n), "m": n % 2, "n": n}) for n in range(20)])
    assert done.inserted_count == 20
    done = db.series.bulk_write([DeleteOne({"n": 3}), DeleteMany({"n": {"$gte": 15}}), UpdateMany({"m": 1}, {"$set": {"m": 7}})])
    assert (done.deleted_count, done.matched_count, done.modified_count) == (6, 6, 6)
    assert db.series.find_one_and_delete({"n": 5}, {"_id": 0, "m": 1, "n": 1}) == {"m": 7, "n": 5}
    assert code_of(db.series.find_one_and_delete, {"n": 7}, sort=[("n", 1)]) == 72
    assert db.series.count_documents({"m": 7}) == 5


def test_indexes_are_those_of_measurements(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    series = db.series
    listed = [(index["name"], dict(index["key"])) for index in series.list_indexes()]
    assert listed == [("m_1_t_1", {"m": 1, "t": 1})]
    series.create_index([("m.x", 1), ("t", -1)])
    series.create_index("t", name="some", expireAfterSeconds=100_000_000, partialFilterExpression={"m.x": 1})
    listed = {index["name"]: index for index in series.list_indexes()}
    assert dict(listed["m.x_1_t_-1"]["key"]) == {"m.x": 1, "t": -1}
    assert listed["some"]["partialFilterExpression"] == {"m.x": 1} and dict(listed["some"]["key"]) == {"t": 1}
    assert dict(db["system.buckets.series"].index_information()["m.x_1_t_-1"]["key"]) == {
        "meta.x": 1, "control.max.t": -1, "control.min.t": -1}
    assert [stats["name"] for stats in series.aggregate([{"$indexStats": {}}])] == list(listed)
    series.drop_index([("m.x", 1), ("t", -1)])
    assert "m.x_1_t_-1" not in series.index_information()


def test_hints_and_hidden_indexes(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    series = db.series
    series.insert_many([{"t": at(3600 * n), "m": {"s": n % 5}, "n": n} for n in range(50)])
    series.create_index([("m.s", 1), ("t", -1)], name="source")

    def plan(**options):
        explained = db.command("explain", {"find": "series", "filter": {"m.s": 3}, **options}, verbosity="queryPlanner")
        return explained["stages"][0]["$cursor"]["queryPlanner"]["winningPlan"]["inputStage"]["indexName"]

    assert plan(hint={"m.s": 1, "t": -1}) == plan(hint="source") == "source"
    assert plan(hint={"m": 1, "t": 1}) == "m_1_t_1"
    assert plan(sort={"t": -1}, limit=1) == "source"
    assert [document["n"] for document in series.find({"m.s": 3}).sort("t", -1).limit(2)] == [48, 43]
    assert code_of(lambda: list(series.find(hint={"n": 1}))) == 2
    hidden = db.command("collMod", "series", index={"keyPattern": {"m.s": 1, "t": -1}, "hidden": True})
    assert hidden["hidden_new"] is True
    assert code_of(lambda: list(series.find(hint="source"))) == 2
    assert code_of(db.command, "collMod", "series", index={"name": "source", "prepareUnique": True}) == 72
    assert series.delete_many({"m.s": 3}, hint={"m": 1, "t": 1}).deleted_count == 10
    assert series.count_documents({}) == 40
    assert db.command("compact", "series")["ok"] == 1


def test_sources_by_their_distance(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)

    def place(x):
        return {"type": "Point", "coordinates": [x, 0]}

    db.series.insert_many([{"t": at(n), "m": {"s": n % 5, "place": place(n % 5)}, "n": n} for n in range(50)])
    near = {"near": place(3), "distanceField": "far"}
    assert code_of(db.series.aggregate, [{"$geoNear": near}]) == 27
    db.series.create_index([("m.place", "2dsphere")])
    found = [(document["m"]["s"], round(document["far"])) for document in db.series.aggregate([{"$geoNear": near}])]
    assert found[:10] == [(3, 0)] * 10 and sorted(found[10:30]) == [(2, 111319)] * 10 + [(4, 111319)] * 10
    assert found[30:] == [(1, 222638)] * 10 + [(0, 333957)] * 10
    some = {**near, "key": "m.place", "query": {"n": {"$gte": 40}}, "maxDistance": 150_000}
    assert [document["n"] for document in db.series.aggregate([{"$geoNear": some}, {"$limit": 2}])] == [43, 48]
    assert code_of(db.series.aggregate, [{"$geoNear": {**near, "key": "n"}}]) == 27
    assert code_of(db.series.aggregate, [{"$match": {}}, {"$geoNear": near}]) == 40602


def test_writes_are_explained(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    db.series.insert_many([{"t": at(n), "m": n % 5, "n": n} for n in range(50)])

    def plan(command):
        return db.command("explain", command)["queryPlanner"]["winningPlan"]["stage"]

    assert plan({"delete": "series", "deletes": [{"q": {"n": 3}, "limit": 0}]}) == "TS_MODIFY"
    assert plan({"delete": "series", "deletes": [{"q": {"m": 3}, "limit": 0}]}) == "DELETE"
    assert plan({"findAndModify": "series", "query": {"m": 3}, "remove": True}) == "TS_MODIFY"
    update = {"q": {"m": 3}, "u": {"$set": {"m": 9}}}
    assert plan({"update": "series", "updates": [{**update, "multi": True}]}) == "UPDATE"
    assert code_of(plan, {"update": "series", "updates": [update]}) == 72
    assert db.series.count_documents({"m": 3}) == 10


def test_statistics(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    db.series.insert_many([{"t": at(n), "m": 1, "n": n} for n in range(1500)])
    db.series.insert_one({"t": at(5), "m": 2})
    stats = db.command("collStats", "series")
    reported = stats["timeseries"]
    assert (reported["bucketsNs"], reported["bucketCount"]) == ("data.system.buckets.series", 3) and "count" not in stats
    assert (reported["numBucketInserts"], reported["numBucketUpdates"], reported["numMeasurementsCommitted"]) == (3, 0, 1501)
    assert (reported["numBucketsOpenedDueToMetadata"], reported["numBucketsClosedDueToCount"]) == (2, 1)
    [stats] = db.series.aggregate([{"$collStats": {"storageStats": {}}}])
    assert stats["storageStats"]["timeseries"]["bucketCount"] == 3


def test_out(node):
    db = node.client().data
    db.plain.insert_many([{"_id": n, "t": at(n), "m": n % 3, "x": n} for n in range(100)])
    out = {"db": "data", "coll": "made", "timeseries": SERIES}
    db.plain.aggregate([{"$out": out}])
    assert db.made.count_documents({}) == 100
    db.made.create_index("m")
    db.plain.aggregate([{"$match": {"x": {"$lt": 10}}}, {"$out": "made"}])
    assert db.made.count_documents({}) == 10 and "m_1" in db.made.index_information()
    assert db.list_collection_names(filter={"type": "timeseries"}) == ["made"]
    assert sorted(db.list_collection_names()) == ["made", "plain", "system.buckets.made", "system.views"]
    other = {**out, "timeseries": {"timeField": "t"}}
    assert code_of(db.plain.aggregate, [{"$out": other}]) == 7406103
    assert code_of(db.plain.aggregate, [{"$out": {**out, "coll": "plain"}}]) == 7268700
    assert code_of(db.made.aggregate, [{"$project": {"t": "$x"}}, {"$out": out}]) == 2
    assert db.made.count_documents({}) == 10
    # Views, and stages that read a series beside their own collection.
    db.command("create", "view", viewOn="made", pipeline=[{"$match": {"x": {"$gt": 5}}}])
    assert sorted(document["x"] for document in db.view.find()) == [6, 7, 8, 9]
    joined = db.plain.aggregate([{"$match": {"x": 4}}, {"$lookup": {"from": "made", "localField": "x", "foreignField": "x", "as": "y"}}])
    assert [len(document["y"]) for document in joined] == [1]


def test_dump_and_restore(node):
    db = node.client().data
    db.create_collection("series", timeseries=SERIES)
    db.series.insert_many([{"t": at(n), "m": n % 3, "x": n} for n in range(50)])
    dumped = list(db["system.buckets.series"].find())
    before = normal(db.series.find())
    db.series.drop()
    assert db.list_collection_names() == ["system.views"]
    db.create_collection("series", timeseries=SERIES)
    db["system.buckets.series"].insert_many(dumped)
    assert normal(db.series.find()) == before
    wrong = {"_id": ObjectId(), "control": {"version": 1, "min": {"t": at(0)}, "max": {}}, "data": {}}
    assert code_of(db["system.buckets.series"].insert_one, wrong) == 121


def test_measurements_expire():
    with Node("--setParameter", "ttlMonitorSleepSecs=1") as node:
        db = node.client().data
        db.create_collection("series", timeseries={**SERIES}, expireAfterSeconds=3600)
        now = datetime.datetime.now(datetime.UTC)
        db.series.insert_many([{"t": now - datetime.timedelta(hours=hours), "m": 1, "h": hours} for hours in (0, 9, 90)])
        wait_until(lambda: db.series.distinct("h") == [0])
        db.command("collMod", "series", expireAfterSeconds="off")
        [listed] = db.list_collections(filter={"name": "series"})
        assert "expireAfterSeconds" not in listed["options"]
        # Only those of some sources.
        db.create_collection("some", timeseries={**SERIES})
        db.some.create_index("t", expireAfterSeconds=3600, partialFilterExpression={"m": {"$gt": 1}})
        db.some.insert_many([{"t": now - datetime.timedelta(hours=hours), "m": m, "h": hours} for hours in (0, 9) for m in (1, 2)])
        wait_until(lambda: sorted((document["m"], document["h"]) for document in db.some.find()) == [(1, 0), (1, 9), (2, 0)])
