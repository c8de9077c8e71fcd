"""Replica sets of real processes."""

import time

import pymongo
import pytest
from pinion_node import Node, ReplicaSet, wait_until
from pymongo.errors import NotPrimaryError, OperationFailure


def fails(database, command, code):
    with pytest.raises((OperationFailure, NotPrimaryError)) as caught:
        database.command(command)
    assert caught.value.details["code"] == code, caught.value.details


@pytest.fixture(scope="module")
def alone():
    with ReplicaSet(1) as members:
        yield members


def test_a_node_that_is_not_initiated_yet():
    with Node("--replSet", "rs0") as node:
        client = node.client(directConnection=True)
        hello = client.admin.command("hello")
        assert hello["isreplicaset"] and not hello["isWritablePrimary"] and not hello["secondary"]
        fails(client.admin, "replSetGetStatus", 94)
        fails(client.admin, "replSetGetConfig", 94)
        fails(client.test, {"insert": "c", "documents": [{}]}, 10107)
        fails(client.admin, {"replSetInitiate": {"_id": "other", "members": [{"_id": 0, "host": f"127.0.0.1:{node.port}"}]}}, 93)
        fails(client.admin, {"replSetInitiate": {"_id": "rs0", "members": [{"_id": 0, "host": "127.0.0.1:1"}]}}, 93)
        config = {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{node.port}"}]}
        assert client.admin.command("replSetInitiate", config)["ok"] == 1
        fails(client.admin, {"replSetInitiate": config}, 23)
        wait_until(lambda: client.admin.command("hello")["isWritablePrimary"])


def test_a_set_of_one_keeps_its_oplog(alone):
    client = alone.client(w="majority", journal=True)
    collection = client.test.entries
    collection.insert_one({"_id": 1, "a": 1})
    collection.update_one({"_id": 1}, {"$set": {"a": 2}})
    collection.delete_one({"_id": 1})
    oplog = client.local["oplog.rs"]
    entries = list(oplog.find({"ns": "test.entries"}))
    assert [entry["op"] for entry in entries] == ["i", "u", "d"]
    assert all(entry["t"] == 1 and entry["v"] == 2 for entry in entries)
    assert sorted(entry["ts"] for entry in entries) == [entry["ts"] for entry in entries]
    newest = next(oplog.find().sort("$natural", -1).limit(1))
    assert newest["ts"] == entries[-1]["ts"]
    assert list(oplog.find({"ts": entries[1]["ts"]})) == [entries[1]]
    fails(client.local, {"insert": "oplog.rs", "documents": [{}]}, 73)
    tail = oplog.find({"ts": {"$gt": newest["ts"]}}, cursor_type=pymongo.CursorType.TAILABLE_AWAIT)
    collection.insert_one({"_id": 2})
    assert next(tail)["o"] == {"_id": 2}
    began = time.monotonic()
    collection.insert_one({"_id": 3})
    assert next(tail)["o"] == {"_id": 3} and time.monotonic() - began < 1


def test_a_set_of_one_comes_back_in_a_later_term(alone):
    node = alone.nodes[0]
    with alone.client(w="majority") as client:
        client.test.kept.insert_one({"_id": 1})
        before = client.admin.command("replSetGetStatus")["term"]
    node.kill()
    node.start()
    alone.primary()
    with alone.client() as client:
        assert client.test.kept.count_documents({}) == 1
        assert client.admin.command("replSetGetStatus")["term"] == before + 1
        config = client.admin.command("replSetGetConfig")["config"]
        assert config["members"][0]["host"] == f"127.0.0.1:{node.port}" and config["term"] == before + 1
        assert client.local["system.replset"].find_one()["_id"] == "rs0"
        # What the member keeps for itself is none of the oplog's.
        assert client.local["oplog.rs"].find_one({"ns": {"$regex": "^local"}}) is None
