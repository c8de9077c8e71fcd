"""Reads that are answered by the entries of indexes alone: they give what reads of the documents
give."""

import datetime
import random

import pytest
from bson import Decimal128, Int64, ObjectId

VALUES = [None, 0, 1, 1.0, Int64(1), Decimal128("1.00"), -0.0, 1.5, "", "a", "b", "a\x00b", True, False, {"x": 1}, {},
          ObjectId(b"123456789012"), datetime.datetime(2020, 1, 1), b"bytes"]


@pytest.fixture(params=[False, True], ids=["plain", "unique"])
def pair(client, request):
    """The same documents with indexes and without."""
    client.drop_database("covered")
    with_, without = client.covered["with"], client.covered["without"]
    chance = random.Random(5)
    documents = []
    for number in range(600):
        document = {"_id": number, "u": number}
        for field in ("a", "b"):
            if chance.random() < 0.9:
                document[field] = chance.choice(VALUES)
        if chance.random() < 0.8:
            document["c"] = {"d": chance.choice(VALUES[:8])} if chance.random() < 0.8 else chance.choice(VALUES[:8])
        documents.append(document)
    for collection in (with_, without):
        collection.insert_many(documents)
    with_.create_index([("a", 1), ("u", 1)], unique=request.param)
    with_.create_index([("b", -1), ("c.d", 1), ("u", -1)], unique=request.param)
    with_.create_index([("c.d", 1)])
    with_.create_index([("u", 1)], unique=True)
    return with_, without


FILTERS = [{}, {"a": 1}, {"a": "a"}, {"a": {"$gt": 0}}, {"a": {"$in": [1, "a", True]}}, {"b": {"$gte": 1, "$lt": 2}},
           {"u": {"$gte": 100, "$lt": 300}}, {"a": None}, {"c.d": 1}, {"a": 1, "u": {"$lt": 200}}, {"b": {"$type": "string"}},
           {"u": {"$gt": 1000}}, {"a": {"$exists": False}}, {"b": 1, "c.d": {"$gt": 0}}, {"$or": [{"a": 1}, {"u": 5}]}]


def stages(plan):
    while plan:
        yield plan["stage"]
        plan = plan.get("inputStage")


def test_counts(pair):
    with_, without = pair
    for filter in FILTERS:
        for options in ({}, {"skip": 3, "limit": 7}, {"limit": 50}):
            assert with_.count_documents(filter, **options) == without.count_documents(filter, **options), filter
            command = {"query": filter, **options}
            counts = [c.database.command("count", c.name, **command)["n"] for c in pair]
            assert counts[0] == counts[1], filter


