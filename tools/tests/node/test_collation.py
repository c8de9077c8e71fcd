"""Collations as a user meets them: in every command, in indexes, and in what is listed of them."""

import itertools
import random

import pymongo
import pytest
from pymongo.collation import Collation
from pymongo.errors import DuplicateKeyError, OperationFailure

CASE = Collation("en", strength=2)
BASE = Collation("en", strength=1)


@pytest.fixture
def words(collection):
    collection.insert_many({"_id": i, "w": word} for i, word in enumerate(["b", "A", "a", "B", "á", 5]))
    return collection


def ids(documents):
    return [document["_id"] for document in documents]


def test_queries(words):
    assert ids(words.find({"w": "a"}).sort("_id")) == [2]
    assert ids(words.find({"w": "a"}, collation=CASE).sort("_id")) == [1, 2]
    assert ids(words.find({"w": "a"}, collation=BASE).sort("_id")) == [1, 2, 4]
    assert ids(words.find({"w": {"$gt": "a"}}, collation=CASE).sort("_id")) == [0, 3, 4]
    assert ids(words.find({"w": {"$regex": "^a"}}, collation=BASE)) == [2]
    assert ids(words.find({}, collation=CASE).sort([("w", 1), ("_id", 1)])) == [5, 1, 2, 4, 0, 3]
    assert ids(words.find({}, collation=CASE).sort([("w", -1), ("_id", 1)])) == [0, 3, 4, 1, 2, 5]
    assert words.count_documents({"w": "B"}, collation=CASE) == 2
    assert sorted(map(str, words.distinct("w", collation=BASE))) == ["5", "A", "b"]


