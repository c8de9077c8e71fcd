"""Answers at the borders: undefined beside null, explains and replies that outgrow a document,
types of arguments."""

import bson
import pytest
from bson import Decimal128
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo.errors import OperationFailure


def fails(code, run, *args, **options):
    with pytest.raises(OperationFailure) as caught:
        run(*args, **options)
    assert caught.value.code == code, caught.value.details
    return caught.value.details


def with_undefined(document):
    """The document as raw BSON, where MinKey stands for undefined, which PyMongo does not write."""
    return RawBSONDocument(bson.encode(document).replace(b"\xff", b"\x06"))


def ids(found):
    return sorted(document["_id"] for document in found)


@pytest.mark.parametrize("index", [None, {}, {"sparse": True}, {"partialFilterExpression": {"v": {"$exists": True}}}])
def test_null_is_not_undefined(collection, index):
    undefined = bson.MinKey()
    collection.insert_many(map(with_undefined, [
        {"_id": 1, "v": None}, {"_id": 2, "v": undefined}, {"_id": 3, "v": ["x", undefined]}, {"_id": 4}, {"_id": 5, "v": 5}, {"_id": 6, "v": []},
    ]))
    if index is not None:
        collection.create_index("v", **index)
    for query, expected in [
        ({"v": None}, [1, 4]), ({"v": {"$in": [None, 5]}}, [1, 4, 5]), ({"v": {"$gte": None}}, [1, 4]), ({"v": {"$lte": None}}, [1, 4]),
        ({"v": {"$ne": None}}, [2, 3, 5, 6]), ({"v": {"$nin": [None, 5]}}, [2, 3, 6]), ({"v": {"$not": {"$gte": None}}}, [2, 3, 5, 6]),
        ({"v": {"$type": "undefined"}}, [2, 3]), ({"v": {"$exists": False}}, [4]), ({"v": {"$elemMatch": {"$eq": None}}}, []), ({"v.w": None}, [1, 2, 4, 5]),
        ({"$expr": {"$eq": ["$v", None]}}, [1]),
    ]:
        assert ids(collection.find(query, {"_id": 1})) == expected, query
        assert collection.count_documents(query) == len(expected), query
    others = collection.database[collection.name + "_from"]
    others.drop()
    others.insert_many(map(with_undefined, [{"_id": 1, "k": None}, {"_id": 2}, {"_id": 3, "k": undefined}]))
    join = {"from": collection.name, "localField": "k", "foreignField": "v", "pipeline": [{"$project": {"_id": 1}}], "as": "found"}
    joined = {document["_id"]: ids(document["found"]) for document in others.aggregate([{"$lookup": join}])}
    assert joined == {1: [1, 4], 2: [1, 4], 3: [2, 3]}


def test_explain_leaves_out_what_is_too_large(collection):
    collection.insert_one({"a": 5, "b": 5})
    collection.create_index("a")
    collection.create_index([("a", 1), ("b", 1)])
    explain = {"explain": {"find": collection.name, "filter": {"a": {"$in": list(range(500_000))}}}, "verbosity": "allPlansExecution"}
    explained = collection.database.command(explain)
    plan = explained["queryPlanner"]["winningPlan"]["inputStage"]
    assert plan["stage"] == "IXSCAN" and "indexBounds" not in plan
    assert plan["warning"] == "index bounds omitted due to BSON size limit for explain"
    # The filter still fits beside it, and then the command does not.
    assert len(explained["queryPlanner"]["parsedQuery"]["a"]["$in"]) == 500_000
    assert "command" not in explained and explained["warning"] == "'command' has been omitted due to BSON size limit"
    small = {"explain": {"find": collection.name, "filter": {"a": {"$in": [1, 2]}}}, "verbosity": "allPlansExecution"}
    explained = collection.database.command(small)
    assert explained["command"]["find"] == collection.name and "warning" not in str(explained)


def test_a_reply_that_is_too_large_is_an_error(client):
    collection = client["pinion_test"].long_ids
    collection.drop()
    upserts = [UpdateOne({"_id": letter * 7_000_000}, {"$set": {"x": 1}}, upsert=True) for letter in "abc"]
    # The reply would name all of them.
    details = fails(10334, collection.bulk_write, upserts)
    assert "BSONObj size" in details["errmsg"]
    assert collection.count_documents({"x": 1}) == 3
    # The entry of an insert has the key twice, and must fit into a message between members.
    fails(10334, collection.insert_one, {"_id": "d" * 9_000_000})
    collection.drop()


def test_types_of_arguments(client):
    admin, db = client.admin, client["pinion_test"]
    current = lambda spec: admin.command({"aggregate": 1, "pipeline": [{"$currentOp": spec}], "cursor": {}})
    fails(14, current, 1)
    fails(14, current, {"allUsers": 1})
    fails(14, current, {"localOps": "x"})
    fails(9, current, {"idleConnections": 1})
    fails(14, admin.command, {"getParameter": {"showDetails": "x"}, "quiet": 1})
    fails(2, admin.command, {"getParameter": {"setAt": "x"}, "quiet": 1})
    fails(40415, admin.command, {"getParameter": {"other": 1}, "quiet": 1})
    at_runtime = admin.command({"getParameter": {"allParameters": True, "setAt": "runtime"}})
    assert 0 < len(at_runtime) < len(admin.command({"getParameter": "*"}))
    assert db.command({"dbHash": 1, "collections": "x", "skipTempCollections": "x", "other": 1})["ok"] == 1
    fails(73, db.command, {"dbHash": ""})
    write = {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "pinion_test.types"}]}
    fails(14, admin.command, {**write, "errorsOnly": 1})
    assert admin.command({**write, "errorsOnly": None})["ok"] == 1
    fails(15975, db.command, {"find": "types", "sort": {"a": Decimal128("1.5")}})
    assert db.command({"find": "types", "sort": {"a": Decimal128("0.6")}})["ok"] == 1
    db.drop_collection("seen")
    db.create_collection("seen", viewOn="types", pipeline=[None, {"$limit": 1}, None])
    (view,) = db.list_collections(filter={"name": "seen"})
    assert view["options"]["pipeline"] == [{"$limit": 1}]
    db.drop_collection("seen")


def test_keys_of_clustered_collections_have_an_end(client):
    db = client["pinion_test"]
    db.drop_collection("clustered")
    db.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
    db.clustered.insert_one({"_id": "x" * 8_000_000})
    fails(5894900, db.clustered.insert_one, {"_id": "x" * 8_500_000})
    assert db.clustered.count_documents({}) == 1
