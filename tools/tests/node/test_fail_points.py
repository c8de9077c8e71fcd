"""Fail points as drivers' tests use them, on a node that was started for tests; and that no other
node has them."""

import json

import bson
import pymongo
import pymongo.monitoring
import pytest
from pinion_node import PATIENCE_MS, STEADY, TEST_COMMANDS, Node, ReplicaSet, run, wait_until
from pymongo.errors import AutoReconnect, OperationFailure

@pytest.fixture(scope="module")
def node():
    with Node("--cpus", "2", *TEST_COMMANDS) as running:
        yield running


def configure(client, mode, name="failCommand", **data):
    command = {"configureFailPoint": name, "mode": mode, "data": data}
    return client.admin.command(command)["count"]


def fails(database, command, code):
    with pytest.raises(OperationFailure) as caught:
        database.command(command)
    assert caught.value.code == code, caught.value.details
    return caught.value.details


def test_only_a_node_for_tests_has_them():
    with Node() as plain:
        client = plain.client()
        fails(client.admin, {"configureFailPoint": "failCommand", "mode": "off"}, 59)
        fails(client.admin, {"waitForFailPoint": "failCommand", "timesEntered": 1, "maxTimeMS": 1}, 59)
        assert client.admin.command("getParameter", 1, enableTestCommands=1)["enableTestCommands"] is False
        fails(client.admin, {"getParameter": 1, "failpoint.failCommand": 1}, 72)


def test_names_and_modes(client):
    assert client.admin.command("getParameter", 1, enableTestCommands=1)["enableTestCommands"] is True
    assert fails(client.admin, {"configureFailPoint": "onPrimaryWrite", "mode": "off"}, 266)["errmsg"] == (
        "onPrimaryWrite not found"
    )
    for mode, code in [("sometimes", 2), ({"times": -1}, 2), ({}, 2), (1, 14)]:
        fails(client.admin, {"configureFailPoint": "failCommand", "mode": mode}, code)
    fails(client.admin, {"configureFailPoint": "failCommand"}, 20)
    fails(client.test, {"configureFailPoint": "failCommand", "mode": "off"}, 13)


def test_a_command_fails_on_whichever_core_it_runs(node):
    """Each of several connections is another core's; together they see the fault as often as it was
    set to act."""
    with node.client() as client:
        configure(client, {"times": 3}, failCommands=["find"], errorCode=8)
    failed = 0
    for _ in range(8):
        with node.client(retryReads=False) as client:
            try:
                client.test.c.find_one({"_id": 1})
            except OperationFailure as error:
                assert error.code == 8
                failed += 1
    assert failed == 3


def test_connections_close(node):
    with node.client(retryReads=False) as client:
        client.admin.command("ping")
        configure(client, {"times": 1}, failCommands=["find"], closeConnection=True)
        with pytest.raises(AutoReconnect):
            client.test.c.find_one()
        client.test.c.find_one()


def test_labels_are_those_that_are_named(client):
    configure(client, {"times": 1}, failCommands=["ping"], errorCode=8, errorLabels=["One", "Two"])
    assert fails(client.test, {"ping": 1}, 8)["errorLabels"] == ["One", "Two"]
    configure(client, {"times": 1}, failCommands=["ping"], errorCode=462, errorLabels=[])
    assert "errorLabels" not in fails(client.test, {"ping": 1}, 462)
    configure(client, {"times": 1}, failCommands=["ping"], errorCode=462)
    assert fails(client.test, {"ping": 1}, 462)["errorLabels"] == ["SystemOverloadedError"]


def test_only_the_application_that_is_named_is_meant(node):
    """Its name is known from the very hello that brings it."""
    with node.client() as client, node.client(appname="meant", retryReads=False) as meant:
        configure(client, "alwaysOn", failCommands=["find"], appName="meant", errorCode=9)
        client.test.c.find_one()
        with pytest.raises(OperationFailure):
            meant.test.c.find_one()
        configure(client, "alwaysOn", failCommands=["hello", "isMaster"], appName="new", closeConnection=True)
        with node.client(appname="new", serverSelectionTimeoutMS=500) as new, pytest.raises(pymongo.errors.ServerSelectionTimeoutError):
            new.admin.command("ping")
        client.admin.command("hello")
        configure(client, "off")