def test_pipelines(words):
    groups = words.aggregate(
        [{"$group": {"_id": "$w", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], collation=CASE
    )
    assert [(g["_id"], g["n"]) for g in groups] == [(5, 1), ("A", 2), ("á", 1), ("b", 2)]
    found = words.aggregate([{"$match": {"$expr": {"$eq": ["$w", "A"]}}}, {"$sort": {"_id": 1}}], collation=CASE)
    assert ids(found) == [1, 2]


def test_a_cursor_keeps_its_collation(words):
    words.insert_many({"_id": i, "w": random.choice("xX")} for i in range(10, 500))
    assert len(list(words.find({"w": "x"}, collation=CASE, batch_size=7))) == 490


def test_changes(words):
    assert words.update_many({"w": "B"}, {"$set": {"n": 1}}, collation=CASE).modified_count == 2
    assert words.find_one_and_delete({"w": "Á"}, collation=CASE)["_id"] == 4
    assert words.delete_many({"w": "A"}, collation=CASE).deleted_count == 2
    words.insert_one({"_id": 20, "l": ["x", "X", "y"]})
    words.update_one({"_id": 20}, {"$pull": {"l": "X"}}, collation=CASE)
    words.update_one({"_id": 20}, {"$addToSet": {"l": "Y"}}, collation=CASE)
    assert words.find_one({"_id": 20})["l"] == ["y"]


def test_an_index_serves_its_collation_alone(words):
    words.create_index("w", name="case", collation=CASE)

    def stage(**options):
        plan = words.find({"w": "a"}, **options).explain()["queryPlanner"]["winningPlan"]
        while "inputStage" in plan:
            plan = plan["inputStage"]
        return plan

    scan = stage(collation=CASE)
    assert scan["stage"] == "IXSCAN" and scan["collation"]["strength"] == 2
    assert scan["indexBounds"]["w"][0].startswith("[CollationKey(0x")
    assert stage()["stage"] == stage(collation=BASE)["stage"] == "COLLSCAN"
    listed = words.index_information()["case"]["collation"]
    assert listed["locale"] == "en" and listed["version"] == "57.1" and len(listed) == 10
    assert words.database.command("validate", words.name)["valid"]


def test_unique_in_a_collation(collection):
    collection.create_index("w", unique=True, collation=CASE)
    collection.insert_one({"w": "Hello"})
    with pytest.raises(DuplicateKeyError) as caught:
        collection.insert_one({"w": "hELLO"})
    details = caught.value.details
    assert details["keyValue"]["w"].startswith("0x") and details["collation"]["locale"] == "en"
    assert " collation: { locale: \"en\"," in details["errmsg"]
    collection.insert_one({"w": "Héllo"})
    done = collection.update_one({"w": "HELLO"}, {"$set": {"n": 1}}, upsert=True, collation=CASE)
    assert done.upserted_id is None and done.modified_count == 1


def test_what_is_no_collation(collection):
    def refused(code, **collation):
        with pytest.raises(OperationFailure) as caught:
            collection.database.command({"find": collection.name, "collation": collation})
        assert caught.value.code == code, caught.value.details
        return caught.value.details["errmsg"]

    assert refused(2, locale="xx") == "Field 'locale' is invalid in: { locale: \"xx\" }"
    assert refused(40414, strength=1).startswith("BSON field 'collation.locale' is missing")
    assert "not supported" in refused(238, locale="de@collation=search")
    refused(2, locale="en", strength=6)
    refused(40415, locale="en", more=1)


def test_with_an_index_and_without(collection):
    """The same documents in the same order, whatever index there is."""
    choose = random.Random(7)
    letters = ["a", "A", "á", "b", "B", "ß", "ss", " ", "-", "1", "10", "é", "e\u0301"]
    collection.insert_many(
        {"_id": i, "w": "".join(choose.choices(letters, k=choose.randint(0, 3)))} for i in range(400)
    )
    asked = [None, CASE, BASE, Collation("en", numericOrdering=True), Collation("de", alternate="shifted")]
    filters = [{"w": {operator: word}} for operator in ("$eq", "$gt", "$lte", "$ne") for word in ("a", "B1", "")]
    filters += [{"w": {"$in": ["A", "ss"]}}, {"w": {"$regex": "^a"}}, {"w": {"$gte": "a", "$lt": "b"}}, {}]

    def answers():
        return [
            ids(collection.find(query, collation=collation).sort([("w", direction), ("_id", 1)]))
            for query, collation, direction in itertools.product(filters, asked, (1, -1))
        ]

    without = answers()
    for collation in asked:
        collection.create_index([("w", pymongo.ASCENDING)], name=f"i{asked.index(collation)}", collation=collation)
        assert answers() == without


@pytest.fixture
def folded(collection):
    """A collection in which case does not count."""
    collection.drop()
    made = collection.database.create_collection(collection.name, collation=CASE)
    made.insert_many({"_id": word, "w": word} for word in ["b", "A", "c", "D", "a1", "B2"])
    return made


def refused(code, f, *args, **options):
    with pytest.raises(OperationFailure) as caught:
        f(*args, **options)
    assert caught.value.code == code, caught.value.details


def test_a_default_holds_for_ids(folded):
    for word in ("a", "A"):
        with pytest.raises(DuplicateKeyError):
            folded.insert_one({"_id": word})
    assert ids(folded.find().sort("_id")) == ["A", "a1", "b", "B2", "c", "D"]
    assert ids(folded.find({"_id": {"$gte": "B"}}).sort("_id", -1)) == ["D", "c", "B2", "b"]
    assert ids(folded.find({"_id": {"$in": ["A1", "b2", "e"]}}).sort("_id")) == ["a1", "B2"]
    assert folded.find_one({"_id": "A1"})["w"] == "a1"
    assert folded.find_one({"_id": "A1"}, collation=Collation("simple")) is None
    assert folded.update_one({"_id": "A1"}, {"$set": {"n": 1}}).modified_count == 1
    assert folded.update_one({"_id": "E"}, {"$set": {"n": 1}}, upsert=True).upserted_id == "E"
    refused(66, folded.replace_one, {"_id": "e"}, {"_id": "e"})
    assert folded.delete_one({"_id": "e"}).deleted_count == 1
    assert folded.database.command("validate", folded.name, full=True)["valid"]


def test_a_default_holds_for_indexes(folded):
    folded.create_index("w")
    folded.create_index("s", collation=Collation("simple"))
    listed = folded.index_information()
    assert [listed[name].get("collation", {}).get("strength") for name in ("_id_", "w_1", "s_1")] == [2, 2, None]
    refused(67, folded.create_index, [("t", "text")])
    other = {"key": {"_id": 1}, "name": "_id_", "collation": {"locale": "fr"}}
    refused(2, folded.database.command, "createIndexes", folded.name, indexes=[other])
    # A collection that takes its place has the same options and indexes.
    source = folded.database["source"]
    source.insert_many([{"_id": "x", "w": "Q"}, {"_id": "Y", "w": "q"}])
    source.aggregate([{"$out": folded.name}])
    assert folded.index_information() == listed
    assert ids(folded.find({"w": "q"}).sort("_id")) == ["x", "Y"]


def test_validators_compare_with_the_default(collection):
    validator = {"$or": [{"w": {"$in": ["on", "off"]}}, {"$jsonSchema": {"properties": {"w": {"enum": ["up"]}}}}]}
    made = collection.database.create_collection("checked", collation=CASE, validator=validator)
    made.insert_one({"w": "ON"})
    made.insert_one({"w": "up"})
    refused(121, made.insert_one, {"w": "UP"})


def test_views_have_their_own(folded):
    database = folded.database
    plain = database.create_collection("plain", viewOn=folded.name, pipeline=[])
    case = database.create_collection("case", viewOn=folded.name, pipeline=[], collation=CASE)
    assert plain.find_one({"w": "B"}) is None and case.find_one({"w": "B"}) is not None
    assert case.count_documents({"w": "B"}) == 1 and case.distinct("w", {"w": "B"}) == ["b"]
    assert case.find_one({"w": "B"}, collation=CASE) is not None
    for view, other in ((plain, CASE), (case, BASE)):
        refused(167, view.find_one, {}, collation=other)
        refused(167, view.count_documents, {}, collation=other)
        refused(167, view.distinct, "w", collation=other)
    union = [{"$unionWith": "plain"}]
    refused(167, folded.aggregate, union)
    assert len(list(folded.aggregate(union, collation=Collation("simple")))) == 12
    refused(167, database.create_collection, "above", viewOn="case", pipeline=[])


def test_stages_compare_as_what_they_read(folded):
    other = folded.database["other"]
    other.insert_many([{"_id": 1, "w": "B"}, {"_id": 2, "w": "b"}, {"_id": 3, "w": "x"}])
    lookup = [
        {"$match": {"w": "B"}},
        {"$lookup": {"from": "other", "localField": "w", "foreignField": "w", "as": "l"}},
    ]
    assert [ids(found["l"]) for found in folded.aggregate(lookup)] == [[1, 2]]
    lookup[1]["$lookup"]["from"] = folded.name
    assert [len(found["l"]) for found in other.aggregate(lookup)] == [0]
    assert [len(found["l"]) for found in other.aggregate(lookup, collation=CASE)] == [1, 1]
    # What distinguishes documents has to compare as the pipeline does.
    refused(51183, other.aggregate, [{"$project": {"_id": "$w"}}, {"$merge": folded.name}])
    renamed = [{"$match": {"w": "x"}}, {"$project": {"_id": "$w", "m": {"$literal": 1}}}]
    other.aggregate([*renamed, {"$merge": folded.name}], collation=CASE)
    assert folded.find_one({"_id": "X"})["m"] == 1
