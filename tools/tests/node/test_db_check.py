"""`dbCheck`: what members of a set find of one another, what they write into
`local.system.healthlog`, and what ends a run."""

import contextlib

import pymongo
import pytest
from bson import MaxKey
from pinion_node import Node, ReplicaSet, wait_until

DOCUMENTS = 2000
BATCH = 500
PADDING = "x" * 1000


def code_of(act):
    with pytest.raises(pymongo.errors.OperationFailure) as caught:
        act()
    return caught.value.code


def health(client, **wanted):
    """The notes of a member, the oldest first."""
    return list(client.local["system.healthlog"].find(wanted))


def stops(client):
    return len(health(client, operation="dbCheckStop"))


@contextlib.contextmanager
def members(replica_set):
    """A client of each member alone, the primary's first."""
    with contextlib.ExitStack() as stack:
        primary = replica_set.primary()
        nodes = sorted(replica_set.nodes, key=lambda node: node is not primary)
        yield [stack.enter_context(replica_set.member(node, readPreference="primaryPreferred")) for node in nodes]


def set_everywhere(clients, **parameters):
    for client in clients:
        client.admin.command("setParameter", 1, **parameters)


def check(clients, command, **options):
    """Runs a check on the primary until every member has written down its end."""
    before = [stops(client) for client in clients]
    assert clients[0].test.command("dbCheck", command, **options)["ok"] == 1
    wait_until(lambda: all(stops(client) > known for client, known in zip(clients, before)), 60)


def running(client):
    return client.admin.command({"currentOp": 1, "command.dbCheck": {"$exists": True}})["inprog"]


def fill(replica_set, documents=DOCUMENTS):
    with replica_set.client() as client:
        collection = client.test.get_collection("c", write_concern=pymongo.WriteConcern(w=len(replica_set.nodes)))
        collection.create_index("a")
        collection.insert_many({"_id": i, "a": i % 10, "text": PADDING} for i in range(documents))


def test_members_that_are_alike():
    with ReplicaSet(3) as replica_set:
        fill(replica_set)
        with members(replica_set) as clients, clients[0].watch() as everything:
            set_everywhere(clients, dbCheckHealthLogEveryNBatches=1, maxDbCheckMBperSec=0)
            check(clients, "c", maxDocsPerBatch=BATCH)
            digests = []
            for client in clients:
                assert client.local.command("listCollections", filter={"name": "system.healthlog"})["cursor"]["firstBatch"][0]["options"]["capped"]
                notes = health(client)
                assert [note["operation"] for note in notes] == ["dbCheckStart", *["dbCheckBatch"] * 4, "dbCheckStop"], notes
                assert {note["severity"] for note in notes} == {"info"} and {note["namespace"] for note in notes} == {"test.c"}
                batches = [note["data"] for note in notes[1:-1]]
                assert all(batch["success"] and batch["md5"]["found"] == batch["md5"]["expected"] for batch in batches)
                assert [batch["count"] for batch in batches] == [BATCH] * 4
                # Nothing lies between two batches.
                for one, next_one in zip(batches, batches[1:]):
                    assert next_one["batchStart"] == one["batchEnd"]
                digests.append([(batch["md5"]["found"], batch["readTimestamp"], batch["batchEnd"]) for batch in batches])
            assert digests[0] == digests[1] == digests[2]
            entries = list(clients[0].local["oplog.rs"].find({"o.dbCheck": "test.c"}))
            assert [entry["o"]["type"] for entry in entries] == ["start", *["batch"] * 4, "stop"]
            assert all((entry["op"], entry["ns"]) == ("c", "test.$cmd") and "ui" in entry for entry in entries)
            assert not list(clients[0].local["oplog.rs"].find({"ns": "local.system.healthlog"}))
            # The other modes, a database, and a part of the collection.
            check(clients, "c", validateMode="dataConsistencyAndMissingIndexKeysCheck", bsonValidateMode="kFull")
            check(clients, "c", validateMode="extraIndexKeysCheck", secondaryIndex="a_1", maxDocsPerBatch=300)
            check(clients, 1)
            check(clients, "c", start={"_id": 10}, end={"_id": 19})
            check(clients, "c", minKey=10, maxCount=7)
            for client in clients:
                assert not health(client, severity={"$ne": "info"})
                batches = [note["data"] for note in health(client, operation="dbCheckBatch")]
                assert [batch["count"] for batch in batches[-2:]] == [10, 7]
                entries_of_index = [batch for batch in batches if "a" in batch["batchStart"]]
                assert sum(batch["count"] for batch in entries_of_index) == DOCUMENTS and len(entries_of_index) == 7
            # Change streams pass over all of it.
            clients[0].test.other.insert_one({"_id": 1})
            event = next(everything)
            assert event["ns"]["coll"] == "other", event
            # Only each n-th batch is logged, but the first always.
            set_everywhere(clients, dbCheckHealthLogEveryNBatches=3)
            before = [len(health(client, operation="dbCheckBatch")) for client in clients]
            check(clients, "c", maxDocsPerBatch=BATCH)
            assert [len(health(client, operation="dbCheckBatch")) for client in clients] == [known + 2 for known in before]
            with pytest.raises(pymongo.errors.NotPrimaryError):
                clients[1].test.command("dbCheck", "c")
            assert code_of(lambda: clients[0].admin.command("setParameter", 1, dbCheckHealthLogEveryNBatches=0)) == 2
        # What was compared is not compared again by a recovering member.
        secondary = replica_set.secondaries()[0]
        with replica_set.member(secondary) as client:
            before = len(health(client))
        secondary.kill()
        secondary.start()
        wait_until(lambda: replica_set.state(secondary) == 2, 60)
        with replica_set.member(secondary) as client:
            assert before - 2 <= len(health(client)) <= before


