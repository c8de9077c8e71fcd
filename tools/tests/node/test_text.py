"""Text indexes and `$text`, of a node whose collections lie on several partitions."""

import random

import pymongo
import pytest
from bson import SON
from pinion_node import Node
from pymongo.errors import DuplicateKeyError, OperationFailure, WriteError

WORDS = "red green blue cat dog bird stone river house tree".split()
SCORE = {"score": {"$meta": "textScore"}}


def search(text, **options):
    return {"$text": {"$search": text, **{f"${name}": value for name, value in options.items()}}}


def ids(cursor):
    return sorted(document["_id"] for document in cursor)


def refused(code, call, *arguments, **options):
    with pytest.raises(OperationFailure) as error:
        call(*arguments, **options)
    assert error.value.code == code, error.value
    return str(error.value)


def stages(plan):
    yield plan["stage"]
    for inner in plan.get("inputStages", [plan["inputStage"]] if "inputStage" in plan else []):
        yield from stages(inner)


def winning(cursor):
    return list(stages(cursor.explain()["queryPlanner"]["winningPlan"]))


@pytest.fixture
def articles(collection):
    collection.insert_many([
        {"_id": 1, "subject": "coffee", "author": "xyz", "views": 50},
        {"_id": 2, "subject": "Coffee Shopping", "author": "efg", "views": 5},
        {"_id": 3, "subject": "Baking a cake", "author": "abc", "views": 90},
        {"_id": 4, "subject": "baking", "author": "xyz", "views": 100},
        {"_id": 5, "subject": "Café Con Leche", "author": "abc", "views": 200},
        {"_id": 6, "subject": "Сырники", "author": "jkl", "views": 80},
        {"_id": 7, "subject": "coffee and cream", "author": "efg", "views": 10},
        {"_id": 8, "subject": "Cafe con Leche", "author": "xyz", "views": 10},
    ])
    collection.create_index([("subject", "text")])
    return collection


def test_terms_phrases_and_what_is_negated(articles):
    def check(expected, text, **options):
        assert ids(articles.find(search(text, **options))) == expected, text

    check([1, 2, 7], "coffee")
    check([1, 2, 3, 4, 7], "bake coffee cake")
    check([2], '"coffee shop"')
    check([1, 7], "coffee -shop")
    check([1], 'coffee -"coffee and" -shop')
    check([5, 8], "leche", language="es")
    check([5, 6, 8], "сырники CAFÉS")
    check([5, 8], "CAFÉ")
    check([2], "Coffee", caseSensitive=True)
    check([5], "CAFÉ", diacriticSensitive=True)
    check([], "-coffee")
    check([], "the and of")
    check([], "")


def test_scores(articles):
    found = list(articles.find(search("coffee"), SCORE).sort([("score", {"$meta": "textScore"})]))
    assert [(d["_id"], d["score"]) for d in found] == [(1, 1.0), (2, 0.75), (7, 0.75)]
    top = articles.find_one(search("bake coffee"), SCORE, sort=[("score", {"$meta": "textScore"}), ("_id", -1)])
    assert (top["_id"], top["score"]) == (4, 1.0)
    stages_ = [
        {"$match": search("coffee")},
        {"$sort": {"x": {"$meta": "textScore"}, "_id": -1}},
        {"$project": {"twice": {"$multiply": [2, {"$meta": "textScore"}]}}},
    ]
    assert list(articles.aggregate(stages_)) == [{"_id": 1, "twice": 2.0}, {"_id": 7, "twice": 1.5}, {"_id": 2, "twice": 1.5}]
    total = [{"$match": search("coffee")}, {"$group": {"_id": None, "sum": {"$sum": {"$meta": "textScore"}}}}]
    assert list(articles.aggregate(total)) == [{"_id": None, "sum": 2.5}]
    good = [{"$match": {**search("coffee"), "$expr": {"$gt": [{"$meta": "textScore"}, 0.9]}}}]
    assert ids(articles.aggregate(good)) == [1]
    message = refused(40218, lambda: list(articles.find({}, SCORE)))
    assert "query requires text score metadata, but it is not available" in message
    refused(40218, lambda: list(articles.aggregate(total + [{"$project": SCORE}])))