def plain(value):
    """Of equal numbers of several types any one may be given."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return float(value.to_decimal()) if isinstance(value, Decimal128) else value


def test_distinct(pair):
    with_, without = pair
    for key in ("a", "b", "c.d", "u", "c", "nope"):
        for filter in FILTERS:
            found = [[plain(value) for value in c.distinct(key, filter)] for c in pair]
            assert found[0] == found[1], (key, filter)


def test_projections(pair):
    with_, without = pair
    for keep in (["a"], ["u", "a"], ["c.d"], ["b", "c.d"], ["u"], ["a", "b"]):
        for filter in FILTERS:
            projection = {"_id": 0, **{path: 1 for path in keep}}
            # The fields come in the order of the index, as in MongoDB.
            found = [sorted(repr(sorted(found.items())) for found in c.find(filter, projection)) for c in pair]
            assert found[0] == found[1], (projection, filter)
            sort = [(keep[0], 1), ("u", 1)]
            found = [list(c.find(filter, {**projection, "u": 1}, sort=sort)) for c in pair]
            assert found[0] == found[1], (projection, filter)


def explain(c, command, verbosity="executionStats"):
    return c.database.command("explain", command, verbosity=verbosity)


def test_explain_of_counts(pair):
    c = pair[0]
    reported = explain(c, {"count": "with", "query": {"u": {"$gte": 100, "$lt": 300}}})
    plan = reported["queryPlanner"]["winningPlan"]
    assert list(stages(plan)) == ["COUNT", "COUNT_SCAN"]
    assert plan["inputStage"]["indexBounds"] == {
        "startKey": {"u": 100}, "startKeyInclusive": True, "endKey": {"u": 300}, "endKeyInclusive": False}
    stats = reported["executionStats"]
    assert (stats["totalDocsExamined"], stats["executionStages"]["nCounted"]) == (0, 200)
    reported = explain(c, {"count": "with", "query": {"u": {"$in": [1, 5]}}})
    assert list(stages(reported["queryPlanner"]["winningPlan"])) == ["COUNT", "IXSCAN"]
    assert reported["executionStats"]["totalDocsExamined"] == 0
    reported = explain(c, {"count": "with", "query": {"u": 1, "nope": 1}})
    assert list(stages(reported["queryPlanner"]["winningPlan"])) == ["COUNT", "FETCH", "IXSCAN"]


def test_explain_of_distinct(pair):
    c = pair[0]
    reported = explain(c, {"distinct": "with", "key": "a", "query": {"a": {"$gt": 0}}})
    plan = reported["queryPlanner"]["winningPlan"]
    assert list(stages(plan)) == ["PROJECTION_COVERED", "DISTINCT_SCAN"] and plan["transformBy"] == {"_id": 0, "a": 1}
    assert reported["executionStats"]["totalDocsExamined"] == 0
    assert reported["executionStats"]["totalKeysExamined"] < 50, "it goes from value to value"
    reported = explain(c, {"distinct": "with", "key": "a", "query": {"nope": 1}})
    assert list(stages(reported["queryPlanner"]["winningPlan"])) == ["COLLSCAN"]


def test_explain_of_covered_plans(pair):
    c = pair[0]
    reported = explain(c, {"find": "with", "filter": {"u": {"$gte": 100, "$lt": 300}}, "projection": {"_id": 0, "u": 1}})
    assert list(stages(reported["queryPlanner"]["winningPlan"])) == ["PROJECTION_COVERED", "IXSCAN"]
    assert (reported["executionStats"]["totalDocsExamined"], reported["executionStats"]["nReturned"]) == (0, 200)
    reported = explain(c, {"find": "with", "filter": {"u": {"$gte": 100}}, "projection": {"u": 1}})
    assert list(stages(reported["queryPlanner"]["winningPlan"])) == ["PROJECTION_SIMPLE", "FETCH", "IXSCAN"]


def test_arrays_are_not_covered(client):
    c = client.covered.arrays
    c.drop()
    c.insert_many([{"_id": 1, "a": [1, 2]}, {"_id": 2, "a": 1}, {"_id": 3, "a": []}])
    c.create_index("a")
    assert list(c.find({"a": 1}, {"_id": 0, "a": 1})) == [{"a": [1, 2]}, {"a": 1}]
    assert c.distinct("a") == [1, 2] and c.count_documents({"a": {"$gte": 1}}) == 2


MERGED = [({"a": {"$in": [1, 3, 5]}}, "SORT_MERGE"), ({"$or": [{"a": 1}, {"b": 2}]}, "SORT_MERGE"),
          ({"$or": [{"a": {"$in": [0, 2]}}, {"b": {"$in": [1, 2]}, "a": {"$lt": 5}}]}, "SORT_MERGE"),
          ({"$or": [{"t": "x"}, {"a": 1}]}, "SORT_MERGE"), ({"t": {"$in": ["x", "y"]}}, "SORT_MERGE"),
          ({"$or": [{"a": {"$gt": 4}}, {"b": 2}]}, "SORT")]


@pytest.fixture(params=[False, True], ids=["plain", "unique"])
def sortable(client, request):
    """The same documents with indexes that end in the fields of a sort, and without."""
    client.drop_database("covered")
    with_, without = client.covered["with"], client.covered["without"]
    chance = random.Random(9)
    values = [0, 1, 1.5, Int64(2), "", "a", "a\x00", "a\x00b", "b", None, True, b"x", {"x": 1}]
    documents = [{"_id": number, "a": chance.randrange(7), "b": chance.randrange(5), "c": chance.choice(values),
                  "t": chance.sample(["x", "y", "z"], chance.randrange(4)), "u": chance.randrange(3)}
                 for number in range(500)]
    for collection in (with_, without):
        collection.insert_many(documents)
    for keys in ([("a", 1), ("c", 1), ("u", -1)], [("b", 1), ("c", -1), ("u", 1)], [("t", 1), ("c", 1), ("u", -1)]):
        with_.create_index([*keys, ("_id", 1)], unique=request.param)
    return with_, without


def test_scans_are_merged_in_the_order_of_a_sort(sortable):
    with_, without = sortable
    for filter, stage in MERGED:
        for sort in ([("c", 1), ("u", -1)], [("c", -1), ("u", 1)], [("c", 1)]):
            reported = explain(with_, {"find": "with", "filter": filter, "sort": dict(sort)})
            assert stage in set(stages(reported["queryPlanner"]["winningPlan"])), (filter, sort)
            for options in ({}, {"skip": 5, "limit": 20}, {"batch_size": 7}):
                found = [list(c.find(filter, sort=sort, **options)) for c in sortable]
                keys = [[(one["c"], one["u"] if len(sort) > 1 else 0) for one in one_of] for one_of in found]
                assert keys[0] == keys[1], (filter, sort, options)
                if "limit" not in options:
                    ids = [sorted(one["_id"] for one in one_of) for one_of in found]
                    assert ids[0] == ids[1], (filter, sort, options)


def test_a_merge_reads_no_more_than_is_asked_for(sortable):
    command = {"find": "with", "filter": {"a": {"$in": [1, 3, 5]}}, "sort": {"c": 1}, "limit": 2}
    reported = explain(sortable[0], command)["executionStats"]
    # Documents that lie apart from their entries are fetched in groups.
    assert reported["totalDocsExamined"] < 200 and reported["nReturned"] == 2


def test_a_count_of_everything_looks_at_nothing(client):
    c = client.covered.everything
    c.drop()
    c.insert_many([{"_id": number} for number in range(20)])
    for command, reported in (({}, (20, 0)), ({"skip": 5, "limit": 3}, (3, 5)), ({"query": {}, "skip": 30}, (0, 20))):
        stats = explain(c, {"count": "everything", **command})["executionStats"]
        stage = stats["executionStages"]
        assert stage["stage"] == "RECORD_STORE_FAST_COUNT" and stats["totalDocsExamined"] == 0
        assert (stage["nCounted"], stage["nSkipped"]) == reported
    stage = explain(c, {"count": "everything", "hint": "_id_", "skip": 2})["executionStats"]["executionStages"]
    assert (stage["stage"], stage["nCounted"], stage["nSkipped"]) == ("COUNT", 18, 2)