def changed_alone(replica_set, node, change):
    """Changes a member's data while it runs without the others."""
    assert node.stop() == 0
    options, node.options = node.options, ["--cpus", "2"]
    node.start()
    with node.client() as client:
        change(client.test.c)
    assert node.stop() == 0
    node.options = options
    node.start()
    wait_until(lambda: replica_set.state(node) == 2, 60)


def test_a_member_that_differs():
    with ReplicaSet(3) as replica_set:
        fill(replica_set)
        damaged = replica_set.secondaries()[0]

        def change(collection):
            collection.update_one({"_id": 777}, {"$set": {"text": "other"}})
            collection.delete_one({"_id": 1300})
            # Behind all that the primary has.
            collection.insert_one({"_id": "last"})

        changed_alone(replica_set, damaged, change)
        with members(replica_set) as clients:
            set_everywhere(clients, maxDbCheckMBperSec=0)
            check(clients, "c", maxDocsPerBatch=BATCH)
            for client in clients:
                errors = health(client, severity="error")
                if client.address[1] != damaged.port:
                    assert not errors, errors
                    continue
                assert [note["msg"] for note in errors] == ["dbCheck batch inconsistent"] * 3
                assert {note["operation"] for note in errors} == {"dbCheckBatch"}
                found = [note["data"] for note in errors]
                assert all(not data["success"] and data["md5"]["found"] != data["md5"]["expected"] for data in found)
                ranges = [(data["batchStart"]["_id"], data["batchEnd"]["_id"]) for data in found]
                assert ranges[:2] == [(499, 999), (999, 1499)], ranges
                assert ranges[2] == (1499, MaxKey()), ranges
                assert [data["count"] for data in found] == [BATCH, BATCH - 1, BATCH + 1]
            # The index has what the documents of each member ask for.
            check(clients, "c", validateMode="extraIndexKeysCheck", secondaryIndex="a_1")
            other = [len(health(client, severity="error", scope="index")) for client in clients]
            assert other == [0, 0, 0]


