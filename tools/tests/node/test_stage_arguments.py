"""What stages of pipelines take: for each stage the codes of wrong types, unknown and missing
fields, and numbers at their borders."""

import datetime
import re

import pytest
from bson import Decimal128, Int64, MinKey, ObjectId, Timestamp
from pymongo.errors import OperationFailure

NAN, INFINITY = float("nan"), float("inf")
NUMBERS = [0, -1, 1.5, NAN, INFINITY, -INFINITY, Int64(2**62), 1e19, Decimal128("1.5"), Decimal128("NaN"), Decimal128("1E+30")]
OTHERS = [None, True, datetime.datetime(2020, 1, 1), ObjectId("0" * 24), re.compile("a"), MinKey(), b"x", Timestamp(1, 1)]

OBJECT_ONLY = {
    "$addFields": 40272, "$set": 40272, "$bucket": 40201, "$bucketAuto": 40240, "$collStats": 5447000, "$currentOp": 14, "$densify": 5876900,
    "$facet": 40169, "$fill": 9, "$graphLookup": 40327, "$group": 15947, "$indexStats": 28803, "$listCatalog": 6200600, "$listLocalSessions": 14,
    "$lookup": 9, "$match": 15959, "$planCacheStats": 9, "$project": 15969, "$replaceRoot": 40229, "$sample": 28745, "$setWindowFields": 9, "$sort": 15973,
}
OBJECT_OR_STRING = {"$merge": 14, "$out": 16990, "$sortByCount": 40149, "$unionWith": 9, "$unwind": 15981}

UNKNOWN_FIELD = {
    "$bucket": 40197, "$bucketAuto": 40245, "$collStats": 40415, "$densify": 40415, "$fill": 40415, "$graphLookup": 40104, "$indexStats": 28803,
    "$merge": 40415, "$out": 40415, "$replaceRoot": 40415, "$sample": 28748, "$setWindowFields": 40415, "$unionWith": 40415, "$unwind": 28811,
}
EMPTY = {
    "$bucket": 40198, "$bucketAuto": 40246, "$densify": 40414, "$facet": 40169, "$fill": 40414, "$geoNear": 5860400, "$graphLookup": 9, "$group": 15955,
    "$lookup": 9, "$merge": 40414, "$out": 40414, "$project": 51272, "$replaceRoot": 40414, "$sample": 28749, "$setWindowFields": 40414, "$sort": 15976,
    "$sortByCount": 40147, "$unionWith": 9, "$unwind": 28812,
}


def code(collection, *stages):
    """The code of the error that a pipeline ends with, or 0."""
    try:
        collection.database.command("aggregate", collection.name, pipeline=list(stages), cursor={})
    except OperationFailure as error:
        return error.code
    return 0


def check(collection, cases):
    """Each case is a stage, or several of them, and its code."""
    stages = lambda case: case if isinstance(case, list) else [case]
    wrong = [(case, found, expected) for case, expected in cases if (found := code(collection, *stages(case))) != expected]
    assert not wrong, wrong


@pytest.fixture
def small(collection):
    collection.insert_many({"_id": n, "n": n, "list": [n, n + 1]} for n in range(3))
    return collection


def test_types_of_specifications(small):
    values = NUMBERS + OTHERS
    check(small, [({name: value}, expected) for name, expected in OBJECT_ONLY.items() for value in [*values, "", "x", [], [1]]])
    check(small, [({name: value}, expected) for name, expected in OBJECT_OR_STRING.items() for value in [*values, [], [1]]])
    check(small, [({"$unset": value}, 31002) for value in [*values, {}]])
    check(small, [({"$unset": []}, 31119), ({"$unset": [1]}, 31120), ({"$unset": ""}, 40352), ({"$unset": "a..b"}, 15998), ({"$unset": ["a", "a"]}, 31250)])
    check(small, [({"$geoNear": value}, 10065) for value in [*values, "x"]] + [({"$geoNear": [1]}, 5860400)])
    check(small, [({"$count": value}, 40156) for value in [*values, [], {}]])
    check(small, [({"$count": ""}, 40157), ({"$count": "$n"}, 40158), ({"$count": "a\0"}, 40159), ({"$count": "a.b"}, 40160), ({"$count": "_id"}, 9039800)])
    check(small, [({"$documents": {}}, 51270), ({"$documents": []}, 73), ({"$changeStreamSplitLargeEvent": {}}, 7182801)])


