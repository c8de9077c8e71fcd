"""Commands with mistakes in them: which is reported, and what is accepted all the same."""

import pymongo
import pytest
from bson import Decimal128
from bson.son import SON

SET = {"$set": {"a": 1}}
REFUSED = [
    # Bools that MongoDB wants to be bools, not numbers.
    (14, {"update": "c", "updates": [{"q": {}, "u": SET, "multi": 1}]}),
    (14, {"update": "c", "updates": [{"q": {}, "u": SET, "upsert": 1.0}]}),
    (14, {"find": "c", "singleBatch": 1}),
    (14, {"find": "c", "allowDiskUse": 0}),
    (14, {"aggregate": "c", "pipeline": [], "cursor": {}, "explain": 1}),
    (14, {"aggregate": "c", "pipeline": [], "cursor": {}, "allowDiskUse": 1}),
    (14, {"listCollections": 1, "nameOnly": 1}),
    # Numbers that must be whole.
    (9, {"delete": "c", "deletes": [{"q": {}, "limit": 0.5}]}),
    (9, {"delete": "c", "deletes": [{"q": {}, "limit": 1.5}]}),
    (9, {"count": "c", "limit": 1.5}),
    (9, {"count": "c", "limit": float("inf")}),
    (9, {"count": "c", "limit": Decimal128("1E+30")}),
    # Field paths.
    (40352, {"distinct": "c", "key": ""}),
    (40353, {"distinct": "c", "key": "a."}),
    (15998, {"distinct": "c", "key": "a..b"}),
    (16410, {"distinct": "c", "key": "$a"}),
    # Which of two mistakes is reported.
    (40415, {"update": "c", "updates": [{"x": 1}]}),
    (40415, {"delete": "c", "deletes": [{"x": 1}]}),
    (40415, {"killSessions": [{"x": 1}]}),
    (9, {"explain": {"delete": "c", "deletes": [{"q": {}, "limit": 1}, {"q": {}, "limit": -1}]}}),
    (16, {"explain": {"delete": "c", "deletes": [{"q": {}, "limit": 1}, {"q": {}, "limit": 1}]}}),
    (40324, {"aggregate": "c", "pipeline": [{"$match": {"$nosuch": 1}}, {"$nosuch": 1}], "cursor": {}}),
    (197, {"createIndexes": "c", "indexes": [{"key": {"a": 0}, "name": "a", "foo": 1}]}),
    (197, {"createIndexes": "c", "indexes": [{"key": {"_id": -1}, "name": "a", "unique": True}]}),
    (197, {"create": "n", "idIndex": {"x": 1}}),
    (14, {"create": "n", "size": []}),
]


@pytest.mark.parametrize("code,command", REFUSED, ids=lambda value: str(value)[:70])
def test_refused(client, code, command):
    database = client.mistakes
    database.c.insert_one({"a": 2})
    reply = database.command(SON(command), check=False)
    assert (reply["ok"], reply.get("code")) == (0, code), reply
    assert database.c.count_documents({"a": 2}) == 1
    database.drop_collection("c")


@pytest.mark.parametrize("command", ["endSessions", "killSessions", "refreshSessions"])
def test_nulls_in_lists_are_passed_over(client, command):
    assert client.admin.command({command: [None]})["ok"] == 1


def test_null_is_no_array_filter(collection):
    outcome = collection.database.command({"update": collection.name, "updates": [
        {"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": True, "arrayFilters": [None]}]})
    assert (outcome["n"], outcome.get("writeErrors")) == (1, None)


def test_an_upsert_into_nothing_heeds_its_hint(client):
    database = client.upsert_into_nothing
    database.drop_collection("c")
    update = {"q": {"_id": 3}, "u": {"$set": {"a": 1}}, "upsert": True, "hint": "a_1"}
    reply = database.command({"update": "c", "updates": [update]})
    assert (reply["n"], [error["code"] for error in reply["writeErrors"]]) == (0, [2])
    assert database.command({"update": "c", "updates": [{**update, "hint": "_id_"}]})["n"] == 1
    client.drop_database(database)


