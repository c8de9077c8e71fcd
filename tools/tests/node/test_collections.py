"""Collections with options, as a user meets them: validators, clustering, what `collMod` changes
and what a restart keeps."""

import datetime

import pymongo
import pytest
from bson import Decimal128, Int64
from pinion_node import Node
from pymongo.errors import OperationFailure, WriteError


def refused(write, code=121):
    with pytest.raises((WriteError, OperationFailure)) as caught:
        write()
    assert caught.value.code == code, caught.value.details
    return caught.value.details


def info(database, name):
    (found,) = database.list_collections(filter={"name": name})
    return found


def test_validators_refuse_and_say_why(client):
    database = client.validated
    database.command({"create": "c", "validator": {"$jsonSchema": {"required": ["x"]}}})
    details = refused(lambda: database.c.insert_one({"_id": 7}))
    assert details["errInfo"]["failingDocumentId"] == 7
    assert details["errInfo"]["details"]["operatorName"] == "$jsonSchema"
    database.c.insert_one({"_id": 1, "x": 1})
    refused(lambda: database.c.update_one({"_id": 1}, {"$unset": {"x": 1}}))
    refused(lambda: database.c.replace_one({"_id": 2}, {"y": 1}, upsert=True))
    refused(lambda: database.c.find_one_and_replace({"_id": 1}, {}))
    assert list(database.c.find()) == [{"_id": 1, "x": 1}]
    # Of a batch without order the others are inserted.
    with pytest.raises(pymongo.errors.BulkWriteError) as caught:
        database.c.insert_many([{"_id": 3}, {"_id": 4, "x": 1}], ordered=False)
    assert [error["index"] for error in caught.value.details["writeErrors"]] == [0]
    assert database.c.count_documents({}) == 2
    # A command may bypass it.
    database.command({"insert": "c", "documents": [{"_id": 5}], "bypassDocumentValidation": True})
    database.command({"update": "c", "updates": [{"q": {"_id": 5}, "u": {"$set": {"y": 1}}}], "bypassDocumentValidation": True})
    assert database.c.find_one({"_id": 5}) == {"_id": 5, "y": 1}


def test_levels_and_actions(client):
    database = client.levels
    database.command({"create": "c", "validator": {"x": {"$gt": 0}}, "validationLevel": "off"})
    database.c.insert_many([{"_id": 1, "x": -1}, {"_id": 2, "x": 1}])
    database.command({"collMod": "c", "validationLevel": "moderate"})
    # What did not pass before may stay as it is, what did may not get worse.
    database.c.update_one({"_id": 1}, {"$set": {"x": -2}})
    refused(lambda: database.c.update_one({"_id": 2}, {"$set": {"x": -2}}))
    refused(lambda: database.c.insert_one({"_id": 3, "x": -3}))
    database.command({"collMod": "c", "validationLevel": "strict"})
    refused(lambda: database.c.update_one({"_id": 1}, {"$set": {"x": -3}}))
    database.command({"collMod": "c", "validationAction": "warn"})
    database.c.insert_one({"_id": 3, "x": -3})
    database.command({"collMod": "c", "validationAction": "errorAndLog"})
    refused(lambda: database.c.insert_one({"_id": 4, "x": -4}))
    database.command({"collMod": "c", "validator": {}})
    database.c.insert_one({"_id": 4, "x": -4})
    assert "validator" not in info(database, "c")["options"]


def test_a_validator_that_asks_for_the_time(client):
    database = client.timed
    database.command({"create": "c", "validator": {"$expr": {"$lt": ["$at", "$$NOW"]}}})
    database.c.insert_one({"_id": 1, "at": datetime.datetime(2000, 1, 1)})
    refused(lambda: database.c.insert_one({"_id": 2, "at": datetime.datetime(3000, 1, 1)}))


