"""Answers do not depend on indexes or partitions: random documents and queries, each asked of a
collection without indexes and of the same documents under every kind of index, on nodes of one
partition and of several."""

import random

import bson
import pymongo
import pytest
from pymongo.errors import OperationFailure

from pinion_node import Node

DOCUMENTS = 120
QUERIES = 100
FIELDS = ["a", "b", "c", "a.x", "a.y", "b.x", "l", "l.x", "l.0", "l.0.x", "n"]


def scalar(choose):
    return choose.choice([
        0, 1, 2, 3, 5, -1, 2.5, 3.0, float("nan"), "", "a", "ab", "b", True, False, None, {}, [],
        bson.Int64(2**40), bson.Decimal128("2.5"), bson.MinKey(), bson.MaxKey(),
    ])


def value(choose, depth=0):
    kind = choose.random()
    if kind < 0.65 or depth > 1:
        return scalar(choose)
    if kind < 0.8:
        return [value(choose, depth + 1) for _ in range(choose.randrange(4))]
    return {name: value(choose, depth + 1) for name in choose.sample(["x", "y"], choose.randrange(3))}


def document(choose, number):
    found = {"_id": number}
    for name in ["a", "b", "c", "l", "n"]:
        if choose.random() < 0.7:
            found[name] = choose.randrange(6) if choose.random() < 0.4 else value(choose)
    return found


def predicate(choose):
    kind = choose.randrange(16)
    if kind < 4:
        return value(choose)
    if kind < 8:
        operators = choose.sample(["$gt", "$gte", "$lt", "$lte", "$ne", "$eq"], choose.randrange(1, 3))
        return {operator: scalar(choose) for operator in operators}
    if kind < 10:
        return {choose.choice(["$in", "$nin"]): [scalar(choose) for _ in range(choose.randrange(4))]}
    if kind == 10:
        return {"$exists": choose.random() < 0.5}
    if kind == 11:
        return {"$not": {choose.choice(["$gt", "$lte", "$eq"]): 2}} if choose.random() < 0.5 else {"$not": {"$in": [None, 1]}}
    if kind == 12:
        return {"$type": choose.choice(["number", "string", "array", "object", "null", "bool"])}
    if kind == 13:
        return {"$elemMatch": {"$gt": 0, "$lt": 4}} if choose.random() < 0.5 else {"$elemMatch": {"x": scalar(choose)}}
    if kind == 14:
        return {"$regex": choose.choice(["^a", "b$", ""])}
    return {"$mod": [2, 1]} if choose.random() < 0.5 else {"$size": choose.randrange(3)}


def query(choose, depth=0):
    kind = choose.random()
    if depth < 2 and kind < 0.2:
        return {choose.choice(["$or", "$and", "$nor"]): [query(choose, depth + 1) for _ in range(choose.randrange(1, 4))]}
    if depth == 0 and kind < 0.3:
        operator = choose.choice(["$eq", "$gt", "$gte", "$lt", "$lte"])
        operands = ["$" + choose.choice(["a", "b", "a.x", "l.x", "n"]), {"$literal": scalar(choose)}]
        choose.shuffle(operands)
        return {"$expr": {operator: operands}}
    found = {field: predicate(choose) for field in choose.sample(FIELDS, choose.randrange(1, 3))}
    if depth == 0 and choose.random() < 0.15:
        found["$or"] = [query(choose, 1), query(choose, 1)]
    return found


INDEXES = {
    "single": [("a", {}), ("b", {}), ("c", {}), ("a.x", {}), ("l.x", {}), ("l.0", {}), ("n", {})],
    "compound": [([("a", 1), ("b", -1)], {}), ([("l.x", 1), ("l.0", 1)], {}), ([("n", -1), ("a.x", 1), ("c", 1)], {})],
    "sparse": [("a", {"sparse": True}), ([("b", 1), ("c", 1)], {"sparse": True}), ("l", {"sparse": True})],
    "partial": [
        ("a", {"partialFilterExpression": {"b": {"$gt": 1}}}),
        ("b", {"partialFilterExpression": {"a": {"$exists": True}}}),
        ("n", {"partialFilterExpression": {"$or": [{"n": {"$in": [1, 2, 3]}}, {"c": {"$type": "string"}}]}}),
    ],
    "hashed": [([("n", "hashed")], {}), ([("c", "hashed"), ("n", 1)], {})],
    "wildcard": [([("$**", 1)], {})],
    "wildcard_below": [([("a.$**", 1)], {}), ([("l.$**", -1)], {})],
    "wildcard_projected": [([("$**", 1)], {"wildcardProjection": {"a": 0, "l.x": 0}})],
    "compound_wildcard": [([("n", 1), ("$**", 1)], {"wildcardProjection": {"n": 0}})],
    "unique": [([("a", 1), ("_id", 1)], {"unique": True}), ([("l.x", 1), ("_id", 1)], {"unique": True})],
}