def test_a_filter_behind_a_sort_finds_by_index(collection):
    collection.insert_many({"_id": i, "a": i % 5} for i in range(50))
    pipeline = [{"$sort": {"a": -1}}, {"$match": {"_id": {"$lt": 2}}}, {"$project": {"a": 1}}]
    assert list(collection.aggregate(pipeline)) == [{"_id": 1, "a": 1}, {"_id": 0, "a": 0}]
    explained = collection.database.command("explain", {"aggregate": collection.name, "pipeline": pipeline, "cursor": {}}, verbosity="executionStats")
    assert "'totalDocsExamined': 2," in str(explained), explained
    assert [next(iter(stage)) for stage in explained["stages"]] == ["$cursor", "$project"], explained


def test_unordered_inserts_of_one_value_are_taken_in_order(collection):
    collection.create_index("u", unique=True)
    for _ in range(20):
        collection.delete_many({})
        documents = [{"_id": i, "u": i % 3, "tags": [i, i + 1]} for i in range(12)]
        with pytest.raises(pymongo.errors.BulkWriteError) as caught:
            collection.insert_many(documents, ordered=False)
        assert [error["index"] for error in caught.value.details["writeErrors"]] == list(range(3, 12))
        assert sorted(d["_id"] for d in collection.find()) == [0, 1, 2]


def test_a_taken_id_is_reported_before_parallel_arrays(collection):
    collection.create_index([("a", 1), ("b", 1)])
    parallel = {"a": [1], "b": [2]}
    for ordered in (True, False):
        collection.delete_many({})
        with pytest.raises(pymongo.errors.BulkWriteError) as caught:
            collection.insert_many([{"_id": 1}, {"_id": 1, **parallel}], ordered=ordered)
        assert [(error["index"], error["code"]) for error in caught.value.details["writeErrors"]] == [(1, 11000)]
    with pytest.raises(pymongo.errors.WriteError) as caught:
        collection.insert_one({"_id": 2, **parallel})
    assert caught.value.code == 171


def test_a_value_taken_in_an_earlier_index_is_reported_before_parallel_arrays(collection):
    collection.create_index("u", unique=True)
    collection.create_index([("a", 1), ("b", 1)])
    collection.create_index("late", unique=True)
    parallel = {"a": [1], "b": [2]}
    collection.insert_one({"_id": 1, "u": [5, 6], "late": 1})
    for n, (document, expected) in enumerate([({"u": 7, "late": 1, **parallel}, 171), ({"u": [9, 6], "late": 2, **parallel}, 11000)]):
        with pytest.raises(pymongo.errors.WriteError) as caught:
            collection.insert_one({"_id": 10, **document})
        assert caught.value.code == expected
        collection.insert_one({"_id": 2 + n, "u": 20 + n, "late": 20 + n})
        for change in ({"$set": document}, {"_id": 2 + n, **document}):
            # The replacement of a document is an update too, and neither holds a document's own
            # values against it.
            with pytest.raises(pymongo.errors.WriteError) as caught:
                act = collection.update_one if "$set" in change else collection.replace_one
                act({"_id": 2 + n}, change)
            assert caught.value.code == expected, change
        with pytest.raises(pymongo.errors.WriteError) as caught:
            collection.update_one({"_id": 2 + n}, {"$set": parallel})
        assert caught.value.code == 171


@pytest.mark.parametrize("ordered", [True, False])
def test_what_comes_later_in_a_batch_is_not_held_against_parallel_arrays(collection, ordered):
    collection.create_index([("a", 1), ("b", 1)])
    documents = [{"_id": 0}, {"_id": 1, "a": [1], "b": [2]}, {"_id": 1}, {"_id": 2}]
    with pytest.raises(pymongo.errors.BulkWriteError) as caught:
        collection.insert_many(documents, ordered=ordered)
    assert [(error["index"], error["code"]) for error in caught.value.details["writeErrors"]] == [(1, 171)]
    assert [document["_id"] for document in collection.find()] == ([0] if ordered else [0, 1, 2])


