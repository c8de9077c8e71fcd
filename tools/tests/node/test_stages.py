"""Stages as a user sees them: what they read, write, and refuse."""

import pytest
from pymongo.errors import OperationFailure


def fails(collection, stage, code):
    with pytest.raises(OperationFailure) as caught:
        list(collection.aggregate([stage]))
    assert caught.value.code == code, caught.value.details


def test_lookup_reads_a_collection_that_none_can_be_called(client):
    collection = client.stages.local
    collection.insert_one({"_id": 1})
    for name in ("$abc", "$$NOW", "x" * 300):
        lookup = {"from": name, "localField": "a", "foreignField": "a", "as": "found"}
        assert list(collection.aggregate([{"$lookup": lookup}])) == [{"_id": 1, "found": []}]
        assert list(collection.aggregate([{"$unionWith": name}])) == [{"_id": 1}]
    lookup = {"from": "b", "let": None, "pipeline": [], "as": "found"}
    assert list(collection.aggregate([{"$lookup": lookup}])) == [{"_id": 1, "found": []}]


def test_out_reports_what_is_wrong_with_its_target(client):
    collection = client.stages.out_of
    collection.insert_one({"_id": 1})
    for db, name, code in (("a b", "c", 73), ("", "c", 73), ("d" * 64, "c", 73), ("d", "c" * 254, 20), ("d", "$c", 20)):
        fails(collection, {"$out": {"db": db, "coll": name}}, code)
    fails(collection, {"$out": {"db": "d", "coll": None}}, 40414)


def test_documents_are_sorted_by_what_is_known_beside_them(client):
    collection = client.stages.beside
    collection.insert_many([{"_id": i, "l": [i, 0]} for i in (5, 0, 9)])
    collection.create_index([("l", "2dsphere")])
    near = {"$geoNear": {"near": {"type": "Point", "coordinates": [0, 0]}, "distanceField": "d"}}
    found = collection.aggregate([near, {"$sort": {"x": {"$meta": "geoNearDistance"}}}])
    assert [d["_id"] for d in found] == [9, 5, 0]


def test_merge_writes_a_batch_whole_also_where_a_document_fails(client):
    source, target = client.stages.source, client.stages.target
    source.insert_many([{"_id": i} for i in range(5)])
    target.insert_one({"_id": 2, "there": True})
    fails(source, {"$merge": {"into": "target", "whenMatched": "fail"}}, 11000)
    assert [d["_id"] for d in target.find(sort=[("_id", 1)])] == [0, 1, 2, 3, 4]
    assert target.find_one({"_id": 2}) == {"_id": 2, "there": True}
    target.delete_many({"_id": {"$ne": 2}})
    fails(source, {"$merge": {"into": "target", "whenNotMatched": "fail"}}, 13113)
    assert target.count_documents({}) == 1


def test_merge_makes_documents_as_its_update_does(client):
    source, target = client.stages.ordered, client.stages.made
    source.insert_one({"_id": 1, "z": 1, "a": 2, "m": 3})
    for how, names in (("merge", "_id a m z"), ("keepExisting", "_id a m z"), ("replace", "_id z a m")):
        target.drop()
        source.aggregate([{"$merge": {"into": {"db": None, "coll": "made"}, "whenMatched": how}}])
        assert list(target.find_one()) == names.split()
        source.aggregate([{"$merge": {"into": "made", "whenMatched": how}}])
        assert target.count_documents({}) == 1


def test_a_variable_without_a_value_is_none_for_merge(client):
    source, target = client.stages.lets, client.stages.let_into
    source.insert_one({"_id": 1})
    target.insert_one({"_id": 1})
    merge = {"into": "let_into", "let": {"v": "$none"}, "whenMatched": [{"$set": {"a": "$$v"}}]}
    fails(source, {"$merge": merge}, 17276)
    merge["whenMatched"] = [{"$set": {"a": 1}}]
    source.aggregate([{"$merge": merge}])
    assert target.find_one() == {"_id": 1, "a": 1}


