"""`applyOps`: what a tool sends that replays a dumped oplog."""

import bson
import pytest
from pymongo.errors import OperationFailure


@pytest.fixture
def client(node):
    client = node.client()
    client.drop_database("ops")
    client.ops.create_collection("c")
    return client


def apply(client, *operations, **options):
    return client.admin.command({"applyOps": list(operations), **options})


def op(kind, o, o2=None, ns="ops.c"):
    return {"op": kind, "ns": ns, "o": o, **({"o2": o2} if o2 else {})}


def fails(call, code):
    with pytest.raises(OperationFailure) as raised:
        call()
    assert raised.value.code == code, raised.value
    return raised.value.details


def test_documents(client):
    collection = client.ops.c
    empty = bson.Timestamp(0, 0)
    reply = apply(client, op("i", {"_id": 1, "a": 1}), op("i", {"_id": 1, "a": 2, "t": empty}), op("n", {}), op("i", {"_id": 2}))
    assert (reply["applied"], reply["results"]) == (3, [True] * 3)
    # What the log has is stored as it is, and what is there with the same _id is replaced.
    assert list(collection.find()) == [{"_id": 1, "a": 2, "t": empty}, {"_id": 2}]
    diff = {"$v": 2, "diff": {"d": {"t": False}, "u": {"a": 5}, "i": {"b": [1, 2]}}}
    apply(client, op("u", diff, {"_id": 1}), op("u", {"_id": 2, "x": 1}, {"_id": 2}))
    assert list(collection.find()) == [{"_id": 1, "a": 5, "b": [1, 2]}, {"_id": 2, "x": 1}]
    apply(client, op("u", {"$v": 2, "diff": {"sb": {"a": True, "u1": 7}}}, {"_id": 1}), op("u", {"$v": 1, "$set": {"x": 2}}, {"_id": 2}))
    assert list(collection.find()) == [{"_id": 1, "a": 5, "b": [1, 7]}, {"_id": 2, "x": 2}]
    assert apply(client, op("d", {"_id": 1}), op("d", {"_id": 99}))["applied"] == 2
    assert list(collection.find()) == [{"_id": 2, "x": 2}]


def test_what_is_not_found_and_what_is_wrong(client):
    reported = fails(lambda: apply(client, op("i", {"_id": 1}), op("u", {"a": 1}, {"_id": 9}), op("i", {"_id": 2})), 8)
    assert (reported["applied"], reported["results"]) == (3, [True, False, True])
    reported = fails(lambda: apply(client, op("i", {"_id": 3}), op("i", {"_id": 1}, ns="ops.none"), op("i", {"_id": 4})), 26)
    assert (reported["applied"], reported["results"]) == (2, [True, False])
    assert [d["_id"] for d in client.ops.c.find()] == [1, 2, 3]
    fails(lambda: apply(client, op("i", {})), 4)
    fails(lambda: apply(client, {"op": "i", "ns": "ops.c"}), 40414)
    fails(lambda: apply(client, op("u", {"$v": 3}, {"_id": 1})), 4772604)
    fails(lambda: apply(client, op("c", {"create": "x"})), 73)
    fails(lambda: apply(client, op("c", {"find": "x"}, ns="ops.$cmd")), 2)
    fails(lambda: apply(client, alwaysUpsert=True), 6711601)


def test_catalog(client):
    command = lambda o: op("c", o, ns="ops.$cmd")
    apply(client, command({"create": "made", "capped": True, "size": 4096}), command({"create": "made"}),
          command({"createIndexes": "c", "v": 2, "key": {"a": 1}, "name": "a_1"}),
          command({"applyOps": [op("i", {"_id": 1, "a": 1})]}))
    assert client.ops.made.options()["capped"] and "a_1" in client.ops.c.index_information()
    assert client.ops.c.find_one({"a": 1}, hint="a_1") == {"_id": 1, "a": 1}
    uuid = next(c["info"]["uuid"] for c in client.ops.list_collections() if c["name"] == "c")
    apply(client, command({"renameCollection": "ops.c", "to": "ops.moved", "stayTemp": False}))
    # Its UUID still names it.
    apply(client, {"op": "i", "ns": "ops.c", "ui": uuid, "o": {"_id": 2}})
    assert client.ops.moved.count_documents({}) == 2
    apply(client, command({"dropIndexes": "moved", "index": "a_1"}), command({"drop": "made"}), command({"drop": "made"}))
    assert client.ops.list_collection_names() == ["moved"] and list(client.ops.moved.index_information()) == ["_id_"]