def test_fields_of_specifications(small):
    check(small, [({name: {"zz": 1}}, expected) for name, expected in UNKNOWN_FIELD.items()])
    check(small, [({name: {}}, expected) for name, expected in EMPTY.items()])
    graph = {"from": small.name, "startWith": "$n", "connectFromField": "n", "connectToField": "_id", "as": "found"}
    check(small, [({"$graphLookup": {**graph, "maxDepth": depth}}, expected) for depth, expected in [
        (None, 40100), ("x", 40100), (-1, 40101), (1.5, 40102), (NAN, 40102), (Decimal128("1.5"), 40102), (1e19, 40102), (1.0, 0), (Decimal128("1"), 0),
    ]])
    check(small, [({"$bucketAuto": {"groupBy": "$n", "buckets": buckets}}, expected) for buckets, expected in [
        ("x", 40241), (0, 40243), (-1, 40243), (1.5, 40242), (Int64(2**31), 40242), (2.0, 0), (Decimal128("2"), 0),
    ]])
    check(small, [({"$densify": {"field": "n", "range": {"bounds": "full", "step": step}}}, expected) for step, expected in [
        (0, 5733401), (-1, 5733401), ("x", 5733401), (NAN, 5733401), (2, 0), (1.5, 0), (Decimal128("1"), 0),
    ]])
    check(small, [({"$sample": {"size": size}}, expected) for size, expected in [
        ("1", 28746), (0, 28747), (-1, 28747), (NAN, 28747), (Decimal128("0.5"), 28747), (1e19, 0), (Decimal128("1.5"), 0),
    ]])


def test_numbers_of_skip_and_limit(small):
    for name, wrong in [("$skip", 5107200), ("$limit", 5107201)]:
        check(small, [({name: value}, wrong) for value in [*OTHERS, "1", [], {}, -1, 1.5, NAN, INFINITY, 1e19, Decimal128("1.5"), Decimal128("1E+30")]])
        check(small, [({name: value}, 0) for value in [1, 1.0, Decimal128("1"), Int64(2**62), 1e18]])
    check(small, [({"$skip": 0}, 0), ({"$limit": 0}, 15958)])


def test_directions_of_sorts(small):
    check(small, [({"$sort": {"n": direction}}, 0) for direction in [1, -1, 1.0, -1.0, Int64(1), Decimal128("1"), Decimal128("-1")]])
    check(small, [({"$sort": {"n": direction}}, 15975) for direction in [0, 2, -2]])
    check(small, [({"$sort": {"n": direction}}, 15974) for direction in [None, True, "1", "asc", []]])
    check(small, [({"$sort": {"n": {"$meta": "x"}}}, 31138), ({"$sort": {"n": {"$foo": 1}}}, 17312), ({"$sort": {"a..b": 1}}, 15998), ({"$sort": {"": 1}}, 40352)])


def test_names_of_facets(small):
    check(small, [({"$facet": {name: []}}, expected) for name, expected in [("", 15998), ("$a", 16410), ("a.b", 16412)]])
    check(small, [({"$facet": {"a": value}}, expected) for value, expected in [
        (1, 40170), (None, 40170), ({}, 40170), ([1], 40171), ([{"$out": "x"}], 40600), ([{"$facet": {"b": []}}], 40600), ([{"$foo": 1}], 40324),
    ]])


def test_keys_of_an_index_in_pipelines(small):
    key = {"$meta": "indexKey"}
    small.create_index([("n", -1), ("_id", 1)])
    by_key = {"$match": {"n": {"$gte": 1}}}

    def keys(*stages):
        return [document.get("key") for document in small.aggregate([*stages, {"$sort": {"_id": 1}}])]

    given = [{"n": 1, "_id": 1}, {"n": 2, "_id": 2}]
    assert keys(by_key, {"$addFields": {"key": key}}) == given
    assert keys(by_key, {"$project": {"key": key}}) == given
    assert keys(by_key, {"$limit": 5}, {"$unwind": "$list"}, {"$project": {"key": key}}) == [given[0]] * 2 + [given[1]] * 2
    assert keys({"$match": {"_id": 2}}, {"$set": {"key": key}}) == [{"_id": 2}]
    assert keys({"$set": {"key": key}}) == [None] * 3
    counts = small.aggregate([by_key, {"$group": {"_id": key, "n": {"$sum": 1}}}, {"$sort": {"_id.n": 1}}])
    assert list(counts) == [{"_id": each, "n": 1} for each in given]
    joined = {"$lookup": {"from": small.name, "pipeline": [by_key, {"$project": {"_id": 0, "key": key}}, {"$sort": {"key.n": 1}}], "as": "found"}}
    assert [found["key"] for found in small.aggregate([{"$limit": 1}, joined]).next()["found"]] == given