def test_weights_and_languages(collection):
    collection.create_index(
        [("title", "text"), ("$**", "text")], name="all", weights={"title": 10, "a.b": 3},
        default_language="french", language_override="idioma",
    )
    listed = next(index for index in collection.list_indexes() if index["name"] == "all")
    assert list(listed.items()) == [
        ("v", 2), ("key", SON([("_fts", "text"), ("_ftsx", 1)])), ("name", "all"),
        ("weights", SON([("$**", 1), ("a.b", 3), ("title", 10)])), ("default_language", "french"),
        ("language_override", "idioma"), ("textIndexVersion", 3),
    ]
    collection.insert_many([
        {"_id": 1, "title": "la pomme rouge"},
        {"_id": 2, "a": [{"b": "pomme", "idioma": "none"}, {"b": "les"}], "deep": {"deeper": ["pommes"]}},
        {"_id": 3, "title": "red apples", "idioma": "english"},
    ])
    found = {d["_id"]: d["score"] for d in collection.find(search("pomme"), SCORE)}
    assert found == {1: 7.5, 2: 1.0}
    assert collection.find_one(search("pomme", language="none"), SCORE)["score"] == pytest.approx(3.3)
    assert ids(collection.find(search("apple", language="en"))) == [3]
    assert "language override unsupported: klingon" in refused(17262, collection.insert_one, {"idioma": "klingon"})
    refused(17261, collection.update_one, {"_id": 1}, {"$set": {"idioma": 7}})
    assert collection.count_documents({}) == 3


def test_fields_beside_the_terms(collection):
    collection.create_index([("p", 1), ("t", "text"), ("s", -1)])
    collection.insert_many({"_id": i, "p": i % 3, "s": i % 4, "t": WORDS[i % 10]} for i in range(120))
    cursor = collection.find({"p": 1, **search("river")})
    assert ids(cursor) == [i for i in range(120) if i % 3 == 1 and i % 10 == 7]
    plan = cursor.explain()["queryPlanner"]["winningPlan"]
    assert (plan["stage"], plan["indexPrefix"]) == ("TEXT_MATCH", {"p": 1})
    assert ids(collection.find({"p": 1, "s": {"$gt": 1}, **search("river cat")})) == [
        i for i in range(120) if i % 3 == 1 and i % 4 > 1 and i % 10 in (3, 7)]
    message = refused(291, lambda: list(collection.find(search("river"))))
    assert "failed to use text index to satisfy $text query" in message
    refused(291, lambda: list(collection.find({"p": {"$gt": 0}, **search("river")})))
    assert "contains an array in document" in refused(201, collection.insert_one, {"p": [1], "t": "x"})


def test_what_may_stand_beside(articles):
    articles.create_index("views")
    found = articles.find({"$or": [search("coffee"), {"views": 200}]}, SCORE)
    assert {d["_id"]: "score" in d for d in found} == {1: True, 2: True, 5: False, 7: True}
    refused(291, lambda: list(articles.find({"$or": [search("coffee"), {"author": "abc"}]})))
    assert ids(articles.find({"author": "efg", **search("coffee")})) == [2, 7]
    for code, query in [
        (2, {"$nor": [search("coffee")]}), (2, {"$and": [search("coffee"), search("cake")]}),
        (2, {"a": {"$elemMatch": search("coffee")}}), (4, {"$text": {}}), (2, {"$text": "coffee"}),
        (14, {"$text": {"$search": 1}}), (14, search("x", caseSensitive=1)), (2, search("x", language="klingon")),
        (2, {"$text": {"$search": "x", "y": 1}}),
    ]:
        refused(code, lambda: list(articles.find(query)))
    refused(2, lambda: list(articles.find(search("x")).hint([("$natural", 1)])))
    refused(2, lambda: list(articles.find(search("x")).sort([("$natural", -1)])))
    refused(291, lambda: list(articles.find(search("x")).hint("views_1")))
    assert ids(articles.find(search("cake")).hint("subject_text")) == [3]
    refused(17313, lambda: list(articles.aggregate([{"$limit": 1}, {"$match": search("x")}])))
    refused(40600, lambda: list(articles.aggregate([{"$facet": {"f": [{"$match": search("x")}]}}])))
    refused(27, lambda: list(articles.database.no_such.find(search("x"))))
    assert list(articles.database.no_such.aggregate([{"$match": search("x")}])) == []
    articles.database.plain.insert_one({})
    refused(27, lambda: list(articles.database.plain.find(search("x"))))
    refused(27, articles.database.plain.delete_many, search("x"))
    lines = articles.database.create_collection("lines", capped=True, size=4096)
    lines.create_index([("t", "text")])
    lines.insert_one({"_id": 1, "t": "stones"})
    assert ids(lines.find(search("stone"))) == [1]
    refused(2, lambda: list(lines.find(search("stone"), cursor_type=pymongo.CursorType.TAILABLE)))
    lines.drop()