def test_a_run_is_slowed_down_and_can_be_stopped():
    with ReplicaSet(1) as replica_set:
        fill(replica_set, 12_000)
        with replica_set.client() as client:
            assert client.admin.command("getParameter", maxDbCheckMBperSec=1)["maxDbCheckMBperSec"] == 1
            client.test.command("dbCheck", "c", maxDocsPerBatch=1000, end={"_id": 2999})
            # The second waits for the first.
            client.test.command("dbCheck", "c", maxDocsPerBatch=1000)
            assert [operation["command"]["dbCheck"] for operation in running(client)] == ["c", "c"]
            wait_until(lambda: stops(client) == 1)
            first = [note["timestamp"] for note in health(client, operation={"$in": ["dbCheckStart", "dbCheckStop"]})][:2]
            # About a second behind each batch but the last.
            assert (first[1] - first[0]).total_seconds() > 1.7, first
            wait_until(lambda: len(health(client, operation="dbCheckStart")) == 2)
            (operation,) = running(client)
            client.admin.command("killOp", op=operation["opid"])
            wait_until(lambda: not running(client))
            (note,) = health(client, severity="warning")
            assert (note["msg"], note["operation"]) == ("dbCheck terminated", "dbCheckStop")
            assert client.local["oplog.rs"].count_documents({"o.dbCheck": "test.c", "o.type": "stop"}) == 2
            assert not health(client, severity="error")


def test_a_run_ends_with_its_primary():
    with ReplicaSet(3) as replica_set:
        fill(replica_set)
        other, absent = replica_set.secondaries()
        assert absent.stop() == 0
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(replica_set.member(node, readPreference="primaryPreferred")) for node in (replica_set.primary(), other)]
            # Its first batch waits for a member that is not there.
            clients[0].test.command("dbCheck", "c", maxDocsPerBatch=500, batchWriteConcern={"w": 3})
            wait_until(lambda: len(health(clients[1], operation="dbCheckBatch")) > 0)
            assert running(clients[0])
            clients[0].admin.command("replSetStepDown", 60, secondaryCatchUpPeriodSecs=20)
            wait_until(lambda: not running(clients[0]))
            wait_until(lambda: replica_set.leads(other), 60)
            wait_until(lambda: len(health(clients[0], severity="warning", msg="dbCheck terminated")) == 1)
            # No process continues with it.
            assert all(not running(client) for client in clients)
            assert all(stops(client) == 0 for client in clients[1:])
            assert not any(health(client, severity="error") for client in clients)
        absent.start()
        wait_until(lambda: replica_set.state(absent) == 2, 60)
        with replica_set.member(absent) as client:
            assert stops(client) == 0 and not health(client, severity="error")


def test_what_is_refused():
    with Node("--cpus", "2") as node, node.client() as client:
        client.test.c.insert_one({})
        assert code_of(lambda: client.test.command("dbCheck", "c")) == 76
    with ReplicaSet(1) as replica_set, replica_set.client() as client:
        client.test.c.insert_one({})
        client.test.create_collection("view", viewOn="c", pipeline=[])
        for database, command, code in [
            ("test", {"dbCheck": "nosuch"}, 26), ("nosuch", {"dbCheck": 1}, 26), ("test", {"dbCheck": "view"}, 166), ("local", {"dbCheck": 1}, 73),
            ("local", {"dbCheck": "startup_log"}, 73), ("config", {"dbCheck": "transactions"}, 73), ("test", {"dbCheck": ""}, 73),
            ("test", {"dbCheck": "c", "secondaryIndex": "a_1"}, 72), ("test", {"dbCheck": "c", "maxCountPerSecond": 1}, 40415),
            ("test", {"dbCheck": "c", "apiVersion": "1", "apiStrict": True}, 323),
        ]:
            assert code_of(lambda: client[database].command(command)) == code, command
        for act, code in [(lambda: client.local["system.healthlog"].insert_one({}), 73), (lambda: client.local.create_collection("system.healthlog"), 20)]:
            assert code_of(act) == code
        with client.start_session() as session, session.start_transaction():
            client.test.c.find_one({}, session=session)
            assert code_of(lambda: client.test.command("dbCheck", "c", session=session)) == 263
        # What is found out later is written down.
        client.test.command("dbCheck", "c", validateMode="extraIndexKeysCheck", secondaryIndex="nosuch")
        wait_until(lambda: len(health(client, severity="warning")) == 1)
        assert "no such index" in health(client, severity="warning")[0]["data"]["error"]
