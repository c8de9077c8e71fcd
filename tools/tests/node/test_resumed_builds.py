"""Builds of indexes over a restart of the node: in each phase what continues, and what begins
again."""

import pathlib
import threading

import pymongo
import pytest
from pinion_node import PATIENCE_MS, PATIENCE_SECS, STEADY, Node, ReplicaSet, wait_until
from pymongo.errors import OperationFailure, PyMongoError

SCAN, LOAD, DRAIN = POINTS = [
    ("collection scan", "hangIndexBuildDuringCollectionScanPhaseAfterInsertion"),
    ("bulk load", "hangIndexBuildDuringBulkLoadPhase"),
    ("drain writes", "hangIndexBuildDuringDrainWritesPhase"),
]
TESTS = ("--setParameter", "enableTestCommands=1")
DOCUMENTS = 8000
WROTE, RESUMING, NOT_RESUMED, RESTARTING = 4841502, 4841700, 4841701, 20660


@pytest.fixture
def node():
    with Node("--cpus", "2", *TESTS) as node:
        yield node


def fill(client):
    client.test.c.insert_many([{"_id": n, "a": n * 7919 % DOCUMENTS, "u": n} for n in range(DOCUMENTS)])


def set_point(client, point, mode):
    client.admin.command({"configureFailPoint": point, "mode": mode})


def begin_held(client, point):
    """Begins a build in a thread of its own, and waits until it is held up."""
    def build():
        own = pymongo.MongoClient(*client.address, directConnection=True)
        indexes = [{"key": {"a": 1}, "name": "a_1"}, {"key": {"u": 1}, "name": "u_1", "unique": True}]
        try:
            own.test.command({"createIndexes": "c", "indexes": indexes})
        except PyMongoError:
            pass
        own.close()

    set_point(client, point, "alwaysOn")
    threading.Thread(target=build, daemon=True).start()
    client.admin.command({"waitForFailPoint": point, "timesEntered": 1, "maxTimeMS": PATIENCE_MS})


def write_beside(client):
    collection = client.test.c
    collection.insert_many([{"_id": DOCUMENTS + n, "a": [n, -n], "u": DOCUMENTS + n} for n in range(100)])
    collection.update_many({"_id": {"$lt": DOCUMENTS, "$mod": [5, 1]}}, {"$inc": {"a": 100_000}})
    collection.delete_many({"_id": {"$mod": [5, 2]}})


def is_building(client):
    return next(client.admin.aggregate([{"$currentOp": {}}, {"$match": {"desc": {"$regex": "^IndexBuilds"}}}]), None) is not None


def check_built(client):
    wait_until(lambda: not is_building(client))
    collection = client.test.c
    assert set(collection.index_information()) == {"_id_", "a_1", "u_1"}
    reply = client.test.command({"validate": "c", "full": True})
    assert reply["valid"], reply["errors"]
    assert reply["keysPerIndex"]["u_1"] == reply["nrecords"] == collection.count_documents({})
    with pytest.raises(OperationFailure) as refused:
        collection.insert_one({"_id": "twice", "u": 1})
    assert refused.value.code == 11000


def said(node, number):
    """The attributes of the log's lines of this number."""
    return [line.get("attr", {}) for line in node.messages() if line.get("id") == number]


def temporary(node):
    return sorted(pathlib.Path(node.directory, "data", "_tmp").iterdir())


@pytest.mark.parametrize(["phase", "point"], POINTS)
def test_a_build_continues_after_a_stop(node, phase, point):
    client = node.client()
    fill(client)
    begin_held(client, point)
    write_beside(client)
    assert node.stop() == 0
    assert [line["phase"] for line in said(node, WROTE)] == [phase]
    node.start()
    client = node.client()
    check_built(client)
    wait_until(lambda: said(node, RESUMING))
    assert [line["phase"] for line in said(node, RESUMING)] == [phase] and not said(node, RESTARTING)
    assert temporary(node) == []
    # Nothing of it is left for a start behind that.
    assert node.stop() == 0
    node.start()
    check_built(node.client())
    assert not said(node, RESUMING)


def test_a_build_begins_again_after_a_crash(node):
    client = node.client()
    fill(client)
    begin_held(client, LOAD[1])
    write_beside(client)
    client.admin.command("fsync")
    node.kill()
    node.start()
    check_built(node.client())
    wait_until(lambda: said(node, RESTARTING))
    assert len(said(node, RESTARTING)) == 1 and not said(node, RESUMING)
    assert temporary(node) == []


@pytest.mark.parametrize("how", ["state", "missing", "entries"])
def test_a_build_begins_again_where_its_files_are_damaged(node, how):
    client = node.client()
    fill(client)
    begin_held(client, LOAD[1])
    write_beside(client)
    assert node.stop() == 0
    for file in temporary(node):
        if file.name.startswith("index-build-") == (how == "state"):
            if how == "missing":
                file.unlink()
                continue
            content = bytearray(file.read_bytes())
            content[40] ^= 1
            file.write_bytes(content)
    node.start()
    check_built(node.client())
    if how == "state":
        # Such a file is no build's.
        wait_until(lambda: said(node, RESTARTING))
    else:
        wait_until(lambda: said(node, NOT_RESUMED))
    assert temporary(node) == []