def test_sort_keys_and_record_ids_in_pipelines(small):
    database, name = small.database, small.name
    records = {d["_id"]: d["$recordId"] for d in database.command("find", name, showRecordId=True)["cursor"]["firstBatch"]}
    sort_key, record_id = {"$meta": "sortKey"}, {"$meta": "recordId"}

    def found(*stages, source=small):
        return [document.get("k") for document in source.aggregate(list(stages))]

    show = {"$addFields": {"k": sort_key}}
    assert found({"$sort": {"n": -1}}, show) == [[2], [1], [0]]
    assert found({"$sort": {"list": -1, "x": 1}}, {"$limit": 2}, {"$project": {"k": sort_key}}) == [[3, None], [2, None]]
    assert found({"$sort": {"n": 1}}, {"$skip": 1}, {"$unwind": "$list"}, show) == [[1], [1], [2], [2]]
    assert found({"$set": {"m": {"$mod": ["$n", 2]}}}, {"$sort": {"m": -1, "n": -1}}, show) == [[1, 1], [0, 2], [0, 0]]
    assert found({"$sort": {"n": 1}}, {"$group": {"_id": None, "k": {"$push": sort_key}}}) == [[[0], [1], [2]]]
    assert found({"$sort": {"n": -1}}, {"$facet": {"f": [show]}}, {"$project": {"k": "$f.k"}}) == [[[2], [1], [0]]]
    database.drop_collection("seen")
    database.command("create", "seen", viewOn=name, pipeline=[{"$sort": {"n": 1}}])
    assert found({"$limit": 2}, show, source=database.seen) == [[0], [1]]
    by_id = [records[at] for at in sorted(records)]
    assert found({"$set": {"k": record_id}}, {"$sort": {"_id": 1}}) == by_id
    assert found({"$sort": {"n": -1}}, {"$limit": 2}, {"$project": {"k": record_id}}) == by_id[:0:-1]
    assert found({"$match": {"_id": 1}}, {"$unwind": "$list"}, {"$set": {"k": record_id}}) == [records[1]] * 2
    assert found({"$set": {"k": record_id}}, {"$sort": {"_id": 1}}, source=database.seen) == by_id
    assert sorted(found({"$group": {"_id": record_id}}, {"$set": {"k": "$_id"}}), key=str) == sorted(by_id, key=str)
    joined = {"$lookup": {"from": name, "pipeline": [{"$set": {"k": record_id}}, {"$sort": {"_id": 1}}], "as": "found"}}
    assert [document["k"] for document in small.aggregate([{"$limit": 1}, joined]).next()["found"]] == by_id
    for value in (sort_key, record_id):
        read = {"$project": {"k": value}}
        check(small, [([*before, read], 40218) for before in ([{"$group": {"_id": "$n"}}], [{"$count": "n"}])])
        check(small, [([{"$match": {"$expr": {"$eq": [value, 1]}}}], 40218 if value is sort_key else 115)])
    check(small, [([show], 40218)])
    with pytest.raises(OperationFailure, match="record ID metadata"):
        database.aggregate([{"$documents": [{"a": 1}]}, {"$project": {"k": record_id}}])
    with pytest.raises(OperationFailure, match="record ID metadata"):
        small.update_one({}, [{"$set": {"k": record_id}}])


@pytest.mark.parametrize("kind,codes", [
    # In an expression and as an order, where nothing gives it.
    *((kind, (0, 31138)) for kind in ("indexKey", "searchHighlights", "searchScoreDetails", "searchSequenceToken")),
    *((kind, (0, 115)) for kind in ("searchScore", "vectorSearchScore", "randVal")), *((kind, (40218, 40218)) for kind in ("textScore", "geoNearDistance", "score")),
    *((kind, (40218, 31138)) for kind in ("geoNearPoint", "scoreDetails", "sortKey")), ("recordId", (0, 31138)),
    *((kind, (115, 31138)) for kind in ("timeseriesBucketMinTime", "timeseriesBucketMaxTime")), ("nosuch", (17308, 31138)), ("", (17308, 31138)), (1, (17307, 31138)),
])
def test_keywords_of_meta(small, kind, codes):
    read, order = codes
    value = {"$meta": kind}
    check(small, [({stage: {"x": value}}, read) for stage in ("$project", "$addFields", "$set")])
    check(small, [({"$group": {"_id": value}}, read), ({"$group": {"_id": None, "x": {"$push": value}}}, read), ({"$bucketAuto": {"groupBy": value, "buckets": 1}}, read)])
    check(small, [({"$replaceRoot": {"newRoot": {"x": value}}}, read), ({"$facet": {"f": [{"$project": {"x": value}}]}}, read)])
    check(small, [({"$sort": {"x": value}}, order), ({"$sort": {"n": 1, "x": value}}, order)])


def test_variables_of_commands_read_no_documents(small):
    for value in ["$n", "$$ROOT", "$$CURRENT", {"$getField": "n"}, {"$meta": "textScore"}, {"$meta": "indexKey"}]:
        with pytest.raises(OperationFailure) as caught:
            small.database.command("aggregate", small.name, pipeline=[], cursor={}, let={"x": value})
        assert caught.value.code == 4890500, value
