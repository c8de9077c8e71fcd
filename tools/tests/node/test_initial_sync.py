"""A new member copies the data of its set while that is written to."""

import random
import threading

import pymongo
import pytest
from pinion_node import PATIENCE_MS, TEST_COMMANDS, FailPoint, Node, ReplicaSet, wait_until
from pymongo import WriteConcern


def fill(database):
    documents = database.documents
    documents.create_index("u", unique=True)
    documents.create_index([("tags", 1)], name="tags")
    documents.create_index([("text", "text")])
    documents.create_index("n", partialFilterExpression={"n": {"$gt": 5}})
    documents.insert_many(
        [{"_id": i, "u": i, "n": i % 10, "tags": [i, "x"], "text": f"word{i % 7}"} for i in range(4000)]
    )
    database.create_collection("log", capped=True, size=1 << 20, max=500)
    database.log.insert_many([{"_id": i} for i in range(700)])
    database.create_collection("words", collation={"locale": "en", "strength": 2})
    database.words.insert_many([{"_id": f"W{i}", "w": i} for i in range(300)])
    database.create_collection("weather", timeseries={"timeField": "t"})
    database.create_collection("view", viewOn="documents", pipeline=[{"$match": {"n": 1}}])
    for number in range(20):
        database[f"small{number}"].insert_many([{"_id": i} for i in range(number + 1)])


class Writers:
    """Threads that write to a set until they are stopped."""

    def __init__(self, members):
        self.members, self.stopped, self.errors = members, False, []
        self.threads = [threading.Thread(target=self.write, args=(number,)) for number in range(3)]

    def write(self, number):
        rng = random.Random(number)
        try:
            with self.members.member(self.members.nodes[0]) as client:
                database, at = client.test, 10_000 * (number + 1)
                while not self.stopped:
                    at += 1
                    database.documents.insert_one({"_id": at, "u": at, "n": at % 12, "tags": [at]})
                    some = {"_id": rng.randrange(4000)}
                    database.documents.update_one(some, {"$push": {"tags": at}, "$inc": {"n": 1}})
                    database.documents.delete_one({"_id": rng.randrange(4000)})
                    database.log.insert_one({"at": at})
                    if at % 50 == 0:
                        database[f"made{number}"].insert_one({"at": at})
                        database[f"made{number}"].create_index("at")
                        database[f"made{number}"].rename(f"kept{number}", dropTarget=True)
                        database.documents.create_index([("n", 1), (f"text{number}", 1)], name=f"text{number}")
                        database.documents.drop_index(f"text{number}")
        except pymongo.errors.PyMongoError as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def add(members, node):
    """Makes the node a member without a vote."""
    members.reconfigure(lambda config: config["members"].append(
        {"_id": len(config["members"]), "host": f"127.0.0.1:{node.port}", "priority": 0, "votes": 0}
    ))
    members.nodes.append(node)


def alike(members):
    """Waits until all have the same documents, and checks everything that is derived from them."""
    members.wait_alike()
    members.wait_alike("config")
    for node in members.nodes:
        with members.member(node) as client:
            for name in client.test.list_collection_names(filter={"type": "collection"}):
                validated = client.test.command("validate", name, full=True)
                assert validated["valid"], validated


def watched(members, node, on_report=lambda: None):
    """What a member reports of its initial sync until it is a secondary. Calls `on_report` each
    time it has."""
    reports = []

    def is_secondary():
        with members.member(node) as client:
            try:
                status = client.admin.command("replSetGetStatus")
            except pymongo.errors.OperationFailure as error:
                assert error.code == 94, error
                return False
        assert status["myState"] in (2, 5), status
        if "initialSyncStatus" in status:
            assert status["myState"] == 5, status
            reports.append(status["initialSyncStatus"])
            on_report()
        return status["myState"] == 2

    wait_until(is_secondary)
    return reports


def check_status(reports):
    last = reports[-1]
    assert last["failedInitialSyncAttempts"] == 0 and last["maxFailedInitialSyncAttempts"] == 10, last
    assert last["totalInitialSyncElapsedMillis"] >= 0 and last["initialSyncAttempts"] == []
    databases = last["databases"]
    assert databases["databasesToClone"] >= databases["databasesCloned"]
    if "test" in databases:
        documents = databases["test"].get("test.documents")
        assert documents is None or documents["documentsCopied"] >= 0 and documents["indexes"] >= 5, documents


def test_a_member_that_is_added_while_clients_write():
    with ReplicaSet(1) as members:
        with members.client() as client:
            fill(client.test)
        with Node("--replSet", "rs0", "--cpus", "2", "--partitions", "3", *TEST_COMMANDS) as node:
            with Writers(members), members.member(node) as client:
                # It does not end its copy before it was seen.
                fetching = FailPoint(client, "stopReplProducer")
                add(members, node)
                reports = watched(members, node, fetching.off)
            check_status(reports)
            alike(members)
            with members.member(node) as client:
                status = client.admin.command("replSetGetStatus")
                assert "initialSyncStatus" not in status
                natural = [document["_id"] for document in client.test.log.find()]
            with members.member(members.nodes[0]) as client:
                assert natural == [document["_id"] for document in client.test.log.find()]
            # It continues as any other, and has its data after a restart.
            with members.client(w=2) as client:
                client.test.documents.with_options(write_concern=WriteConcern(2, wtimeout=PATIENCE_MS)).insert_one({"u": -1})
            node.stop()
            node.start()
            wait_until(lambda: members.state(node) == 2)
            alike(members)
            members.nodes.pop()


@pytest.mark.parametrize("moment", ["begin", "copied", "stopped"])
def test_a_copy_that_was_cut_off_starts_again(moment):
    with ReplicaSet(1) as members:
        with members.client() as client:
            fill(client.test)
        with Node("--replSet", "rs0", "--cpus", "2") as node:
            with Writers(members):
                add(members, node)
                word = {"copied": "Beginning oplog replay"}.get(moment, "Starting initial sync attempt")
                wait_until(lambda: any(word in line for line in node.log))
                if moment == "stopped":
                    assert node.stop() == 0
                else:
                    node.kill()
                node.start()
                wait_until(lambda: members.state(node) == 2)
            alike(members)
            members.nodes.pop()


def test_a_source_whose_connections_are_cut():
    """Each collection continues where it was; what comes twice is there once."""
    with ReplicaSet(1, options=TEST_COMMANDS) as members:
        with members.client() as client:
            fill(client.test)
            client.test.create_collection("ordered", clusteredIndex={"key": {"_id": 1}, "unique": True})
            for name in ["ordered", "words", "large"]:
                client.test[name].insert_many([{"_id": f"{i}", "w": "x" * 2000} for i in range(1000)])
        with Node("--replSet", "rs0", "--cpus", "2", "--partitions", "1") as node:
            with members.member(members.nodes[0]) as client:
                FailPoint(client, "failCommand", {"times": 8}, failCommands=["getMore"], failInternalCommands=True, closeConnection=True)
                with Writers(members):
                    add(members, node)
                    wait_until(lambda: members.state(node) == 2)
            alike(members)
            attempts = [line for line in node.log if "Starting initial sync attempt" in line]
            assert len(attempts) == 1, attempts
            members.nodes.pop()
