"""Replica sets of real processes: a set of one, and what a set of three survives."""

import signal
import threading
import time
import uuid

import pymongo
import pytest
from bson import Timestamp, decode_all
from pinion_elections import takes_over
from pinion_node import STEADY, Node, ReplicaSet, wait_until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import NotPrimaryError, OperationFailure
from pymongo.read_concern import ReadConcern


def fails(database, command, code):
    with pytest.raises((OperationFailure, NotPrimaryError)) as caught:
        database.command(command)
    assert caught.value.details["code"] == code, caught.value.details


@pytest.fixture(scope="module")
def alone():
    with ReplicaSet(1) as members:
        yield members


@pytest.fixture(scope="module")
def three():
    with ReplicaSet(3, STEADY) as members:
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


def test_members_have_what_only_pipelines_and_options_make(three):
    """Documents whose fields look like operators or differences, and a tree with a name of its own,
    on members and after restarts."""
    with three.client(w="majority", journal=True) as client:
        collection = client.odd.c
        made = [{"_id": 1, "$a": 1}, {"_id": 2, "$set": {"b": 1}}, {"_id": 3, "$v": 2, "diff": {"d": {"x": False}}}]
        collection.insert_many({"_id": document["_id"], "x": 1} for document in made)
        for document in made:
            collection.update_one({"_id": document["_id"]}, [{"$replaceWith": {"$literal": document}}])
        whole = [entry["o"] for entry in client.local["oplog.rs"].find({"ns": "odd.c", "op": "u"})]
        assert whole == made, "they are logged whole, which is what this is about"
        client.odd.create_collection("named", clusteredIndex={"key": {"_id": 1}, "unique": True, "name": "mine"})
        client.odd.named.insert_one({"_id": 1})
        three.wait_alike("odd")
        node = three.secondaries()[0]
        node.kill()
        node.start()
        wait_until(lambda: three.state(node) == 2)
        three.wait_alike("odd")
        with three.member(node) as member:
            assert list(member.odd.c.find()) == made
            assert [index["name"] for index in member.odd.named.list_indexes()] == ["mine"]


def test_a_secondary_makes_no_collection_for_out(three):
    with three.client(w=3) as client:
        client.outs.c.insert_one({"_id": 1})
    with three.member(three.secondaries()[0]) as member:
        for stage in ({"$out": "o"}, {"$merge": "o"}):
            fails(member.outs, {"aggregate": "c", "pipeline": [stage], "cursor": {}}, 10107)


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
    # An idle primary writes what changes nothing.
    newest = next(oplog.find({"op": {"$ne": "n"}}).sort("$natural", -1).limit(1))
    assert newest["ts"] == entries[-1]["ts"]
    assert list(oplog.find({"ts": entries[1]["ts"]})) == [entries[1]]
    fails(client.local, {"insert": "oplog.rs", "documents": [{}]}, 73)
    later = {"ts": {"$gt": newest["ts"]}, "op": "i"}
    tail = oplog.find(later, cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(300_000)
    collection.insert_one({"_id": 2})
    assert next(tail)["o"] == {"_id": 2}
    began = time.monotonic()
    collection.insert_one({"_id": 3})
    # It does not wait for what is there.
    assert next(tail)["o"] == {"_id": 3} and time.monotonic() - began < 120


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


def test_members_have_the_same_data(three):
    client = three.client(w=3)
    database = client.test
    database.c.insert_many([{"_id": i, "a": i % 7} for i in range(2000)])
    database.c.create_index("a")
    database.c.update_many({"a": 3}, {"$inc": {"n": 1}})
    database.c.delete_many({"a": 4})
    database.capped.drop()
    database.create_collection("capped", capped=True, size=4096)
    database.capped.insert_many([{"x": i} for i in range(100)])
    database.c.rename("renamed", dropTarget=True)
    database.renamed.create_index("n", sparse=True)
    three.wait_alike()
    for node in three.secondaries():
        with three.member(node) as member:
            fails(member.test, {"insert": "renamed", "documents": [{}]}, 10107)
            read = member.get_database("test", read_preference=ReadPreference.SECONDARY)
            assert read.renamed.count_documents({"a": 5}) == 285
            assert {index["name"] for index in read.renamed.list_indexes()} == {"_id_", "a_1", "n_1"}


def test_an_update_is_logged_as_a_difference(three):
    client = three.client()
    client.test.diffs.insert_one({"_id": 1, "a": 1, "b": [1, 2], "pad": "x" * 200})
    client.test.diffs.update_one({"_id": 1}, {"$set": {"a": 2}, "$push": {"b": 3}})
    entry = client.local.oplog.rs.find_one({"op": "u", "ns": "test.diffs"})
    assert entry["o"] == {"$v": 2, "diff": {"u": {"a": 2}, "sb": {"a": True, "u2": 3}}}
    assert entry["o2"] == {"_id": 1}


def test_concerns(three):
    client = three.client()
    collection = client.test.concerns
    collection.insert_one({"_id": 1})
    majority = collection.with_options(read_preference=ReadPreference.SECONDARY, read_concern=ReadConcern("majority"))
    wait_until(lambda: majority.find_one({"_id": 1}))
    assert collection.with_options(read_concern=ReadConcern("linearizable")).find_one({"_id": 1})
    with client.start_session(causal_consistency=True) as session:
        for at in range(20):
            collection.insert_one({"_id": f"causal {at}"}, session=session)
            secondary = collection.with_options(read_preference=ReadPreference.SECONDARY)
            assert secondary.find_one({"_id": f"causal {at}"}, session=session)
    four = collection.with_options(write_concern=WriteConcern(4, wtimeout=500))
    with pytest.raises(pymongo.errors.WriteConcernError) as caught:
        four.insert_one({"_id": 2})
    assert caught.value.code == 100


def test_a_primary_without_a_successor_continues(three):
    primary = three.primary()

    def maintain(on):
        for node in three.nodes:
            if node is not primary:
                with three.member(node) as member:
                    member.admin.command("replSetMaintenance", on)
        with three.member(primary) as client:
            # As the primary knows it.
            states = lambda: [member["stateStr"] for member in client.admin.command("replSetGetStatus")["members"]]
            wait_until(lambda: states().count("SECONDARY") == (0 if on else 2))

    maintain(True)
    with three.member(primary) as client:
        fails(client.admin, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 1}, 262)
        # It is primary as before, and does then what one does.
        client.test.c.insert_one({"_id": "after"})
        client.test.create_collection("made_after")
        client.test.c.create_index("k")
    maintain(False)
    three.wait_alike()
    assert three.primary() is primary


