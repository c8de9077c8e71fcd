"""Writes of users are blocked on a replica set: what is refused, what is not, and what of it
survives."""

import datetime

import pytest
from pinion_cluster import fails
from pinion_node import TEST_COMMANDS, Beside, FailPoint, Node, ReplicaSet, wait_until
from pinion_wire import Wire
from pymongo import DeleteOne

BLOCKED = 371
STORED = {"_id": "", "blockNewUserShardedDDL": False, "blockUserWrites": True}
INTERNAL = {"minWireVersion": 0, "maxWireVersion": 25}
SCANS = "hangIndexBuildDuringCollectionScanPhaseAfterInsertion"


@pytest.fixture(scope="module")
def alone():
    with ReplicaSet(1, options=[*TEST_COMMANDS, "--setParameter", "ttlMonitorSleepSecs=1"]) as members:
        yield members


@pytest.fixture
def client(alone):
    with alone.client() as connected:
        connected.drop_database("d")
        connected.d.c.insert_many([{"_id": n} for n in range(5)])
        yield connected
        block(connected, False)


def block(client, blocks, **more):
    return client.admin.command({"setUserWriteBlockMode": 1, "global": blocks, **more})


def mode(client):
    return client.admin.command("serverStatus")["repl"]["userWriteBlockMode"]


def stored(client):
    return list(client.config.user_writes_critical_sections.find())


def refused(call):
    assert fails(call, BLOCKED) == "User writes blocked"


def test_every_command_that_writes(client):
    db = client.d
    db.c.create_index("x")
    assert mode(client) == 1 and stored(client) == []
    block(client, True)
    assert mode(client) == 2 and stored(client) == [STORED]
    # Sent again it is a success.
    block(client, True)
    refused(lambda: db.c.insert_many([{"_id": 9}, {"_id": 10}]))
    refused(lambda: db.c.bulk_write([DeleteOne({"_id": 1}), DeleteOne({"_id": 2})]))
    many = {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "d.c"}]}
    assert client.admin.command(many)["cursor"]["firstBatch"][0]["code"] == BLOCKED
    statements = [
        lambda: db.c.insert_one({"_id": 9}),
        lambda: db.made.insert_one({"_id": 9}),
        lambda: db.c.update_one({"_id": 1}, {"$set": {"x": 1}}),
        lambda: db.c.update_many({}, {"$set": {"x": 1}}),
        lambda: db.c.update_one({"_id": 9}, {"$set": {"x": 1}}, upsert=True),
        lambda: db.c.delete_one({"_id": 1}),
        lambda: db.c.find_one_and_update({"_id": 1}, {"$set": {"x": 1}}),
        lambda: db.c.find_one_and_delete({"_id": 1}),
        lambda: list(db.c.aggregate([{"$out": "o"}])),
        lambda: list(db.c.aggregate([{"$merge": "o"}])),
        lambda: list(db.c.aggregate([{"$addFields": {"x": 1}}, {"$merge": "c"}])),
    ]
    definitions = [
        {"create": "made"},
        {"create": "view", "viewOn": "c", "pipeline": []},
        {"create": "series", "timeseries": {"timeField": "t"}},
        {"drop": "c"},
        {"drop": "absent"},
        {"createIndexes": "c", "indexes": [{"key": {"y": 1}, "name": "y_1"}]},
        {"dropIndexes": "c", "index": "x_1"},
        {"collMod": "c", "validator": {"x": 1}},
        {"convertToCapped": "c", "size": 4096},
        {"cloneCollectionAsCapped": "c", "toCollection": "capped", "size": 4096},
        {"dropDatabase": 1},
    ]
    for statement in statements:
        refused(statement)
    for definition in definitions:
        refused(lambda definition=definition: db.command(definition))
    refused(lambda: client.admin.command("renameCollection", "d.c", to="d.e"))
    refused(lambda: client.admin.command("applyOps", [{"op": "i", "ns": "d.c", "o": {"_id": 9}}]))
    with client.start_session() as session:
        session.start_transaction()
        refused(lambda: db.c.insert_one({"_id": 9}, session=session))
        fails(session.commit_transaction, 251)
    # Reads, and what is of the node.
    assert db.c.count_documents({}) == 5 and [index["name"] for index in db.c.list_indexes()] == ["_id_", "x_1"]
    assert db.list_collection_names() == ["c"]
    client.admin.own.insert_one({"_id": 1})
    client.admin.own.drop()
    client.config.own.insert_one({"_id": 1})
    client.config.own.drop()
    # A client that says so is no member.
    insert = {"insert": "c", "documents": [{"_id": 9}], "mayBypassWriteBlocking": True}
    refused(lambda: db.command(insert))
    block(client, False)
    block(client, False)
    assert mode(client) == 1 and stored(client) == []
    db.c.insert_one({"_id": 9})


