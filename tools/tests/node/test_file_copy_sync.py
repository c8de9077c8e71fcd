"""A new member copies the files of its source, while that is written to, and whatever dies
meanwhile."""

import pymongo
import pytest
from bson import Int64
from pinion_node import PATIENCE_MS, STEADY, TEST_COMMANDS, FailPoint, Node, ReplicaSet, wait_until
from test_initial_sync import Writers, add, alike, fill, watched
from test_key_file import key_file

PARTITIONS = ("--partitions", "3")
BY_FILES = ("--setParameter", "initialSyncMethod=fileCopyBased")
COPIER = ("--replSet", "rs0", "--cpus", "2", *BY_FILES)


def says(node, words):
    return any(words in line for line in node.log)


def taken_over(node):
    return says(node, "Copied files are taken over")


def attempts(node):
    return sum("Starting initial sync attempt" in line for line in node.log)


def is_secondary(members, node):
    return members.state(node) == 2


def check_own_data(members, node):
    """What is not replicated is each member's own."""
    with members.member(members.nodes[0]) as source, members.member(node) as copier:
        assert source["local"].mine.find_one() == {"_id": "the source's"}
        assert "mine" not in copier["local"].list_collection_names()
        assert "system.profile" in source.test.list_collection_names()
        assert "system.profile" not in copier.test.list_collection_names()
        # The source has voted for itself; the copier, which has no vote, for no member.
        assert source["local"]["replset.election"].find_one()["candidateIndex"] == 0
        assert copier["local"]["replset.election"].find_one() is None
        config = [client["local"]["system.replset"].find_one() for client in (source, copier)]
        assert config[0] == config[1], config


def test_a_member_that_copies_files_while_clients_write():
    with ReplicaSet(1, options=PARTITIONS) as members:
        with members.client() as client:
            fill(client.test)
            client["local"].mine.insert_one({"_id": "the source's"})
            client.test.command("profile", 2)
            client.test.documents.find_one({"n": 3})
            client.test.command("profile", 0)
            with client.start_session() as session:
                client.test.retried.insert_one({"_id": 1}, session=session)
                lsid = session.session_id
        with Node(*COPIER, *PARTITIONS) as node:
            with Writers(members):
                add(members, node)
                reported = watched(members, node)
            assert taken_over(node) and not says(node, "Files cannot be copied"), "".join(node.log)
            assert attempts(node) == 1
            by_files = [status for status in reported if status["method"] == "fileCopyBased"]
            for status in by_files:
                assert status["failedInitialSyncAttempts"] == 0 and "databases" not in status, status
                assert status["approxTotalDataSize"] > 0 and status["approxTotalBytesCopied"] >= 0, status
            alike(members)
            check_own_data(members, node)
            with members.member(node) as client:
                assert "initialSyncStatus" not in client.admin.command("replSetGetStatus")
                assert client.config.transactions.count_documents({"_id.id": lsid["id"]}) == 1
                assert client["local"]["oplog.rs"].find_one() is not None
            # It continues as any other, and has its data after a restart, and after a crash.
            for end in (node.stop, node.kill):
                with members.client(w=2, wtimeoutMS=PATIENCE_MS) as client:
                    client.test.documents.insert_one({"u": f"{end}"})
                end()
                node.start()
                wait_until(lambda: is_secondary(members, node))
                assert not attempts(node)
                alike(members)
            members.nodes.pop()


def test_a_member_that_copied_files_becomes_primary():
    """It has its history, so it can lead, and others can copy it in turn."""
    with ReplicaSet(1, STEADY, PARTITIONS) as members:
        with members.client() as client:
            fill(client.test)
        second = members.add(*PARTITIONS, *BY_FILES)
        third = None
        try:
            wait_until(lambda: is_secondary(members, second))
            assert taken_over(second)
            wait_until(lambda: members.steps_up(second))
            with members.client(w=2, wtimeoutMS=PATIENCE_MS) as client:
                client.test.documents.insert_one({"u": "by the second"})
                client.test.documents.create_index("later")
            third = members.add(*PARTITIONS, *BY_FILES)
            wait_until(lambda: is_secondary(members, third))
            assert taken_over(third)
            alike(members)
        finally:
            for node in members.nodes[1:]:
                node.__exit__()