def test_a_member_that_does_not_answer_itself_is_not_removed():
    with ReplicaSet(2, STEADY, options=("--setParameter", "enableTestCommands=1")) as members:
        busy = members.secondaries()[0]
        with members.member(busy) as member:
            silent = {"failCommands": ["_isSelf"], "closeConnection": True}
            member.admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": silent})
            before = member.admin.command("replSetGetConfig")["config"]["version"]
            members.reconfigure(lambda config: config["settings"].update(catchUpTakeoverDelayMillis=31_000))
            wait_until(lambda: member.admin.command("replSetGetConfig")["config"]["version"] > before)
            assert members.state(busy) == 2


def test_the_primary_steps_down_and_another_follows_at_once():
    with ReplicaSet(3, {"electionTimeoutMillis": 10_000}) as members:
        before = members.primary()
        with members.member(before) as client:
            client.admin.command("replSetStepDown", 20, secondaryCatchUpPeriodSecs=19)
            fails(client.test, {"insert": "c", "documents": [{}]}, 10107)
        after = members.primary()
        assert after is not before
        # Nothing had to be waited for: it was asked to stand.
        with members.member(after) as client:
            metrics = client.admin.command("replSetGetStatus")["electionCandidateMetrics"]
            assert metrics["lastElectionReason"] == "stepUpRequestSkipDryRun"
        # The first member has the highest priority and takes over again.
        wait_until(lambda: members.state(members.nodes[0]) == 1)
        with members.client(w="majority") as client:
            client.test.c.insert_one({})
        members.wait_alike()