def test_clustered_collections_have_no_other_index_on_their_key(client):
    database = client.clustered
    database.command({"create": "c", "clusteredIndex": {"key": {"_id": 1}, "unique": True}, "expireAfterSeconds": 1000})
    database.c.insert_many([{"_id": key} for key in "cab"])
    assert [document["_id"] for document in database.c.find()] == ["a", "b", "c"]
    found = info(database, "c")
    assert found["options"]["clusteredIndex"] == {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": True}
    assert found["options"]["expireAfterSeconds"] == 1000 and "idIndex" not in found
    assert [index["clustered"] for index in database.c.list_indexes()] == [True]
    database.command({"collMod": "c", "expireAfterSeconds": "off"})
    assert "expireAfterSeconds" not in info(database, "c")["options"]


def test_options_are_compared_as_they_are_listed(client):
    database = client.compared
    database.command({"create": "c", "validator": {"a": 1}})
    database.command({"create": "c", "validator": {"a": 1}})
    refused(lambda: database.command({"create": "c"}), 48)
    refused(lambda: database.command({"create": "c", "validator": {"a": 1}, "validationAction": "error"}), 48)


def test_a_change_of_validation_stores_all_of_it(client):
    database = client.stored
    database.command({"create": "c", "validator": {"a": {"$gt": 1.0}}})
    assert info(database, "c")["options"] == {"validator": {"a": {"$gt": 1.0}}}
    database.command({"collMod": "c", "validator": {"a": 1}})
    assert info(database, "c")["options"] == {"validator": {"a": 1}, "validationLevel": "strict", "validationAction": "error"}


# What is asked for, what the catalog stores of it, and what `listIndexes` shows.
GIVEN = [
    ({"sparse": 12345}, {"sparse": 12345}, {"sparse": True}),
    ({"sparse": False}, {"sparse": False}, {"sparse": False}),
    ({"sparse": Decimal128("0")}, {"sparse": Decimal128("0")}, {"sparse": False}),
    ({"background": 1.0, "expireAfterSeconds": 10.23}, {"background": 1.0, "expireAfterSeconds": 10.23}, {"background": True, "expireAfterSeconds": 10}),
    ({"unique": 1, "hidden": False, "prepareUnique": 0}, {"unique": True}, {"unique": True}),
    ({"sparse": True, "unique": True}, {"unique": True, "sparse": True}, {"unique": True, "sparse": True}),
    ({"partialFilterExpression": {"a": {"$gt": 1.0}}},) * 3,
    ({"bits": 16.578, "min": -5, "key": {"a": "2d"}}, {"bits": 16.578, "min": -5}, {"bits": 16, "min": -5.0}),
]


def test_options_of_indexes_are_kept_as_they_were_given(client):
    database = client.given
    for options, stored, listed in GIVEN:
        key = {"a": 1.0} if "key" not in options else options["key"]
        database.drop_collection("c")
        spec = {"key": key, "name": "n", **{name: value for name, value in options.items() if name != "key"}}
        database.command({"createIndexes": "c", "indexes": [spec]})
        (row,) = database.c.aggregate([{"$listCatalog": {}}])
        assert row["md"]["indexes"][1]["spec"] == {"v": 2, "key": key, "name": "n", **stored}
        (_, shown) = database.command({"listIndexes": "c"})["cursor"]["firstBatch"]
        assert shown == {"v": 2, "key": key, "name": "n", **listed}
        assert list(shown)[:3] == ["v", "key", "name"] and list(shown)[3:] == list(listed)
        types = {name: type(value) for name, value in shown.items() if name in listed}
        assert types == {name: type(value) for name, value in listed.items()}, options
    # A new time is a long in the catalog, whatever it was before.
    database.drop_collection("c")
    database.c.create_index("a", expireAfterSeconds=10.23)
    database.command({"collMod": "c", "index": {"name": "a_1", "expireAfterSeconds": 20}})
    (_, shown) = database.command({"listIndexes": "c"})["cursor"]["firstBatch"]
    assert type(shown["expireAfterSeconds"]) is int and shown["expireAfterSeconds"] == 20
    (row,) = database.c.aggregate([{"$listCatalog": {}}])
    assert type(row["md"]["indexes"][1]["spec"]["expireAfterSeconds"]) is Int64
    for option in ("background", "dropDups", "sparse"):
        refused(lambda: database.command({"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "z", option: "x"}]}), 14)


def test_options_outlive_the_node():
    with Node("--cpus", "2") as node:
        with node.client() as client:
            client.kept.command({"create": "c", "validator": {"x": 1}, "changeStreamPreAndPostImages": {"enabled": True}})
            client.kept.command({"collMod": "c", "validationLevel": "moderate"}, writeConcern={"w": 1, "j": True})
            client.kept.command({"create": "named", "clusteredIndex": {"key": {"_id": 1}, "unique": True, "name": "mine"}}, writeConcern={"w": 1, "j": True})
            before = [info(client.kept, name) for name in ("c", "named")]
            indexes = list(client.kept.named.list_indexes())
        node.kill()
        node.start()
        with node.client() as client:
            assert [info(client.kept, name) for name in ("c", "named")] == before
            assert list(client.kept.named.list_indexes()) == indexes
            refused(lambda: client.kept.c.insert_one({"x": 2}))


def test_views_are_read_and_not_written(client):
    database = client.viewed
    database.c.insert_many([{"_id": key, "x": key * 10, "tags": ["t%d" % (key % 2)]} for key in range(6)])
    database.command({"create": "v", "viewOn": "c", "pipeline": [{"$match": {"x": {"$gte": 20}}}]})
    database.command({"create": "w", "viewOn": "v", "pipeline": [{"$project": {"x": 1, "tags": 1}}, {"$sort": {"_id": -1}}]})
    assert [document["_id"] for document in database.w.find()] == [5, 4, 3, 2]
    assert database.w.find_one({"_id": 3}) == {"_id": 3, "x": 30, "tags": ["t1"]}
    assert database.w.find_one({"_id": 1}) is None
    assert [document["_id"] for document in database.w.find({"x": {"$lt": 50}}, {"_id": 1}).sort("_id").skip(1).limit(2).batch_size(1)] == [3, 4]
    assert database.command({"count": "w", "query": {"x": {"$gt": 20}}, "limit": 2})["n"] == 2
    assert database.w.count_documents({}) == 4 and database.w.estimated_document_count() == 4
    assert sorted(database.w.distinct("tags")) == ["t0", "t1"]
    assert [group["n"] for group in database.w.aggregate([{"$group": {"_id": "$tags", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}])] == [2, 2]
    assert database.command({"explain": {"find": "w", "filter": {"x": 30}}})["ok"] == 1
    for write in (
        lambda: database.w.insert_one({}),
        lambda: database.w.update_one({}, {"$set": {"x": 1}}),
        lambda: database.w.delete_many({}),
        lambda: database.w.find_one_and_delete({}),
        lambda: database.w.create_index("x"),
        lambda: database.command({"listIndexes": "w"}),
        lambda: database.command({"validate": "w"}),
        lambda: database.w.rename("other"),
    ):
        assert refused(write, 166)
    assert refused(lambda: list(database.w.find().sort("$natural", 1)), 168)
    assert refused(lambda: list(database.w.find(show_record_id=True)), 168)
    found = info(database, "w")
    assert found["type"] == "view" and found["info"] == {"readOnly": True}
    assert database["system.views"].find_one({"_id": "viewed.w"})["viewOn"] == "v"
    assert database.command("dbStats")["views"] == 2
    database.command({"collMod": "w", "viewOn": "c", "pipeline": []})
    assert database.w.count_documents({}) == 6
    database.drop_collection("w")
    assert database["system.views"].count_documents({}) == 1
    # Its documents are made by the commands for views alone.
    refused(lambda: database["system.views"].insert_one({"_id": "viewed.x"}), 73)
    refused(lambda: database["system.views"].update_one({}, {"$set": {"viewOn": "x"}}), 73)
    refused(lambda: database["system.views"].delete_many({}), 73)
    refused(lambda: database["system.views"].find_one_and_delete({}), 73)
    database.drop_collection("c")
    assert list(database.v.find()) == []
    # A cursor on a view is of the view's name, and goes with the collection under it.
    database.c.insert_many([{"x": 20} for _ in range(3)])
    cursor = database.v.find(batch_size=1)
    next(cursor)
    database.drop_collection("c")
    assert refused(lambda: list(cursor), 175)


def test_views_that_cannot_be(client):
    database = client.unviewable
    refused(lambda: database.command({"create": "v", "viewOn": "v", "pipeline": []}), 5)
    refused(lambda: database.command({"create": "v", "viewOn": "c", "pipeline": [{"$out": "d"}]}), 167)
    refused(lambda: database.command({"create": "v", "viewOn": "c", "capped": True, "size": 1}), 72)
    database.command({"create": "v", "viewOn": "w", "pipeline": []})
    refused(lambda: database.command({"create": "w", "viewOn": "v", "pipeline": []}), 5)
    refused(lambda: database.command({"create": "v"}), 48)
    refused(lambda: database.command({"create": "system.views"}), 73)


def test_names_that_the_node_looks_for_are_not_renamed(client):
    client.renames.c.insert_one({})
    rename = lambda old, new: client.admin.command({"renameCollection": old, "to": new})
    for old, new in [("renames.c", "renames.system.views"), ("renames.system.views", "renames.d"), ("admin.system.version", "renames.d")]:
        with pytest.raises(OperationFailure) as raised:
            rename(old, new)
        assert raised.value.code == 20, raised.value
    rename("renames.c", "renames.d")


def test_every_collection_has_an_index_on_id(client):
    database = client.auto
    assert "deprecated" in database.command({"create": "c", "autoIndexId": True})["note"]
    assert "replicated" in refused(lambda: database.command({"create": "d", "autoIndexId": False}), 50001)["errmsg"]
    database.command({"create": "t", "temp": True})
    assert list(database.command({"dbHash": 1})["collections"]) == ["c", "t"]
    assert list(database.command({"dbHash": 1, "skipTempCollections": True})["collections"]) == ["c"]