def test_an_update_that_makes_an_index_multikey_changes_every_document_once(collection):
    collection.create_index("a")
    collection.create_index([("b", 1), ("c", 1)])
    arrays = [{"_id": i, "x": [i] if i % 7 == 0 else i, "b": 1, "y": [i] if i % 5 == 0 else i, "n": 0} for i in range(600)]
    collection.insert_many(arrays)
    done = collection.update_many({}, {"$inc": {"n": 1}, "$rename": {"x": "a", "y": "c"}})
    assert (done.matched_count, done.modified_count) == (600, 600)
    assert collection.count_documents({"n": 1}) == 600
    # And where the index that it reads is the one that it makes multikey.
    collection.create_index("n")
    done = collection.update_many({"n": 1, "_id": {"$lt": 300}}, {"$set": {"n": [1, 2]}, "$inc": {"m": 1}})
    assert (done.matched_count, done.modified_count) == (300, 300)
    assert collection.count_documents({"m": 1}) == 300


def code_of(database, command):
    return database.command(command, check=False).get("code", 0)


def test_find_and_modify_without_a_collection_looks_at_no_fields(collection):
    database, name = collection.database, "never_made"
    wrong = {"findAndModify": name, "fields": {"a": 1, "b": 0}, "update": {"$set": {"a": 1}}}
    collection.insert_one({"_id": 1})
    assert database.command(wrong)["value"] is None
    assert code_of(database, {"explain": wrong}) == 0
    assert code_of(database, {**wrong, "upsert": True}) == 31254
    assert code_of(database, {**wrong, "findAndModify": collection.name}) == 31254


def test_a_sort_is_read_unless_an_id_is_all_that_is_asked_for(collection):
    database, wrong = collection.database, {"a": "x"}
    for inner in (
        {"findAndModify": "never_made", "sort": wrong, "update": {"$set": {"a": 1}}},
        {"findAndModify": "never_made", "query": {"_id": 1, "b": 1}, "sort": wrong, "remove": True},
    ):
        assert code_of(database, inner) == 15974
        assert code_of(database, {"explain": inner}) == 15974
    update = {"q": {"b": 1}, "u": {"$set": {"a": 1}}, "sort": wrong}
    assert database.command({"update": "never_made", "updates": [update]})["writeErrors"][0]["code"] == 15974
    assert code_of(database, {"findAndModify": "never_made", "query": {"_id": 1}, "sort": wrong, "remove": True}) == 0


def test_explained_find_and_modify_needs_a_database(collection):
    nowhere = collection.database.client["no_such_database"]
    for change in ({"remove": True}, {"update": {"$set": {"a": 1}}, "fields": {"a": 1, "b": 0}}):
        assert code_of(nowhere, {"explain": {"findAndModify": "c", **change}}) == 26
        assert code_of(nowhere, {"findAndModify": "c", **change}) == 0
    assert code_of(nowhere, {"explain": {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}}) == 0


def test_explained_updates_are_worked_out(collection):
    collection.insert_many([{"_id": 1, "a": 5}, {"_id": 2, "a": "x"}])

    def explain(query, change, verbosity="executionStats", **options):
        update = {"update": collection.name, "updates": [{"q": query, "u": change, "multi": True, **options}]}
        return collection.database.command({"explain": update, "verbosity": verbosity}, check=False)

    stage = explain({}, {"$set": {"a": 5}})["executionStats"]["executionStages"]
    assert (stage["nMatched"], stage["nWouldModify"], stage["nWouldUpsert"]) == (2, 1, 0)
    assert explain({}, {"$inc": {"a": 1}})["code"] == 14
    assert explain({}, {"$inc": {"a": 1}}, "queryPlanner")["ok"] == 1
    stage = explain({"_id": 3}, {"$inc": {"a": 1}}, upsert=True)["executionStats"]["executionStages"]
    assert (stage["nMatched"], stage["nWouldUpsert"]) == (0, 1)
    assert explain({"_id": 3, "a": "x"}, {"$inc": {"a": 1}}, upsert=True)["code"] == 14
    assert [d["a"] for d in collection.find().sort("_id", 1)] == [5, "x"]