@pytest.mark.parametrize("words", ["Starting initial sync attempt", "Finished copying files", "Copied files are taken over"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_copier_that_dies_starts_again(words, end):
    with ReplicaSet(1, options=PARTITIONS) as members:
        with members.client() as client:
            fill(client.test)
        with Node(*COPIER, *PARTITIONS) as node:
            with Writers(members):
                add(members, node)
                wait_until(lambda: says(node, words))
                if end == "stopped":
                    assert node.stop() == 0
                else:
                    node.kill()
                node.start()
                wait_until(lambda: is_secondary(members, node))
            alike(members)
            # Of files that were not completed nothing is left.
            node.stop()
            pages = sorted(path.name for path in (node.directory / "data").glob("partition-*/pages*"))
            assert len(pages) == 3 and len(set(pages)) == 1, pages
            node.start()
            wait_until(lambda: is_secondary(members, node))
            members.nodes.pop()


def test_a_source_that_dies_is_copied_again():
    with ReplicaSet(1, options=(*PARTITIONS, *TEST_COMMANDS)) as members:
        source = members.nodes[0]
        with members.client() as client:
            fill(client.test)
            client.test.large.insert_many([{"_id": i, "w": "x" * 100_000} for i in range(200)])
        with Node(*COPIER, *PARTITIONS) as node:
            with members.member(source) as client:
                # The first reads are answered, and those behind them are not.
                reads = FailPoint(client, "failCommand", {"skip": 2}, failCommands=["_replReadCheckpoint"], failInternalCommands=True,
                                  blockConnection=True, blockTimeMS=PATIENCE_MS)
                add(members, node)
                reads.wait()
            assert not taken_over(node)
            source.kill()
            source.start()
            wait_until(lambda: is_secondary(members, node))
            assert attempts(node) > 1
            members.primary()
            alike(members)
            members.nodes.pop()


def test_connections_that_are_cut():
    """Reading continues where it was, within the attempt."""
    with ReplicaSet(1, options=(*PARTITIONS, *TEST_COMMANDS)) as members:
        with members.client() as client:
            fill(client.test)
            client.test.large.insert_many([{"_id": i, "w": "x" * 100_000} for i in range(200)])
            FailPoint(client, "failCommand", {"times": 6}, failCommands=["_replReadCheckpoint"], failInternalCommands=True, closeConnection=True)
        with Node(*COPIER, *PARTITIONS) as node:
            with Writers(members):
                add(members, node)
                wait_until(lambda: is_secondary(members, node))
            assert attempts(node) == 1 and taken_over(node), "".join(node.log)
            alike(members)
            members.nodes.pop()


def test_a_source_with_other_partitions_is_copied_by_documents():
    with ReplicaSet(1, options=PARTITIONS) as members:
        with members.client() as client:
            fill(client.test)
        with Node(*COPIER, "--partitions", "2") as node:
            with Writers(members):
                add(members, node)
                reported = watched(members, node)
            why = [line for line in node.log if "Files cannot be copied" in line]
            assert len(why) == 1 and "the source has 3 partitions, and this node 2" in why[0], why
            assert {status["method"] for status in reported if "initialSyncOplogStart" in status} <= {"logical"}
            assert attempts(node) == 1 and not taken_over(node)
            alike(members)
            members.nodes.pop()


def test_a_source_that_does_not_know_the_command_is_copied_by_documents():
    with ReplicaSet(1, options=(*PARTITIONS, *TEST_COMMANDS)) as members:
        with members.client() as client:
            fill(client.test)
            FailPoint(client, "failCommand", failCommands=["_replFreezeCheckpoint"], failInternalCommands=True, errorCode=59)
        with Node(*COPIER, *PARTITIONS) as node:
            add(members, node)
            wait_until(lambda: is_secondary(members, node))
            assert says(node, "Files cannot be copied") and not taken_over(node)
            alike(members)
            members.nodes.pop()


def test_strangers_get_no_files(tmp_path):
    key = ("--keyFile", key_file(tmp_path / "key", "somekey" * 20))
    with ReplicaSet(1, options=(*PARTITIONS, *key)) as members:
        with members.client() as client:
            fill(client.test)
            for command in (
                {"_replFreezeCheckpoint": 1, "copier": "x"},
                {"_replReadCheckpoint": 1, "number": 1, "partition": 0},
                {"_replReleaseCheckpoint": 1, "number": 1},
            ):
                with pytest.raises(pymongo.errors.OperationFailure) as caught:
                    client.admin.command(command)
                assert caught.value.code == 13, caught.value.details
        with Node(*COPIER, *PARTITIONS, *key) as node:
            add(members, node)
            wait_until(lambda: is_secondary(members, node))
            assert taken_over(node)
            alike(members)
            members.nodes.pop()


def test_commands_of_copiers():
    """Without a key file every client is accepted; wrong requests are refused."""
    with ReplicaSet(1, options=PARTITIONS) as members, members.client() as client:
        fill(client.test)
        admin = client.admin

        def refused(code, command):
            with pytest.raises(pymongo.errors.OperationFailure) as caught:
                admin.command(command)
            assert caught.value.code == code, caught.value.details

        refused(40414, {"_replFreezeCheckpoint": 1})
        refused(2, {"_replFreezeCheckpoint": 1, "copier": "x" * 1000})
        frozen = admin.command({"_replFreezeCheckpoint": 1, "copier": "x"})
        assert frozen["base"] == frozen["logFrom"] and frozen["bytes"] > 0
        ask = {"_replReadCheckpoint": 1, "number": frozen["number"]}
        admin.command(ask)
        copied, offset = 0, 0
        for partition in range(3):
            offset = 0
            while True:
                read = admin.command({**ask, "partition": partition, "offset": Int64(offset)})
                if not read["data"]:
                    break
                assert read["offset"] >= offset and len(read["data"]) % 4096 == 0
                copied += len(read["data"])
                offset = read["offset"] + len(read["data"])
        assert copied >= frozen["bytes"]
        refused(2, {**ask, "partition": 3})
        refused(2, {**ask, "partition": -1})
        refused(2, {**ask, "partition": 0, "offset": Int64(-1)})
        refused(43, {**ask, "number": Int64(frozen["number"] + 1)})
        admin.command({"_replReleaseCheckpoint": 1, "number": frozen["number"]})
        refused(43, ask)