def test_an_oplog_ends_in_the_same_place_everywhere(three):
    with three.client(w=3) as client:
        client.test.c.insert_one({})

    def last(node):
        with three.member(node) as client:
            return next(client.local["oplog.rs"].find().sort("$natural", -1).limit(1))

    wait_until(lambda: len({(last(node)["ts"], last(node)["t"]) for node in three.nodes}) == 1)
    assert last(three.nodes[0])["ts"] > Timestamp(1, 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_takes_over_when_the_primary_is_gone(how):
    """With the default settings; nothing that a majority had is lost."""
    with ReplicaSet(3, settings={}) as members:
        with members.client(w="majority") as client:
            client.test.c.insert_many([{"_id": i} for i in range(100)])
        gone = members.primary()
        gone.process.send_signal(how)
        began = time.monotonic()
        rest = [node for node in members.nodes if node is not gone]

        def is_writable():
            for node in rest:
                with members.member(node) as client:
                    if client.admin.command("hello")["isWritablePrimary"]:
                        return True
            return False

        wait_until(is_writable)
        took = time.monotonic() - began
        print(f"without a primary for {took:.2f} s")
        with members.member(rest[0]) as client:
            kept = client.test.get_collection("c", read_preference=ReadPreference.SECONDARY_PREFERRED)
            # A majority had them, which need not have been this one.
            wait_until(lambda: kept.count_documents({}) == 100)
        if how == signal.SIGSTOP:
            gone.process.send_signal(signal.SIGCONT)
        else:
            gone.process.wait()
            gone.start()
        wait_until(lambda: members.state(gone) in (1, 2))
        with members.client(w=3) as client:
            client.test.c.insert_one({"_id": "after"})
        members.wait_alike()


def test_a_member_that_joins_later_copies_what_is_there():
    with ReplicaSet(1, STEADY) as members, members.client(w=1) as client:
        database = client.test
        database.c.insert_many([{"_id": i, "a": i % 10, "text": "x" * 100} for i in range(20_000)])
        database.c.create_index("a")
        database.c.create_index([("text", "text")])
        database.create_collection("capped", capped=True, size=1 << 20)
        database.capped.insert_many([{"x": i} for i in range(500)])
        database.create_collection("view", viewOn="c", pipeline=[{"$match": {"a": 1}}])
        client.other.u.create_index("u", unique=True)
        client.other.u.insert_many([{"u": i} for i in range(1000)])
        done = threading.Event()

        def write():
            at = 20_000
            while not done.is_set():
                database.c.insert_one({"_id": at, "a": at % 10})
                database.c.update_one({"_id": at - 20_000}, {"$inc": {"n": 1}})
                client.other.u.update_one({"u": at % 1000}, {"$set": {"u": at}})
                at += 1

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            added = members.add()
            wait_until(lambda: members.state(added) == 2)
        finally:
            done.set()
            writer.join()
        with members.client(w=2) as acknowledged:
            acknowledged.test.c.insert_one({"_id": "last"})
        for name in ("test", "other"):
            members.wait_alike(name)
        with members.member(added) as copied:
            copied = copied.get_database("test", read_preference=ReadPreference.SECONDARY)
            assert {index["name"] for index in copied.c.list_indexes()} == {"_id_", "a_1", "text_text"}
            assert [document["x"] for document in copied.capped.find()] == list(range(500))
            assert copied.view.count_documents({}) >= 2000
            assert copied.command("validate", "c")["valid"]
        # It bears what the first one did, which need not come back.
        config = client.admin.command("replSetGetConfig")["config"]
        assert [member["votes"] for member in config["members"]] == [1, 1]


def test_what_only_the_old_primary_had_is_rolled_back():
    with ReplicaSet(3, STEADY) as members:
        with members.client(w=3) as client:
            client.test.c.insert_many([{"_id": i} for i in range(100)])
            client.test.c.create_index("a")
        old, rest = members.nodes[0], members.nodes[1:]
        for node in rest:
            node.kill()
        with members.member(old, w=1, journal=True, retryWrites=False) as client:
            client.test.c.insert_many([{"_id": f"lost {i}"} for i in range(50)])
            client.test.c.update_one({"_id": 1}, {"$set": {"lost": True}})
            client.test.c.delete_one({"_id": 2})
            client.lost.c.insert_one({"_id": 1})
            before = client.admin.command("replSetGetRBID")["rbid"]
        old.kill()
        for node in rest:
            node.start()
        wait_until(lambda: takes_over(members, rest[0]))
        with members.member(rest[0], w=2) as client:
            client.test.c.insert_many([{"_id": f"kept {i}"} for i in range(50)])
        old.start()
        wait_until(lambda: members.state(old) in (1, 2))
        members.wait_alike("test")
        members.wait_alike("lost")
        with members.member(old) as client:
            read = client.get_database("test", read_preference=ReadPreference.SECONDARY_PREFERRED)
            assert read.c.count_documents({}) == 150
            assert read.c.find_one({"_id": 1}) == {"_id": 1} and read.c.find_one({"_id": 2})
            assert read.command("validate", "c")["valid"]
            assert client.admin.command("replSetGetRBID")["rbid"] > before
        removed = list((old.directory / "data" / "rollback").rglob("*.bson"))
        # A folder for each collection, called after its UUID.
        assert len({uuid.UUID(path.parent.name) for path in removed}) == len(removed) == 2
        kept = {document["_id"]: document for path in removed for document in decode_all(path.read_bytes())}
        assert kept["lost 7"] == {"_id": "lost 7"} and len(kept) == 51
        # It takes writes and survives as any other member.
        with members.client(w=3) as client:
            client.test.c.insert_one({"_id": "after"})
        old.kill()
        old.start()
        wait_until(lambda: members.state(old) in (1, 2))
        members.wait_alike()