def test_what_nodes_ask_for(alone, client):
    insert = {"insert": "c", "documents": [{"_id": 9}]}
    bypassing = {**insert, "mayBypassWriteBlocking": True}
    block(client, True)
    with Wire(alone.nodes[0].port) as wire:
        assert wire.command("d", bypassing)["code"] == BLOCKED
        assert wire.command("admin", {"hello": 1, "internalClient": INTERNAL})["ok"] == 1
        # That the connection is a node's does not say whose write it is.
        assert wire.command("d", insert)["code"] == BLOCKED
        assert wire.command("d", {**bypassing, "mayBypassWriteBlocking": False})["code"] == BLOCKED
        assert wire.command("d", bypassing)["n"] == 1


def test_arguments(client):
    fails(lambda: client.admin.command("setUserWriteBlockMode", 1), 40414)
    fails(lambda: block(client, 1), 14)
    fails(lambda: client.d.command({"setUserWriteBlockMode": 1, "global": True}), 13)
    assert mode(client) == 1
    with Node() as node, node.client() as standalone:
        fails(lambda: block(standalone, True), 20)
    with ReplicaSet(1, name="s", role="shardsvr") as shard, shard.client() as of_shard:
        fails(lambda: block(of_shard, True), 20)


def test_an_open_transaction_is_waited_for(client):
    db = client.d
    with client.start_session() as session, client.start_session() as other:
        session.start_transaction()
        db.c.insert_one({"_id": 9}, session=session)
        other.start_transaction()
        db.c.insert_one({"_id": 10}, session=other)
        blocking = Beside(lambda: block(client, True))
        wait_until(lambda: mode(client) == 2)
        assert blocking.is_alive()
        # A statement that writes is refused, and ends its transaction.
        refused(lambda: db.c.insert_one({"_id": 11}, session=other))
        fails(other.commit_transaction, 251)
        assert blocking.is_alive()
        session.commit_transaction()
        assert blocking.ended().error is None
    assert db.c.count_documents({"_id": {"$in": [9, 10, 11]}}) == 1
    with client.start_session() as session:
        session.start_transaction()
        assert db.c.count_documents({}, session=session) == 6
        session.commit_transaction()


def test_what_is_given_up_leaves_nothing(client):
    db = client.d
    with client.start_session() as session:
        session.start_transaction()
        db.c.insert_one({"_id": 9}, session=session)
        fails(lambda: block(client, True, maxTimeMS=300), 50)
        assert mode(client) == 1 and stored(client) == []
        db.c.insert_one({"_id": 10})
        session.commit_transaction()


def test_builds_of_indexes_are_aborted(client):
    point = FailPoint(client, SCANS)
    building = Beside(lambda: client.d.c.create_index("x"))
    try:
        point.wait()
        block(client, True)
    finally:
        point.off()
    assert building.ended().error is not None
    assert [index["name"] for index in client.d.c.list_indexes()] == ["_id_"]
    refused(lambda: client.d.c.create_index("x"))
    client.admin.own.insert_one({"_id": 1})
    client.admin.own.create_index("x")
    client.admin.own.drop()


def test_nothing_expires(client):
    client.d.expiring.create_index("at", expireAfterSeconds=0)
    client.admin.expiring.create_index("at", expireAfterSeconds=0)
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
    client.d.expiring.insert_one({"at": soon})
    block(client, True)
    client.admin.expiring.insert_one({"at": soon})
    # Those of the node expire, in this pass and in another one.
    wait_until(lambda: client.admin.expiring.count_documents({}) == 0)
    client.admin.expiring.insert_one({"at": soon})
    wait_until(lambda: client.admin.expiring.count_documents({}) == 0)
    assert client.d.expiring.count_documents({}) == 1
    block(client, False)
    wait_until(lambda: client.d.expiring.count_documents({}) == 0)
    client.admin.expiring.drop()


def test_it_survives_restarts(alone, client):
    block(client, True)
    node = alone.nodes[0]
    node.kill()
    node.start()
    alone.primary()
    assert mode(client) == 2
    refused(lambda: client.d.c.insert_one({}))
    block(client, False)
    node.stop()
    node.start()
    alone.primary()
    assert mode(client) == 1
    client.d.c.insert_one({})


def test_all_members_block():
    with ReplicaSet(3) as members, members.client(w=3) as client:
        client.d.c.insert_one({"_id": 1})
        block(client, True)
        for node in members.secondaries():
            with members.member(node) as member:
                wait_until(lambda member=member: mode(member) == 2)
        first = members.nodes[0]
        first.kill()
        primary = members.primary()
        with members.member(primary) as member:
            refused(lambda: member.d.c.insert_one({}))
            block(member, False)
            member.d.c.insert_one({"_id": 2})
            added = members.add()
            wait_until(lambda: members.state(added) == 2)
            with members.member(added) as copied:
                assert mode(copied) == 1
            block(member, True)
            with members.member(added) as copied:
                wait_until(lambda: mode(copied) == 2)
        first.start()
        wait_until(lambda: members.state(first) in (1, 2))
        with members.member(first) as member:
            wait_until(lambda: mode(member) == 2)