def test_a_hinted_wildcard_index_serves_an_or(client):
    collection = client.stages.wild
    collection.create_index([("$**", 1)], name="all")
    collection.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "b": 2}, {"_id": 3, "a": []}, {"_id": 4, "a": [[]]}])
    found = lambda query: [d["_id"] for d in collection.find(query, hint="all", sort=[("_id", 1)])]
    assert found({"$or": [{"a": 1}, {"b": 2}]}) == [1, 2]
    assert found({"a": []}) == [3, 4]
    assert found({"a": {"$in": [1, []]}}) == [1, 3, 4]


def test_the_deepest_documents_are_computed(client):
    collection = client.stages.deep
    collection.insert_one({"_id": 1})
    value = 1
    for _ in range(190):
        value = {"a": value}
    (found,) = collection.aggregate([{"$replaceWith": value}])
    assert found == value
    nested = "$_id"
    for _ in range(90):
        nested = {"$add": [nested, 1]}
    (found,) = collection.aggregate([{"$project": {"v": nested}}])
    assert found["v"] == 91


def test_fused_ranks_are_sums_over_the_pipelines(client):
    collection = client.stages.fused
    collection.insert_many([{"_id": i, "a": i, "b": -i, "c": i % 3} for i in range(300)])
    score = lambda *places: sum(1 / (60 + place) for place in places)
    fusion = lambda **pipelines: {"$rankFusion": {"input": {"pipelines": pipelines}, "scoreDetails": True}}
    shown = {"$project": {"s": {"$meta": "score"}, "d": {"$meta": "scoreDetails"}}}
    inputs = {"up": [{"$sort": {"a": 1}}, {"$limit": 5}], "down": [{"$match": {"a": {"$gte": 3}}}, {"$sort": {"b": -1}}]}
    found = list(collection.aggregate([fusion(**inputs), {"$limit": 4}, shown]))
    assert [d["_id"] for d in found] == [3, 4, 0, 1]
    assert found[0]["s"] == pytest.approx(score(1, 4)) and found[2]["s"] == pytest.approx(score(1))
    assert [(d["inputPipelineName"], d["rank"]) for d in found[0]["d"]["details"]] == [("down", 1), ("up", 4)]
    assert [d["rank"] for d in found[2]["d"]["details"]] == ["NA", 1]
    # What is equal shares a place, and comes in the order of its _id.
    tied = list(collection.aggregate([fusion(c=[{"$sort": {"c": 1}}]), shown]))
    assert [d["_id"] for d in tied[:3]] == [0, 3, 6] and tied[100]["s"] == pytest.approx(score(101))
    assert list(client.stages.none.aggregate([fusion(c=[{"$sort": {"c": 1}}])])) == []
    fails(collection, {"$facet": {"f": [fusion(c=[{"$sort": {"c": 1}}])]}}, 40600)
    joined = {"from": "fused", "pipeline": [fusion(**inputs), {"$limit": 1}], "as": "best"}
    (one,) = collection.aggregate([{"$limit": 1}, {"$lookup": joined}])
    assert [d["_id"] for d in one["best"]] == [3]
    client.stages.create_collection("seen", viewOn="fused", pipeline=[])
    fails(client.stages.seen, fusion(c=[{"$sort": {"c": 1}}]), 166)
    collection.create_index([("l", "2dsphere")])
    collection.update_many({"_id": {"$in": [7, 8]}}, [{"$set": {"l": ["$_id", 0]}}])
    near = fusion(n=[{"$geoNear": {"near": {"type": "Point", "coordinates": [0, 0]}}}, {"$limit": 9}])
    assert [d["_id"] for d in collection.aggregate([near])] == [7, 8]


def test_as_many_stages_as_may_be_wait_for_each_other(client):
    collection = client.stages.many
    collection.insert_many([{"_id": i} for i in range(3)])
    lookup = {"$lookup": {"from": "none", "localField": "_id", "foreignField": "_id", "as": "x"}}
    assert len(list(collection.aggregate([lookup] * 1000))) == 3
    assert len(list(collection.aggregate([{"$unionWith": "none"}] * 1000))) == 3
    inputs = {f"p{i}": [{"$sort": {"_id": 1}}] for i in range(900)}
    assert len(list(collection.aggregate([{"$rankFusion": {"input": {"pipelines": inputs}}}]))) == 3
    fails(collection, {"$unionWith": {"coll": "none", "pipeline": [lookup] * 1000}}, 7749501)