def test_write_concern_errors(client):
    error = {"code": 64, "codeName": "WriteConcernTimeout", "errmsg": "waiting for replication timed out"}
    configure(client, {"times": 1}, failCommands=["insert"], writeConcernError=error)
    reply = client.test.command({"insert": "wce", "documents": [{}]}, check=False)
    assert reply["writeConcernError"] == error and reply["n"] == 1
    client.test.wce.drop()


def test_the_time_of_an_operation_is_up(client):
    client.test.times.insert_many({"_id": n} for n in range(9))
    cursor = client.test.times.find(batch_size=2).max_time_ms(10_000)
    next(cursor)
    configure(client, "alwaysOn", name="maxTimeAlwaysTimeOut")
    with pytest.raises(pymongo.errors.ExecutionTimeout):
        list(cursor)
    with pytest.raises(pymongo.errors.ExecutionTimeout):
        client.test.command("ping", maxTimeMS=10_000)
    configure(client, "off", name="maxTimeAlwaysTimeOut")
    client.test.command("ping", maxTimeMS=10_000)
    client.test.times.drop()


def test_the_parameter():
    given = {"mode": "alwaysOn", "data": {"failCommands": ["count"], "errorCode": 4}}
    with Node(*TEST_COMMANDS, "--setParameter", f"failpoint.failCommand={json.dumps(given)}") as node:
        client = node.client()
        fails(client.test, {"count": "c"}, 4)
        asked = client.admin.command({"getParameter": 1, "failpoint.failCommand": 1})["failpoint.failCommand"]
        assert asked == {"mode": 1, "data": given["data"], "timesEntered": 1}
        assert "failpoint.maxTimeNeverTimeOut" in client.admin.command("getParameter", "*")
        fails(client.admin, {"setParameter": 1, "failpoint.failCommand": given}, 20)
        assert configure(client, "off") == 1
        client.test.command({"count": "c"})
    for value, named in [("{", "failCommand"), ('{"mode": "no"}', "unknown mode"), ("7", "object")]:
        status, output = run(*TEST_COMMANDS, "--dbpath", str(node.directory / "other"), "--setParameter", f"failpoint.failCommand={value}")
        assert status != 0 and named in output, output
    status, output = run("--dbpath", str(node.directory / "other"), "--setParameter", 'failpoint.failCommand={"mode": "off"}')
    assert status != 0 and "enableTestCommands" in output


def test_a_retryable_write_loses_its_connection_or_fails():
    with ReplicaSet(1, options=TEST_COMMANDS) as members, members.client() as client:
        collection, point = client.test.c, {"configureFailPoint": "onPrimaryTransactionalWrite", "mode": {"times": 1}}
        # The write is there before its connection is closed, and not made again when it is sent
        # again.
        before = client.admin.command(point)["count"]
        collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
        assert collection.find_one() == {"_id": 1, "n": 1}
        # Nothing is written, and the connection is closed: it is sent again and written then.
        assert client.admin.command({**point, "data": {"failBeforeCommitExceptionCode": 1}})["count"] == before + 1
        collection.insert_one({"_id": 2})
        assert client.admin.command({**point, "data": {"failBeforeCommitExceptionCode": 96, "closeConnection": False}})["count"] == before + 2
        with pytest.raises(OperationFailure) as caught:
            collection.find_one_and_update({"_id": 2}, {"$set": {"n": 1}})
        assert caught.value.code == 96
        assert list(collection.find()) == [{"_id": 1, "n": 1}, {"_id": 2}]
        # What is not retryable passes.
        client.admin.command({**point, "mode": "alwaysOn", "data": {"failBeforeCommitExceptionCode": 96}})
        collection.update_many({}, {"$set": {"m": 1}})
        assert collection.count_documents({"m": 1}) == 2
        client.admin.command({**point, "mode": "off"})


class Pools(pymongo.monitoring.ConnectionPoolListener):
    """Counts how often a driver's connections were given up; of the other events nothing is
    wanted."""

    def __init__(self):
        self.cleared = 0

    def pool_cleared(self, event):
        self.cleared += 1

    def pool_created(self, event):
        pass

    pool_ready = pool_closed = pool_created
    connection_created = connection_ready = connection_closed = pool_created
    connection_check_out_started = connection_check_out_failed = pool_created
    connection_checked_out = connection_checked_in = pool_created


