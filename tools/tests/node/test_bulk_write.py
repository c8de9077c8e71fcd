"""bulkWrite as drivers send it, and $jsonSchema in filters."""

import pymongo
import pytest
from bson import Int64
from pymongo.errors import ClientBulkWriteException, OperationFailure


def bulk(client, ops, names, **options):
    return client.admin.command({"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": name} for name in names], **options})


def test_a_driver_writes_to_several_collections(client, collection):
    other = collection.database[f"{collection.name}_other"]
    other.drop()
    name, second = collection.full_name, other.full_name
    result = client.bulk_write(
        [
            pymongo.InsertOne({"_id": 1, "a": 1}, namespace=name),
            pymongo.InsertOne({"_id": 2, "a": 2}, namespace=name),
            pymongo.UpdateMany({"a": {"$gt": 0}}, {"$inc": {"a": 10}}, namespace=name),
            pymongo.UpdateOne({"_id": "new"}, {"$set": {"b": 1}}, upsert=True, namespace=second),
            pymongo.ReplaceOne({"_id": 1}, {"replaced": True}, namespace=name),
            pymongo.DeleteOne({"_id": 2}, namespace=name),
        ],
        verbose_results=True,
    )
    assert (result.inserted_count, result.matched_count, result.modified_count) == (2, 3, 3)
    assert (result.upserted_count, result.deleted_count) == (1, 1)
    assert result.update_results[3].upserted_id == "new"
    assert list(collection.find()) == [{"_id": 1, "replaced": True}]
    assert list(other.find()) == [{"_id": "new", "b": 1}]


def test_order_decides_what_follows_a_failure(client, collection):
    ops = [{"insert": 0, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 2}}]
    reply = bulk(client, ops, [collection.full_name])
    assert (reply["nInserted"], reply["nErrors"]) == (1, 1)
    first, second = reply["cursor"]["firstBatch"]
    assert first == {"ok": 1.0, "idx": 0, "n": 1}
    assert second["code"] == 11000 and second["keyValue"] == {"_id": 1} and second["n"] == 0
    reply = bulk(client, ops, [collection.full_name], ordered=False, errorsOnly=True)
    assert (reply["nInserted"], reply["nErrors"]) == (1, 2)
    assert [result["idx"] for result in reply["cursor"]["firstBatch"]] == [0, 1]
    with pytest.raises(ClientBulkWriteException):
        client.bulk_write([pymongo.InsertOne({"_id": 1}, namespace=collection.full_name)])


def test_results_come_through_a_cursor(client, collection):
    ops = [{"insert": 0, "document": {"_id": n}} for n in range(10)]
    reply = bulk(client, ops, [collection.full_name], cursor={"batchSize": 4})
    assert reply["cursor"]["ns"] == "admin.$cmd.bulkWrite" and reply["nInserted"] == 10
    seen, cursor = reply["cursor"]["firstBatch"], reply["cursor"]["id"]
    assert len(seen) == 4
    rest = client.admin.command({"getMore": Int64(cursor), "collection": "$cmd.bulkWrite"})["cursor"]
    assert rest["id"] == 0 and [result["idx"] for result in seen + rest["nextBatch"]] == list(range(10))


@pytest.mark.parametrize(
    "ops, names, code",
    [
        ([], ["d.c"], 16),
        ([{"insert": 1, "document": {}}], ["d.c"], 2),
        ([{"insert": 0, "document": {}}], ["d.c", "d.c"], 2),
        ([{"insert": 0, "document": {}}], ["nodot"], 73),
        ([{"upsert": 0, "document": {}}], ["d.c"], 40415),
        ([{"insert": 0, "document": {}, "extra": 1}], ["d.c"], 40415),
        ([{"update": 0, "filter": {}}], ["d.c"], 40414),
        ([{"insert": -1, "document": {}}], ["d.c"], 2),
    ],
)
def test_what_is_no_bulk_write(client, ops, names, code):
    with pytest.raises(OperationFailure) as caught:
        bulk(client, ops, names)
    assert caught.value.code == code, caught.value.details


def test_it_is_a_command_of_admin_alone(client):
    with pytest.raises(OperationFailure) as caught:
        client.test.command({"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "d.c"}]})
    assert caught.value.code == 13


def test_schemas_filter_and_are_checked(collection):
    collection.insert_many([{"_id": 1, "x": 5}, {"_id": 2, "x": "five"}, {"_id": 3}])
    schema = {"required": ["x"], "properties": {"x": {"bsonType": "int", "minimum": 5}}}
    assert collection.count_documents({"$jsonSchema": schema}) == 1
    assert {d["_id"] for d in collection.find({"$nor": [{"$jsonSchema": schema}]})} == {2, 3}
    assert collection.delete_many({"$jsonSchema": {"properties": {"x": {"type": "string"}}, "required": ["x"]}}).deleted_count == 1
    with pytest.raises(OperationFailure) as caught:
        collection.find_one({"$jsonSchema": {"type": "integer"}})
    assert caught.value.code == 9