def test_the_index_on_id_is_asked_for_as_it_is(collection):
    def create(id_index, **options):
        code = code_of(collection.database, {"create": "made", "idIndex": id_index, **options})
        assert ("made" in collection.database.list_collection_names()) == (code == 0)
        collection.database.drop_collection("made")
        return code

    plain = {"key": {"_id": 1}, "name": "_id_"}
    for id_index in (plain, {**plain, "v": 2}, {**plain, "ns": "a.b"}, {**plain, "name": "other"}, {**plain, "collation": {"locale": "simple"}}):
        assert create(id_index) == 0, id_index
    for option in ("unique", "sparse", "background", "expireAfterSeconds", "partialFilterExpression", "hidden", "weights", "nosuch"):
        for key in ({"_id": 1}, {"a": 1}, {"_id": "hashed"}):
            assert create({**plain, "key": key, option: False}) == 197, (option, key)
    for key in ({"_id": -1}, {"a": 1}, {"_id": 1, "a": 1}, {"_id": "hashed"}, {"_id": "text"}, {"$**": 1}):
        assert create({**plain, "key": key}) == 2, key
    assert create({**plain, "collation": {"locale": "fr"}}) == 2
    assert create({**plain, "name": "*"}) == 2
    for option, value in (("viewOn", "x"), ("timeseries", {"timeField": "t"}), ("clusteredIndex", {"key": {"_id": 1}, "unique": True})):
        assert create(plain, **{option: value}) == 72
    assert [create({"name": "_id_"}), create({"key": {"_id": 1}})] == [9, 9]


def test_what_is_not_given_is_not_projected(collection):
    collection.insert_many({"_id": i, "a": i} for i in range(40))
    inverse = {"x": {"$divide": [1, "$a"]}}
    assert len(list(collection.find({}, inverse, sort=[("_id", 1)], skip=1))) == 39
    assert len(list(collection.find({}, inverse, sort=[("_id", -1)], limit=39))) == 39
    assert len(list(collection.find({}, inverse, sort=[("a", -1)], limit=39))) == 39
    cursor = collection.find({}, inverse, sort=[("_id", -1)], batch_size=10)
    assert [next(cursor)["_id"] for _ in range(30)] == list(range(39, 9, -1))
    with pytest.raises(pymongo.errors.OperationFailure):
        list(cursor)
    with pytest.raises(pymongo.errors.OperationFailure):
        list(collection.find({}, inverse))


def test_an_equal_id_of_another_type_is_kept_by_operators_and_replaced_by_replacements(collection):
    collection.create_index("a")
    collection.create_index("u", unique=True)
    collection.insert_many({"_id": i, "a": i, "u": i} for i in range(4))
    for update in ({"$set": {"_id": 1.0}}, {"$inc": {"_id": 0.0}}, {"$set": {"_id": 1.0, "b.c": 1}}):
        with pytest.raises(pymongo.errors.WriteError) as caught:
            collection.update_one({"a": 1}, update)
        assert caught.value.code == 66
    assert collection.replace_one({"_id": 1}, {"_id": 1.0, "a": 1, "u": 1}).modified_count == 1
    assert collection.update_one({"_id": 2}, [{"$set": {"_id": 2.0}}]).modified_count == 1
    for hint in ("_id_", "a_1", "u_1"):
        ids = [document["_id"] for document in collection.find({}, {"_id": 1}, hint=hint, sort=[("_id", 1)])]
        assert [(value, type(value)) for value in ids] == [(0, int), (1.0, float), (2.0, float), (3, int)], hint
    assert collection.database.validate_collection(collection.name, full=True)["valid"]
    assert collection.delete_many({"_id": {"$in": [1, 2]}}).deleted_count == 2
    assert collection.database.validate_collection(collection.name, full=True)["valid"]


def test_names_of_indexes_are_looked_at_last(collection):
    def create(*indexes):
        return code_of(collection.database, {"createIndexes": collection.name, "indexes": list(indexes)})

    unnamed, unknown = {"key": {"a": 1}, "name": ""}, {"key": {"b": 1}, "name": "b", "nosuch": 1}
    assert [create(unnamed), create(unnamed, unknown), create(unknown, unnamed)] == [67, 197, 197]