# These have no keys for arrays in some fields: the documents have none there.
WITHOUT_ARRAYS = {"hashed": ["n", "c"], "compound_wildcard": ["n"]}
NO_PARALLEL = {"compound": [("a", "b"), ("n", "a"), ("n", "c"), ("a", "c")], "sparse": [("b", "c")]}


def has_array(found):
    if isinstance(found, dict):
        return any(has_array(part) for part in found.values())
    return isinstance(found, list)


def fit(documents, kind):
    """The documents that every index of the kind takes."""
    def fits(found):
        if any(has_array(found.get(field)) for field in WITHOUT_ARRAYS.get(kind, [])):
            return False
        return not any(has_array(found.get(a)) and has_array(found.get(b)) for a, b in NO_PARALLEL.get(kind, []))

    return [found for found in documents if fits(found)]


def plain_number(value):
    """Equal numbers of several types are one distinct value; which of them stands for it depends on
    the order of the scan."""
    if isinstance(value, bson.Decimal128):
        return float(value.to_decimal())
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def answers(collection, filter_, sort, projection):
    """What the collection answers in every way of asking, or the code of its error."""
    try:
        found = [bson.encode(d) for d in collection.find(filter_, sort=[("_id", 1)])]
        sorted_ = [bson.encode(d) for d in collection.find(filter_, sort=sort + [("_id", 1)])]
        projected = sorted(repr(sorted(bson.decode(bson.encode(d)).items(), key=lambda f: f[0])) for d in collection.find(filter_, projection))
        few = len(list(collection.find(filter_, sort=sort, limit=5)))
        count = collection.database.command("count", collection.name, query=filter_)["n"]
        grouped = list(collection.aggregate([{"$match": filter_}, {"$count": "n"}]))
        distinct = sorted(repr(plain_number(v)) for v in collection.distinct("a", filter_))
        return found, sorted_, projected, few, count, grouped, distinct
    except OperationFailure as error:
        return error.code


@pytest.fixture(scope="module", params=["1", "4"], ids=["one partition", "four partitions"])
def client(request):
    with Node("--cpus", "2", "--partitions", request.param) as node, node.client() as connected:
        yield connected


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("seed", [1, 2])
def test_indexes_change_no_answer(client, kind, seed):
    choose = random.Random(f"{kind} {seed}")
    documents = fit([document(choose, number) for number in range(DOCUMENTS)], kind)
    assert len(documents) > DOCUMENTS / 4
    database = client[f"plans_{kind}_{seed}"]
    plain, indexed = database.plain, database.indexed
    plain.insert_many(documents)
    # Half of the documents are there before the indexes are, half come afterwards, some change.
    half = len(documents) // 2
    indexed.insert_many(documents[:half])
    for key, options in INDEXES[kind]:
        indexed.create_index(key, **options)
    indexed.insert_many(documents[half:])
    for found in choose.sample(documents, 10):
        replaced = fit([document(choose, found["_id"])], kind)
        for change in replaced:
            plain.replace_one({"_id": change["_id"]}, change)
            indexed.replace_one({"_id": change["_id"]}, change)
    gone = [found["_id"] for found in choose.sample(documents, 10)]
    plain.delete_many({"_id": {"$in": gone}})
    indexed.delete_many({"_id": {"$in": gone}})
    assert client.admin.command("ping")
    used = 0
    for _ in range(QUERIES):
        filter_ = query(choose)
        sort = [(field, choose.choice([1, -1])) for field in choose.sample(["a", "b", "n", "a.x", "l.x"], choose.randrange(1, 3))]
        projection = choose.choice([{"a": 1, "_id": 0}, {"a": 1, "b": 1, "_id": 0}, {"n": 1, "c": 1, "a.x": 1}, {"l": 0}])
        want, got = answers(plain, filter_, sort, projection), answers(indexed, filter_, sort, projection)
        assert got == want, f"{filter_} sorted by {sort}"
        if isinstance(want, int):
            continue
        plan = indexed.find(filter_).explain()["queryPlanner"]["winningPlan"]
        used += "IXSCAN" in repr(plan)
    assert used > 0, f"{used} plans had an index"
    assert database.validate_collection(indexed, full=True)["valid"]