def test_a_build_that_cannot_be_made_ends_after_a_restart(node):
    client = node.client()
    fill(client)
    client.test.c.update_one({"_id": 3}, {"$set": {"u": 4}})
    begin_held(client, SCAN[1])
    assert node.stop() == 0
    node.start()
    client = node.client()
    wait_until(lambda: not is_building(client))
    assert set(client.test.c.index_information()) == {"_id_"}
    client.test.c.insert_one({"_id": "new", "u": 5})


def test_no_more_builds_run_than_a_parameter_says(node):
    client = node.client()
    fill(client)
    client.admin.command({"setParameter": 1, "maxNumActiveUserIndexBuilds": 1})
    begin_held(client, DRAIN[1])
    for collection in ("d", "e"):
        client.test[collection].insert_one({"a": 1})
    second = {"createIndexes": "d", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}
    with pytest.raises(OperationFailure) as late:
        client.test.command({**second, "maxTimeMS": 300})
    assert late.value.code == 50
    # One over an empty collection is none.
    client.test.command({"createIndexes": "none", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    assert client.admin.command("serverStatus")["indexBuilds"]["phases"]["drainSideWritesTable"] == 1
    client.admin.command({"setParameter": 1, "maxNumActiveUserIndexBuilds": 2})
    waits = threading.Thread(target=lambda: node.client().test.command(second))
    waits.start()
    set_point(client, DRAIN[1], "off")
    waits.join(PATIENCE_SECS)
    assert not waits.is_alive() and "a_1" in client.test.d.index_information()
    check_built(client)
    assert set(client.admin.command("serverStatus")["indexBuilds"]["phases"].values()) == {0}
    with pytest.raises(OperationFailure) as wrong:
        client.admin.command({"setParameter": 1, "maxNumActiveUserIndexBuilds": -1})
    assert wrong.value.code == 2


def test_members_continue_and_leave_builds_alone_in_maintenance():
    with ReplicaSet(3, STEADY, options=TESTS) as members:
        primary, secondary, _ = members.nodes
        with members.client(w=3) as client:
            fill(client)
        with members.member(secondary) as member:
            set_point(member, SCAN[1], "alwaysOn")
        with members.member(primary) as member:
            begin = threading.Thread(target=lambda: member.test.command(
                {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"u": 1}, "name": "u_1", "unique": True}]}
            ), daemon=True)
            begin.start()
            with members.member(secondary) as other:
                other.admin.command({"waitForFailPoint": SCAN[1], "timesEntered": 1, "maxTimeMS": PATIENCE_MS})
            write_beside(member)
            assert secondary.stop() == 0
            assert [line["phase"] for line in said(secondary, WROTE)] == ["collection scan"]
            # As a standalone for maintenance: the build waits, and `dropIndexes` is refused.
            alone = Node("--cpus", "2", directory=secondary.directory)
            alone.start()
            with alone.client() as standalone:
                assert not is_building(standalone)
                with pytest.raises(OperationFailure) as refused:
                    standalone.test.c.drop_index("a_1")
                assert refused.value.code == 12587
            assert alone.stop() == 0
            assert not said(alone, RESUMING) and not said(alone, RESTARTING)
            secondary.start()
            wait_until(lambda: members.state(secondary) == 2)
            wait_until(lambda: [line["phase"] for line in said(secondary, RESUMING)] == ["collection scan"])
            # The others have waited for its vote.
            begin.join(PATIENCE_SECS)
            assert not begin.is_alive()
        members.wait_alike()
        for node in members.nodes:
            with members.member(node) as member:
                read = member.get_database("test", read_preference=pymongo.ReadPreference.SECONDARY_PREFERRED)
                assert read.command("validate", "c", full=True)["valid"]
                assert {index["name"] for index in read.c.list_indexes()} == {"_id_", "a_1", "u_1"}


def test_a_secondary_without_room_ends_a_build():
    with ReplicaSet(3, STEADY) as members:
        with members.client(w=3) as client:
            fill(client)
            with members.member(members.nodes[1]) as secondary:
                secondary.admin.command({"setParameter": 1, "indexBuildMinAvailableDiskSpaceMB": 8 * 1024 * 1024})
            with pytest.raises(OperationFailure) as ended:
                client.test.c.create_index("a")
            assert ended.value.code == 276 and "available disk space of" in str(ended.value)
            with members.member(members.nodes[1]) as secondary:
                secondary.admin.command({"setParameter": 1, "indexBuildMinAvailableDiskSpaceMB": 1})
            client.test.c.create_index("a")