def test_validate_reads_its_options_as_flags(collection):
    collection.insert_many({"_id": i, "x": i} for i in range(5))
    collection.create_index("x")
    database, command = collection.database, {"validate": collection.name}
    found = database.command({**command, "full": "true", "nosuch": 1})
    assert (found["nrecords"], found["keysPerIndex"], found["repairMode"]) == (5, {"_id_": 5, "x_1": 5}, "None")
    assert [found["indexDetails"][name]["spec"]["key"] for name in ("_id_", "x_1")] == [{"_id": 1}, {"x": 1}]
    catalog_alone = database.command({**command, "metadata": True})
    assert catalog_alone["valid"] and catalog_alone["nIndexes"] == 2 and "nrecords" not in catalog_alone
    assert code_of(database, {**command, "metadata": True, "full": True}) == 72
    for option, code in (("repair", 0), ("fixMultikey", 0), ("background", 0), ("enforceFastCount", 0)):
        assert code_of(database, {**command, option: "x"}) == code
        assert code_of(database, {**command, option: 0}) == 0
    assert code_of(database, {**command, "background": "x", "full": 1}) == 72
    assert database.command({**command, "repair": "x"})["repairMode"] == "FixErrors"


def test_of_several_taken_values_the_first_is_reported(collection):
    for name in ("x", "y", "z"):
        collection.create_index(name, unique=True)
    collection.insert_many({"_id": i, "x": [2 * i, 2 * i + 1], "y": i, "z": i} for i in range(20))
    collection.insert_one({"_id": 30})
    for i in range(20):
        for act, expected in (
            (lambda: collection.insert_one({"x": [2 * i + 1, 100, 2 * i], "y": i}), {"x": 2 * i}),
            (lambda: collection.insert_one({"x": 200 + i, "z": i, "y": i}), {"y": i}),
            (lambda: collection.insert_one({"_id": i, "x": 200 + i, "z": i, "y": i}), {"_id": i}),
            (lambda: collection.update_one({"_id": 30}, {"$set": {"z": i, "y": i}}), {"y": i}),
            (lambda: collection.replace_one({"_id": 30}, {"z": i, "x": [300, 2 * i + 1]}), {"x": 2 * i + 1}),
        ):
            with pytest.raises(pymongo.errors.DuplicateKeyError) as caught:
                act()
            assert caught.value.details["keyValue"] == expected


def plan_of(collection, filter, **options):
    return collection.database.command({"explain": {"find": collection.name, "filter": filter, **options}, "verbosity": "queryPlanner"})["queryPlanner"]


def test_a_nor_of_one_predicate_is_its_negation(collection):
    collection.insert_many([{"_id": i, "a": [i, i + 1]} for i in range(6)] + [{"_id": 9}])
    collection.create_index("a")
    for predicate in (1, {"$gt": 2}, {"$in": [1, 5]}, {"$elemMatch": {"$gt": 1, "$lt": 3}}, None):
        nor, negation = {"$nor": [{"a": predicate}]}, {"a": {"$not": predicate if isinstance(predicate, dict) else {"$eq": predicate}}}
        assert list(collection.find(nor, sort=[("_id", 1)])) == list(collection.find(negation, sort=[("_id", 1)]))
        assert plan_of(collection, nor) == plan_of(collection, negation)
    assert "IXSCAN" in str(plan_of(collection, {"$nor": [{"a": 1}]}))


def test_a_sparse_index_serves_of_the_negations_that_of_null_alone(collection):
    collection.create_index("d", sparse=True)
    collection.insert_many([{"_id": 1}, {"_id": 2, "d": None}, {"_id": 3, "d": 1}, {"_id": 4, "d": 2}])
    for filter, ids, is_served in (({"d": {"$ne": None}}, [3, 4], True), ({"d": {"$nin": [None, 1]}}, [4], False), ({"d": {"$ne": 1}}, [1, 2, 4], False)):
        assert [document["_id"] for document in collection.find(filter, sort=[("_id", 1)])] == ids
        assert ("d_1" in str(plan_of(collection, filter))) == is_served, filter
