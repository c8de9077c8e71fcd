"""Indexes built on replica sets of real processes: which members are waited for, and what a build
survives."""

import contextlib
import threading
import time
import uuid

import pymongo
import pytest
from bson.binary import Binary
from pinion_elections import elected
from pinion_node import PATIENCE_SECS, STEADY, ReplicaSet, wait_until
from pymongo import ReadPreference
from pymongo.errors import OperationFailure

WAITING = "Index Build: waiting for next action before completing final phase"
DOCUMENTS = 2000


class Build(threading.Thread):
    """A `createIndexes` on the primary in a thread of its own."""

    def __init__(self, members, name="a_1", keys=None, **options):
        super().__init__()
        self.primary = members.primary()
        self.client = members.member(self.primary)
        self.command = {"createIndexes": "c", "indexes": [{"key": keys or {"a": 1}, "name": name, **options.pop("spec", {})}], **options}
        self.error = None
        self.reply = None
        self.start()

    def run(self):
        try:
            self.reply = self.client.test.command(self.command)
        except pymongo.errors.PyMongoError as error:
            self.error = error

    def code(self):
        self.join(PATIENCE_SECS)
        assert not self.is_alive(), "createIndexes has not answered"
        return self.error.details["code"] if self.error else 0


def operations(members, node):
    with members.member(node) as client:
        found = client.admin.aggregate([{"$currentOp": {}}, {"$match": {"desc": {"$regex": "^IndexBuilds"}}}])
        return list(found)


def wait_waiting(members, nodes):
    """Waits until the members have made all entries of a build, and wait for the set."""
    for node in nodes:
        wait_until(lambda node=node: any(op["msg"].startswith(WAITING) for op in operations(members, node)))


def votes(client):
    kept = client.config["system.indexBuilds"].find_one()
    return set(kept.get("commitReadyMembers", [])) if kept else set()


def listed(members, node, collection="c"):
    """The names of the indexes of a member, and which of them are being built."""
    with members.member(node) as client:
        database = client.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)
        try:
            reply = database.command({"listIndexes": collection, "includeBuildUUIDs": True})
        except OperationFailure as error:
            assert error.code == 26, error
            return set(), set()
    indexes = reply["cursor"]["firstBatch"]
    return {index["name"] for index in indexes if "name" in index}, {index["spec"]["name"] for index in indexes if "spec" in index}


def wait_listed(members, names):
    for node in members.nodes:
        wait_until(lambda node=node: listed(members, node) == (names, set()))


def check_alike(members, database="test"):
    """All members have the same documents, and every index of each is that of its documents."""
    members.wait_alike(database)
    for node in members.nodes:
        with members.member(node) as client:
            read = client.get_database(database, read_preference=ReadPreference.SECONDARY_PREFERRED)
            reply = read.command("validate", "c", full=True)
            assert reply["valid"], reply
            keys = reply["keysPerIndex"]
            assert len(set(keys.values())) == 1, keys


def fill(members):
    with members.client(w=len(members.nodes)) as client:
        client.test.c.insert_many([{"_id": i, "a": i * 7919 % DOCUMENTS} for i in range(DOCUMENTS)])


def write_beside(client, at):
    """Writes of all kinds, while a build is under way."""
    collection = client.test.c
    collection.insert_many([{"_id": f"{at} {i}", "a": -i} for i in range(50)])
    collection.update_many({"_id": {"$lt": 100}}, {"$inc": {"a": 10_000 + at}})
    collection.delete_many({"_id": {"$gte": 1000 + 10 * at, "$lt": 1010 + 10 * at}})


@contextlib.contextmanager
def filled(**options):
    with ReplicaSet(3, STEADY, **options) as members:
        fill(members)
        yield members


def restart(members, node):
    node.start()
    wait_until(lambda: members.state(node) in (1, 2))


def test_a_build_waits_for_the_voting_members():
    with filled() as members:
        gone = members.nodes[2]
        gone.kill()
        build = Build(members)
        wait_waiting(members, members.nodes[:2])
        with members.client() as client:
            hosts = {f"127.0.0.1:{node.port}" for node in members.nodes[:2]}
            wait_until(lambda: votes(client) == hosts)
            kept = client.config["system.indexBuilds"].find_one()
            assert kept["commitQuorum"] == "votingMembers" and kept["indexNames"] == ["a_1"]
            assert kept["collectionUUID"] == next(client.test.list_collections(filter={"name": "c"}))["info"]["uuid"]
            write_beside(client, 1)
            time.sleep(0.5)
            assert build.is_alive() and listed(members, members.nodes[0]) == ({"_id_"}, {"a_1"})
            restart(members, gone)
            assert build.code() == 0 and build.reply["commitQuorum"] == "votingMembers"
            write_beside(client, 2)
            wait_until(lambda: client.config["system.indexBuilds"].count_documents({}) == 0)
            assert client.admin.command("serverStatus")["indexBuilds"]["total"] >= 1
        wait_listed(members, {"_id_", "a_1"})
        check_alike(members)