def test_views_and_inner_pipelines(articles):
    database, name = articles.database, articles.name
    for view, stages_ in [
        ("all", []), ("coffees", [{"$match": search("coffee")}]), ("cheap", [{"$match": {"views": {"$lt": 60}}}]),
    ]:
        database.drop_collection(view)
        database.create_collection(view, viewOn=name, pipeline=stages_)
    assert {d["_id"]: d["score"] for d in database["all"].find(search("coffee"), SCORE)} == {1: 1.0, 2: 0.75, 7: 0.75}
    assert ids(database.coffees.find({"views": {"$gt": 7}})) == [1, 7]
    refused(17313, lambda: list(database.cheap.find(search("coffee"))))
    united = [{"$match": {"_id": 6}}, {"$unionWith": {"coll": name, "pipeline": [{"$match": search("cake")}]}}]
    assert ids(articles.aggregate(united)) == [3, 6]
    graph = {"from": name, "startWith": "$_id", "connectFromField": "_id", "connectToField": "_id", "as": "found"}
    refused(2, lambda: list(articles.aggregate([{"$graphLookup": {**graph, "restrictSearchWithMatch": search("cake")}}])))


def test_a_listed_index_is_made_again(articles):
    listed = [dict(index) for index in articles.list_indexes()]
    articles.drop_indexes()
    articles.database.command("createIndexes", articles.name, indexes=listed)
    assert [dict(index) for index in articles.list_indexes()] == listed
    assert ids(articles.find(search("coffee"))) == [1, 2, 7]


def test_every_command_that_filters(articles):
    assert articles.count_documents(search("coffee")) == 3
    assert articles.database.command("count", articles.name, query=search("coffee"))["n"] == 3
    assert sorted(articles.distinct("author", search("coffee"))) == ["efg", "xyz"]
    assert articles.update_many(search("coffee"), {"$set": {"hot": True}}).modified_count == 3
    best = articles.find_one_and_update(
        search("coffee cream"), {"$set": {"subject": "milk"}}, SCORE, sort=[("score", {"$meta": "textScore"})])
    assert best["_id"] == 7 and best["score"] == pytest.approx(1.5)
    assert articles.delete_one(search("milk")).deleted_count == 1
    assert articles.update_one(search("nothing"), {"$set": {"new": 1}}, upsert=True).upserted_id is not None
    joined = [
        {"$match": {"_id": 4}},
        {"$lookup": {"from": articles.name, "pipeline": [{"$match": search("coffee")}, {"$project": SCORE}], "as": "found"}},
    ]
    found = next(articles.aggregate(joined))["found"]
    assert {d["_id"]: d["score"] for d in found} == {1: 1.0, 2: 0.75}
    assert articles.find(search("coffee")).explain()["executionStats"]["nReturned"] == 2


def test_plans(articles):
    assert winning(articles.find(search("coffee"))) == ["TEXT_MATCH", "FETCH", "IXSCAN"]
    assert winning(articles.find(search("coffee cake"))) == ["TEXT_MATCH", "FETCH", "OR", "IXSCAN", "IXSCAN"]
    assert winning(articles.find(search("coffee cake"), SCORE)) == [
        "PROJECTION_DEFAULT", "TEXT_MATCH", "TEXT_OR", "IXSCAN", "IXSCAN"]
    plan = articles.find(search('coffees -tea "black coffee" -"x y"')).explain()["queryPlanner"]["winningPlan"]
    assert plan["parsedTextQuery"] == {
        "terms": ["black", "coffe"], "negatedTerms": ["tea"], "phrases": ["black coffee"], "negatedPhrases": ["x y"]}
    assert (plan["indexName"], plan["indexPrefix"], plan["textIndexVersion"]) == ("subject_text", {}, 3)


def test_indexes_that_are_refused(collection):
    def check(code, keys, **options):
        return refused(code, collection.create_index, keys, **options)

    check(67, [("a", "text"), ("b", 1), ("c", "text")])
    check(67, [("a", "text"), ("b", "2dsphere")])
    check(67, [("a", "text")], weights={"a": 0})
    check(67, [("a", "text")], weights={"a": 100000})
    check(67, [("a", "text")], weights={"a": "x"})
    check(67, [("a", "text")], default_language="klingon")
    check(67, [("a", "text")], language_override="$x")
    check(67, [("a", "text")], textIndexVersion=4)
    check(67, [("a", 1)], weights={"a": 1})
    collection.create_index([("a", "text")])
    collection.create_index([("a", "text")])
    assert "An equivalent index already exists" in check(85, [("b", "text")])
    assert "only one text index per collection allowed" in check(67, [("b", 1), ("a", "text")])