def test_an_error_of_a_node_that_stays_is_news_to_a_driver():
    """A driver passes over what is no newer than what it knows of the topology, so only a node that
    goes away says how new that is."""
    pools = Pools()
    with ReplicaSet(1, options=TEST_COMMANDS) as members, members.client(event_listeners=[pools]) as client:
        client.test.c.insert_one({"_id": 1})
        for code, has_version in [(91, False), (11600, False), (10107, True), (189, True), (8, False)]:
            configure(client, {"times": 1}, failCommands=["ping"], errorCode=code)
            with members.member(members.nodes[0]) as direct, pytest.raises(pymongo.errors.PyMongoError) as caught:
                direct.test.command("ping")
            assert caught.value.details["code"] == code
            assert ("topologyVersion" in caught.value.details) == has_version, code
        before = pools.cleared
        configure(client, {"times": 1}, failCommands=["find"], errorCode=91)
        assert client.test.c.find_one() == {"_id": 1}
        assert pools.cleared == before + 1


def test_documents_of_a_retryable_insert_count_as_they_do_in_mongodb():
    with ReplicaSet(1, options=TEST_COMMANDS) as members, members.client() as client:
        data = {"failBeforeCommitExceptionCode": 96, "closeConnection": False}
        point = {"configureFailPoint": "onPrimaryTransactionalWrite", "mode": {"skip": 1}, "data": data}
        large = "x" * 300_000
        # Small ones are inserted together and count once, large ones count each.
        for ordered, documents, left, wrong in (
            (True, [{"_id": n} for n in range(3)], [0, 1, 2], []),
            (True, [{"_id": n, "x": large} for n in range(3)], [0], [1]),
            (False, [{"_id": n, "x": large} for n in range(3)], [0], [1, 2]),
        ):
            client.test.c.delete_many({})
            client.admin.command(point)
            reply = client.test.command({"insert": "c", "documents": documents, "ordered": ordered, "txnNumber": bson.Int64(1)},
                                        session=client.start_session())
            client.admin.command({**point, "mode": "off"})
            assert [error["index"] for error in reply.get("writeErrors", [])] == wrong
            assert sorted(document["_id"] for document in client.test.c.find()) == left


def test_what_members_ask_of_each_other_is_not_meant():
    with ReplicaSet(3, STEADY, TEST_COMMANDS) as members, members.client() as client:
        # What fails while a change stream is read says that, so the driver continues.
        with client.test.c.watch(max_await_time_ms=100) as stream:
            configure(client, {"times": 1}, name="failGetMoreAfterCursorCheckout", errorCode=262, closeConnection=False)
            assert stream.try_next() is None
            client.test.c.insert_one({"_id": "seen"})
            assert stream.next()["documentKey"] == {"_id": "seen"}
        client.test.c.insert_many({"_id": n} for n in range(9))
        cursor = client.test.c.find(batch_size=2)
        next(cursor)
        before = configure(client, {"times": 1}, failCommands=["getMore"], errorCode=8)
        # The secondaries continue to ask for the oplog, and each gets this error.
        for node in members.secondaries():
            with members.member(node) as secondary:
                asked = lambda secondary=secondary: secondary.admin.command("serverStatus")["metrics"]["repl"]["network"]["getmores"]["num"]
                goal = asked() + 2

                def asks_on(asked=asked, goal=goal):
                    client.test.c.with_options(write_concern=pymongo.WriteConcern(3)).update_one({"_id": 0}, {"$inc": {"n": 1}})
                    return asked() >= goal

                wait_until(asks_on)
        with pytest.raises(OperationFailure) as caught:
            list(cursor)
        assert caught.value.code == 8
        assert configure(client, "off") == before + 1


def test_a_member_that_takes_nothing_over():
    with ReplicaSet(3, STEADY, TEST_COMMANDS) as members, members.client() as client:
        of_all = client.test.c.with_options(write_concern=pymongo.WriteConcern(3, wtimeout=1000))
        with members.member(members.secondaries()[0]) as behind:
            configure(behind, "alwaysOn", name="stopReplProducer")
            with pytest.raises(pymongo.errors.WTimeoutError):
                of_all.insert_one({"_id": 1})
            configure(behind, "off", name="stopReplProducer")
        client.test.c.with_options(write_concern=pymongo.WriteConcern(3, wtimeout=PATIENCE_MS)).insert_one({"_id": 2})