def test_a_build_of_a_majority_does_not_wait_for_one_that_is_gone():
    with filled() as members:
        gone = members.nodes[2]
        gone.kill()
        build = Build(members, commitQuorum="majority")
        assert build.code() == 0 and build.reply["commitQuorum"] == "majority"
        # No other member is waited for.
        assert Build(members, "b_1", {"b": 1}, commitQuorum=0, writeConcern={"w": 1}).code() == 0
        # What waits for all can be set to wait for fewer.
        waits = Build(members, "x_1", {"x": 1})
        wait_waiting(members, members.nodes[:2])
        with members.client() as client:
            write_beside(client, 1)

            def change(quorum, names=("x_1",), code=0):
                command = {"setIndexCommitQuorum": "c", "indexNames": list(names), "commitQuorum": quorum}
                if not code:
                    return client.test.command(command)
                with pytest.raises(OperationFailure) as refused:
                    client.test.command(command)
                assert refused.value.code == code, refused.value.details

            change("majority", ["a_1"], 27)
            change("majority", [], 27)
            change(4, code=278)
            change("unknown", code=79)
            change(0, code=2)
            assert waits.is_alive()
            change("majority")
        assert waits.code() == 0
        restart(members, gone)
        wait_listed(members, {"_id_", "a_1", "b_1", "x_1"})
        check_alike(members)


def test_a_build_outlives_its_primary():
    with filled() as members:
        old, new, gone = members.nodes
        gone.kill()
        build = Build(members)
        wait_waiting(members, [old, new])
        with members.client(retryWrites=True) as client:
            write_beside(client, 1)
            with members.member(old) as primary:
                primary.admin.command("replSetStepDown", 600, secondaryCatchUpPeriodSecs=60)
            assert build.code() == 11602, build.error
            assert build.error.details["errmsg"] == "operation was interrupted"
            wait_until(lambda: members.steps_up(new))
            write_beside(client, 2)
            assert listed(members, new)[1] == {"a_1"} == listed(members, old)[1]
            # A client that asks the new primary for the same waits for the same build.
            again = Build(members)
            time.sleep(0.5)
            assert again.primary is new and again.is_alive()
            restart(members, gone)
            assert again.code() == 0
            write_beside(client, 3)
        wait_listed(members, {"_id_", "a_1"})
        check_alike(members)


def test_a_build_continues_after_a_restart():
    with filled() as members:
        primary, secondary, gone = members.nodes
        gone.kill()
        build = Build(members)
        wait_waiting(members, [primary, secondary])
        with members.client() as client:
            write_beside(client, 1)
            # A member that has voted, by a crash and then in order.
            secondary.kill()
            restart(members, secondary)
            elected(members)
            wait_waiting(members, [secondary])
            write_beside(client, 2)
        primary.kill()
        restart(members, primary)
        build.join(PATIENCE_SECS)
        assert build.error
        with members.client() as client:
            elected(members)
            write_beside(client, 3)
            assert primary.stop() == 0
            restart(members, primary)
            elected(members)
            wait_waiting(members, [primary, secondary])
            write_beside(client, 4)
        restart(members, gone)
        wait_listed(members, {"_id_", "a_1"})
        check_alike(members)


def test_what_ends_a_build_ends_it_everywhere():
    with filled() as members:
        with members.client(w=3) as client:
            client.test.c.insert_many([{"_id": "one", "u": 1}, {"_id": "two", "u": 1}])
        build = Build(members, "u_1", {"u": 1}, spec={"unique": True, "partialFilterExpression": {"u": {"$exists": True}}})
        assert build.code() == 11000, build.error
        wait_listed(members, {"_id_"})
        primary, secondary, gone = members.nodes
        gone.kill()
        for end in ("killOp", "killOp of a secondary", "dropIndexes", "drop"):
            build = Build(members)
            wait_waiting(members, [primary, secondary])
            with members.client() as client:
                write_beside(client, 1 + len(end))
                if end.startswith("killOp"):
                    node = secondary if "secondary" in end else primary
                    with members.member(node) as member:
                        member.admin.command("killOp", op=operations(members, node)[0]["opid"])
                elif end == "dropIndexes":
                    client.test.command("dropIndexes", "c", index="a_1")
                else:
                    client.test.c.drop()
                assert build.code() == 276, (end, build.error)
                if end == "drop":
                    client.test.c.insert_one({"_id": 1})
                wait_until(lambda: client.config["system.indexBuilds"].count_documents({}) == 0)
            for node in (primary, secondary):
                wait_until(lambda node=node: listed(members, node) == ({"_id_"}, set()) and not operations(members, node))
        restart(members, gone)
        wait_listed(members, {"_id_"})
        check_alike(members)


def test_a_member_that_is_copied_takes_part():
    with filled() as members:
        gone = members.nodes[2]
        gone.kill()
        build = Build(members)
        wait_waiting(members, members.nodes[:2])
        with members.client() as client:
            write_beside(client, 1)
            added = members.add()
            wait_until(lambda: members.state(added) == 2)
            write_beside(client, 2)
            wait_waiting(members, [added])
            assert build.is_alive()
            wait_until(lambda: f"127.0.0.1:{added.port}" in votes(client))
            restart(members, gone)
            assert build.code() == 0
            write_beside(client, 3)
        wait_listed(members, {"_id_", "a_1"})
        check_alike(members)


def test_votes_are_for_members():
    with filled() as members, members.client() as client:
        for vote in ("voteCommitIndexBuild", "voteAbortIndexBuild"):
            with pytest.raises(OperationFailure) as refused:
                client.admin.command({vote: Binary.from_uuid(uuid.uuid4()), "hostAndPort": "h:1"})
            assert refused.value.code == 4, refused.value.details