def test_hidden_partial_sparse_and_unique(collection):
    collection.create_index([("t", "text")], partialFilterExpression={"n": {"$gt": 5}})
    collection.insert_many({"_id": i, "n": i, "t": "stone"} for i in range(10))
    assert ids(collection.find({"n": {"$gt": 7}, **search("stones")})) == [8, 9]
    refused(291, lambda: list(collection.find(search("stones"))))
    collection.database.command("collMod", collection.name, index={"name": "t_text", "hidden": True})
    refused(291, lambda: list(collection.find({"n": {"$gt": 7}, **search("stones")})))
    collection.drop_index("t_text")
    refused(27, lambda: list(collection.find({"n": {"$gt": 7}, **search("stones")})))
    collection.delete_many({})
    collection.create_index([("t", "text")], unique=True, sparse=True)
    collection.insert_many([{"_id": 1, "t": "stone"}, {"_id": 2}, {"_id": 3}])
    with pytest.raises(DuplicateKeyError):
        collection.insert_one({"t": "stone"})


def test_older_versions(collection):
    for version in (1, 2):
        collection.drop()
        collection.create_index([("t", "text")], textIndexVersion=version, default_language="none")
        collection.insert_many([{"_id": 1, "t": "Café ÉCOLE"}, {"_id": 2, "t": "cafe"}])
        assert ids(collection.find(search("cafe"))) == [2]
        assert ids(collection.find(search("café"))) == [1]
        assert ids(collection.find(search("école"))) == []


def model(documents, words, without=()):
    return sorted(
        key for key, text in documents.items()
        if set(words) & set(text.split()) and not set(without) & set(text.split())
    )


def change(collection, documents, generator):
    """One write of some kind, to the collection and to what it should hold."""
    key, text = generator.randrange(300), " ".join(generator.sample(WORDS, generator.randint(1, 4)))
    kind = generator.choice(["insert", "set", "replace", "delete", "modify", "bulk", "pipeline"])
    if kind == "insert" and key not in documents:
        collection.insert_one({"_id": key, "t": text})
    elif kind == "set":
        collection.update_one({"_id": key}, {"$set": {"t": text}}, upsert=True)
    elif kind == "replace":
        collection.replace_one({"_id": key}, {"t": text}, upsert=True)
    elif kind == "modify":
        collection.find_one_and_update({"_id": key}, {"$set": {"t": text}}, upsert=True)
    elif kind == "pipeline":
        collection.update_one({"_id": key}, [{"$set": {"t": text}}], upsert=True)
    elif kind == "bulk":
        collection.bulk_write([pymongo.DeleteOne({"_id": key}), pymongo.InsertOne({"_id": key, "t": text})])
    elif kind == "delete":
        collection.delete_one({"_id": key})
        documents.pop(key, None)
        return
    else:
        return
    documents[key] = text


def test_every_write_keeps_the_index_also_over_a_restart(tmp_path):
    generator, documents = random.Random(5), {}

    def check(collection):
        for _ in range(10):
            words, without = generator.sample(WORDS, 2), generator.sample(WORDS, 1)
            text = " ".join(words) + " -" + without[0]
            assert ids(collection.find(search(text))) == model(documents, words, without)
        assert collection.database.command("validate", collection.name)["valid"]

    for _ in range(2):
        with Node("--cpus", "2", "--partitions", "2", directory=tmp_path) as node, node.client() as client:
            collection = client.text.documents.with_options(write_concern=pymongo.WriteConcern(j=True))
            collection.create_index([("t", "text")], default_language="none")
            check(collection)
            for _ in range(400):
                change(collection, documents, generator)
            check(collection)
            assert model(documents, ["cat"]) == ids(collection.find(search("cat")))


def test_an_index_is_built_over_documents(collection):
    collection.insert_many({"_id": i, "t": WORDS[i % 10], "language": "english"} for i in range(500))
    collection.create_index([("t", "text")])
    assert ids(collection.find(search("houses"))) == list(range(8, 500, 10))
    collection.drop_index("t_text")
    collection.insert_one({"_id": -1, "t": "x", "language": "klingon"})
    refused(17262, collection.create_index, [("t", "text")])
    assert [index["name"] for index in collection.list_indexes()] == ["_id_"]
    with pytest.raises(WriteError):
        collection.create_index([("t", "text")], language_override="speech")
        collection.insert_one({"t": "x", "speech": "klingon"})
